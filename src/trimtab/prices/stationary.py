"""A stationary price: what a correction is worth in a loop with no known end, by how many are saved up.

Corrections come in at a rate and may be saved up to a burst (`trimtab.core.stream.Stream`). Projecting now is worth the
defect it removes, now and for as long as that would have lasted; saving the token is worth what it will remove later.
Which is more is the solution of a dynamic program for the mean residual per step, over the defect and the tokens.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from trimtab.core.checks import check_floats
from trimtab.core.checks import check_callable, check_integer, check_number, check_type
from trimtab.core.files import UNUSABLE, load_tensors, save_tensors
from trimtab.core.record import Rollout
from trimtab.core.schedule import Schedule
from trimtab.core.view import StepView
from trimtab.prices.explore import Explore, spread_budgets
from trimtab.prices.transitions import occupancy, quantile_nodes
from trimtab.schedules.basic import MOST_STEPS

__all__ = ["StationaryPrice", "calibrate_rate"]

_ROUNDS = 4000
_CLOSE = 1e-5  # of a usual defect: when values have settled
_MOST_LEVELS = 10_000  # of tokens: the program keeps matrices of their square, some gigabytes at that


@dataclass(frozen=True, eq=False)
class StationaryPrice(Schedule):
    """Project where the defect reaches what a token is worth, with so many saved up.

    Attributes:
        rate: Corrections per step it was made for.
        burst: The most that may be saved up.
        levels: Of tokens, rising from 0 to `burst`, (k,).
        prices: At those levels, (k,); inf below one token.
    """

    rate: float
    burst: float
    levels: Tensor
    prices: Tensor

    def __post_init__(self) -> None:
        """Refuse what no bucket of tokens could go by."""
        _check_bucket(self.rate, self.burst)
        levels = check_floats(self.levels, "the levels of tokens", ("k",))
        prices = check_floats(self.prices, "prices at levels of tokens", tuple(levels.shape), finite=False)
        if len(levels) == 0 or float(levels[0]) != 0 or bool((levels.diff() <= 0).any()):
            raise ValueError(f"the levels of tokens rise from 0: got {levels.tolist()[:8]}")
        if bool(prices.isnan().any()):
            raise ValueError("prices at levels of tokens must not be NaN; use inf for 'never'")

    def __repr__(self) -> str:
        """One line."""
        return f"StationaryPrice(rate={self.rate:g}, burst={self.burst:g}, {len(self.levels)} levels)"

    def decide(self, view: StepView) -> Tensor:
        """Where the defect is at least the price at the sample's tokens."""
        if "tokens" not in view.context:
            raise ValueError("a stationary price is for trimtab.core.stream.Stream; for a run of T steps use calibrate")
        level = torch.searchsorted(self.levels, view.context["tokens"] + 1e-9, right=True) - 1
        return view.defect >= self.prices[level.clamp(min=0)]

    def to(self, device: torch.device) -> StationaryPrice:
        """The same on `device`."""
        return replace(self, levels=self.levels.to(device), prices=self.prices.to(device))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file."""
        facts = {"rate": self.rate, "burst": self.burst}
        save_tensors(path, "stationary price", {"levels": self.levels, "prices": self.prices}, facts)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> StationaryPrice:
        """Read what `save` wrote; a truncated, foreign or inconsistent file is refused."""
        tensors, facts = load_tensors(path, "stationary price")
        try:
            return cls(float(facts["rate"]), float(facts["burst"]), tensors["levels"], tensors["prices"])
        except UNUSABLE as error:
            raise ValueError(f"{path}: not a usable stationary price: {error}") from error


def calibrate_rate(
    run: Callable[[Schedule], Rollout], n_steps: int, rate: float, burst: float = 1.0, *, batches: int = 2
) -> StationaryPrice:
    """Find a stationary price from a stretch of the loop that is tried out.

    Args:
        run: `run(schedule)` makes `n_steps` steps of the loop with a `Corrector` and returns its `rollout`.
        n_steps: Long enough that the loop forgets how it began.
        rate: Corrections per step in the long run, at least a 10,000th of `burst`.
        burst: How many may be saved up.
        batches: How often `run` is called, each time with other corrections at random.

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
    check_callable(run, "run", "run(schedule)")
    check_integer(n_steps, "n_steps", most=MOST_STEPS)
    check_integer(batches, "batches")
    _check_bucket(rate, burst)
    if burst / rate > _MOST_LEVELS:
        raise ValueError(
            f"a bucket of {burst:g} fills at a rate of {rate:g} in {burst / rate:.3g} steps, each with a price of its "
            f"own, and at most {_MOST_LEVELS:,} of them can be solved for: give a burst of at most {_MOST_LEVELS:,} "
            "times the rate, or count several updates as one step"
        )

    def stretch(schedule: Schedule) -> Rollout:
        record = check_type(run(schedule), Rollout, "what run returns", "run(schedule) returns corrector.rollout")
        if record.n_steps != n_steps:
            raise ValueError(f"run must make n_steps = {n_steps} steps: the record it returned has {record.n_steps}")
        return record.grouped()

    records = [stretch(Explore(max(1, round(rate * n_steps))))]
    n = records[0].defects.shape[1]
    for seed in range(1, batches):
        budgets = spread_budgets(n, n_steps, rate, seed).clamp(min=1)  # one may pay for the closing
        records.append(stretch(Explore(budgets, seed=seed)))
    return _solved(_Model.of(records), float(rate), float(burst))


def _check_bucket(rate: float, burst: float) -> None:
    if not (0 < check_number(rate, "rate") <= 1 and 1 <= check_number(burst, "burst") < math.inf):
        raise ValueError(f"rate is in (0, 1] and burst at least 1: got {rate} and {burst}")


@dataclass(frozen=True, eq=False)
class _Model:
    """One step of the loop: k levels of the defect, and the next one of a sample left alone or corrected."""

    nodes: Tensor  # (k,), rising
    alone: Tensor  # weights of the nodes, (k, k)
    corrected: Tensor  # (k,)
    residual: float  # what a correction leaves

    @classmethod
    def of(cls, records: list[Rollout]) -> _Model:
        defects = torch.cat([r.defects for r in records], dim=1).cpu().double()
        residuals = torch.cat([r.residuals for r in records], dim=1).cpu().double()
        projected = torch.cat([r.projected for r in records], dim=1).cpu()
        now, after, chosen = defects[:-1].flatten(), defects[1:].flatten(), projected[:-1].flatten()
        if not bool(chosen.any()) or bool(chosen.all()):
            raise ValueError(
                f"the runs show only one of the two actions ({int(chosen.sum())} of {len(chosen)} corrected); give "
                "more samples or steps"
            )
        # in the precision in which every price so far was made
        nodes = torch.from_numpy(quantile_nodes(now.sort().values.numpy(), np.float32))
        s, following = now[~chosen], after[~chosen]
        order = s.argsort()
        s, following = s[order], following[order]
        count = min(len(s), 256)  # neighbours, whose next defects stand for those of a node
        begin = (torch.searchsorted(s, nodes) - count // 2).clamp(0, len(s) - count)
        alone = occupancy(nodes, following.unfold(0, count, 1)[begin])
        corrected = occupancy(nodes, after[chosen][None])[0]
        return cls(nodes, alone, corrected, float(residuals[:-1].flatten()[chosen].mean()))


def _solved(model: _Model, rate: float, burst: float) -> StationaryPrice:
    """Relative values of the mean residual per step, until they settle; then the break-even defect at each level."""
    steps = math.ceil(burst / rate - 1e-9)
    levels = (torch.arange(steps + 1, dtype=torch.float64) * rate).clamp(max=burst)
    pays = levels >= 1 - 1e-9
    up = _mixing(levels, (levels + rate).clamp(max=burst))
    down = _mixing(levels, (levels - 1 + rate).clamp(0, burst))
    scale = max(float(model.nodes.mean()), 1e-300)
    values = torch.zeros(len(levels), len(model.nodes), dtype=torch.float64)
    for _ in range(_ROUNDS):
        keep = model.nodes + (up @ values) @ model.alone.T
        spend = model.residual + ((down @ values) @ model.corrected)[:, None]
        best = torch.where(pays[:, None], torch.minimum(keep, spend), keep)
        change = best - values
        values = values + 0.5 * (change - change.mean())  # half-way: buckets that fill in a rhythm would make it swing
        if float(change.max() - change.min()) < _CLOSE * scale:
            break
    advantage = keep - spend  # of spending, rising with the defect
    prices = torch.full((len(levels),), torch.inf, dtype=torch.float64)
    for level in pays.nonzero().flatten().tolist():
        prices[level] = _root(model.nodes, advantage[level])
    return StationaryPrice(rate, burst, levels, prices)


def _mixing(levels: Tensor, at: Tensor) -> Tensor:
    """Weights of the levels (k,) that read values off at other levels (m,), (m, k); a single level stands for all."""
    return torch.ones(len(at), 1, dtype=at.dtype) if len(levels) == 1 else occupancy(levels, at[:, None])


def _root(nodes: Tensor, advantage: Tensor) -> float:
    """The smallest defect from which on spending pays; the largest seen if it never does."""
    worse = (advantage <= 0).nonzero().flatten()
    if len(worse) == 0:
        return 0.0
    i = int(worse[-1])
    if i == len(nodes) - 1:
        return float(nodes[-1])
    share = float(-advantage[i] / (advantage[i + 1] - advantage[i]))
    return float(nodes[i] + share * (nodes[i + 1] - nodes[i]))
