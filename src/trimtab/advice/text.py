"""Advice in words: what to do and why, what it loses and saves, and what was found."""

from __future__ import annotations

import math
import textwrap

from trimtab.advice.measured import Measured, Recommendation
from trimtab.advice.trial import KINDS, Trial

__all__ = ["words_of"]

_WIDTH = 118  # columns of the words


def words_of(advice: Recommendation) -> str:
    """The whole advice as plain text."""
    m = advice.measured
    lines = [_headline(advice), f"  Why: {advice.reason}.", _loss(advice), _saving(advice)]
    if m.needed:
        what = (
            "Within the time limit"
            if m.limit is not None
            else f"To lose no more than {m.tolerance:g} of what full projection gains"
        )
        lines += [f"  {what}:", *(f"    {_one(m, kind, trial)}" for kind, trial in m.needed.items())]
        lines += [] if m.limit is not None else _out_of_reach(m)
    lines += ["", "What was found"]
    for finding in advice.findings:
        lines += textwrap.wrap(
            finding.text,
            _WIDTH,
            initial_indent="  ! " if finding.warns else "  - ",
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    lines += [
        "",
        f"Measured on {m.held_out} {m.units}, {_calibrated(m)}, {m.batches} batches in all.",
        f"Intervals are 95%, bootstrapped over {m.units}"
        + ("; those of times are the range of three." if m.unit == "seconds" else "."),
    ]
    if advice.kind not in ("terminal", "stepwise"):
        chosen = (
            f"The budget was chosen by the same {m.units}, so that its loss is sooner above the number given than "
            "below it. Where that matters, measure it on others."
        )
        lines += textwrap.wrap(chosen, _WIDTH)
    if m.held_out < 16:
        lines.append(f"That is few: give 64 {'groups' if m.grouped else 'seeds'} or more for numbers to rely on.")
    return "\n".join(lines)


def _calibrated(m: Measured) -> str:
    return "with a price made earlier" if m.given else f"calibrated on {m.calibrated} others"


def _out_of_reach(m: Measured) -> list[str]:
    """Kinds whose price, made earlier, ends before it does what was asked; what it was tried with at the most."""
    tried = {kind: m.of(kind)[-2].budget for kind in KINDS if kind not in m.needed and len(m.of(kind)) > 2}
    return [f"    {kind:9} not with the {most} projections that its price goes up to" for kind, most in tried.items()]


def _headline(advice: Recommendation) -> str:
    m = advice.measured
    if advice.kind == "terminal" and m.terminal.never_projects:
        return "Use terminal correction: no projection on the way and, with closing='none', none at the end."
    if advice.kind == "terminal":
        return "Use terminal correction: no projection on the way, one at the end."
    if advice.kind == "stepwise":
        return "Use stepwise correction: project after every step."
    share = f"B/T = {advice.budget / m.n_steps:.2f}"
    return f"Use {advice.kind} correction with {advice.budget} of {m.n_steps} projections ({share})."


def _loss(advice: Recommendation) -> str:
    m = advice.measured
    asked = "" if m.tolerance is None else f"; the tolerance is {m.tolerance:g}"
    if m.tolerance is not None and advice.loss.high > m.tolerance:
        asked += ", which is missed"
    if math.isnan(advice.loss.mean):
        return "  Loss: none that could be measured."
    least = "no projection at all" if m.terminal.never_projects else "one projection at the end"
    return f"  Loss, by {m.measure}: {advice.loss}{asked}. 0 is full projection, 1 is {least}."


def _saving(advice: Recommendation) -> str:
    m, s = advice.measured, advice.saving
    trials = [m.terminal, m.stepwise, *m.trials]
    chosen = next(t for t in trials if t.kind == advice.kind and t.budget == advice.budget)
    if m.unit == "projections":
        return (
            f"  Saving: {s.mean:.0%} of the projections, {chosen.projections:.1f} instead of "
            f"{m.stepwise.projections:.1f} per sample."
        )
    times = f"{_time(chosen.seconds)} instead of {_time(m.stepwise.seconds)} per sample"
    if m.limit is not None and chosen.seconds > m.limit:
        times += f", which is longer than the limit of {_time(m.limit)}"
    return f"  Saving: {s.mean:.0%} ({s.low:.0%} to {s.high:.0%}) of the time of stepwise correction, {times}."


def _one(m: Measured, kind: str, trial: Trial) -> str:
    time = f", {_time(trial.seconds):>8} per sample" if m.unit == "seconds" else ""
    many = f"projection{'' if trial.budget == 1 else 's'}"
    return f"{kind:9} {trial.budget:4d} {many}{time}, loss {trial.loss}"


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"
