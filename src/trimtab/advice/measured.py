"""What advice rests on: everything that was measured, what was found, and what is recommended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trimtab.advice.diagnosis import Effects, Interval
from trimtab.advice.effort import Effort
from trimtab.advice.projection_checks import Stability
from trimtab.advice.trial import Cost, Kind, Trial
from trimtab.core.distributions import Fidelity
from trimtab.core.schedule import Schedule
from trimtab.prices.price import Price

__all__ = ["Finding", "Measured", "Recommendation"]


@dataclass(frozen=True)
class Finding:
    """One answer.

    Attributes:
        name: Of the question, or of the failure mode (a key of `FAILURE_MODES`).
        warns: Whether it is a failure mode that was seen.
        text: One or two sentences.
    """

    name: str
    warns: bool
    text: str


@dataclass(frozen=True, eq=False)
class Measured:
    """All that was measured, which the words and the plot are made from.

    Attributes:
        n_steps: T.
        calibrated: Number of seeds that calibrated; of groups, where samples are decided on together.
        held_out: Number of seeds, or groups, that measured.
        batch: Number of samples that measured, those of a group one by one.
        grouped: Whether samples are decided on together.
        tolerance: The loss asked for, if any.
        limit: The seconds per sample asked for, if any.
        unit: What is saved: "seconds" or "projections".
        measure: What losses are measured by.
        to_full: Whether that is the distance of final samples to those of full projection, which is 0 for those.
        gain: By how much full projection is better than terminal projection in it, with its interval.
        full: The mean of the measure with full projection.
        terminal: The trial without corrections.
        stepwise: The trial with all of them.
        trials: All others, in order of kind and budget.
        needed: By kind, the trial that does what was asked for; a kind that cannot is left out.
        yours: The window that is used today, if it was told.
        concentration: C_0.2 of the terminal rollouts.
        constant: Whether the defect is the same number everywhere.
        looks_project: Whether looking at the defect is a projection.
        effects: Of single corrections; None where timing is of no consequence.
        alignment: Rank correlation of the defect with a correction's worth in path error.
        endpoint_alignment: And with its worth in endpoint distance.
        stability: Of the projection.
        fidelity: Of the recommended schedule's final samples as a distribution; None where it was not compared.
        batches: Rollouts of a batch that were run.
        given: Whether the price was made earlier, and calibrated on other samples than these.
        efforts: Cheaper projections, and parts of them, at every step; none where the constraint offers neither.
        per_step: Iterations that a projection takes, where they are counted.
    """

    n_steps: int
    calibrated: int
    held_out: int
    batch: int
    grouped: bool
    tolerance: float | None
    limit: float | None
    unit: Cost
    measure: str
    to_full: bool
    gain: Interval
    full: float
    terminal: Trial
    stepwise: Trial
    trials: tuple[Trial, ...]
    needed: Mapping[str, Trial]
    yours: Trial | None
    concentration: float
    constant: bool
    looks_project: bool
    effects: Effects | None
    alignment: Interval
    endpoint_alignment: Interval
    stability: Stability
    fidelity: Fidelity | None
    batches: int
    given: bool = False
    efforts: tuple[Effort, ...] = ()
    per_step: float = 0.0

    @property
    def units(self) -> str:
        """What is counted: the rows of a group are one, since they are not independent of each other."""
        return "groups" if self.grouped else "rollouts"

    @property
    def best(self) -> Trial:
        """The trial with the best final samples, whatever it costs; full projection where none is better."""
        return min((self.stepwise, self.terminal, *self.trials), key=lambda trial: float(trial.measured.mean()))

    def of(self, kind: str) -> list[Trial]:
        """The trials of a kind, by budget, between the terminal and the stepwise one."""
        between = [trial for trial in self.trials if trial.kind == kind]
        return [self.terminal, *sorted(between, key=lambda trial: trial.budget), self.stepwise]


@dataclass(frozen=True, eq=False)
class Recommendation:
    """What to do, and why.

    Attributes:
        kind: "terminal", "periodic", "window", "planned", "adaptive" or "stepwise".
        budget: Corrections to spend.
        loss: The share of full projection's gain to lose, with its 95% interval.
        saving: The share of the cost of stepwise correction that is saved, with the range it was measured in.
        schedule: Ready to use; it refuses the seeds it was calibrated on.
        price: The prices or the plan behind it, to `save`; None for kinds that need none.
        findings: Answers to the questions asked, and the failure modes, seen or not.
        measured: All the numbers.
        reason: One sentence on the choice.
    """

    kind: Kind
    budget: int
    loss: Interval
    saving: Interval
    schedule: Schedule
    price: Price | None
    findings: tuple[Finding, ...]
    measured: Measured
    reason: str
