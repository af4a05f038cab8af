"""What was found: the answers, and the ways in which adaptive correction fails, each by its name."""

from __future__ import annotations

import math

from trimtab.advice.diagnosis import Interval, bootstrap, mean, ratio_interval
from trimtab.advice.effort import effort_words
from trimtab.advice.measured import Finding, Measured
from trimtab.advice.trial import Trial

__all__ = ["FAILURE_MODES", "findings_of"]

FAILURE_MODES = {
    "full-projection-no-better": "projecting at every step is no better than once, at the end",
    "chaotic-rollout": "rollouts that begin a hair apart end far apart",
    "misaligned-defect": "the defect is poorly aligned with what a correction is worth",
    "unstable-projection": "the projection is unstable or discontinuous",
    "diffuse-defect": "the defect is diffuse, which makes periodic correction competitive",
    "poor-calibration": "the prices are poorly calibrated",
    "cheap-projection": "projecting costs next to nothing, so stepwise correction is preferable",
    "constant-defect": "the defect is constant",
    "defect-is-projection": "looking at the defect is a projection",
}
"""By name: the five of the paper, and those in which there is nothing to decide or nothing to go by."""

_ALIGNED = 0.3  # rank correlation
_DIFFUSE = 0.4  # C_0.2; 0.2 is uniform, 0.44 the sizes of independent normal numbers
_GAIN = 0.1  # relative, over periodic
_CHEAP = 0.1  # share of a stepwise rollout's time
_FEW_DECIDE = 0.5  # share of the loss that a sixteenth of the rollouts makes up
_FEWER = 0.05  # of the steps: what is worth a sentence


def findings_of(m: Measured) -> tuple[Finding, ...]:
    """Answers and failure modes, in the order a person would ask."""
    found = [_reference(m)]
    if m.stability.chaotic:
        found.append(_chaos(m))
    if m.fidelity is not None:
        found.append(Finding("distribution", False, f"As a distribution, the final samples {m.fidelity.words()}."))
    if m.efforts:
        found.append(Finding("effort", False, effort_words(m.efforts, m.per_step, _less_often(m))))
    if m.yours is not None:
        found.append(_yours(m))
    found += _tails(m) + _careful(m)
    found += [] if not m.trials else [_concentration(m)]
    if m.effects is not None:
        found += [_lasting(m), _alignment(m)]
    found += [_stability(m), _price_of_projection(m)]
    if m.constant:
        found.append(
            Finding(
                "constant-defect",
                True,
                "The defect is the same number at every step of every rollout and cannot tell one moment from another: "
                "use periodic or planned times, or a defect that measures distance.",
            )
        )
    if m.looks_project:
        found.append(
            Finding(
                "defect-is-projection",
                True,
                "Looking at the defect is a projection, so waiting for a high one saves nothing: use periodic, window "
                "or planned times, which need no look (or give a cheap defect).",
            )
        )
    if _middle(m, "adaptive") is not None:
        found.append(_calibration(m))
    return tuple(found)


def _reference(m: Measured) -> Finding:
    """Is full projection worth following?"""
    best, gain = m.best, f"{m.gain.mean:.3g} ({m.gain.low:.3g} to {m.gain.high:.3g})"  # in units of any size
    if m.gain.low <= 0:
        worse = "worse than" if m.gain.high < 0 else "no better than"
        once = "not at all" if m.terminal.never_projects else "once, at the end"
        return Finding(
            "full-projection-no-better",
            True,
            f"By {m.measure}, projecting at every step is {worse} {once}: it gains {gain} over a mean of "
            f"{m.full:.4g}. Project less, or mend the projection; path error measures how closely full projection is "
            "followed, which is not what to aim for here.",
        )
    where = f"at {best.kind} with {best.budget}" if best.kind != "stepwise" else "with full projection"
    told = "" if m.to_full else f"; final samples are best {where}"
    terminal = "no projection" if m.terminal.never_projects else "terminal projection"
    text = f"By {m.measure}, full projection is better than {terminal} by {gain}{told}."
    return Finding("reference", False, text)


def _chaos(m: Measured) -> Finding:
    return Finding(
        "chaotic-rollout",
        True,
        f"Two rollouts a hair apart at the start are {m.stability.divergence:.0f} times as far apart at the end: "
        "distances between final states say nothing here. Go by a quality of your own, or compare distributions.",
    )


def _yours(m: Measured) -> Finding:
    assert m.yours is not None
    cheaper = [t for t in m.trials if t.projections <= m.yours.projections]
    better = min(cheaper, key=lambda t: t.loss.mean, default=None)
    text = f"Your window costs {m.yours.projections:.1f} projections per sample and loses {m.yours.loss}"
    if better is not None:
        text += f"; the best of those tried that cost no more is {better.kind} with {better.budget}: {better.loss}"
    return Finding("your-window", False, f"{text}.")


def _tails(m: Measured) -> list[Finding]:
    """Whether a few rollouts keep the tolerance from being met with half of the projections."""
    known = [trial for trial in m.trials if trial.budget >= m.n_steps / 2 and not trial.values.isnan().any()]
    if m.tolerance is None or not known:
        return []
    trial = min(known, key=lambda one: (one.budget, one.loss.mean))
    values, few = trial.values.sort(descending=True).values, max(1, m.held_out // 16)
    share = float(values[:few].sum() / values.sum()) if float(values.sum()) > 0 else 0.0
    if trial.loss.high <= m.tolerance or share < _FEW_DECIDE:
        return []
    makes = f"{few} of {m.held_out} {m.units} " + ("makes" if few == 1 else "make")
    return [
        Finding(
            "tails",
            False,
            f"A few {m.units} decide: at {trial.kind} with {trial.budget}, {makes} up {share:.0%} of the loss; that of "
            f"the others is {float(values[few:].mean()):.3f}. More seeds tell how rare such {m.units} are. By the "
            "distance to full projection a sample that ends elsewhere counts as lost, though it may be as good: a "
            "quality of your own, or a comparison of distributions, tells whether it is.",
        )
    ]


def _careful(m: Measured) -> list[Finding]:
    """Whether fewer projections would do if the mean alone decided, rather than its whole interval."""
    if m.tolerance is None or not m.needed:
        return []
    least = min(trial.budget for trial in m.needed.values())
    near = [t for t in m.trials if t.loss.mean <= m.tolerance < t.loss.high]
    known = [t for t in near if t.budget <= least - _FEWER * m.n_steps]
    if not known:
        return []
    trial = min(known, key=lambda one: (one.budget, one.loss.mean))
    return [
        Finding(
            "careful",
            False,
            f"{trial.kind.capitalize()} correction with {trial.budget} of {m.n_steps} loses {trial.loss}: its mean is "
            f"within the tolerance of {m.tolerance:g}, but {m.held_out} {m.units} do not rule out that it is not. More "
            "seeds tell.",
        )
    ]


def _middle(m: Measured, kind: str) -> Trial | None:
    """The trial of a kind that is nearest to a quarter of the budget."""
    trials = [trial for trial in m.trials if trial.kind == kind]
    return min(trials, key=lambda trial: abs(trial.budget - m.n_steps / 4), default=None)


def _gain(m: Measured) -> tuple[str, Interval]:
    """Which schedule is best at a quarter of the budget, and by what share of periodic's loss."""
    periodic = _middle(m, "periodic")
    assert periodic is not None
    others = [trial for kind in ("window", "planned", "adaptive") if (trial := _middle(m, kind)) is not None]
    best = min(others, key=lambda trial: trial.loss.mean)
    left = ratio_interval(best.values, periodic.values)
    return best.kind, Interval(1 - left.mean, 1 - left.high, 1 - left.low)


def _concentration(m: Measured) -> Finding:
    kind, gain = _gain(m)
    held = f"the worst 20% of steps hold {m.concentration:.0%} of the defect (C_0.2; 20% would be uniform)"
    periodic = _middle(m, "periodic")
    assert periodic is not None
    if not periodic.loss.low > 0:  # there may be no loss to lower
        text = f"Concentration: {held}. Periodic correction may lose nothing at all: {periodic.loss}."
        return Finding("concentration", False, text)
    lowers = f"{kind} correction lowers the loss by {gain.mean:.0%} ({gain.low:.0%} to {gain.high:.0%})"
    if m.concentration < _DIFFUSE and gain.mean < _GAIN:
        text = f"The defect is diffuse: {held}, and at a quarter of the budget {lowers} beside periodic."
        return Finding("diffuse-defect", True, f"{text} Periodic correction is competitive.")
    text = f"Concentration: {held}. At a quarter of the budget {lowers} beside periodic."
    return Finding("concentration", False, text)


def _lasting(m: Measured) -> Finding:
    assert m.effects is not None
    survival, half = m.effects.survival, m.effects.half_life
    long = f"half of it is gone after {half:.1f} steps" if math.isfinite(half) else "half of it is left to the end"
    thirds = ", ".join(
        f"{word} {share:.2f}" for word, share in zip(("early", "middle", "late"), m.effects.one_step, strict=True)
    )
    left = f"{float(survival[1]):.2f} of a correction's benefit survives one step ({thirds})"
    return Finding("lasting", False, f"How long it lasts: {left}, and {long}.")


def _alignment(m: Measured) -> Finding:
    rank = f"rank correlation {m.alignment.mean:.2f} ({m.alignment.low:.2f} to {m.alignment.high:.2f})"
    ends = f"with its worth for the final state it is {m.endpoint_alignment.mean:.2f}"
    if not m.alignment.mean >= _ALIGNED:
        return Finding(
            "misaligned-defect",
            True,
            f"The height of the defect says little about what a correction is worth: {rank}; {ends}. Prices that learn "
            "how long a correction lasts, or times fixed in advance, go by more than that.",
        )
    return Finding("alignment", False, f"A high defect is worth correcting: {rank}; {ends}.")


def _stability(m: Measured) -> Finding:
    s = m.stability
    nudge = (
        ""
        if math.isnan(s.amplification)
        else f", a small change of a state is multiplied by up to {s.amplification:.2g}"
    )
    nudge += "" if math.isnan(s.again) else f", projecting again moves it by {s.again:.1%} of the way"
    numbers = f"{s.failed:.1%} of projections fail, {s.left_over:.1%} of the defect is left{nudge}"
    if s.sound:
        return Finding("stability", False, f"The projection is sound: {numbers}.")
    return Finding(
        "unstable-projection",
        True,
        f"The projection is unstable or discontinuous: {numbers}. No schedule can be relied on before that is mended; "
        "try a tighter tolerance, a better start of the solver, or on_failure='retry'.",
    )


def _less_often(m: Measured) -> str:
    """What timing whole projections comes to: the least of them that do what was asked."""
    if not m.needed:
        return "no timing of whole projections that was tried does what was asked"
    least = min(m.needed.values(), key=lambda trial: trial.projections)
    share = least.projections / max(m.stepwise.projections, 1e-300)
    return f"{least.kind} times with {share:.0%} of the projections lose {least.loss}"


def _price_of_projection(m: Measured) -> Finding:
    taken = 1 - m.terminal.seconds / m.stepwise.seconds
    longer = m.stepwise.seconds / m.terminal.seconds
    once = "one that is not projected" if m.terminal.never_projects else "one projected once"
    numbers = (
        f"a stepwise rollout takes {longer:.1f} times as long as {once}, so that {taken:.0%} of its time "
        "is the most that timing can save"
        if taken > 0.01
        else f"a stepwise rollout takes no longer than {once}, so that timing saves no time here"
    )
    saved = [1 - t.seconds / m.stepwise.seconds for t in m.needed.values()]
    fewer = [1 - t.projections / m.stepwise.projections for t in m.needed.values()]
    # fewer projections that take as long are cheap projections too
    in_vain = m.limit is None and max(fewer, default=0.0) >= _CHEAP > max(saved, default=1.0)
    if m.unit == "seconds" and (taken < _CHEAP or in_vain):
        spared = f"; sparing {max(fewer):.0%} of them saved {max(0.0, *saved):.0%} of the time" if in_vain else ""
        return Finding("cheap-projection", True, f"Projecting is cheap: {numbers}{spared}. Use stepwise correction.")
    return Finding("cost", False, f"Cost: {numbers} (with {m.batch} samples in a batch).")


def _calibration(m: Measured) -> Finding:
    periodic, adaptive = _middle(m, "periodic"), _middle(m, "adaptive")
    assert periodic is not None
    assert adaptive is not None
    ahead = bootstrap(mean, periodic.values - adaptive.values)
    numbers = f"at B = {adaptive.budget} it loses {adaptive.loss}, periodic {periodic.loss}"
    if ahead.high < 0:
        return Finding(
            "poor-calibration",
            True,
            f"The prices do not hold on fresh seeds: {numbers}. Calibrate on more seeds, and on the very sampler you "
            "run, or use periodic correction.",
        )
    verdict = "ahead of" if ahead.low > 0 else "level with"
    return Finding("calibration", False, f"On fresh seeds adaptive correction is {verdict} periodic: {numbers}.")
