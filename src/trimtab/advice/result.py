"""The result of `advise`: a recommendation with everything that was measured."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trimtab.advice.figure import advice_figure
from trimtab.advice.text import findings_of, words_of
from trimtab.advice.trials import Finding, Measured, Trial
from trimtab.core.constraint import Constraint
from trimtab.core.schedule import Schedule
from trimtab.core.statistics import Summary
from trimtab.prices import Price

__all__ = ["Advice", "Finding", "Measured"]


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
        return words_of(self)

    def __repr__(self) -> str:
        """Return the recommendation in one line."""
        return (
            f"Advice({self.trial.name}, loss {self.loss}, saves {self.saving.mean:.0%} of the {self.measured.unit}; "
            "print it for the reasons)"
        )

    def facts(self) -> dict[str, Any]:
        """Return all numbers for JSON."""
        m = self.measured
        return {
            "recommended": {
                "schedule": self.kind,
                "budget": self.budget,
                "projection": self.trial.how,
                "shared": self.trial.way.shared,
                "n_steps": m.n_steps,
                "reason": self.reason,
            },
            "loss": self.loss.facts(),
            "saving": self.saving.facts() | {"unit": m.unit},
            "failure_modes": list(self.failure_modes),
            "findings": [vars(finding) for finding in self.findings],
            "trials": [_facts_of(trial, m.goal.measure) for trial in (m.terminal, *m.trials, m.stepwise)],
            "efforts": [_facts_of(trial, m.goal.measure) for trial in m.efforts],
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
    numbers = {name: getattr(trial, name) for name in ("nepe", "endpoint", "seconds", "projections", "iterations")}
    mean = float(trial.measured.nanmean())
    return {
        "schedule": trial.kind,
        "budget": trial.budget,
        "projection": trial.how,
        "shared": trial.way.shared,
        "loss": trial.loss.facts(),
        "excess": trial.excess.facts(),
        "worse": trial.worse.higher,
        "measured": {measure: None if mean != mean else mean},
        "far": trial.far,
        **{name: None if value != value else value for name, value in numbers.items()},
    }
