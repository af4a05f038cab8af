"""Learn prices from the runs they serve, and prove them against control samples.

`Corrector(constraint, 0.25, n_steps)` makes a `Learner`. It needs no calibration: the first run corrects at evenly
spaced steps, each sample with its own phase, so that both actions are seen at every step. After each run its traces
join a bounded memory, the dynamic program is solved again, and the next run has the new prices. Learning happens
between runs: the schedule of a run is a frozen value, and `replay` holds. With `PerBatch(0.25, rows="fixed")` prices
decide how many samples are corrected at each step, which is known before the run, and defects decide which.

One sample in eight stays on even spacing, as control, and one in 32 once prices are better beyond doubt. A guard falls
back to even spacing as long as the others would make the total path error more than 5% worse than even spacing's.

With a quality, prices have rivals: the last steps corrected, nothing corrected before the end (which spends less), and
single iterations if the constraint's solver iterates (at most one per sample and step, at equal work, with prices of
their own). Path error cannot choose between these. More corrections always lower it; and on the linkage it is twice as
good with single iterations, whose final samples are many times farther off.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from trimtab.core.budget import PerBatch, PerSample, Unit, corrections
from trimtab.core.checks import check_number, check_type
from trimtab.core.constraint import Constraint
from trimtab.core.files import load_tensors, save_tensors
from trimtab.core.quality import Quality, as_quality
from trimtab.core.record import Closing, Rollout
from trimtab.core.schedule import Schedule
from trimtab.core.view import StepView
from trimtab.prices.price import Thresholds
from trimtab.prices.program import solve
from trimtab.prices.sample_scale import fit_sample_scale
from trimtab.prices.transitions import Steps, estimate_transitions

__all__ = ["Learned", "Learner", "Report", "as_learner", "warn_of_path_error"]

_CONTROL = 8  # one sample in so many stays on even spacing
_PROVEN = 32  # the same, once prices are better beyond doubt
_FEWEST = 4  # samples to learn from
_WINDOW = 512  # samples in memory
_LEVEL = 0.05  # of the confidence sequences
_DRIFT = 5.0  # standard errors


class Traces(NamedTuple):
    """What prices are learned from, one column per sample, at the T' steps with a choice: (T', m) each."""

    defects: Tensor
    residuals: Tensor
    projected: Tensor


@dataclass(frozen=True, eq=False)
class Learned(Schedule):
    """The schedule of one run: control samples at evenly spaced steps, the others by the prices learned so far.

    Attributes:
        budget: Corrections per sample, or `PerBatch` of them.
        control: Which samples stay on even spacing, (n,) bool.
        phase: Where the even spacing of each sample starts, (n,) in [0, 1).
        price: What has been learned; None while even spacing is used for all.
        arm: What the samples that are not control follow: "prices", "last" steps, "end" (no correction before the
            closing projection) or "iterations"; "control" if there are no others.
        spend: Units per sample to spend before the closing projection.
        counts: How many of the others are corrected at each step with a choice, (T',); () if prices decide.
        unit: What is bought, "projection" or "iteration".
        closing_reserve: Units that the closing projection takes.
    """

    budget: Any = 1
    control: Any = None
    phase: Any = None
    price: Thresholds | None = None
    arm: str = "control"
    spend: int = 0
    counts: tuple[int, ...] = ()
    unit: Unit = "projection"
    closing_reserve: int = 1

    def decide(self, view: StepView) -> Tensor:
        """Return the samples whose even spacing is due, or whose defect reaches the price."""
        n_choices = view.t + view.steps_to_go
        pace = self.spend / max(n_choices, 1)
        even = torch.floor((view.t + 1) * pace + self.phase) > torch.floor(view.t * pace + self.phase)
        if self.price is None and self.arm == "iterations":
            wanted = even
        elif self.price is None:
            wanted = torch.full_like(even, self.arm == "last" and view.t >= n_choices - self.spend)
        elif self.counts:
            first = self.priority(view).masked_fill(self.control, -torch.inf).topk(self.counts[view.t]).indices
            wanted = torch.zeros_like(even).index_fill(0, first, True)
        else:
            s, left = view.arrays(self)
            wanted = s >= self.price.threshold(view, left - (self.closing_reserve - 1))  # a price leaves out only 1
        return torch.where(self.control, even, wanted)

    def priority(self, view: StepView) -> Tensor:
        """Return the defects in units of each sample's scale, (n,)."""
        scale = None if self.price is None else self.price.sample_scale
        return view.defect if scale is None else view.defect / scale.now(view)

    def pools(self, n: int) -> Tensor | None:
        """Return the pool of each sample, (n,): all but the control share one, once there are prices."""
        shared = isinstance(self.budget, PerBatch) and self.price is not None
        return -self.control.long() if shared and not bool(self.control.all()) else None

    def to(self, device: torch.device) -> Learned:
        """Return the same schedule on `device`."""
        price = None if self.price is None else self.price.to(device)
        return replace(self, control=self.control.to(device), phase=self.phase.to(device), price=price)


class Tally:
    """Running moments of a cost, and a confidence sequence for its mean."""

    def __init__(self, n: float = 0, total: float = 0.0, squares: float = 0.0, largest: float = 0.0) -> None:
        """Start empty, or from saved moments."""
        self.n, self.total, self.squares, self.largest = int(n), total, squares, largest

    def add(self, values: Tensor) -> None:
        """Count values, (k,)."""
        values = values.double().cpu()
        if len(values):
            self.n += len(values)
            self.total += float(values.sum())
            self.squares += float(values.square().sum())
            self.largest = max(self.largest, float(values.abs().max()))

    @property
    def mean(self) -> float:
        """The mean so far."""
        return self.total / self.n if self.n else math.nan

    @property
    def variance(self) -> float:
        """The variance so far."""
        return max(self.squares - self.n * self.mean**2, 0.0) / (self.n - 1) if self.n > 1 else math.inf

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return math.sqrt(self.variance / self.n) if self.n else math.inf

    @property
    def radius(self) -> float:
        """Half the width of an interval that holds the mean at all times at once, with probability 1 - level/2.

        It is the asymptotic confidence sequence of Waudby-Smith et al. (2024), tightest at about 64 samples.
        """
        if self.n < 2:
            return math.inf
        rho = 2 * math.log(2 / _LEVEL) / 64
        spread = self.n * rho + 1
        return math.sqrt(2 * self.variance * spread / (self.n**2 * rho) * math.log(2 * math.sqrt(spread) / _LEVEL))

    @property
    def known(self) -> bool:
        """Whether an interval can be kept: enough samples, of which no single one decides the sum."""
        return self.n >= 16 and self.largest <= 0.25 * abs(self.total)

    def merge(self, other: Tally) -> None:
        """Count what another tally has counted."""
        self.n, self.total = self.n + other.n, self.total + other.total
        self.squares, self.largest = self.squares + other.squares, max(self.largest, other.largest)

    def ratio_to(self, other: Tally) -> tuple[float, float, float]:
        """Return the ratio of two means and an interval for it; NaN if the interval cannot be kept."""
        ratio = self.mean / other.mean if other.n and other.mean > 0 else math.nan
        low, high = self.mean - self.radius, other.mean - other.radius
        if not (self.known and other.known and high > 0):
            return ratio, math.nan, math.nan
        return ratio, max(low, 0.0) / (other.mean + other.radius), (self.mean + self.radius) / high

    def state(self) -> list[float]:
        """Return the moments, to be saved."""
        return [float(self.n), self.total, self.squares, self.largest]


@dataclass(frozen=True)
class Report:
    """What a learner knows so far; print it.

    Attributes:
        samples: How many samples were seen, control samples included.
        runs: In how many runs.
        called: At how many steps of a run the projection was called for some sample, on average.
        control: How many samples were corrected at evenly spaced steps.
        path: Path error of priced samples as a share of the control's, with an interval that is valid at any time.
        landing: The same for the defect of the last proposal.
        quality: The same for the quality, if one was given. A ratio says nothing if costs can be negative: it is then
            NaN, and `means` has to do.
        means: The mean quality of priced samples and of the control, as costs; NaN if not known.
        missing: How many samples had a quality that is NaN or infinite, and were left out.
        in_use: What the next run uses: "prices", "even spacing", "last steps", "one at the end" or "single iterations".
        drift: A sentence if the sampler seems to have changed; "" otherwise.
        budget: What is spent, in words.
    """

    samples: int
    runs: int
    called: float
    control: int
    path: tuple[float, float, float]
    landing: tuple[float, float, float]
    quality: tuple[float, float, float] | None
    means: tuple[float, float]
    missing: int
    in_use: str
    drift: str
    budget: str

    def __repr__(self) -> str:
        """Return a few lines."""
        lines = [
            f"Learned from {self.samples} samples in {self.runs} runs; {self.control} of them were control samples.",
            f"Budget: {self.budget}; some sample was projected at {self.called:.0f} steps of a run.",
            f"The next run uses {self.in_use}. Against the control, for no more work:",
        ]
        measures = [("path error", self.path), ("landing", self.landing)]
        measures += [] if self.quality is None else [("quality", self.quality)]
        lines += [f"{name}: {_share(*values)}" for name, values in measures]
        if self.quality is not None and math.isnan(self.quality[0]) and not math.isnan(sum(self.means)):
            lines[-1] = "quality: {:.4g} on average, and {:.4g} of the control (lower is better)".format(*self.means)
        if self.missing:
            lines.append(f"{self.missing} samples had a quality that is NaN or infinite, and were left out of it.")
        if self.quality is None:
            lines.append("Only a quality can say whether final samples are better, or would be with fewer projections.")
        return "\n".join(lines + ([self.drift] if self.drift else []))


def _share(ratio: float, low: float, high: float) -> str:
    """Return a ratio with its interval, in words."""
    if math.isnan(ratio):
        return "not known yet"
    if math.isnan(low):
        return f"{ratio:.2f} of the control's; too few samples, or too few of them decide, for an interval"
    verdict = "better" if high < 1 else "worse" if low > 1 else "undecided"
    return f"{ratio:.2f} of the control's ({low:.2f} to {high:.2f}, valid whenever you look): {verdict}"


class Learner:
    """Learns from run to run which corrections pay; use it as the schedule of a `Corrector` or of `rollout`.

    Example:
        >>> import trimtab as tt
        >>> domain, learner = tt.domain("so3-impulse", n_steps=40), tt.prices.Learner(0.25)
        >>> for batch in range(4):
        ...     run = domain.problem(range(16 * batch, 16 * batch + 16)).rollout(learner)
        >>> int(run.spent.sum()), learner.report().samples
        (160, 64)
    """

    def __init__(
        self,
        budget: int | float | PerBatch | PerSample,
        *,
        quality: Quality | Callable[[Any], Any] | None = None,
        tolerance: float = 0.05,
        seed: int = 0,
    ) -> None:
        """Make a learner.

        Args:
            budget: What may be spent. A number is `PerBatch`: the batch shares it, and its total is exact.
            quality: A `Quality`, or a function of final states, (n, *event) to (n,), lower being better. If given, it
                decides from run to run between prices, even spacing, the last steps, one at the end, and single
                iterations if the solver iterates. Samples whose number is NaN or infinite are left out and counted.
            tolerance: How much worse than even spacing's the total path error may ever be, as a share.
            seed: Of the control's choice and phases.
        """
        check_number(tolerance, "tolerance", 0.0, 10.0)
        self.budget = budget if isinstance(budget, PerBatch | PerSample) else PerBatch(budget)
        if isinstance(self.budget, PerBatch) and self.budget.parts is not None:
            raise ValueError("a learner shares its budget over the whole batch: leave out the parts of PerBatch")
        judged = as_quality(quality)
        self.quality = None if judged is None else judged.lenient
        self.tolerance, self.seed = float(tolerance), int(seed)
        self.made_for: dict[str, Any] = {}
        self.runs = self.samples = 0
        self.memory: dict[str, Traces] = {}  # by unit
        self.prices: dict[str, Thresholds] = {}
        self.expected = math.inf  # path error per sample under the prices, as the program sees it
        self.pace = torch.zeros(0)  # corrections per sample at each step under the prices, (T',)
        self.tallies = {f"{arm} {what}": Tally() for arm in _ARMS for what in (*_MEASURES, "missing")}
        self.tallies["work"] = Tally()  # solver iterations per projection
        self.iterates = False
        self.calls = 0  # steps at which the projection was called, over all runs
        self.base: Learner | None = None  # what a worker has inherited; see `worker`
        self._unused = dict.fromkeys(get_args(Unit), 0)  # samples since the prices were last learned
        self._recent: list[float] = []  # mean path error of the control by run

    def __repr__(self) -> str:
        """Return a one-line summary."""
        return f"Learner({self.budget!r}, {self.samples} samples in {self.runs} runs)"

    def prepare(self, constraint: Constraint, n_steps: int, closing: Closing, unit: Unit | None) -> None:
        """Check that what was learned fits a loop; a `Corrector` calls this."""
        if unit == "iteration":
            raise ValueError("a budget as schedule counts projections: leave unit='iteration' out, or calibrate prices")
        if self.quality is None and not constraint.is_projection:
            warn_of_path_error(constraint, "trimtab.prices.Learner(budget, quality=…)", stacklevel=4)
        loop = {"constraint": type(constraint).__name__, "n_steps": n_steps, "closing": closing}
        self.made_for = self.made_for or loop
        wrong = [
            f"{name}={loop[name]!r} (learned with {self.made_for[name]!r})"
            for name in loop
            if loop[name] != self.made_for[name]
        ]
        if wrong:
            raise ValueError(f"this learner has learned on another problem: got {', '.join(wrong)}; make a new one")
        self.iterates = constraint.improves and unit is None
        count = corrections(self.budget, n_steps)
        if closing == "paid" and int(count) < 1:
            raise ValueError(
                f"a budget of {self.budget.budget} with T = {n_steps} leaves nothing for the closing projection, which "
                "takes 1; give at least 1, or closing='free' to count as the paper does"
            )

    # -------------------------------------------------------------- a run

    def schedule(self, n: int) -> Learned:
        """Return the frozen schedule of the next run, for n samples."""
        generator = torch.Generator().manual_seed(self.seed + 1_000_003 * self.runs)
        arm = self._arm(n)
        kept = n if arm == "control" else self._controls(arm, n)
        arm = "control" if kept == n else arm
        order = torch.randperm(n, generator=generator)
        start = 0.618 if self._fixed else float(torch.rand(1, generator=generator))
        control, phase = torch.zeros(n, dtype=torch.bool), torch.zeros(n, dtype=torch.float64)
        control[order[:kept]] = True
        even = n if arm == "iterations" else kept  # until iterations have prices, they are evenly spaced
        phase[order[:even]] = (torch.arange(even).double() + start) / max(even, 1)  # they take turns
        unit: Unit = "iteration" if arm == "iterations" else "projection"
        spend, reserve = self._units(unit)
        price = self.prices.get(unit) if arm in ("prices", "iterations") else None
        total: Any = PerBatch(spend + reserve) if isinstance(self.budget, PerBatch) else spend + reserve
        counts = _counts(self.pace, n - kept, spend) if self._fixed and arm == "prices" else ()
        return Learned(total, control, phase, price, arm, spend, counts, unit, max(reserve, 1))

    @property
    def _fixed(self) -> bool:
        """Whether the number of rows of each step must be known before a run."""
        return isinstance(self.budget, PerBatch) and self.budget.rows == "fixed"

    def _units(self, unit: str) -> tuple[int, int]:
        """Return the units per sample before the closing projection, and those that it takes."""
        n_steps, paid = self.made_for["n_steps"], int(self.made_for["closing"] == "paid")
        spend = int(corrections(self.budget, n_steps)) - paid
        if unit == "projection":
            return spend, paid
        each = self._tally("work").mean  # equal work; at most one iteration a step
        return min(round(spend * each), n_steps - paid), paid * max(1, round(each))

    def _arm(self, n: int) -> str:
        """Return the name of the rule that the next run follows, except for its control samples; see `Learned`."""
        if "projection" not in self.prices:
            return "control"
        if self.quality is not None:
            # a projection can be bought by the iteration, whose prices do not say how many rows it takes
            splits = self.iterates and not self._fixed and self._tally("work").mean > 1
            arms = [arm for arm in _ARMS if arm != "iterations" or splits]
            for arm in arms:
                tried = self._tally(f"{arm} quality").n + self._tally(f"{arm} missing").n
                if arm != "control" and tried < 2 * _CONTROL:
                    return arm
            judged = {arm: self._tally(f"{arm} quality") for arm in arms}
            judged = {arm: tally for arm, tally in judged.items() if tally.n > 1}
            return min(judged, key=lambda arm: judged[arm].mean - judged[arm].radius, default="control")
        return "prices" if self._guard(n) else "control"

    def _controls(self, arm: str, n: int) -> int:
        """Return how many of the next n samples stay on even spacing."""
        if arm == "iterations":  # the control's even spacing is of whole projections, in other runs
            return 0
        what = "path" if self.quality is None else "quality"
        _, _, high = self._tally(f"{arm} {what}").ratio_to(self._tally(f"control {what}"))
        one_in = _PROVEN if high < 1 and not self._drift() else _CONTROL
        return (self.samples + n) // one_in - self.samples // one_in

    def _guard(self, n: int) -> bool:
        """Return whether n more priced samples keep the total path error within tolerance of even spacing's."""
        control, priced = self._tally("control path"), self._tally("prices path")
        expected = self.expected if priced.n < 2 * _CONTROL else priced.mean + priced.error
        drawn = priced.n + n
        return priced.total + n * expected <= control.mean * (drawn + self.tolerance * (drawn + control.n))

    def observe(self, run: Rollout, schedule: Learned) -> None:
        """Learn from a finished run; a `Corrector` calls this."""
        groups, run = run.groups, run.grouped()
        if run.planned_steps is not None or bool(run.defects.isnan().any()):
            return  # a run that was stopped early shows no whole trace
        n_choices = run.n_steps - int(run.closing_rule == "paid")
        defects, residuals = (part[:n_choices].detach().cpu().double() for part in (run.defects, run.residuals))
        traces = Traces(defects, residuals, run.projected[:n_choices].cpu())
        control = schedule.control.cpu()
        measures = {"path": residuals.sum(dim=0), "landing": run.landing.detach().cpu().double()}
        if self.quality is not None:
            costs = self.quality.costs(run.final)
            measures["quality"] = costs if groups is None else groups.means(costs)
        for what, values in measures.items():
            for arm, rows in (("control", control), (schedule.arm, ~control)):
                self.tallies[f"{arm} {what}"].add(values[rows & values.isfinite()])
                self.tallies[f"{arm} missing"].add(torch.zeros(int((rows & ~values.isfinite()).sum())))
        if bool(control.any()):
            self._recent.append(float(measures["path"][control].mean()))
        self.runs, self.samples = self.runs + 1, self.samples + len(control)
        self.calls += int(run.projected.any(dim=1).sum())
        unit = run.unit
        if unit == "projection" and bool(run.projected.any()):
            self.tallies["work"].add(run.iterations[run.projected].double())
        known = [self.memory[unit]] if unit in self.memory else []
        self.memory[unit] = _joined([*known, traces])
        self._unused[unit] += len(control)
        before = self.memory[unit].defects.shape[1] - len(control)
        if self.samples >= _FEWEST and self._unused[unit] >= max(1, before // 4):
            self._learn(unit)

    def _learn(self, unit: Unit) -> None:
        """Solve for new prices from what is in memory; keep the old ones if it shows too little."""
        inherited = [] if self.base is None or unit not in self.base.memory else [self.base.memory[unit]]
        memory = _joined([*inherited, self.memory[unit]])
        spend, _ = self._units(unit)
        if spend < 1 or len(memory.defects) < 2:
            return
        scale = fit_sample_scale([memory])
        try:
            steps = estimate_transitions([memory], scale, widen=False)
        except ValueError:  # around some step only one of the two actions was seen
            return
        solution = solve(steps, spend)
        closing = self.made_for["closing"]
        self.prices[unit] = Thresholds(solution.table, scale, method="learned", unit=unit, closing=closing)
        self._unused[unit] = 0
        if unit == "projection":
            self.expected = float(solution.expected[-1])
            self.pace = _pace(steps, solution.table)

    @property
    def price(self) -> Thresholds | None:
        """What has been learned, as a price to freeze: `learner.price.at(0.25)` is a schedule. None at first."""
        return self.prices.get("projection")

    # -------------------------------------------------------------- what came of it

    def report(self) -> Report:
        """Return what is known so far, with intervals that are valid at any time."""
        if self.base is not None:
            return self.merge([]).report()
        arm = self._arm(_CONTROL)
        best = "prices" if arm == "control" else arm
        ratios = {what: self.tallies[f"{best} {what}"].ratio_to(self.tallies[f"control {what}"]) for what in _MEASURES}
        n_steps = self.made_for.get("n_steps")
        of = "" if n_steps is None else f" of {n_steps}"
        count = self.budget.budget if n_steps is None else int(corrections(self.budget, n_steps))
        whose = "per sample, shared by the batch" if isinstance(self.budget, PerBatch) else "for each sample"
        return Report(
            samples=self.samples,
            runs=self.runs,
            called=self.calls / self.runs if self.runs else math.nan,
            control=self.tallies["control path"].n,
            path=ratios["path"],
            landing=ratios["landing"],
            quality=None if self.quality is None else ratios["quality"],
            means=(self.tallies[f"{best} quality"].mean, self.tallies["control quality"].mean),
            missing=sum(self.tallies[f"{name} missing"].n for name in _ARMS),
            in_use=_ARMS[arm],
            drift=self._drift(),
            budget=f"{count}{of} projections {whose}",
        )

    def _drift(self) -> str:
        """Return a sentence if the control's path error has changed lately."""
        if len(self._recent) < 16:
            return ""
        values = torch.tensor(self._recent, dtype=torch.float64)
        before, lately = values[: -len(values) // 4], values[-len(values) // 4 :]
        error = math.sqrt(float(before.var()) / len(before) + float(before.var()) / len(lately))
        shift = float(lately.mean() - before.mean())
        if abs(shift) <= _DRIFT * max(error, 1e-300):
            return ""
        ratio = float(lately.mean() / before.mean())
        return f"The sampler has drifted: the control's path error is lately {ratio:.2f} of what it was."

    def _tally(self, name: str) -> Tally:
        """Return a tally with what was inherited."""
        known = Tally(*self.tallies[name].state())
        if self.base is not None:
            known.merge(self.base.tallies[name])
        return known

    def worker(self, seed: int) -> Learner:
        """Return a learner for one of several workers: it starts with what this one knows, and counts what is new.

        `merge` of workers that started from one learner counts what they share once.

        Example:
            >>> import trimtab as tt
            >>> learner = tt.prices.Learner(0.25)
            >>> workers = [learner.worker(seed) for seed in range(4)]
            >>> workers[0].merge(workers[1:])
            Learner(PerBatch(budget=0.25, rows='any'), 0 samples in 0 runs)
        """
        if self.base is not None:
            raise ValueError("a worker cannot make workers; call worker() of its learner, or of the result of merge()")
        one = Learner(self.budget, quality=self.quality, tolerance=self.tolerance, seed=seed)
        one.made_for, one.iterates, one.base = dict(self.made_for), self.iterates, self
        one.prices, one.expected, one.pace = dict(self.prices), self.expected, self.pace
        return one

    def merge(self, others: Sequence[Learner]) -> Learner:
        """Return a learner that knows what several have learned; make those of workers with `worker`."""
        merged = Learner(self.budget, quality=self.quality, tolerance=self.tolerance, seed=self.seed)
        for one in (self, *others):
            check_type(one, Learner, "what is merged")
            if (one.base and one.base._facts()) != (self.base and self.base._facts()):  # they may be copies
                raise ValueError("workers that started from different learners cannot be merged")
        everyone = (self, *others) if self.base is None else (self.base, self, *others)
        for one in everyone:
            if one.budget != self.budget or (one.made_for and self.made_for and one.made_for != self.made_for):
                raise ValueError(
                    f"merged learners must have the same budget and problem: got {one.budget!r} for {one.made_for} and "
                    f"{self.budget!r} for {self.made_for}"
                )
            merged.made_for = merged.made_for or dict(one.made_for)
            merged.runs, merged.samples = merged.runs + one.runs, merged.samples + one.samples
            merged.calls += one.calls
            merged._recent += one._recent
            merged.iterates = merged.iterates or one.iterates
            for name, tally in one.tallies.items():
                merged.tallies[name].merge(tally)
        for unit in get_args(Unit):
            known = [one.memory[unit] for one in everyone if unit in one.memory]
            if known:
                merged.memory[unit] = _joined(known, interleave=True)
                merged._learn(unit)
        return merged

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file: the memory, and what was counted. Merge workers first."""
        if self.base is not None:
            raise ValueError("a worker's learner holds only what is new; merge the workers, and save the result")
        tensors = {
            f"{unit}_{name}": part for unit, traces in self.memory.items() for name, part in traces._asdict().items()
        }
        save_tensors(path, "learner", tensors, self._facts())

    def _facts(self) -> dict[str, Any]:
        """Return everything but the memory and the quality, as JSON values."""
        return {
            "budget": self.budget.budget,
            "rows": getattr(self.budget, "rows", None),
            "tolerance": self.tolerance,
            "seed": self.seed,
            "made_for": self.made_for,
            "runs": self.runs,
            "samples": self.samples,
            "calls": self.calls,
            "tallies": {name: tally.state() for name, tally in self.tallies.items()},
            "recent": self._recent[-1024:],
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str], quality: Quality | Callable[[Any], Any] | None = None) -> Learner:
        """Read what `save` wrote, and continue learning from there."""
        tensors, facts = load_tensors(path, "learner")
        try:
            rows = facts["rows"]
            budget = PerBatch(facts["budget"], rows=rows) if rows else PerSample(facts["budget"])
            learner = cls(budget, quality=quality, tolerance=facts["tolerance"], seed=facts["seed"])
            learner.made_for, learner._recent = dict(facts["made_for"]), [float(x) for x in facts["recent"]]
            learner.runs, learner.samples = int(facts["runs"]), int(facts["samples"])
            learner.tallies = {name: Tally(*facts["tallies"][name]) for name in learner.tallies}
            learner.calls = int(facts["calls"])
            for unit in get_args(Unit):
                if f"{unit}_defects" in tensors:
                    learner.memory[unit] = Traces(*(tensors[f"{unit}_{name}"] for name in Traces._fields))
                    learner._learn(unit)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: not a whole learner: {error}") from error
        return learner


def warn_of_path_error(constraint: Constraint, instead: str, stacklevel: int) -> None:
    """Warn that path error is the wrong objective for a correction that ends on no feasible set."""
    warnings.warn(
        f"{type(constraint).__name__} is not a projection (its is_projection is False), and prices for path error may "
        f"choose steps that make final samples worse than no correction; judge final samples by {instead}",
        stacklevel=stacklevel + 1,
    )


def as_learner(schedule: Any) -> Any:
    """Return a learner if the schedule is a budget (a number, `PerBatch` or `PerSample`), else the schedule itself."""
    budget = isinstance(schedule, int | float | np.integer | np.floating | PerBatch | PerSample)
    return Learner(schedule) if budget and not isinstance(schedule, bool) else schedule


_ARMS = {
    "control": "even spacing",
    "prices": "prices",
    "last": "last steps",
    "end": "one at the end",
    "iterations": "single iterations",
}
_MEASURES = ("path", "landing", "quality")


def _joined(parts: Sequence[Traces], interleave: bool = False) -> Traces:
    """Return traces side by side, the last `_WINDOW` samples of them."""
    whole = Traces(*(torch.cat(columns, dim=1) for columns in zip(*parts, strict=True)))
    m = whole.defects.shape[1]
    if m <= _WINDOW:
        return whole
    keep = torch.linspace(0, m - 1, _WINDOW).long() if interleave else torch.arange(m - _WINDOW, m)
    return Traces(*(part[:, keep] for part in whole))


def _pace(steps: Steps, table: Tensor) -> Tensor:
    """Return the corrections per sample that prices are expected to buy at each step, (T',), with the largest budget.

    Args:
        steps: What one step does to a defect, at the T' steps with a choice.
        table: The prices, (T', B + 1).
    """
    share = torch.zeros(table.shape[1], len(steps.start), dtype=torch.float64)  # of samples, by units left and node
    share[-1] = steps.start
    pace = torch.zeros(len(table), dtype=torch.float64)
    for t, prices in enumerate(table):
        bought = torch.where(steps.scale[t] * steps.nodes[t] >= prices[:, None], share, 0.0)
        pace[t] = bought.sum()
        if t < len(table) - 1:
            share = (share - bought) @ steps.alone[t]
            share[:-1] += (bought @ steps.corrected[t])[1:]  # one unit less
    return pace.clamp(0, 1)


def _counts(pace: Tensor, n: int, spend: int) -> tuple[int, ...]:
    """Return how many of n samples to correct at each step, in proportion to `pace`, (T',); the sum is n * spend."""
    counts: list[int] = []
    left = n * spend
    due = (pace.cumsum(0) / pace.sum() * left).round().long().tolist()
    for t, total in enumerate(due):
        fewest = left - n * (len(due) - 1 - t)  # what later steps could not take
        counts.append(min(max(total - sum(counts), fewest, 0), n, left))
        left -= counts[-1]
    return tuple(counts)
