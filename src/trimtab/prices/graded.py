"""The price of one iteration: the dynamic program for corrections that are bought in parts.

A solver that iterates need not go all the way. With b iterations left and a defect s at step t, a sample may go on as
it is, with a residual r = s, or buy one iteration more, after which its defect is r1(s) and the question is the same:

    U[t, b](r) = r + E[ V[t+1, b](s') | r ],     V[t, b](s) = min( U[t, b](s),  E[ V[t, b-1](r1(s)) ] )

and lambda[t, b] is the defect from which on one more iteration pays. A whole projection is the case where r1 is 0. What
follows a residual, and what an iteration makes of a defect, is estimated from rollouts that stop at random places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from trimtab.core.budget import Budget
from trimtab.core.errors import of_type, whole_number
from trimtab.core.moment import Moment
from trimtab.core.noise import uniform_numbers
from trimtab.core.record import Rollout
from trimtab.core.schedule import Schedule
from trimtab.prices.batches import Batches
from trimtab.prices.dynamic import break_even
from trimtab.prices.pools import Array, Pooled
from trimtab.prices.thresholds import Thresholds, with_closing
from trimtab.prices.transitions import NODES, occupancy, transported

__all__ = ["IterationSteps", "graded_prices", "iteration_steps", "solve_graded"]

_COINS = 1 << 34  # a stream of noise of its own
_TOSSES = 64  # within a step
_RANDOM_ROUNDS = 3
_NEAR_POLICY_ROUNDS = 2
_SHARE = 0.15  # of decisions made at random while staying near the policy
_ENOUGH_FOR = 0.9
_POOL = 6000  # pairs from as few steps as have so many


@dataclass(frozen=True, eq=False)
class ExploreIterations(Schedule):
    """Buy iterations at random, spread evenly over the steps to go; near a table, only a share of the time.

    Attributes:
        budget: For each sample, (n,).
        thresholds: The table to stay near.
        share: Of decisions made at random.
        seed: Of the random decisions.
        held: What is kept back for the closing projection.
    """

    budget: Budget
    thresholds: Thresholds | None = None
    share: float = 1.0
    seed: int = 0
    held: int = 1

    @property
    def unit(self) -> str:
        """Iterations."""
        return "iteration"

    @property
    def repeats(self) -> bool:
        """Asked after each."""
        return True

    @property
    def kept_back(self) -> int:
        """As calibration has found."""
        return self.held

    def decide(self, now: Moment) -> Tensor:
        """Stop or go on with the odds that spend what is left by the last step."""
        seeds = now.seeds if now.seeds is not None else torch.arange(len(now), device=now.defect.device)
        tosses = uniform_numbers(seeds, range(now.t, now.t + 1), (2 * _TOSSES,), _COINS + self.seed)[0]
        place = (now.spent % _TOSSES)[:, None]
        coin, choice = tosses[:, :_TOSSES].gather(1, place)[:, 0], tosses[:, _TOSSES:].gather(1, place)[:, 0]
        wanted = now.spendable.clamp(min=0) / max(now.steps_to_go, 1)  # iterations per step
        at_random = coin < wanted / (1 + wanted)
        if self.thresholds is None:
            return at_random
        s, b = now.arrays(self)
        by_price = torch.as_tensor(s >= self.thresholds.price(now, b.clip(max=self.thresholds.budget)))
        return torch.where(choice < self.share, at_random, by_price)

    def to(self, device: torch.device) -> ExploreIterations:
        """The same schedule on `device`."""
        budget = self.budget.to(device) if isinstance(self.budget, Tensor) else self.budget
        return replace(self, budget=budget, thresholds=self.thresholds and self.thresholds.to(device))


@dataclass(frozen=True, eq=False)
class IterationSteps:
    """What an iteration and what a step do to a defect, k nodes per step.

    Attributes:
        nodes: Defect levels, rising, (T, k).
        improved: The defect after one more iteration at each node, as weights of the nodes of the same step, (T, k, k).
        following: The next step's defect after a residual at each node, as weights of its nodes, (T - 1, k, k).
        start: The first defect, as weights of the first step's nodes, (k,).
    """

    nodes: Tensor
    improved: Tensor
    following: Tensor
    start: Tensor


def iteration_steps(runs: Sequence[Rollout]) -> IterationSteps:
    """Estimate both from rollouts that stopped at random places.

    Args:
        runs: Records of the same T. Where iterations were not counted, a projection is one.
    """
    records = list(runs) if isinstance(runs, list | tuple) else []
    if not records or not all(isinstance(run, Rollout) for run in records):
        raise TypeError(f"iteration_steps takes records of rollouts, at least one, in a list: got {runs!r:.80}")
    if len({part.shape[0] for run in records for part in (run.defects, run.residuals)}) > 1:
        raise ValueError("iteration_steps takes records of the same number of steps: got several numbers")
    defects = torch.cat([run.defects for run in runs], dim=1).cpu().double()
    residuals = torch.cat([run.residuals for run in runs], dim=1).cpu().double()
    T, n = defects.shape
    scale = max(float(defects.mean()), 1e-300)
    defects, residuals = defects / scale, residuals / scale
    pairs = [tuple(part / scale for part in _iterated(runs, t)) for t in range(T)]
    width = min(max(5, T // 10), -(-_POOL // (2 * n)))
    ranks = (torch.linspace(0, torch.pi / 2, NODES, dtype=torch.float64)).sin() ** 2
    nodes, improved = [], []
    for t in range(T):
        near = slice(max(0, t - width), t + width + 1)
        before, after = (torch.cat([pair[k] for pair in pairs[near]]) for k in (0, 1))
        if len(before) < NODES:
            raise ValueError(
                f"around step {t} of {T} the calibration rollouts show only {len(before)} iterations; calibrate with "
                "more seeds or a larger budget"
            )
        seen = torch.cat([defects[near].flatten(), after]).sort().values
        level = seen[(ranks * (len(seen) - 1)).round().long()]
        nodes.append(level + torch.arange(NODES) * 1e-12)  # ties apart
        improved.append(occupancy(nodes[t], _moved(before, after, nodes[t])))
    following = []
    for t in range(T - 1):
        near = slice(max(0, t - width), min(T - 1, t + width + 1))
        ahead = slice(near.start + 1, near.stop + 1)
        following.append(occupancy(nodes[t + 1], _moved(residuals[near].flatten(), defects[ahead].flatten(), nodes[t])))
    start = occupancy(nodes[0], defects[:1])[0]
    none = torch.empty(0, NODES, NODES, dtype=torch.float64)
    levels = scale * torch.stack(nodes)
    return IterationSteps(levels, torch.stack(improved), torch.stack(following) if T > 1 else none, start)


def _moved(x: Tensor, y: Tensor, nodes: Tensor) -> Tensor:
    """What y is for an x at each node, (k, m)."""
    order = x.argsort()
    here, there = x[order].numpy(), y[order].numpy()
    return torch.from_numpy(transported(Pooled(here, here, there), nodes.numpy()))


def _iterated(runs: Sequence[Rollout], t: int) -> tuple[Tensor, Tensor]:
    """The defects before and after every iteration of step t, (m,) each."""
    before, after = [], []
    for run in runs:
        passes = run.defects[:0] if run.passes is None else run.passes.defects[run.passes.step == t]
        seen = torch.cat([run.defects[t][None], passes]).cpu().double()
        times = run.iterations[t] if run.unit == "iteration" else run.projected[t].int()  # a projection is one
        times, left = times.cpu(), run.residuals[t].cpu().double()
        for k in range(1, int(times.max()) + 1):
            rows = times >= k
            before.append(seen[k - 1, rows])
            last = times == k
            after.append(torch.where(last, left, seen[k] if k < len(seen) else left)[rows])
    none = torch.empty(0, dtype=torch.float64)
    return torch.cat(before) if before else none, torch.cat(after) if after else none


def solve_graded(steps: IterationSteps, budget: int, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Solve backward for the prices of one iteration.

    Args:
        steps: See `iteration_steps`.
        budget: The largest number of iterations, B.
        weights: What a unit of residual costs at each step, (T,); 1 for path error.

    Returns:
        lambda, (T, B + 1), and the expected objective of a whole rollout with b iterations, (B + 1,).
    """
    of_type(steps, IterationSteps, "what solve_graded solves", "iteration_steps(records) makes it")
    T, B = len(steps.nodes), whole_number(budget, "the budget of solve_graded", 0)
    if weights is not None:
        usable = isinstance(weights, Tensor) and weights.shape == (T,) and weights.is_floating_point()
        if not usable or not bool((weights.isfinite() & (weights >= 0)).all()):
            raise ValueError(f"weights are {T} finite floats of at least 0, one for each step: got {weights!r:.80}")
    nodes, improved, following = (part.numpy() for part in (steps.nodes, steps.improved, steps.following))
    unit = np.ones(T) if weights is None else weights.double().numpy()
    table = np.full((T, B + 1), np.inf)
    value: Array = np.zeros((B + 1, NODES))
    sums = np.empty((NODES, 1))
    for t in reversed(range(T)):
        stay = np.broadcast_to(unit[t] * nodes[t], (B + 1, NODES)).copy()
        if t < T - 1:
            stay += value @ following[t].T
        value = stay.copy()
        for b in range(1, B + 1):
            go = improved[t] @ value[b - 1]
            table[t, b] = break_even(nodes[t], (stay[b] - go)[:, None], sums)[0]
            value[b] = np.where(nodes[t] >= table[t, b], go, stay[b])
    return torch.from_numpy(table), torch.from_numpy(value) @ steps.start


def _for_closing(run: Rollout) -> int:
    """What to keep back for a closing projection: enough for nine samples of ten; the others spend more."""
    return max(1, round(float(run.iterations[-1].double().quantile(_ENOUGH_FOR))))


def graded_prices(batches: Batches) -> Thresholds:
    """Calibrate prices of one iteration for all budgets up to the batches' own."""
    held = _for_closing(batches.free) if batches.kept_back else 0
    if batches.budget <= held:
        raise ValueError(
            f"a budget of {batches.budget} iterations leaves nothing to choose: in the calibration rollouts the "
            f"closing projection alone took up to {held}; give more"
        )
    spendable = batches.budget - held
    runs: list[Rollout] = []
    thresholds: Thresholds | None = None
    for k in range(_RANDOM_ROUNDS + _NEAR_POLICY_ROUNDS):
        near = thresholds if k >= _RANDOM_ROUNDS else None
        order = uniform_numbers(torch.tensor([k]), range(1), (batches.n,), _COINS)[0, 0].argsort()
        budgets = ((order + 0.5) / batches.n * 1.5 * spendable).long() + max(held, 1)
        run = batches.run(ExploreIterations(budgets, near, 1.0 if near is None else _SHARE, k, max(held, 1)))
        if batches.kept_back:
            held = min(_for_closing(run), batches.budget - 1)
            spendable = batches.budget - held
        runs.append(batches.cut(run))
        if k >= _RANDOM_ROUNDS - 1:
            table, expected = solve_graded(iteration_steps(runs), spendable, batches.weights)
            thresholds = Thresholds(with_closing(table, held), unit="iteration", kept_back=max(held, 1))
    assert thresholds is not None
    notes = {"expected": [float(expected[0])] * held + expected.tolist()}
    return replace(thresholds, method="dp", **batches.facts(notes))
