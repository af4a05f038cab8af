"""What advice is: a recommendation, the reasons for it, and all that was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from trimtab.advice.diagnosis import Effects, Interval, Stability
from trimtab.advice.trials import Cost, Kind, Trial
from trimtab.advice.words import Finding, words_of
from trimtab.core import show
from trimtab.core.distributions import Fidelity
from trimtab.core.schedule import Schedule
from trimtab.prices.calibration import Price

__all__ = ["Advice", "Measured"]


@dataclass(frozen=True, eq=False)
class Measured:
    """All that was measured, which the words and the plot are made from.

    Attributes:
        n_steps: T.
        calibrated: Number of seeds that calibrated.
        held_out: Number of seeds that measured.
        tolerance: The loss asked for, if any.
        limit: The seconds per sample asked for, if any.
        unit: What is saved: "seconds" or "projections".
        measure: What losses are measured by.
        gain: By how much full projection is better than terminal projection in it, with its interval.
        full: The mean of the measure with full projection.
        terminal: The trial without corrections.
        stepwise: The trial with all of them.
        trials: All others, in order of kind and budget.
        needed: By kind, the trial that does what was asked for; a kind that cannot is left out.
        yours: The window that is used today, if it was told.
        degenerate: The share of samples for which timing is of no consequence.
        concentration: C_0.2 of the terminal rollouts.
        constant: Whether the defect is the same number everywhere.
        looks_project: Whether looking at the defect is a projection.
        share: Of a stepwise rollout's time that is spent projecting.
        effects: Of single corrections; None where timing is of no consequence.
        alignment: Rank correlation of the defect with a correction's worth in path error.
        endpoint_alignment: And with its worth in endpoint distance.
        stability: Of the projection.
        fidelity: Of the recommended schedule's final samples as a distribution; None where it was not compared.
        batches: Rollouts of a batch that were run.
    """

    n_steps: int
    calibrated: int
    held_out: int
    tolerance: float | None
    limit: float | None
    unit: Cost
    measure: str
    gain: Interval
    full: float
    terminal: Trial
    stepwise: Trial
    trials: tuple[Trial, ...]
    needed: Mapping[str, Trial]
    yours: Trial | None
    degenerate: float
    concentration: float
    constant: bool
    looks_project: bool
    share: float
    effects: Effects | None
    alignment: Interval
    endpoint_alignment: Interval
    stability: Stability
    fidelity: Fidelity | None
    batches: int

    @property
    def best(self) -> Trial:
        """The trial with the best final samples, whatever it costs."""
        return min((self.terminal, *self.trials, self.stepwise), key=lambda trial: float(trial.measured.mean()))

    def of(self, kind: str) -> list[Trial]:
        """The trials of a kind, by budget, between the terminal and the stepwise one."""
        between = [trial for trial in self.trials if trial.kind == kind]
        return [self.terminal, *sorted(between, key=lambda trial: trial.budget), self.stepwise]


@dataclass(frozen=True, eq=False)
class Advice:
    """What to do, and why; `print` it, `plot` it, or use `schedule` as it is.

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

    @property
    def failure_modes(self) -> tuple[str, ...]:
        """Names of those that were seen."""
        return tuple(finding.name for finding in self.findings if finding.warns)

    def __str__(self) -> str:
        """In words."""
        return words_of(self)

    def __repr__(self) -> str:
        """The recommendation in one line; `print` tells all."""
        return (
            f"Advice({self.kind}, {self.budget} of {self.measured.n_steps} corrections, loss {self.loss}, "
            f"saves {self.saving.mean:.0%} of the {self.measured.unit}; print it for the reasons)"
        )

    def _repr_html_(self) -> str:
        """The recommendation, what was tried and the reasons, in a notebook."""
        m = self.measured
        facts = [("schedule", self.kind), ("corrections", f"{self.budget} of {m.n_steps}"), ("loss", str(self.loss))]
        facts += [("saved", f"{self.saving.mean:.0%} of the {m.unit}"), ("warnings", ", ".join(self.failure_modes))]
        kinds = dict.fromkeys(trial.kind for trial in m.trials)
        lines: dict[str, list[tuple[float, float]]] = {
            kind: [(float(trial.budget), trial.loss.mean) for trial in m.of(kind)] for kind in kinds
        }
        drawing = show.draw(lines, "corrections", "loss")
        reasons = f"<details><summary>In words</summary><pre>{escape(str(self))}</pre></details>"
        return show.panel(f"Advice: {self.reason}", show.table(facts), drawing, reasons)

    def facts(self) -> dict[str, Any]:
        """As JSON."""
        m = self.measured
        trials = [m.terminal, *m.trials, m.stepwise]
        return {
            "recommended": {"schedule": self.kind, "budget": self.budget, "n_steps": m.n_steps, "reason": self.reason},
            "loss": self.loss.facts(),
            "saving": self.saving.facts() | {"unit": m.unit},
            "failure_modes": list(self.failure_modes),
            "findings": [vars(finding) for finding in self.findings],
            "trials": [
                {
                    "schedule": trial.kind,
                    "budget": trial.budget,
                    "loss": trial.loss.facts(),
                    m.measure: float(trial.measured.mean()),
                    "nepe": None if trial.nepe != trial.nepe else trial.nepe,
                    "endpoint": trial.endpoint,
                    "seconds": trial.seconds,
                    "projections": trial.projections,
                }
                for trial in trials
            ],
        }

    def plot(self, path: str | Path) -> Path:
        """Draw loss against budget and cost, and how long a correction lasts; needs matplotlib.

        Args:
            path: Ending in .png, .svg or .pdf.
        """
        from trimtab.advice.figure import write_advice_figure

        return write_advice_figure(self, Path(path))
