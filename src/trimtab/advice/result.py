"""The result of `advise`: a recommendation with everything that was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from trimtab.advice.checks import Effects, Stability
from trimtab.advice.trials import Cost, Goal, Trial
from trimtab.core import html
from trimtab.core.constraint import Constraint
from trimtab.core.schedule import Schedule
from trimtab.core.statistics import Summary
from trimtab.prices import Price

__all__ = ["Advice", "Finding", "Measured"]


@dataclass(frozen=True)
class Finding:
    """One answer.

    Attributes:
        name: The question, or the failure mode (a key of `FAILURE_MODES`).
        warns: Whether it is a failure mode that was seen.
        text: One or two sentences.
    """

    name: str
    warns: bool
    text: str


@dataclass(frozen=True, eq=False)
class Measured:
    """Everything that was measured.

    Attributes:
        goal: What was asked for.
        unit: The cost that decided: seconds, projections, or iterations if the solver iterates.
        n_steps: T.
        calibrated: Number of seeds, or groups, that calibrated; 0 if a price was given or none was needed.
        held_out: Number of seeds, or groups, that chose.
        fresh: Number of seeds, or groups, that chose nothing and measured the recommendation; 0 if there were none.
        repeated: Number of samples left out because their seed was there already.
        batch: Number of samples in the batch that chose.
        grouped: Whether samples are decided on in groups.
        gain: By how much full projection is better than terminal projection.
        full: Mean of the measure with full projection.
        terminal: The trial that projects once, at the end.
        stepwise: The trial that projects at every step.
        trials: Schedules at budgets, in order of kind and budget.
        efforts: Cheaper projections, and fewer iterations, at every step.
        needed: By kind, the cheapest trial that does what was asked.
        confirmed: The recommendation on fresh seeds, if there were any.
        rejected: Candidates that met the tolerance at first, but not on fresh seeds; as measured there.
        yours: The window that is used today, if it was given.
        concentration: C_0.2 of the terminal rollouts.
        constant: Whether the defect is the same number everywhere.
        looks_project: Whether measuring the defect is a projection.
        iterates: Whether the solver iterates.
        effects: What single corrections did; None if timing makes no difference.
        stability: Of the projection and the rollout.
        samples: The recommended final samples, and those of full projection on fresh seeds; None if there are none.
        batches: Number of batches that were run.
        given: Whether the price was made earlier.
        broken: The error of the quality, if it failed on the way.
    """

    goal: Goal
    unit: Cost
    n_steps: int
    calibrated: int
    held_out: int
    fresh: int
    repeated: int
    batch: int
    grouped: bool
    gain: Summary
    full: float
    terminal: Trial
    stepwise: Trial
    trials: tuple[Trial, ...]
    efforts: tuple[Trial, ...]
    needed: Mapping[str, Trial]
    confirmed: Trial | None
    rejected: tuple[Trial, ...]
    yours: Trial | None
    concentration: float
    constant: bool
    looks_project: bool
    iterates: bool
    effects: Effects | None
    stability: Stability
    samples: tuple[Any, Any] | None
    batches: int
    given: bool = False
    broken: str = ""

    @property
    def units(self) -> str:
        """Return what is counted: rows of a group are not independent and count once."""
        return "groups" if self.grouped else "rollouts"

    @property
    def everything(self) -> list[Trial]:
        """Return all candidates, by cost."""
        return sorted(
            [self.terminal, *self.efforts, *self.trials, self.stepwise], key=lambda trial: trial.cost(self.unit)
        )

    @property
    def best(self) -> Trial:
        """Return the trial with the best final samples; full projection if none is better."""
        known = [trial for trial in (self.stepwise, *self.everything) if not trial.missing]
        return min(known or [self.stepwise], key=lambda trial: float(trial.measured.mean()))

    def of(self, kind: str) -> list[Trial]:
        """Return the trials of a kind by budget, between the terminal and the stepwise one."""
        between = [trial for trial in self.trials if trial.kind == kind]
        return [self.terminal, *sorted(between, key=lambda trial: trial.budget), self.stepwise]


@dataclass(frozen=True, eq=False, repr=False)
class Advice:
    """What to do, and why; `print` it, `plot` it, or use `schedule` and `constraint` as they are.

    Attributes:
        trial: The recommended way to correct, as it was measured when it was chosen.
        loss: The share of full projection's gain that it loses; on fresh seeds if there were any.
        saving: The share of the cost of stepwise correction that it saves.
        schedule: Ready to use; it raises an error on the seeds that calibrated it.
        constraint: Ready to use, a cheaper variant if one is recommended; None for a loop whose constraint is unknown.
        price: The price behind the schedule, to `save`; None if it needs none.
        measured: All numbers.
        reason: One sentence on the choice.
    """

    trial: Trial
    loss: Summary
    saving: Summary
    schedule: Schedule
    constraint: Constraint | None
    price: Price | None
    measured: Measured
    reason: str

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Return answers and failure modes."""
        from trimtab.advice.text import findings_of

        return findings_of(self.measured, self.trial)

    @property
    def kind(self) -> str:
        """Return the kind of schedule."""
        return self.trial.kind

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
        from trimtab.advice.text import words_of

        return words_of(self)

    def __repr__(self) -> str:
        """Return the recommendation in one line."""
        return (
            f"Advice({self.trial.name}, loss {self.loss}, saves {self.saving.mean:.0%} of the {self.measured.unit}; "
            "print it for the reasons)"
        )

    def _repr_html_(self) -> str:
        m = self.measured
        facts = [("schedule", self.kind), ("corrections", f"{self.budget} of {m.n_steps}"), ("loss", str(self.loss))]
        facts += [("projection", self.trial.how)] if self.trial.how else []
        facts += [("saved", f"{self.saving.mean:.0%} of the {m.unit}")]
        facts += [("warnings", ", ".join(self.failure_modes))] if self.failure_modes else []
        kinds = dict.fromkeys(trial.kind for trial in m.trials)
        lines: dict[str, list[tuple[float, float]]] = {
            kind: [(float(trial.budget), trial.loss.mean) for trial in m.of(kind)] for kind in kinds
        }
        reasons = f"<details><summary>In words</summary><pre>{escape(str(self))}</pre></details>"
        return html.panel(f"Advice: {self.reason}", html.table(facts), html.draw(lines, "corrections", "loss"), reasons)

    def facts(self) -> dict[str, Any]:
        """Return all numbers for JSON."""
        m = self.measured
        return {
            "recommended": {
                "schedule": self.kind,
                "budget": self.budget,
                "projection": self.trial.how,
                "n_steps": m.n_steps,
                "reason": self.reason,
            },
            "loss": self.loss.facts(),
            "saving": self.saving.facts() | {"unit": m.unit},
            "failure_modes": list(self.failure_modes),
            "findings": [vars(finding) for finding in self.findings],
            "trials": [_facts_of(trial, m.goal.measure) for trial in m.everything],
            "confirmed": None if m.confirmed is None else _facts_of(m.confirmed, m.goal.measure),
        }

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw loss against budget and cost, and how long a correction lasts; needs matplotlib.

        Args:
            path: A .png, .svg or .pdf file to write as well.

        Returns:
            The matplotlib figure.
        """
        from trimtab.advice.figure import advice_figure

        return advice_figure(self, None if path is None else Path(path))


def _facts_of(trial: Trial, measure: str) -> dict[str, Any]:
    numbers = {name: getattr(trial, name) for name in ("nepe", "endpoint", "seconds", "projections", "iterations")}
    mean = float(trial.measured.nanmean())
    return {
        "schedule": trial.kind,
        "budget": trial.budget,
        "projection": trial.how,
        "loss": trial.loss.facts(),
        "excess": trial.excess.facts(),
        "worse": trial.worse.higher,
        "measured": {measure: None if mean != mean else mean},
        "far": trial.far,
        **{name: None if value != value else value for name, value in numbers.items()},
    }
