"""Budgets in seconds: what a projection will take, and schedules that spend time rather than corrections.

A solver that starts far from the constraint set may take several times as long as one that starts close to it. What a
projection takes is learned from its defect and its step, and the dynamic program of `trimtab.prices.dynamic` is solved
over the seconds left instead of the corrections left. A correction is then made where its benefit is worth its seconds;
that need not be where defects are largest, since those may cost too much.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from trimtab.core.checks import check_floats, check_positive
from trimtab.core.checks import check_callable, check_integer, check_number, check_type
from trimtab.core.files import UNUSABLE, load_tensors, save_tensors
from trimtab.core.noise import uniform_numbers
from trimtab.core.record import Rollout
from trimtab.core.repeatable import as_record, recorded
from trimtab.core.runner import RunBatch
from trimtab.core.schedule import Schedule
from trimtab.core.view import StepView
from trimtab.prices.explore import Explore, spread_budgets
from trimtab.prices.fit_scale import fit_sample_scale
from trimtab.prices.sample_scale import SampleScale
from trimtab.prices.transitions import MEMORY, NODES, estimate_transitions
from trimtab.schedules import Terminal

__all__ = ["Cost", "Seconds", "SolverCost", "TimedPrices", "price_seconds", "solver_cost"]


Cost = Callable[[Tensor, Tensor], Tensor]
"""Seconds of projecting a sample, of its step and its defect; the shapes are broadcast. `SolverCost` is one."""

_TICKS = 128  # steps in which the seconds left are counted
_RANDOM_BATCHES, _NEAR_BATCHES = 3, 2
_SHARE = 0.15  # of decisions made at random while staying near the policy
_COINS = 1 << 36  # a stream of noise of its own


@dataclass(frozen=True, eq=False)
class SolverCost:
    """Solver iterations as a smooth function of step and defect, times the seconds of one.

    Attributes:
        coefficients: Of 1, log s, √s, s, u and u log s, with s the defect and u the step as a share of T, (6,).
        limits: Smallest and largest number of iterations seen; predictions stay between.
        seconds_per_iteration: Of one sample.
        n_steps: T.
    """

    coefficients: Tensor
    limits: tuple[float, float]
    seconds_per_iteration: float
    n_steps: int

    def __post_init__(self) -> None:
        """Refuse what tells no seconds."""
        check_floats(self.coefficients, "coefficients", (6,))
        check_positive(self.seconds_per_iteration, "seconds_per_iteration")
        check_integer(self.n_steps, "n_steps")
        if not isinstance(self.limits, tuple | list) or len(self.limits) != 2:
            raise TypeError(f"limits are the smallest and the largest number of iterations: got {self.limits!r:.60}")
        low, high = (check_number(limit, "a limit of iterations", 0) for limit in self.limits)
        if low > high:
            raise ValueError(f"limits are the smallest and the largest number of iterations: got {low} and {high}")

    def __call__(self, steps: Tensor, defects: Tensor) -> Tensor:
        """Seconds of projecting a sample with this defect at this step; the shapes are broadcast."""
        terms = _terms(steps / self.n_steps, defects)
        iterations = sum((c * term for c, term in zip(self.coefficients.tolist(), terms, strict=True)), torch.zeros(()))
        return iterations.clamp(*self.limits) * self.seconds_per_iteration


def solver_cost(runs: Iterable[Rollout], seconds_per_iteration: float | None = None) -> SolverCost:
    """Learn what a projection takes from recorded runs.

    Where the solver reports no iterations, every projection is taken to last as long as the mean one.

    Args:
        runs: In which samples with large and small defects were projected and the defects measured, such as those of
            `RandomTimes(0.25)` with `measure_defects=True` on calibration seeds; all of the same T.
        seconds_per_iteration: Of one sample; measured over the runs by default. Give it where the clock is not to be
            trusted, or to count in another unit.

    Example:
        >>> import trimtab as tt
        >>> problem = tt.domain("terrain").problem(range(8))
        >>> run = problem.rollout(tt.schedules.RandomTimes(0.25), measure_defects=True)
        >>> solver_cost([run], seconds_per_iteration=1.0).limits[0] >= 1.0
        True
    """
    if not isinstance(runs, Iterable):
        raise TypeError(f"runs are records, in a list: got {type(runs).__name__}")
    runs = [as_record(run, "each of runs must be a record of a run") for run in runs]
    if len({run.n_steps for run in runs}) > 1:
        raise ValueError(f"runs have one number of steps: got {sorted({run.n_steps for run in runs})}")
    if seconds_per_iteration is not None:
        check_positive(seconds_per_iteration, "seconds_per_iteration")
    if not any(bool(run.projected.any()) for run in runs):
        raise ValueError("no projections to learn a cost from: give runs with some, such as RandomTimes(0.25)")
    T = runs[0].n_steps
    projected = torch.cat([run.projected for run in runs], dim=1).cpu()
    counted = torch.cat([run.iterations for run in runs], dim=1).cpu()[projected].double()
    defects = torch.cat([run.defects for run in runs], dim=1).cpu()[projected].double()
    if bool(defects.isnan().any()):
        raise ValueError("the defects of some projections were not measured: run with measure_defects=True")
    if not bool(counted.any()):
        counted = torch.ones_like(counted)
    if seconds_per_iteration is None:
        rows = sum(run.rows["projection"] for run in runs)
        each = sum(run.seconds["projection"] for run in runs) / rows
        seconds_per_iteration = each / float(counted.mean())
    steps = projected.nonzero()[:, 0]
    terms = torch.stack(_terms(steps / T, defects), dim=1)
    gram = terms.T @ terms
    coefficients = torch.linalg.solve(gram + 1e-6 * gram.diagonal().diag(), terms.T @ counted)
    limits = (float(counted.min()), float(counted.max()))
    return SolverCost(coefficients, limits, seconds_per_iteration, T)


def _told(cost: Cost, steps: Tensor, defects: Tensor) -> Tensor:
    """What a cost says, in the shape of the defects."""
    seconds = cost(steps, defects)
    wanted = torch.broadcast_shapes(steps.shape, defects.shape)  # type: ignore[no-untyped-call]
    if not isinstance(seconds, Tensor) or seconds.shape != wanted or not bool((seconds >= 0).all()):
        got = f"shape {tuple(seconds.shape)}" if isinstance(seconds, Tensor) else type(seconds).__name__
        raise ValueError(
            f"cost(steps, defects) must give seconds of at least 0 in a tensor of shape {tuple(wanted)}: got {got}"
            + (" with NaN or less than 0 in it" if isinstance(seconds, Tensor) and seconds.shape == wanted else "")
        )
    return seconds


def _terms(share: Tensor, defects: Tensor) -> list[Tensor]:
    s = defects.double().clamp(min=1e-12)
    share = share.double().expand_as(s)
    return [torch.ones_like(s), s.log(), s.sqrt(), s, share, share * s.log()]


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

    def batch(schedule: Schedule) -> Rollout:
        """With one column per decision: groups are corrected together."""
        return checked(schedule).grouped()

    first = checked(Terminal())
    seeds = () if first.seeds is None else tuple(first.seeds.tolist())  # of all rows of a group
    T, n = first.grouped().defects.shape
    if n_steps != T:
        raise ValueError(f"n_steps is the number of steps that run makes, {T}: got {n_steps}")
    # at least one each, since a closing projection may have to be paid from it
    spent = [spread_budgets(n, n_steps, 1.0, seed=k).clamp(min=1) for k in range(_RANDOM_BATCHES)]
    runs = [batch(Explore(budgets, seed=k)) for k, budgets in enumerate(spent)]
    cost = solver_cost(runs) if cost is None else cost
    for k in range(_NEAR_BATCHES):
        prices = _solved(runs, seconds, cost)
        spread = seconds * (spread_budgets(n, 1000, 1.0, seed=k) + 1) / 1000
        runs.append(batch(_Near(prices.at(spread), seed=k)))
    return replace(_solved(runs, seconds, cost), seeds=seeds)


def _solved(runs: list[Rollout], seconds: float, cost: Cost) -> TimedPrices:
    """The backward recursion over steps, seconds left and defects, for any seeds.

    Where samples differ in scale it is in units of their own; what a projection takes is then that of a typical sample.
    """
    sample_scale = fit_sample_scale(runs)
    steps = estimate_transitions(runs, sample_scale).with_memory(MEMORY)
    n_steps = len(steps.scale)
    nodes = steps.nodes * steps.scale[:, None]
    gain = torch.empty(n_steps, _TICKS + 1, NODES, dtype=torch.float64)
    to_go = torch.zeros(_TICKS + 1, NODES, dtype=torch.float64)
    left = torch.arange(_TICKS + 1, dtype=torch.float64)[:, None]
    for t in reversed(range(n_steps)):
        stay = nodes[t].expand(_TICKS + 1, NODES)
        go = (steps.scale[t] * steps.residual[t]).expand(_TICKS + 1, NODES)
        if t < n_steps - 1:
            stay, go = stay + to_go @ steps.alone[t].T, go + to_go @ steps.corrected[t].T
        ticks = _told(cost, torch.full_like(nodes[t], t), nodes[t]) / (seconds / _TICKS)
        then = left - ticks  # what is left after paying, between two ticks
        low = then.floor().clamp(0, _TICKS - 1).long()
        go = torch.lerp(go.gather(0, low), go.gather(0, low + 1), (then - low).clamp(0, 1))
        gain[t] = torch.where(then >= 0, stay - go, -torch.inf)
        to_go = torch.minimum(stay, torch.where(then >= 0, go, torch.inf))
    return TimedPrices(nodes, gain, seconds, cost, sample_scale=sample_scale)


@dataclass(frozen=True, eq=False)
class TimedPrices:
    """What correcting gains, by step, seconds left and defect; `at(seconds)` is a schedule.

    Attributes:
        nodes: Defects at which the gain is known, rising, (T, k).
        gain: In path error, (T, ticks + 1, k); row j is for j / ticks of `seconds` left, -inf where that is too little.
        seconds: The largest budget.
        cost: What a projection takes.
        seeds: The calibration seeds; evaluation on any of them is refused.
        sample_scale: Where samples differ in scale, how to tell; defects are then looked up in units of it.
    """

    nodes: Tensor
    gain: Tensor
    seconds: float
    cost: Cost
    seeds: tuple[int, ...] = ()
    sample_scale: SampleScale | None = None

    def __post_init__(self) -> None:
        """Refuse parts that do not belong together."""
        T, k = check_floats(self.nodes, "nodes", ("T", "k")).shape
        check_floats(self.gain, "gain", (T, "ticks + 1", k), finite=False)
        if bool(self.gain.isnan().any()):
            raise ValueError("gain must not be NaN; -inf stands for what cannot be paid for")
        check_positive(self.seconds, "the largest budget of seconds")
        check_callable(self.cost, "cost", "cost(steps, defects)")
        if self.sample_scale is not None:
            check_type(self.sample_scale, SampleScale, "sample_scale of prices").check_steps(T)

    def at(self, seconds: float | Tensor) -> Seconds:
        """The schedule for a budget of seconds, the same for all samples or each its own, (n,)."""
        return Seconds(self, seconds)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file; the cost must be a learned one, since a function cannot be kept."""
        if not isinstance(self.cost, SolverCost):
            raise ValueError(f"only prices with a learned cost (SolverCost) can be saved: this one's is {self.cost!r}")
        tensors = {"nodes": self.nodes, "gain": self.gain, "coefficients": self.cost.coefficients}
        facts: dict[str, Any] = {"seconds": self.seconds, "seeds": self.seeds, "limits": self.cost.limits}
        facts["seconds_per_iteration"] = self.cost.seconds_per_iteration
        SampleScale.write(self.sample_scale, tensors, facts)
        save_tensors(path, "seconds", tensors, facts)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TimedPrices:
        """Read what `save` wrote; a truncated, foreign or inconsistent file is refused."""
        tensors, facts = load_tensors(path, "seconds")
        try:
            nodes, gain = tensors["nodes"], tensors["gain"]
            low, high = facts["limits"]
            cost = SolverCost(tensors["coefficients"], (low, high), facts["seconds_per_iteration"], len(nodes))
            sample_scale = SampleScale.read(tensors, facts)
            return cls(nodes, gain, facts["seconds"], cost, tuple(facts["seeds"]), sample_scale)
        except UNUSABLE as error:
            raise ValueError(f"{path}: not usable prices of seconds: {error}") from error


@dataclass(frozen=True, eq=False)
class Seconds(Schedule):
    """Project where the benefit is worth the time, within a budget of seconds for each sample.

    What was spent is worked out from the defects of the projections made, so it is what the cost predicts and not what
    a clock says: the same samples get the same corrections on any machine. It never exceeds the budget. What the
    closing projection takes is not part of it.

    Attributes:
        prices: From `price_seconds`.
        seconds: The same for all samples, or each its own, (n,).
    """

    prices: TimedPrices
    seconds: float | Tensor

    def __post_init__(self) -> None:
        """Check the budget."""
        check_type(self.prices, TimedPrices, "the prices of a budget of seconds", "price_seconds makes them")
        if isinstance(self.seconds, Tensor):
            check_floats(self.seconds, "seconds, one number per sample,", ("n",))
        else:
            check_number(self.seconds, "seconds")
        given = torch.as_tensor(self.seconds)
        if not bool(((given >= 0) & (given <= self.prices.seconds)).all()):
            raise ValueError(
                f"these prices serve budgets from 0 to {self.prices.seconds:g} seconds: got {self.seconds} (price a "
                "larger one)"
            )

    @property
    def budget(self) -> float:
        """Any number of corrections, as far as the seconds go."""
        return 1.0

    @property
    def calibration_seeds(self) -> tuple[int, ...]:
        """Seeds this schedule must not be evaluated on."""
        return self.prices.seeds

    def decide(self, view: StepView) -> Tensor:
        """Where correcting gains something at what it takes."""
        prices = self.prices
        if view.n_steps != len(prices.nodes):
            raise ValueError(
                f"the prices were made for T = {len(prices.nodes)} steps and cannot be used for T = {view.n_steps}"
            )
        if isinstance(self.seconds, Tensor) and len(self.seconds) != len(view):
            raise ValueError(f"there are {len(self.seconds)} budgets of seconds for {len(view)} samples; give one each")
        left = self.seconds - self.spent(view)
        takes = _told(prices.cost, torch.full_like(view.defect, view.t), view.defect)
        nodes, gain = prices.nodes[view.t], prices.gain[view.t]
        row = (left / prices.seconds * (len(gain) - 1)).ceil().long().clamp(0, len(gain) - 1)
        own = 1.0 if prices.sample_scale is None else torch.as_tensor(prices.sample_scale.now(view))
        defect = (view.defect.double() / own).clamp(float(nodes[0]), float(nodes[-1]))
        right = torch.searchsorted(nodes, defect).clamp(1, len(nodes) - 1)
        share = (defect - nodes[right - 1]) / (nodes[right] - nodes[right - 1])
        worth = (1 - share) * gain[row, right - 1] + share * gain[row, right] > 0
        return worth & (takes <= left)

    def spent(self, view: StepView) -> Tensor:
        """Seconds spent before now by each sample, (n,)."""
        if view.t == 0:
            return torch.zeros_like(view.defect, dtype=torch.float64)
        at = view.projected  # only there is the defect sure to be known
        steps = torch.arange(view.t, device=view.defect.device)[:, None].expand_as(at)
        takes = torch.zeros(at.shape, dtype=torch.float64, device=view.defect.device)
        takes[at] = _told(self.prices.cost, steps[at], view.defects[:-1][at]).double()
        return takes.cumsum(dim=0)[-1]  # one step after the other: a plain sum depends on the size of the batch

    def to(self, device: torch.device) -> Seconds:
        """The same schedule on `device`."""
        sample_scale = self.prices.sample_scale and self.prices.sample_scale.to(device)
        prices = replace(
            self.prices, nodes=self.prices.nodes.to(device), gain=self.prices.gain.to(device), sample_scale=sample_scale
        )
        return Seconds(prices, self.seconds.to(device) if isinstance(self.seconds, Tensor) else self.seconds)


@dataclass(frozen=True, eq=False)
class _Near(Schedule):
    """Follow a schedule, but decide a share of the time at random.

    What is corrected at random may go beyond the seconds: what a correction leads to is to be seen at every step, also
    of samples that have spent theirs.
    """

    schedule: Seconds
    seed: int
    budget: float = 1.0

    def decide(self, view: StepView) -> Tensor:
        seeds = view.seeds if view.seeds is not None else torch.arange(len(view.defect), device=view.defect.device)
        coins = uniform_numbers(seeds, range(view.t, view.t + 1), (2,), _COINS + self.seed)[0]
        by_price = self.schedule.decide(view)
        return torch.where(coins[:, 0] < _SHARE, coins[:, 1] < 0.5, by_price)

    def to(self, device: torch.device) -> _Near:
        return replace(self, schedule=self.schedule.to(device))
