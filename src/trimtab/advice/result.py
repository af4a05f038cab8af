"""The result of `advise`: a recommendation, in words and numbers, with everything that was measured and found."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trimtab.advice.checks import Effects, Stability
from trimtab.advice.figure import advice_figure
from trimtab.advice.trials import FAR, SIMPLE, WHOLE, Cost, Goal, Trial
from trimtab.advice.verdict import Judgement, Verdict, judge
from trimtab.core.schedule import Schedule
from trimtab.core.statistics import Summary, ratio, tail_share
from trimtab.prices import Price

__all__ = ["FAILURE_MODES", "Advice", "Finding", "Measured"]

FAILURE_MODES = {
    "full-projection-no-better": "projecting at every step is no better than once, at the end",
    "chaotic-rollout": "rollouts that start a hair apart end far apart",
    "misaligned-defect": "the defect says little about what a correction is worth",
    "unstable-projection": "the projection is unstable or discontinuous",
    "diffuse-defect": "the defect is diffuse, so even spacing is competitive",
    "poor-calibration": "the prices do not hold on other seeds",
    "cheap-projection": "projecting costs next to nothing, so project at every step",
    "constant-defect": "the defect is constant",
    "defect-is-projection": "measuring the defect is a projection",
    "quality-failed": "the quality failed for some samples",
}
"""By name: the five of the paper, and those in which there is nothing to decide or nothing to go by."""

_WIDTH = 118
_ALIGNED = 0.3  # rank correlation
_DIFFUSE = 0.4  # C_0.2; 0.2 is uniform
_GAIN = 0.1  # relative, over even spacing
_CHEAP = 0.1  # share of a stepwise rollout's time


@dataclass(frozen=True)
class Finding:
    """One answer."""

    name: str  # the question, or the failure mode (a key of `FAILURE_MODES`)
    warns: bool  # whether it is a failure mode that was seen
    text: str  # one or two sentences


@dataclass(frozen=True, eq=False)
class Measured:
    """Everything that was measured."""

    goal: Goal  # what was asked for
    unit: Cost  # the cost that decided: seconds, projections, or iterations if the solver iterates
    scale: float  # by how much full projection changes the measure of a typical sample
    calibrated: int  # number of seeds that calibrated; 0 if a price was given or none was needed
    repeated: int  # number of samples left out because their seed was there already
    batch: int  # number of samples in the batch that chose
    terminal: Trial  # the trial that projects once, at the end
    stepwise: Trial  # the trial that projects at every step
    trials: tuple[Trial, ...]  # all other candidates, in the order they were tried
    confirmed: Trial | None  # the recommendation on fresh seeds, if there were any
    rejected: tuple[Trial, ...]  # candidates that met the tolerance at first, but not on fresh seeds; as measured there
    concentration: float  # C_0.2 of the terminal rollouts
    constant: bool  # whether the defect is the same number everywhere
    looks_project: bool  # whether measuring the defect is a projection
    effects: Effects | None  # what single corrections did; None if nothing was tried or timing makes no difference
    stability: Stability  # of the projection and the rollout
    turnable: bool  # whether states look like point sets, (n, m, 3), whose distance depends on how they are turned
    batches: int  # number of batches that were run
    paid_back: float  # number of samples after which the advice has saved what it cost; inf if it saves nothing
    given: bool = False  # whether the price was made earlier
    broken: str = ""  # the error of the quality, if it failed on the way

    @property
    def n_steps(self) -> int:
        """Return T."""
        return self.stepwise.n_steps

    @property
    def held_out(self) -> int:
        """Return the number of seeds that chose."""
        return len(self.stepwise.measured)

    @property
    def fresh(self) -> int:
        """Return the number of seeds that chose nothing and measured the recommendation; 0 if there were none."""
        return 0 if self.confirmed is None else len(self.confirmed.measured)

    @property
    def gain(self) -> Judgement:
        """Return by how much full projection is better than terminal projection, and whether that is so."""
        return self.terminal.judged

    @property
    def tolerance(self) -> float:
        """Return the tolerance in the unit of the measure."""
        return self.goal.tolerance * (1.0 if self.goal.absolute else self.scale)

    @property
    def iterates(self) -> bool:
        """Return whether the solver iterates."""
        return self.stepwise.iterations > 1.001 * self.stepwise.projections

    @property
    def never_projects(self) -> bool:
        """Return whether a terminal rollout ends as it is (closing='none')."""
        return self.terminal.projections == 0

    @property
    def everything(self) -> list[Trial]:
        """Return all candidates, by cost."""
        return sorted([self.terminal, *self.trials, self.stepwise], key=lambda trial: trial.rank(self.unit))

    @property
    def best(self) -> Trial:
        """Return the trial with the best final samples; full projection if none is better."""
        known = [trial for trial in (self.stepwise, *self.everything) if not trial.missing]
        return min(known or [self.stepwise], key=lambda trial: float(trial.measured.mean()))

    @property
    def level(self) -> dict[str, Trial]:
        """Return the first trials by times, all with whole projections and the same budget."""
        plain = [t for t in self.trials if t.way == WHOLE and not t.candidate.shared]
        return {t.times: t for t in plain if t.budget == plain[0].budget}


@dataclass(frozen=True, eq=False, repr=False)
class Advice:
    """What to do, and why; `print` it, `plot` it, or use `schedule` as it is.

    Attributes:
        trial: The recommended candidate, as it was measured when it was chosen.
        verdict: "no better" (full projection is, within the tolerance, no better than the recommendation), "better"
            (full projection is better than what is cheaper), or "undecided".
        seeds: About how many seeds would decide; 0 if it is decided, or seeds alone cannot.
        loss: What it loses against full projection, in the unit of the tolerance; on fresh seeds if there were any.
        saving: The share of the cost of projecting at every step that it saves.
        schedule: Ready to use, with the way to correct; it raises an error on the seeds that calibrated it.
        price: The price behind the schedule, to `save`; None if it needs none.
        measured: All numbers.
        reason: One sentence on the choice.
    """

    trial: Trial
    verdict: Verdict
    seeds: int
    loss: Summary
    saving: Summary
    schedule: Schedule
    price: Price | None
    measured: Measured
    reason: str

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Return answers and failure modes, in the order a person would ask."""
        m = self.measured
        found = [_reference(m), _broken(m), _chaos(m), _landing(self.trial, m), _tails(m), _concentration(m)]
        found += [_lasting(m), _alignment(m), _stability(m), _price_of_projection(m), _calibration(m), *_known(m)]
        return tuple(finding for finding in found if finding is not None)

    @property
    def times(self) -> str:
        """Return when to correct."""
        return self.trial.times

    @property
    def way(self) -> str:
        """Return how to correct."""
        return self.trial.way

    @property
    def budget(self) -> int:
        """Return the corrections to spend."""
        return self.trial.budget

    @property
    def failure_modes(self) -> tuple[str, ...]:
        """Return the names of the failure modes that were seen."""
        return tuple(finding.name for finding in self.findings if finding.warns)

    def __str__(self) -> str:
        """Return the advice in words."""
        m = self.measured
        lines = [f"{_headline(self)}", f"  Why: {self.reason}."]
        lines += [f"  {line}" for line in (_loss(self), _cost(self), _otherwise(self), _not_quality(m)) if line]
        if m.trials:
            lines += ["", f"Candidates by {m.unit}, the cheapest first (* meets the tolerance)"]
            width = min(64, max(len(trial.name) for trial in m.everything))
            lines += [_candidate(m, trial, width) for trial in m.everything]
        lines += ["", "What was found"]
        for finding in self.findings:
            mark = "  ! " if finding.warns else "  - "
            lines += textwrap.wrap(finding.text, _WIDTH, initial_indent=mark, subsequent_indent="    ")
        return "\n".join([*lines, "", *textwrap.wrap(_measured_on(m, self.trial), _WIDTH)])

    def __repr__(self) -> str:
        """Return the recommendation in one line."""
        return (
            f"Advice({self.verdict}: {self.trial.name}, loss {self.loss}, saves {self.saving.mean:.0%} of the "
            f"{self.measured.unit}; print it for the reasons)"
        )

    def facts(self) -> dict[str, Any]:
        """Return all numbers for JSON."""
        m = self.measured
        return {
            "verdict": self.verdict,
            "seeds_to_decide": self.seeds,
            "recommended": {
                "schedule": self.times,
                "way": self.way,
                "budget": self.budget,
                "shared": self.trial.candidate.shared,
                "n_steps": m.n_steps,
                "reason": self.reason,
            },
            "loss": self.loss.facts(),
            "saving": self.saving.facts() | {"unit": m.unit},
            "tolerance": m.tolerance,
            "failure_modes": list(self.failure_modes),
            "findings": [vars(finding) for finding in self.findings],
            "trials": [_facts_of(trial, m.goal.measure) for trial in (m.terminal, *m.trials, m.stepwise)],
            "batches": m.batches,
            "paid_back_after": m.paid_back if math.isfinite(m.paid_back) else None,
            "confirmed": None if m.confirmed is None else _facts_of(m.confirmed, m.goal.measure),
        }

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw loss against budget and cost, and how long a correction lasts; needs matplotlib.

        Args:
            path: A .png, .svg or .pdf file to write as well.

        Returns:
            The matplotlib figure.
        """
        return advice_figure(self, None if path is None else Path(path))


def _facts_of(trial: Trial, measure: str) -> dict[str, Any]:
    mean = float(trial.measured.nanmean())
    return {
        "name": trial.name,
        "schedule": trial.times,
        "way": trial.way,
        "budget": trial.budget,
        "shared": trial.candidate.shared,
        "verdict": trial.judged.verdict,
        "loss": trial.loss.facts(),
        "excess": trial.judged.loss.facts(),
        "measured": {measure: None if mean != mean else mean},
        "far": trial.far,
        **{name: getattr(trial, name) for name in ("seconds", "projections", "iterations")},
    }


# ------------------------------------------------------------------ the recommendation


def _headline(advice: Advice) -> str:
    m, trial = advice.measured, advice.trial
    if trial.times == "terminal":
        end = "and, with closing='none', none at the end" if m.never_projects else "one at the end"
        text = f"no correction on the way, {end}"
    elif trial.times == "stepwise" and trial.way == WHOLE:
        text = "a whole projection after every step"
    else:
        text = f"{trial.name} (advice.schedule)"
    return f"Undecided; until it is, use {text}." if advice.verdict == "undecided" else f"Use {text}."


def _loss(advice: Advice) -> str:
    m, goal, lost = advice.measured, advice.measured.goal, advice.loss
    if math.isnan(lost.mean):
        return "Loss: there is none to give, because samples have no measure."
    n = m.fresh or m.held_out
    text = f"Loss, by {goal.measure}: {lost} on {n} {'fresh ' if m.fresh else ''}samples"
    text += "" if lost.reliable else f"; {_no_interval(lost)}"
    if goal.absolute:
        return f"{text}; the tolerance is {goal.tolerance:g} in the unit of {goal.measure}. 0 is full projection."
    return (
        f"{text}; the tolerance is {goal.tolerance:g}. 0 is full projection, and 1 is {m.scale:.3g}, what it changes "
        "in a typical sample."
    )


def _no_interval(lost: Summary) -> str:
    if lost.n < 8:
        return f"{lost.n} samples are too few for an interval"
    return f"{lost.n} samples are too few for an interval, because one makes up {lost.top_share:.0%} of the spread"


def _cost(advice: Advice) -> str:
    m, trial, saving = advice.measured, advice.trial, advice.saving
    parts = [f"{trial.projections:.1f} corrections instead of {m.stepwise.projections:.1f}"]
    if m.iterates:
        parts.append(f"{trial.iterations:.1f} solver iterations instead of {m.stepwise.iterations:.1f}")
    if m.unit == "seconds":
        parts.append(f"{_time(trial.seconds)} instead of {_time(m.stepwise.seconds)}")
    text = f"Cost per sample: {', '.join(parts)}; it saves {saving.mean:.0%} of the {m.unit}"
    text += f" ({saving.low:.0%} to {saving.high:.0%})" if m.unit == "seconds" and saving.n > 1 else ""
    if m.goal.limit is not None and trial.seconds > m.goal.limit:
        text += f", but takes longer than the limit of {_time(m.goal.limit)}"
    return f"{text}."


def _otherwise(advice: Advice) -> str:
    """Return a sentence about the best cheaper alternative if full projection is recommended; else nothing."""
    m = advice.measured
    if advice.trial is not m.stepwise:
        return ""
    latest = {trial.name: trial for trial in m.rejected}
    cheaper = [latest.get(t.name, t) for t in m.everything if t.cost(m.unit) < 0.9 * m.stepwise.cost(m.unit)]
    enough = [t for t in cheaper if t.judged.loss.mean <= m.tolerance and t.judged.verdict != "better"]
    if enough:
        one = enough[0]
        return f"This may be enough: {one.name}, loss {one.loss}. Try it on more seeds."
    half = [t for t in cheaper if t.cost(m.unit) <= 0.5 * m.stepwise.cost(m.unit) and t.times != "terminal"]
    best = min(half, key=lambda trial: trial.loss.mean, default=None)
    return "" if best is None else f"For at most half of the {m.unit}, the nearest is {best.name}: loss {best.loss}."


def _not_quality(m: Measured) -> str:
    if m.goal.quality is not None:
        return ""
    return "Nearness to full projection is not quality: full projection may be worse. Give quality= to go by yours."


def _candidate(m: Measured, trial: Trial, width: int) -> str:
    cost = f"{trial.projections:6.1f} corrections"
    cost += f", {trial.iterations:6.1f} iterations" if m.iterates else ""
    cost += f", {_time(trial.seconds):>8}" if m.unit == "seconds" else ""
    again = next((one for one in m.rejected if one.name == trial.name), None)
    met = "*" if trial.meets and again is None else " "
    on_fresh = "" if again is None else f"; on fresh seeds {again.loss}"
    return f"  {met} {trial.name:{width}.{width}} {cost}, loss {trial.loss}{on_fresh}"


def _measured_on(m: Measured, chosen: Trial) -> str:
    text = f"Chosen on {m.held_out} samples"
    if m.given:
        text += ", with a price made earlier"
    elif m.calibrated:
        text += f", calibrated on {m.calibrated} others"
    text += f", measured once more on {m.fresh} that chose nothing" if m.fresh else ""
    text += f"; {m.batches} batches in all"
    text += f", paid back after {m.paid_back:.3g} samples" if math.isfinite(m.paid_back) else ""
    text += ". Intervals are 95%, bootstrapped over paired samples, and left out if a few hold most of the spread."
    if not m.fresh and chosen not in (m.terminal, m.stepwise):
        text += " The choice was made on the same rollouts, so its loss is optimistic: measure it on other seeds."
    if m.repeated:
        text += f" {m.repeated} samples with repeated seeds were left out."
    if m.held_out < 16:
        text += f" {m.held_out} is few: give 64 seeds or more."
    return text


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def _plain(value: Summary) -> str:
    """Return an estimate in a unit of any size."""
    interval = f" ({value.low:.3g} to {value.high:.3g})" if value.reliable else ""
    return f"{value.mean:.3g}{interval}"


# ------------------------------------------------------------------ what was found


def _reference(m: Measured) -> Finding:
    found = m.gain
    gain = _plain(found.loss) + ("" if found.loss.reliable else f" (no interval: {_no_interval(found.loss)})")
    once = "not at all" if m.never_projects else "once, at the end"
    if found.verdict == "no better":
        worse = "worse than" if found.loss.high < 0 else "no better within the tolerance than"
        text = f"By {m.goal.measure}, projecting at every step is {worse} {once}: it gains {gain}. Project less, or "
        return Finding("full-projection-no-better", True, f"{text}improve the projection.")
    if found.verdict == "undecided":
        text = f"By {m.goal.measure}, whether projecting at every step is better than {once} is undecided: it gains"
        return Finding("reference", False, f"{text} {gain} on {m.held_out} samples.")
    best_at = "" if m.goal.to_full else f"; final samples are best with {m.best.name}"
    terminal = "no projection" if m.never_projects else "terminal projection"
    text = f"By {m.goal.measure}, full projection is better than {terminal} by {gain}{best_at}."
    return Finding("reference", False, text)


def _broken(m: Measured) -> Finding | None:
    missing = max((trial.missing for trial in m.everything), default=0)
    if not missing and not m.broken:
        return None
    why = f" ({m.broken})" if m.broken else ""
    text = f"The quality gave no number for up to {missing} of {m.held_out} samples of a batch{why}; they are left out."
    return Finding("quality-failed", True, text)


def _chaos(m: Measured) -> Finding | None:
    if not m.stability.chaotic:
        return None
    text = (
        f"Two rollouts a hair apart at the start are {m.stability.divergence:.0f} times as far apart at the end: "
        "distances between final states say nothing here. Go by a quality, or compare distributions."
    )
    return Finding("chaotic-rollout", True, text)


def _landing(chosen: Trial, m: Measured) -> Finding | None:
    if not chosen.far:
        return None
    text = (
        f"{chosen.far} of {m.batch} samples land {FAR:.0f} times farther from feasible than usual before the last "
        "projection: draw them again, or spend more on them."
    )
    return Finding("landing", False, text)


def _tails(m: Measured) -> Finding | None:
    """Say if a few rollouts hold most of the loss."""
    unknown = [trial for trial in m.trials if not trial.loss.reliable and not trial.missing and trial.loss.n >= 8]
    if not unknown:
        return None
    trial = max(unknown, key=lambda one: one.budget)
    lost = (trial.measured - m.stepwise.measured).clamp(min=0)
    few = max(1, m.held_out // 16)
    makes = f"{few} of {m.held_out} samples " + ("makes" if few == 1 else "make")
    text = (
        f"A few samples decide: with {trial.name}, {makes} up {tail_share(lost, few / len(lost)):.0%} of the loss. "
        "More seeds show how rare they are. By the distance to full projection, a sample that ends elsewhere counts as "
        "lost though it may be as good: a quality decides that."
    )
    return Finding("tails", False, text)


def _concentration(m: Measured) -> Finding | None:
    even, others = m.level.get("periodic"), [t for times, t in m.level.items() if times != "periodic"]
    if even is None or not others:
        return None
    full = m.stepwise.measured
    best = min(others, key=lambda trial: trial.loss.mean)
    left = ratio(best.measured - full, even.measured - full)
    held = f"the worst 20% of steps hold {m.concentration:.0%} of the defect (20% would be uniform)"
    if math.isnan(left.mean):
        return Finding("concentration", False, f"Concentration: {held}. Even spacing may lose nothing at all.")
    when = SIMPLE.get(best.times, "by price" if best.times == "adaptive" else "at planned steps")
    interval = f" ({left.low:.0%} to {left.high:.0%})" if left.reliable else ""
    compared = f"correcting {when} has {left.mean:.0%}{interval} of the loss of even spacing"
    if m.concentration < _DIFFUSE and 1 - left.mean < _GAIN:
        text = f"The defect is diffuse: {held}, and with {even.budget} projections {compared}."
        return Finding("diffuse-defect", True, f"{text} Even spacing is competitive.")
    return Finding("concentration", False, f"Concentration: {held}. With {even.budget} projections {compared}.")


def _lasting(m: Measured) -> Finding | None:
    if m.effects is None:
        return None
    survival, half = m.effects.survival, m.effects.half_life
    long = f"half of it is gone after {half:.1f} steps" if math.isfinite(half) else "half of it is left to the end"
    words = zip(("early", "middle", "late"), m.effects.one_step, strict=True)
    thirds = ", ".join(f"{word} {share:.2f}" for word, share in words)
    left = f"{float(survival[1]):.2f} of a correction's benefit survives one step ({thirds})"
    return Finding("lasting", False, f"How long it lasts: {left}, and {long}.")


def _alignment(m: Measured) -> Finding | None:
    if m.effects is None:
        return None
    path, end = (m.effects.alignment(worth) for worth in (m.effects.value, m.effects.endpoint))
    numbers = (
        f"rank correlation {path.mean:.2f} ({path.low:.2f} to {path.high:.2f}), for the final state {end.mean:.2f}"
    )
    if path.mean >= _ALIGNED:
        return Finding("alignment", False, f"A high defect is worth correcting: {numbers}.")
    text = f"The defect says little about what a correction is worth: {numbers}. Times fixed in advance may do better."
    return Finding("misaligned-defect", True, text)


def _stability(m: Measured) -> Finding:
    s = m.stability
    numbers = f"{s.failed:.1%} of projections fail, {s.left_over:.1%} of the defect is left"
    if not math.isnan(s.amplification):
        numbers += f", a small change of a state is multiplied by up to {s.amplification:.2g}"
    if not math.isnan(s.again):
        numbers += f", projecting again moves it by {s.again:.1%} of the way"
    if s.sound:
        return Finding("stability", False, f"The projection is sound: {numbers}.")
    cure = (
        "Distances to full projection then say less"
        if s.reliable
        else "Fix that first: try a tighter tolerance, a better start of the solver, or on_failure='retry'"
    )
    return Finding("unstable-projection", True, f"The projection is unstable or discontinuous: {numbers}. {cure}.")


def _price_of_projection(m: Measured) -> Finding:
    taken = 1 - m.terminal.seconds / m.stepwise.seconds
    longer = m.stepwise.seconds / m.terminal.seconds
    once = "one that is not projected" if m.never_projects else "one projected once"
    numbers = f"a rollout projected at every step takes {longer:.1f} times as long as {once}, with {m.batch} in a batch"
    if m.unit == "seconds" and taken < _CHEAP:
        return Finding("cheap-projection", True, f"Projecting is cheap: {numbers}. Project at every step.")
    return Finding("cost", False, f"Time: {numbers}; at most {max(taken, 0.0):.0%} of it can be saved.")


def _known(m: Measured) -> list[Finding]:
    """Return what is known from the kind of states and defects."""
    found = []
    if m.turnable:
        text = "States look like sets of points in space. If a turned sample is the same sample, give "
        found.append(Finding("symmetry", False, f"{text}distance=trimtab.core.metrics.aligned."))
    if m.constant:
        text = "The defect is the same number at every step of every rollout, so it cannot decide anything: use even "
        found.append(Finding("constant-defect", True, f"{text}spacing, planned times, or a defect that is a distance."))
    if m.looks_project:
        text = "Measuring the defect is a projection, so waiting for a high one saves nothing: use fixed times or "
        found.append(Finding("defect-is-projection", True, f"{text}give a cheap defect."))
    return found


def _calibration(m: Measured) -> Finding | None:
    even, priced = m.level.get("periodic"), m.level.get("adaptive")
    if even is None or priced is None:
        return None
    numbers = f"with {priced.budget} projections they lose {priced.loss}, even spacing {even.loss}"
    if judge(priced.measured, even.measured, 0.0).verdict == "better":
        text = f"The prices do not hold on other seeds: {numbers}. Calibrate on more seeds, and on the sampler you run."
        return Finding("poor-calibration", True, text)
    found = judge(even.measured, priced.measured, m.tolerance)
    return Finding("calibration", False, f"On other seeds prices, against even spacing, are {found.words}: {numbers}.")
