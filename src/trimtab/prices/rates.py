"""A rate of corrections in a loop without a known end.

Corrections come in at a rate and may be saved up to a burst (see `Stream`). `calibrate_rate` solves the program for the
mean residual per step, over the defect and the tokens saved up.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from trimtab.core.checks import check_integer, check_number
from trimtab.core.record import Rollout
from trimtab.core.repeatable import recorded
from trimtab.core.schedule import Schedule
from trimtab.core.view import StepView
from trimtab.prices.collect import Explore, spread_budgets
from trimtab.prices.price import load_value, save_value
from trimtab.prices.transitions import Array, interpolation_weights, neighbours, quantile_nodes
from trimtab.schedules.basic import MOST_STEPS

_ROUNDS = 4000
_CLOSE = 1e-5  # of a usual defect: when values have settled
_MOST_LEVELS = 10_000  # of tokens: the program keeps matrices of their square


@dataclass(frozen=True, eq=False)
class StationaryPrice(Schedule):
    """Project where the defect reaches what a token is worth, given how many are saved up.

    Attributes:
        rate: Corrections per step that it was made for.
        burst: The largest number of tokens.
        levels: Of tokens, ascending from 0 to `burst`, (k,).
        prices: At those levels, (k,); inf below one token.
    """

    rate: float
    burst: float
    levels: Tensor
    prices: Tensor

    def __repr__(self) -> str:
        """Return a one-line summary."""
        return f"StationaryPrice(rate={self.rate:g}, burst={self.burst:g}, {len(self.levels)} levels)"

    def decide(self, view: StepView) -> Tensor:
        """Return where the defect is at least the price at the sample's tokens, (n,) bool."""
        if "tokens" not in view.context:
            raise ValueError("a stationary price is for trimtab.core.stream.Stream; for a run of T steps use calibrate")
        level = torch.searchsorted(self.levels, view.context["tokens"] + 1e-9, right=True) - 1
        return view.defect >= self.prices[level.clamp(min=0)]

    def to(self, device: torch.device) -> StationaryPrice:
        """Return the same price on `device`."""
        return replace(self, levels=self.levels.to(device), prices=self.prices.to(device))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file."""
        save_value(path, self)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> StationaryPrice:
        """Read what `save` wrote."""
        return load_value(path, cls)


def calibrate_rate(
    run: Callable[[Schedule], Rollout], n_steps: int, rate: float, burst: float = 1.0, *, batches: int = 2
) -> StationaryPrice:
    """Find a stationary price from trial runs of the loop.

    Args:
        run: `run(schedule)` makes `n_steps` steps of the loop with a `Corrector` and returns its `rollout`.
        n_steps: Long enough that the loop forgets its start.
        rate: Corrections per step in the long run, at least a 10,000th of `burst`.
        burst: How many may be saved up.
        batches: How often `run` is called, each time with other random corrections.

    Example:
        >>> import torch, trimtab as tt
        >>> ball = tt.as_constraint(lambda x: x.clamp(-1, 1), lambda x: (x.abs() - 1).clamp(min=0).amax(dim=1))
        >>> def run(schedule):
        ...     generator, x = torch.Generator().manual_seed(0), torch.zeros(64, 1)
        ...     corrector = tt.Corrector(ball, schedule, 200, closing="free")
        ...     for t in range(200):
        ...         x = corrector(x + 0.3 * torch.randn(64, 1, generator=generator), t)
        ...     return corrector.rollout
        >>> price = calibrate_rate(run, 200, rate=0.1, burst=2)
        >>> bool(price.prices[-1] < price.prices[price.levels >= 1][0])  # cheaper with a full bucket
        True
    """
    check_integer(n_steps, "n_steps", most=MOST_STEPS)
    check_integer(batches, "batches")
    if not (0 < check_number(rate, "rate") <= 1 and 1 <= check_number(burst, "burst") < math.inf):
        raise ValueError(f"rate must be in (0, 1] and burst at least 1: got {rate} and {burst}")
    if burst / rate > _MOST_LEVELS:
        raise ValueError(
            f"a bucket of {burst:g} fills at a rate of {rate:g} in {burst / rate:.3g} steps, each with its own price, "
            f"and at most {_MOST_LEVELS:,} prices are solved for: give a burst of at most {_MOST_LEVELS:,} times the "
            "rate, or count several updates as one step"
        )

    checked = recorded(run)

    def trial(schedule: Schedule) -> Rollout:
        record = checked(schedule)
        if record.n_steps != n_steps:
            raise ValueError(f"run must make n_steps = {n_steps} steps: the record it returned has {record.n_steps}")
        return record

    records = [trial(Explore(max(1, round(rate * n_steps))))]
    n = records[0].defects.shape[1]
    for seed in range(1, batches):
        budgets = spread_budgets(n, n_steps, rate, seed).clamp(min=1)  # one may pay for the closing
        records.append(trial(Explore(budgets, seed=seed)))
    return _stationary_price(records, float(rate), float(burst))


def _stationary_price(records: list[Rollout], rate: float, burst: float) -> StationaryPrice:
    """Iterate the relative values of the mean residual per step until they settle; return the break-even defects."""
    nodes, alone, corrected, residual = _one_step(records)
    levels = np.minimum(np.arange(math.ceil(burst / rate - 1e-9) + 1) * rate, burst)
    pays = levels >= 1 - 1e-9
    up, down = (_token_weights(levels, (levels + more).clip(0, burst)) for more in (rate, rate - 1))
    values = np.zeros((len(levels), len(nodes)))
    for _ in range(_ROUNDS):
        keep = nodes + (up @ values) @ alone.T
        spend = residual + ((down @ values) @ corrected)[:, None]
        change = np.where(pays[:, None], np.minimum(keep, spend), keep) - values
        values = values + 0.5 * (change - change.mean())  # half a step: buckets that fill in a rhythm would oscillate
        if np.ptp(change) < _CLOSE * max(float(nodes.mean()), 1e-300):
            break
    prices = np.full(len(levels), np.inf)
    for level in np.flatnonzero(pays):
        prices[level] = _last_root(nodes, (keep - spend)[level])
    return StationaryPrice(rate, burst, torch.from_numpy(levels), torch.from_numpy(prices))


def _one_step(records: list[Rollout]) -> tuple[Array, Array, Array, float]:
    """Return nodes (k,), the next defect of a sample left alone (k, k) and corrected (k,), and the mean residual."""
    defects, residuals, projected = (
        torch.cat([getattr(r, name) for r in records], dim=1).cpu().numpy()
        for name in ("defects", "residuals", "projected")
    )
    defects, residuals = defects.astype(np.float64), residuals.astype(np.float64)
    now, after, chosen = defects[:-1].ravel(), defects[1:].ravel(), projected[:-1].ravel()
    if not chosen.any() or chosen.all():
        raise ValueError(
            f"the runs show only one of the two actions ({chosen.sum()} of {len(chosen)} corrected); give more samples "
            "or steps"
        )
    nodes = quantile_nodes(np.sort(now))
    order = now[~chosen].argsort(kind="stable")
    s, following = now[~chosen][order], after[~chosen][order]
    first, count = neighbours(s, nodes, 256)
    alone = interpolation_weights(nodes, following[first[:, None] + np.arange(count)])
    corrected = interpolation_weights(nodes, after[chosen][None])[0]
    return nodes, alone, corrected, float(residuals[:-1].ravel()[chosen].mean())


def _token_weights(levels: Array, at: Array) -> Array:
    """Return weights of the levels (k,) that read values off at other levels (m,), (m, k)."""
    return np.ones((len(at), 1)) if len(levels) == 1 else interpolation_weights(levels, at[:, None])


def _last_root(nodes: Array, advantage: Array) -> float:
    """Return the defect above which spending always pays; the largest node if it does not even there."""
    worse = np.flatnonzero(advantage <= 0)
    if len(worse) == 0:
        return 0.0
    i = int(worse[-1])
    if i == len(nodes) - 1:
        return float(nodes[-1])
    share = -advantage[i] / (advantage[i + 1] - advantage[i])
    return float(nodes[i] + share * (nodes[i + 1] - nodes[i]))
