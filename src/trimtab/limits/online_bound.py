"""How much of the hindsight limit is luck: what no schedule that decides as it goes could reach.

Hindsight knows the noise that is still to come. To price that knowledge, each sample's future is paid for: at every
step it is charged the difference between the cost to go that its own noise leads to and the mean over many fresh draws
of that step's noise. A schedule that does not know the noise is charged nothing on average, whatever it does;
hindsight, which would profit from good luck, has to give the profit back. The cheapest schedule in hindsight under
these charges is therefore, on average, no dearer than the best possible online schedule, and as dear if the cost to
go is exact. (This is the dual bound of information relaxation.)

The one approximation is that of `hindsight`: what follows a correction is taken from a rollout whose earlier
corrections were those of a given mask.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trimtab.core.checks import float_tensor, whole_tensor
from trimtab.core.constraint import Constraint, checked_constraint
from trimtab.core.errors import of_type, whole_number
from trimtab.core.noise import Draw, Noise, as_seeds
from trimtab.core.rollout import Sampler, check_sampler, rollout, take_rows
from trimtab.limits.hindsight import branches
from trimtab.prices.dynamic import CostToGo
from trimtab.prices.transitions import occupancy
from trimtab.schedules import Fixed

__all__ = ["Resampled", "fresh_seeds", "mean_cost", "online_limit"]

COUNTING: dict[str, Any] = {"closing": "free", "measure_defects": True}
"""Limits are about the paper's problem: the closing projection is apart from the budget."""

_FRESH = 1 << 40  # seeds nobody else uses


@dataclass(frozen=True, eq=False)
class Resampled(Noise):
    """Fresh noise for steps, and each sample's own for what it drew before the first step (start, burst times).

    Attributes:
        own: The samples' own seeds, (n,).
    """

    own: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))

    def __post_init__(self) -> None:
        """Refuse seeds that are not paired."""
        whole_tensor(self.seeds, "seeds", ("n",))
        whole_tensor(self.own, "own, the samples' own seeds,", (len(self.seeds),))

    def _draw(self, draw: Draw, t: int, event: tuple[int, ...], stream: int) -> Tensor:
        if t < 0:
            return draw(self.own, range(t, t + 1), event, stream).to(self.dtype)[0]
        return draw(self.seeds, range(t, t + 1), event, stream).to(self.dtype)[0]


def online_limit(
    sampler: Sampler, constraint: Constraint, seeds: Tensor, mask: Tensor, cost: CostToGo, copies: int = 32
) -> Tensor:
    """The path error of each sample's cheapest schedule in hindsight when luck is paid for, (n,).

    Its mean is a lower limit to the mean path error of any schedule that decides as it goes and spends at most the
    mask's budget, even of one that knows the sampler, the whole state and what was drawn before the first step. Fewer
    copies, or a poor cost to go, make it lower than it need be, never higher.

    Args:
        sampler: For these seeds.
        constraint: For these seeds.
        seeds: (n,).
        mask: Whose corrections come before the one considered, (T, n) bool, the same number for every sample.
        cost: From calibration rollouts, for at least that budget.
        copies: Fresh draws of each step's noise.
    """
    check_sampler(sampler)
    checked_constraint(constraint)
    of_type(cost, CostToGo, "cost", "trimtab.prices.dynamic.solve makes one")
    whole_number(copies, "copies")
    seeds = as_seeds(seeds)
    T, n = sampler.n_steps, len(seeds)
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or tuple(mask.shape) != (T, n):
        raise ValueError(f"mask says where samples are corrected, ({T}, {n}) bool: got {mask!r:.60}")
    if len(cost.cost) != T:
        raise ValueError(
            f"cost is the cost to go of all T = {T} steps: got {len(cost.cost)} of them; make it of the same sampler, "
            "with closing='free' and keep_cost=True"
        )
    B = int(mask[:, 0].sum())
    if bool((mask.sum(dim=0) != B).any()) or cost.cost.shape[1] <= B:
        raise ValueError(
            "mask has the same number of corrections for each sample, at most the "
            f"{cost.cost.shape[1] - 1} of the cost: got {mask.sum(dim=0).tolist()[:8]}"
        )
    rows, masks = branches(mask)
    run = rollout(
        take_rows(sampler, rows), constraint.take(rows), Fixed(masks), seeds[rows], keep_states=True, **COUNTING
    )
    assert run.states is not None
    states = run.states.reshape(
        T + 1, n, T + 1, *run.states.shape[2:]
    )  # (T + 1, n, T + 1, *event), of which row u + 1 is after step u
    residuals = run.residuals.double().reshape(T, n, T + 1)
    defects = run.defects.double().reshape(T, n, T + 1)

    def charge(t: int, last: slice) -> Tensor:
        """For the luck of step t, by sample, last correction (row 0: none) and corrections left, (n, v, B + 1)."""
        before = states[t][:, last]
        n, v = before.shape[:2]
        who = torch.arange(n).repeat_interleave(v * copies)
        draws = torch.arange(copies).repeat(n * v)
        noise = Resampled(fresh_seeds(seeds[who], t, T, draws, copies), own=seeds[who], dtype=before.dtype)
        x = take_rows(sampler, who).step(before.flatten(0, 1).repeat_interleave(copies, dim=0), t, noise)
        fresh = constraint.take(who).defect(x).double().reshape(n * v, copies)
        own = defects[t][:, last].reshape(n * v, 1).contiguous()
        return (mean_cost(cost, t, B, own) - mean_cost(cost, t, B, fresh)).reshape(n, v, B + 1)

    paid = torch.full((n, T + 1, B + 1), torch.inf, dtype=torch.float64)
    paid[:, :1, B:] = -charge(0, slice(0, 1))[..., B:]
    for t in range(T):
        reached = slice(0, t + 1)  # last corrected after step v < t, which is row v + 1
        corrected = paid[:, reached, 1:].amin(dim=1) + residuals[t, :, t + 1, None]
        paid[:, reached] += residuals[t][:, reached, None]
        paid[:, t + 1, :-1] = corrected
        if t < T - 1:
            paid[:, : t + 2] -= charge(t + 1, slice(0, t + 2))
    return paid.flatten(1).amin(dim=1)


def fresh_seeds(own: Tensor, t: int, n_steps: int, draws: Tensor, copies: int) -> Tensor:
    """Seeds for draws number 0 to `copies` - 1 of the noise of a step, (m,), each a function of its sample's own."""
    whole_number(n_steps, "n_steps")
    whole_number(t, "t, a step,", 0, n_steps - 1)
    whole_number(copies, "copies")
    whole_tensor(own, "own", ("m",))
    whole_tensor(draws, "draws", tuple(own.shape))
    if len(draws) and not 0 <= int(draws.min()) <= int(draws.max()) < copies:
        raise ValueError(f"draws are numbered from 0 to copies - 1 = {copies - 1}: got {draws.tolist()[:8]}")
    return _FRESH + (own * n_steps + t) * copies + draws


def mean_cost(cost: CostToGo, t: int, budget: int, defects: Tensor) -> Tensor:
    """The mean cost to go from step t over each row of defects (m, c), for all budgets, (m, B + 1)."""
    of_type(cost, CostToGo, "cost", "trimtab.prices.dynamic.solve makes one")
    whole_number(t, "t, a step,", 0, len(cost.cost) - 1)
    whole_number(budget, "budget", 0, cost.cost.shape[1] - 1)
    float_tensor(defects, "defects", ("m", "c"))
    return occupancy(cost.nodes[t], defects.double()) @ cost.cost[t, : budget + 1].T
