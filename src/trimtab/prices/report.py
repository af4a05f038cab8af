"""What a learner knows so far, in words."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["IN_WORDS", "Report"]

IN_WORDS = {
    "program": "what was learned",
    "even": "even spacing",
    "last": "the last steps",
    "end": "one projection at the end",
    "explore": "ways at random, to learn from",
}


@dataclass(frozen=True)
class Report:
    """What a learner knows so far; print it.

    Attributes:
        samples: How many samples were seen, control samples included.
        runs: In how many runs.
        control: How many samples were corrected at evenly spaced steps.
        in_use: What the next run uses.
        ways: The ways it chooses from.
        work: Solver iterations (or projections) per sample: of the samples, of the control, of full projection.
        called: At how many steps of a run the solver was called, on average.
        seconds: In the solver, per run: lately, and of full projection as estimated from calls, rows and iterations.
        path: Path error as a share of the control's, compared within batches, as (value, low, high).
        landing: The same for the defect of the last proposal.
        quality: The share of pairs in which a sample is better than a control sample of its batch; None without one.
        twins: What twins showed of each candidate: distance to full projection (or quality) and work, per sample.
        missing: How many samples had a quality that is NaN or infinite, and were left out.
        drift: A sentence if the comparison has changed; "" otherwise.
        budget: What is spent, in words.
    """

    samples: int
    runs: int
    control: int
    in_use: str
    ways: tuple[str, ...]
    work: tuple[float, float, float]
    called: float
    seconds: tuple[float, float]
    path: tuple[float, float, float]
    landing: tuple[float, float, float]
    quality: tuple[float, float, float] | None
    twins: dict[str, list[float]]
    missing: int
    drift: str
    budget: str

    def __repr__(self) -> str:
        """Return a few lines."""
        mine, even, full = (f"{one:.3g}" if one == one else "?" for one in self.work)
        lines = [
            f"Learned from {self.samples} samples in {self.runs} runs; {self.control} of them were control samples, "
            "on even spacing.",
            f"Budget: {self.budget}. The next run uses {self.in_use}.",
            f"Solver work per sample lately: {mine}; control {even}; full projection {full}.",
            f"Seconds in the solver per run: {self.seconds[0]:.2g}; full projection about {self.seconds[1]:.2g}; "
            f"called at {self.called:.0f} steps.",
            f"path error: {_share(*self.path)}",
            f"landing: {_share(*self.landing)}",
        ]
        if self.quality is not None:
            lines.append(f"quality: {_wins(*self.quality)}")
        if self.twins:
            shown = ", ".join(
                f"{IN_WORDS.get(name, name)} {cost:.3g} ({work:.0f})" for name, (cost, work) in self.twins.items()
            )
            lines.append(f"Twins, how far they end from full projection (or their quality), and their work: {shown}.")
        elif self.quality is None:
            lines.append("Only a quality of final samples, or twins, can say whether they are better.")
        if self.missing:
            lines.append(f"{self.missing} samples had a quality that is NaN or infinite, and were left out of it.")
        return "\n".join(lines + ([self.drift] if self.drift else []))


def _share(ratio: float, low: float, high: float) -> str:
    """Return a ratio with its interval, in words."""
    if math.isnan(ratio):
        return "not known yet"
    if math.isnan(low):
        return f"{ratio:.2f} of the control's; too few batches for an interval"
    verdict = "better" if high < 1 else "worse" if low > 1 else "undecided"
    return f"{ratio:.2f} of the control's ({low:.2f} to {high:.2f}, valid whenever you look): {verdict}"


def _wins(share: float, low: float, high: float) -> str:
    """Return a share of wins with its interval, in words."""
    if math.isnan(share):
        return "not known yet"
    if math.isnan(low):
        return f"better than the control in {share:.0%} of the pairs of a batch; too few batches for an interval"
    verdict = "better" if low > 0.5 else "worse" if high < 0.5 else "undecided"
    return f"better than the control in {share:.0%} of the pairs ({low:.0%} to {high:.0%}): {verdict}"
