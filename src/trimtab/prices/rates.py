"""Budgets of another kind: seconds of predicted solver time, and a rate of corrections in a loop without an end.

`price_seconds` learns what a projection takes from its defect and its step, and solves the program over the seconds
left. A correction is then made if its benefit is worth its seconds, which need not be where defects are largest.

In a loop without a known end, corrections come in at a rate and may be saved up to a burst (see `Stream`).
`calibrate_rate` solves the program for the mean residual per step, over the defect and the tokens saved up.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from trimtab.core.checks import check_callable, check_integer, check_number, check_positive, check_type
from trimtab.core.noise import uniform_numbers
from trimtab.core.record import Rollout
from trimtab.core.repeatable import as_record, recorded
from trimtab.core.runner import RunBatch
from trimtab.core.schedule import Schedule
from trimtab.core.view import StepView
from trimtab.prices.collect import RANDOM_SHARE, Explore, spread_budgets
from trimtab.prices.price import load_value, save_value
from trimtab.prices.program import solve
from trimtab.prices.sample_scale import SampleScale, fit_sample_scale
from trimtab.prices.transitions import Array, estimate_transitions, interpolation_weights, neighbours, quantile_nodes
from trimtab.schedules import Terminal
from trimtab.schedules.basic import MOST_STEPS

# ------------------------------------------------------------------ seconds

Cost = Callable[[Tensor, Tensor], Tensor]
"""Seconds of projecting a sample, given its step and its defect; the shapes are broadcast. `SolverCost` is one."""

_TICKS = 128  # parts into which the seconds left are divided
_RANDOM_BATCHES, _NEAR_BATCHES = 3, 2
_COINS = 1 << 36  # a stream of noise


@dataclass(frozen=True, eq=False)
class SolverCost:
    """Solver iterations as a smooth function of step and defect, times the seconds of one iteration.

    Attributes:
        coefficients: Of 1, log s, √s, s, u and u log s, with s the defect and u the step as a share of T, (6,).
        limits: Smallest and largest number of iterations seen; predictions stay between them.
        seconds_per_iteration: For one sample.
        n_steps: T.
    """

    coefficients: Tensor
    limits: tuple[float, float]
    seconds_per_iteration: float
    n_steps: int

    def __call__(self, steps: Tensor, defects: Tensor) -> Tensor:
        """Return the seconds of projecting a sample with this defect at this step; the shapes are broadcast."""
        terms = torch.stack(_terms(steps / self.n_steps, defects), dim=-1)
        return (terms @ self.coefficients.to(terms)).clamp(*self.limits) * self.seconds_per_iteration


def solver_cost(runs: Iterable[Rollout], seconds_per_iteration: float | None = None) -> SolverCost:
    """Learn what a projection takes from recorded runs.

    If the solver reports no iterations, every projection is assumed to last as long as the mean one.

    Args:
        runs: Runs of the same T in which samples with large and small defects were projected and defects measured, such
            as those of `RandomTimes(0.25)` with `measure_defects=True` on calibration seeds.
        seconds_per_iteration: For one sample; measured over the runs by default. Give it if the clock is unreliable, or
            to count in another unit.

    Example:
        >>> import trimtab as tt
        >>> problem = tt.domain("terrain").problem(range(8))
        >>> run = problem.rollout(tt.schedules.RandomTimes(0.25), measure_defects=True)
        >>> solver_cost([run], seconds_per_iteration=1.0).limits[0] >= 1.0
        True
    """
    runs = [as_record(run, "each of runs must be a record of a run") for run in runs]
    if len({run.n_steps for run in runs}) > 1:
        raise ValueError(f"runs have one number of steps: got {sorted({run.n_steps for run in runs})}")
    if seconds_per_iteration is not None:
        check_positive(seconds_per_iteration, "seconds_per_iteration")
    if not any(bool(run.projected.any()) for run in runs):
        raise ValueError("no projections to learn a cost from: give runs with some, such as RandomTimes(0.25)")
    T = runs[0].n_steps
    projected, counted, defects = (
        torch.cat([getattr(run, name) for run in runs], dim=1).cpu() for name in ("projected", "iterations", "defects")
    )
    counted, defects = counted[projected].double(), defects[projected].double()
    if bool(defects.isnan().any()):
        raise ValueError("the defects of some projections were not measured: run with measure_defects=True")
    if not bool(counted.any()):
        counted = torch.ones_like(counted)
    if seconds_per_iteration is None:
        seconds, rows = (sum(getattr(run, name)["projection"] for run in runs) for name in ("seconds", "rows"))
        seconds_per_iteration = seconds / rows / float(counted.mean())
    terms = torch.stack(_terms(projected.nonzero()[:, 0] / T, defects), dim=1)
    gram = terms.T @ terms
    coefficients = torch.linalg.solve(gram + 1e-6 * gram.diagonal().diag(), terms.T @ counted)
    return SolverCost(coefficients, (float(counted.min()), float(counted.max())), seconds_per_iteration, T)


def _terms(share: Tensor, defects: Tensor) -> list[Tensor]:
    s = defects.double().clamp(min=1e-12)
    share = share.double().expand_as(s)
    return [torch.ones_like(s), s.log(), s.sqrt(), s, share, share * s.log()]


def _seconds_of(cost: Cost, steps: Tensor, defects: Tensor) -> Tensor:
    """Return what a cost function gives, in the shape of the defects; raise if it is not usable."""
    seconds = cost(steps, defects)
    wanted = torch.broadcast_shapes(steps.shape, defects.shape)  # type: ignore[no-untyped-call]
    if not isinstance(seconds, Tensor) or seconds.shape != wanted or not bool((seconds >= 0).all()):
        got = f"shape {tuple(seconds.shape)}" if isinstance(seconds, Tensor) else type(seconds).__name__
        raise ValueError(
            f"cost(steps, defects) must give seconds of at least 0 in a tensor of shape {tuple(wanted)}: got {got}"
            + (" with NaN or less than 0 in it" if isinstance(seconds, Tensor) and seconds.shape == wanted else "")
        )
    return seconds


def price_seconds(run: RunBatch, n_steps: int, seconds: float, cost: Cost | None = None) -> TimedPrices:
    """Price corrections for all budgets of up to so many seconds per sample.

    Args:
        run: Runs a batch of calibration rollouts under a schedule, always with the same seeds, as in `calibrate`.
        n_steps: T.
        seconds: The largest budget wanted, for each sample.
        cost: What a projection takes; learned from the calibration rollouts by default.

    Example:
        >>> import trimtab as tt
        >>> problem = tt.domain("terrain").problem(range(100, 132))
        >>> run = lambda schedule: tt.rollout(problem.sampler, problem.constraint, schedule, range(100, 132))
        >>> prices = price_seconds(run, problem.sampler.n_steps, 40.0, cost=lambda steps, defects: 1 + 20 * defects)
        >>> tt.rollout(problem.sampler, problem.constraint, prices.at(30.0), range(4)).n_steps
        100
    """
    check_positive(seconds, "a budget of seconds")
    check_integer(n_steps, "n_steps")
    if cost is not None:
        check_callable(cost, "cost", "cost(steps, defects)")
    checked = recorded(run)
    first = checked(Terminal())
    seeds = () if first.seeds is None else tuple(first.seeds.tolist())  # of all rows of a group
    T, n = first.grouped().defects.shape
    if n_steps != T:
        raise ValueError(f"n_steps is the number of steps that run makes, {T}: got {n_steps}")
    # at least one each, since a closing projection may have to be paid from it
    spent = [spread_budgets(n, n_steps, 1.0, seed=k).clamp(min=1) for k in range(_RANDOM_BATCHES)]
    runs = [checked(Explore(budgets, seed=k)).grouped() for k, budgets in enumerate(spent)]
    cost = solver_cost(runs) if cost is None else cost
    for k in range(_NEAR_BATCHES):
        spread = seconds * (spread_budgets(n, 1000, 1.0, seed=k) + 1) / 1000
        runs.append(checked(_Near(_timed_prices(runs, seconds, cost).at(spread), seed=k)).grouped())
    return replace(_timed_prices(runs, seconds, cost), seeds=seeds)


def _timed_prices(runs: list[Rollout], seconds: float, cost: Cost) -> TimedPrices:
    """Solve the program over the seconds left, in units of each sample's scale if they differ."""
    sample_scale = fit_sample_scale(runs)
    steps = estimate_transitions(runs, sample_scale)
    nodes = steps.nodes * steps.scale[:, None]
    takes = torch.stack([_seconds_of(cost, torch.full_like(some, t), some) for t, some in enumerate(nodes)])
    gain = solve(steps, _TICKS, costs=takes.double() * _TICKS / seconds).gain
    assert gain is not None
    return TimedPrices(nodes, gain, seconds, cost, sample_scale=sample_scale)


@dataclass(frozen=True, eq=False)
class TimedPrices:
    """What correcting gains, by step, seconds left and defect; `at(seconds)` is a schedule.

    Attributes:
        nodes: Defects at which the gain is known, ascending, (T, k).
        gain: In path error, (T, ticks + 1, k); row j is for j / ticks of `seconds` left, -inf if that is too little.
        seconds: The largest budget.
        cost: What a projection takes.
        seeds: The calibration seeds. Evaluation on any of them raises.
        sample_scale: Estimates a scale per sample, in units of which defects are looked up; None if all share one.
    """

    nodes: Tensor
    gain: Tensor
    seconds: float
    cost: Cost
    seeds: tuple[int, ...] = ()
    sample_scale: SampleScale | None = None

    def at(self, seconds: float | Tensor) -> Seconds:
        """Return the schedule for a budget of seconds, the same for all samples or one each, (n,)."""
        return Seconds(self, seconds)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file; the cost must be a learned one, since a function cannot be written."""
        if not isinstance(self.cost, SolverCost):
            raise ValueError(f"only prices with a learned cost (SolverCost) can be saved: this one's is {self.cost!r}")
        save_value(path, self)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TimedPrices:
        """Read what `save` wrote."""
        return load_value(path, cls)


@dataclass(frozen=True, eq=False)
class Seconds(Schedule):
    """Project where the benefit is worth the time, within a budget of seconds for each sample.

    What was spent is computed from the defects of the projections made. It is what the cost predicts and not what a
    clock shows, so the same samples get the same corrections on any machine. It never exceeds the budget. The closing
    projection is not part of it.

    Attributes:
        prices: From `price_seconds`.
        seconds: The same for all samples, or one each, (n,).
    """

    prices: TimedPrices
    seconds: float | Tensor

    def __post_init__(self) -> None:
        """Check the budget."""
        check_type(self.prices, TimedPrices, "the prices of a budget of seconds", "price_seconds makes them")
        given = torch.as_tensor(self.seconds)
        if given.ndim > 1 or not bool(((given >= 0) & (given <= self.prices.seconds)).all()):
            raise ValueError(
                f"these prices serve budgets from 0 to {self.prices.seconds:g} seconds: got {self.seconds} (price a "
                "larger one)"
            )

    @property
    def budget(self) -> float:
        """Any number of corrections, as far as the seconds last."""
        return 1.0

    @property
    def calibration_seeds(self) -> tuple[int, ...]:
        """Seeds that this schedule must not be evaluated on."""
        return self.prices.seeds

    def decide(self, view: StepView) -> Tensor:
        """Return where correcting gains something and can be paid for, (n,) bool."""
        prices = self.prices
        if view.n_steps != len(prices.nodes):
            raise ValueError(
                f"the prices were made for T = {len(prices.nodes)} steps and cannot be used for T = {view.n_steps}"
            )
        if isinstance(self.seconds, Tensor) and self.seconds.shape != (len(view),):
            raise ValueError(f"got {len(self.seconds)} budgets of seconds for {len(view)} samples; give one each")
        left = self.seconds - self.spent(view)
        takes = _seconds_of(prices.cost, torch.full_like(view.defect, view.t), view.defect)
        nodes, gain = prices.nodes[view.t], prices.gain[view.t]
        row = (left / prices.seconds * (len(gain) - 1)).ceil().long().clamp(0, len(gain) - 1)
        scale = 1.0 if prices.sample_scale is None else torch.as_tensor(prices.sample_scale.now(view))
        defect = (view.defect.double() / scale).clamp(float(nodes[0]), float(nodes[-1]))
        right = torch.searchsorted(nodes, defect).clamp(1, len(nodes) - 1)
        share = (defect - nodes[right - 1]) / (nodes[right] - nodes[right - 1])
        worth = (1 - share) * gain[row, right - 1] + share * gain[row, right] > 0
        return worth & (takes <= left)

    def spent(self, view: StepView) -> Tensor:
        """Return the seconds that each sample has spent before this step, (n,)."""
        takes = torch.zeros(view.t, len(view), dtype=torch.float64, device=view.defect.device)
        at = view.projected  # only there is the defect sure to be known
        if view.t:
            steps = torch.arange(view.t, device=view.defect.device)[:, None].expand_as(at)
            takes[at] = _seconds_of(self.prices.cost, steps[at], view.defects[:-1][at]).double()
        return takes.sum(dim=0)

    def to(self, device: torch.device) -> Seconds:
        """Return the same schedule on `device`."""
        prices = self.prices
        scale = prices.sample_scale and prices.sample_scale.to(device)
        moved = replace(prices, nodes=prices.nodes.to(device), gain=prices.gain.to(device), sample_scale=scale)
        return Seconds(moved, self.seconds.to(device) if isinstance(self.seconds, Tensor) else self.seconds)


@dataclass(frozen=True, eq=False)
class _Near(Schedule):
    """Follow a schedule, but decide a share of the time at random, beyond the budget if need be."""

    schedule: Seconds
    seed: int
    budget: float = 1.0

    def decide(self, view: StepView) -> Tensor:
        seeds = view.seeds if view.seeds is not None else torch.arange(len(view.defect), device=view.defect.device)
        coins = uniform_numbers(seeds, range(view.t, view.t + 1), (2,), _COINS + self.seed)[0]
        by_price = self.schedule.decide(view)
        return torch.where(coins[:, 0] < RANDOM_SHARE, coins[:, 1] < 0.5, by_price)

    def to(self, device: torch.device) -> _Near:
        return replace(self, schedule=self.schedule.to(device))


# ------------------------------------------------------------------ a rate of corrections

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
        """Return one line."""
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
        raise ValueError(f"rate is in (0, 1] and burst at least 1: got {rate} and {burst}")
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
        return record.grouped()

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
