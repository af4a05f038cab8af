"""Advice: a recommendation that speaks for itself, in words, numbers and a picture."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from trimtab.advice.figure import advice_figure
from trimtab.advice.measured import Recommendation
from trimtab.advice.text import words_of
from trimtab.core import html

__all__ = ["Advice"]


@dataclass(frozen=True, eq=False, repr=False)
class Advice(Recommendation):
    """What to do, and why; `print` it, `plot` it, or use `schedule` as it is. See `Recommendation` for its parts."""

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
        facts += [("saved", f"{self.saving.mean:.0%} of the {m.unit}")]
        facts += [("warnings", ", ".join(self.failure_modes))] if self.failure_modes else []
        kinds = dict.fromkeys(trial.kind for trial in m.trials)
        lines: dict[str, list[tuple[float, float]]] = {
            kind: [(float(trial.budget), trial.loss.mean) for trial in m.of(kind)] for kind in kinds
        }
        drawing = html.draw(lines, "corrections", "loss")
        reasons = f"<details><summary>In words</summary><pre>{escape(str(self))}</pre></details>"
        return html.panel(f"Advice: {self.reason}", html.table(facts), drawing, reasons)

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
            "efforts": [vars(effort) | {"loss": effort.loss.facts()} for effort in m.efforts],
            "trials": [
                {
                    "schedule": trial.kind,
                    "budget": trial.budget,
                    "loss": trial.loss.facts(),
                    "measured": {m.measure: float(trial.measured.mean())},
                    "nepe": None if trial.nepe != trial.nepe else trial.nepe,
                    "endpoint": trial.endpoint,
                    "seconds": trial.seconds,
                    "projections": trial.projections,
                }
                for trial in trials
            ],
        }

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw loss against budget and cost, and how long a correction lasts; needs matplotlib.

        Args:
            path: Where to write it too, ending in .png, .svg or .pdf.

        Returns:
            The figure, as matplotlib has it; a notebook shows it.
        """
        return advice_figure(self, None if path is None else Path(path))
