"""Advice in words: the recommendation, the candidates, and what was found."""

from __future__ import annotations

import math
import textwrap
from typing import Any

from trimtab.advice.trials import FAR, Finding, Measured, Trial
from trimtab.core.statistics import Summary, paired, ratio, tail_share, verdict

__all__ = ["FAILURE_MODES", "findings_of", "words_of"]

FAILURE_MODES = {
    "full-projection-no-better": "projecting at every step is no better than once, at the end",
    "chaotic-rollout": "rollouts that start a hair apart end far apart",
    "misaligned-defect": "the defect says little about what a correction is worth",
    "unstable-projection": "the projection is unstable or discontinuous",
    "diffuse-defect": "the defect is diffuse, so periodic correction is competitive",
    "poor-calibration": "the prices do not hold on other seeds",
    "cheap-projection": "projecting costs next to nothing, so stepwise correction is preferable",
    "constant-defect": "the defect is constant",
    "defect-is-projection": "measuring the defect is a projection",
    "quality-failed": "the quality failed for some samples",
}
"""By name: the five of the paper, and those in which there is nothing to decide or nothing to go by."""

_WIDTH = 118
_ALIGNED = 0.3  # rank correlation
_DIFFUSE = 0.4  # C_0.2; 0.2 is uniform
_GAIN = 0.1  # relative, over periodic
_CHEAP = 0.1  # share of a stepwise rollout's time


def words_of(advice: Any) -> str:
    """Return the whole advice as plain text."""
    m = advice.measured
    lines = [_headline(advice), f"  Why: {advice.reason}."]
    lines += [f"  {line}" for line in (_loss(advice), _cost(advice), _otherwise(advice), _not_quality(m)) if line]
    if m.trials or m.efforts:
        lines += ["", f"Candidates by {m.unit}, the cheapest first (* meets the tolerance)"]
        width = min(64, max(len(trial.name) for trial in m.everything))
        lines += [_candidate(m, trial, width) for trial in m.everything]
    lines += ["", "What was found"]
    for finding in advice.findings:
        mark = "  ! " if finding.warns else "  - "
        lines += textwrap.wrap(finding.text, _WIDTH, initial_indent=mark, subsequent_indent="    ")
    return "\n".join([*lines, "", *textwrap.wrap(_measured_on(m, advice.trial), _WIDTH)])


def _headline(advice: Any) -> str:
    m, trial = advice.measured, advice.trial
    if trial.kind == "terminal" and trial.never_projects:
        return "Use terminal correction: no projection on the way and, with closing='none', none at the end."
    if trial.kind == "terminal":
        return "Use terminal correction: no projection on the way, one at the end."
    if trial.how and trial.kind in ("stepwise", "inexact"):
        return f"Use a cheaper projection at every step: {trial.how} (advice.constraint with advice.schedule)."
    if trial.kind == "stepwise":
        return "Use stepwise correction: project after every step."
    shared = ", shared by the batch" if trial.way.shared else ""
    text = f"Use {trial.kind} correction with {trial.budget} of {m.n_steps} "
    if trial.how:
        return f"{text}steps{shared}, and a cheaper projection: {trial.how} (advice.constraint with advice.schedule)."
    return f"{text}projections (B/T = {trial.budget / m.n_steps:.2f}){shared}."


def _loss(advice: Any) -> str:
    m, goal = advice.measured, advice.measured.goal
    trial = m.confirmed or advice.trial
    lost, n = goal.lost(trial), m.fresh or m.held_out
    if math.isnan(lost.mean):
        why = "samples have no measure" if m.gain.mean > 0 else "full projection gains nothing"
        return f"Loss: there is no share to give, because {why}."
    where = f"on {n} fresh rollouts" if m.fresh else f"on {n} rollouts"
    where = f"on {lost.n} rollouts, {n} of them fresh" if m.fresh and lost.n > n else where
    text = f"Loss, by {goal.measure}: {lost} {where}"
    if not lost.reliable:
        text += f"; {_cannot(lost, m)}"
    elif goal.tolerance is not None:
        unit = f" in the unit of {goal.measure}" if goal.absolute else ""
        met = "" if lost.high <= goal.tolerance else ", which is not shown to be met"
        text += f"; the tolerance is {goal.tolerance:g}{unit}{met}"
    if not goal.absolute:
        least = "no projection at all" if m.terminal.never_projects else "one projection at the end"
        text += f". 0 is full projection, 1 is {least}"
    if goal.quality is not None and (trial.kind not in ("terminal", "stepwise") or trial.how):
        text += f". It is worse than full projection in {trial.worse.higher} of {n}"
        text += "" if goal.absolute else f", on average by {_plain(trial.excess)}"
    return f"{text}."


def _cannot(lost: Summary, m: Measured) -> str:
    return (
        f"an interval cannot be given with {lost.n} rollouts, because one of them makes up {lost.top_share:.0%} of "
        "the spread"
    )


def _cost(advice: Any) -> str:
    m, trial, saving = advice.measured, advice.trial, advice.saving
    parts = [f"{trial.projections:.1f} projections instead of {m.stepwise.projections:.1f}"]
    if m.iterates:
        parts.append(f"{trial.iterations:.1f} solver iterations instead of {m.stepwise.iterations:.1f}")
    if m.unit == "seconds":
        parts.append(f"{_time(trial.seconds)} instead of {_time(m.stepwise.seconds)}")
    text = f"Cost per sample: {', '.join(parts)}; it saves {saving.mean:.0%} of the {m.unit}"
    text += f" ({saving.low:.0%} to {saving.high:.0%})" if m.unit == "seconds" and saving.n > 1 else ""
    if m.goal.limit is not None and trial.seconds > m.goal.limit:
        text += f", but takes longer than the limit of {_time(m.goal.limit)}"
    return f"{text}."


def _otherwise(advice: Any) -> str:
    """Return a sentence about the best cheaper alternative if full projection is recommended; else nothing."""
    m = advice.measured
    if advice.trial is not m.stepwise:
        return ""
    rejected = {trial.name for trial in m.rejected}
    enough = [t for t in m.everything if m.goal.lost(t).mean <= (m.goal.tolerance or 0.0) and t.name not in rejected]
    if enough and enough[0] is not m.stepwise:  # the cheapest
        return f"This may be enough: {enough[0].name}, loss {m.goal.lost(enough[0])}. Try it on more seeds."
    half = [t for t in m.everything if t.cost(m.unit) <= 0.5 * m.stepwise.cost(m.unit) and t is not m.terminal]
    best = min(half, key=lambda trial: m.goal.lost(trial).mean, default=None)
    return (
        ""
        if best is None
        else f"For at most half of the {m.unit}, the nearest is {best.name}: loss {m.goal.lost(best)}."
    )


def _not_quality(m: Measured) -> str:
    if m.goal.quality is not None:
        return ""
    return "Nearness to full projection is not quality: full projection may be worse. Give quality= to go by yours."


def _candidate(m: Measured, trial: Trial, width: int) -> str:
    cost = f"{trial.projections:6.1f} projections"
    cost += f", {trial.iterations:6.1f} iterations" if m.iterates else ""
    cost += f", {_time(trial.seconds):>8}" if m.unit == "seconds" else ""
    again = next((one for one in m.rejected if one.name == trial.name), None)
    met = "*" if m.goal.tolerance is not None and m.goal.met(trial) and again is None else " "
    on_fresh = "" if again is None else f"; on fresh seeds {m.goal.lost(again)}"
    return f"  {met} {trial.name:{width}.{width}} {cost}, loss {m.goal.lost(trial)}{on_fresh}"


def _measured_on(m: Measured, chosen: Trial) -> str:
    text = f"Chosen on {m.held_out} rollouts"
    if m.given:
        text += ", with a price made earlier"
    elif m.calibrated:
        text += f", calibrated on {m.calibrated} others"
    text += f", measured once more on {m.fresh} that chose nothing" if m.fresh else ""
    text += f"; {m.batches} batches in all"
    text += f", paid back after {m.paid_back:.3g} samples" if math.isfinite(m.paid_back) else ""
    text += ". Intervals are 95%, bootstrapped over rollouts"
    text += " and left out if a few of them hold most of the spread."
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


def findings_of(m: Measured, chosen: Trial) -> tuple[Finding, ...]:
    """Return answers and failure modes, in the order a person would ask."""
    found = [_reference(m), _turned(m), _broken(m), _chaos(m), _landing(chosen, m)]
    found += [_yours(m), _tails(m), _concentration(m), _lasting(m), _alignment(m), _stability(m)]
    found.append(_price_of_projection(m))
    if m.constant:
        text = (
            "The defect is the same number at every step of every rollout, so it cannot decide anything: use periodic "
            "or planned times, or a defect that measures distance."
        )
        found.append(Finding("constant-defect", True, text))
    if m.looks_project:
        text = (
            "Measuring the defect is a projection, so waiting for a high one saves nothing: use periodic, window or "
            "planned times, or give a cheap defect."
        )
        found.append(Finding("defect-is-projection", True, text))
    found.append(_calibration(m))
    return tuple(finding for finding in found if finding is not None)


def _reference(m: Measured) -> Finding:
    gain = _plain(m.gain) + ("" if m.gain.reliable else f" (no interval: {_cannot(m.gain, m)})")
    once = "not at all" if m.terminal.never_projects else "once, at the end"
    if not (m.gain.low > 0 or (not m.gain.reliable and m.gain.mean > 0)):
        worse = "worse than" if m.gain.high < 0 else "no better than"
        return Finding(
            "full-projection-no-better",
            True,
            f"By {m.goal.measure}, projecting at every step is {worse} {once}: it gains {gain} over a mean of "
            f"{m.full:.4g}. Project less, or improve the projection.",
        )
    best = m.best
    best_at = "" if m.goal.to_full else f"; final samples are best with {best.name}"
    terminal = "no projection" if m.terminal.never_projects else "terminal projection"
    text = f"By {m.goal.measure}, full projection is better than {terminal} by {gain}{best_at}."
    return Finding("reference", False, text)


def _turned(m: Measured) -> Finding | None:
    if not m.turnable:
        return None
    text = (
        "States look like sets of points in space. If a turned sample is the same sample, give "
        "distance=trimtab.core.metrics.aligned."
    )
    return Finding("symmetry", False, text)


def _broken(m: Measured) -> Finding | None:
    missing = max((trial.missing for trial in m.everything), default=0)
    if not missing and not m.broken:
        return None
    why = f" ({m.broken})" if m.broken else ""
    text = (
        f"The quality gave no number for up to {missing} of {m.held_out} rollouts of a batch{why}; they are left out."
    )
    return Finding("quality-failed", True, text)


def _chaos(m: Measured) -> Finding | None:
    if not m.stability.chaotic:
        return None
    text = (
        f"Two rollouts a hair apart at the start are {m.stability.divergence:.0f} times as far apart at the end: "
        "distances between final states say nothing here. Go by a quality, or compare sets of samples."
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


def _yours(m: Measured) -> Finding | None:
    if m.yours is None:
        return None
    yours, goal = m.yours, m.goal
    cheaper = [trial for trial in m.everything if trial.cost(m.unit) <= yours.cost(m.unit)]
    better = min(cheaper, key=lambda trial: goal.lost(trial).mean, default=None)
    text = f"Your window costs {yours.projections:.1f} projections per sample and loses {goal.lost(yours)}"
    if better is not None:
        text += f"; the best candidate that costs no more is {better.name}: {goal.lost(better)}"
    return Finding("your-window", False, f"{text}.")


def _tails(m: Measured) -> Finding | None:
    """Say if a few rollouts hold most of the loss."""
    unknown = [trial for trial in m.trials if not m.goal.lost(trial).reliable and not trial.missing]
    if not unknown:
        return None
    trial = max(unknown, key=lambda one: one.budget)
    lost = (trial.measured - m.stepwise.measured).clamp(min=0)
    few = max(1, m.held_out // 16)
    makes = f"{few} of {m.held_out} rollouts " + ("makes" if few == 1 else "make")
    text = (
        f"A few rollouts decide: with {trial.name}, {makes} up {tail_share(lost, few / len(lost)):.0%} of the loss. "
        "More seeds show how rare they are. By the distance to full projection, a sample that ends elsewhere counts as "
        "lost though it may be as good: a quality decides that."
    )
    return Finding("tails", False, text)


def _concentration(m: Measured) -> Finding | None:
    periodic, others = m.level.get("periodic"), [trial for kind, trial in m.level.items() if kind != "periodic"]
    if periodic is None or not others:
        return None
    full = m.stepwise.measured
    best = min(others, key=lambda trial: trial.loss.mean)
    left = ratio(best.measured - full, periodic.measured - full)
    held = f"the worst 20% of steps hold {m.concentration:.0%} of the defect (20% would be uniform)"
    gain = 1 - left.mean
    interval = f" ({left.low:.0%} to {left.high:.0%})" if left.reliable else ""
    compared = f"{best.kind} correction has {left.mean:.0%}{interval} of the loss of periodic correction"
    if math.isnan(left.mean):
        return Finding("concentration", False, f"Concentration: {held}. Periodic correction may lose nothing at all.")
    if m.concentration < _DIFFUSE and gain < _GAIN:
        text = f"The defect is diffuse: {held}, and with {periodic.budget} projections {compared}."
        return Finding("diffuse-defect", True, f"{text} Periodic correction is competitive.")
    return Finding("concentration", False, f"Concentration: {held}. With {periodic.budget} projections {compared}.")


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
    if not path.mean >= _ALIGNED:
        text = (
            f"The defect says little about what a correction is worth: {numbers}. Times fixed in advance may do better."
        )
        return Finding("misaligned-defect", True, text)
    return Finding("alignment", False, f"A high defect is worth correcting: {numbers}.")


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
    once = "one that is not projected" if m.terminal.never_projects else "one projected once"
    numbers = f"a stepwise rollout takes {longer:.1f} times as long as {once}, with {m.batch} samples in a batch"
    if m.unit == "seconds" and taken < _CHEAP:
        return Finding("cheap-projection", True, f"Projecting is cheap: {numbers}. Use stepwise correction.")
    return Finding("cost", False, f"Time: {numbers}; at most {max(taken, 0.0):.0%} of it can be saved.")


def _calibration(m: Measured) -> Finding | None:
    periodic, adaptive = m.level.get("periodic"), m.level.get("adaptive")
    if periodic is None or adaptive is None:
        return None
    found = verdict(paired(adaptive.measured, periodic.measured))
    numbers = f"at B = {adaptive.budget} it loses {m.goal.lost(adaptive)}, periodic {m.goal.lost(periodic)}"
    if found == "worse":
        text = f"The prices do not hold on other seeds: {numbers}. Calibrate on more seeds, and on the sampler you run."
        return Finding("poor-calibration", True, text)
    level = {"better": "ahead of", "same": "level with"}.get(found, "not clearly ahead of")
    return Finding("calibration", False, f"On other seeds adaptive correction is {level} periodic: {numbers}.")
