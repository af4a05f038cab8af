"""Which public names are attacked, and why some are not: a name that is in neither list fails a test."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

SPARED: dict[str, tuple[str, ...]] = {
    "a constant": (
        *("ENGINES", "DOMAINS", "DYNAMICS", "FLOWS", "SYNTHETIC", "VARIANTS", "FIXED", "CALIBRATION_SEED", "PRESETS"),
        *("REFERENCE_SEED", "SWEPT", "SWEEP", "STUDY_SCHEDULES", "METRICS", "FEATURES"),
    ),
    "a type, which nothing is called with": (
        *("OnFailure", "Budget", "Unit", "Samples", "RunBatch", "Closing", "Sampler", "Price", "Correct"),
    ),
    "an error": ("ProjectionError",),
    "a base class: what derives from it is attacked by its answers": ("Constraint", "Schedule"),
    "a plain tuple of what a constraint answers, attacked as such an answer": ("Projection", "Improvement"),
    "made by trimtab alone and handed out": (
        *("Passes", "Fidelity", "Summary", "Compared", "Comparison", "Advice", "Evaluations", "Targeted"),
        *("Decisions", "DecisionState", "Ingredients", "ProjectedSampler"),
    ),
    "takes no arguments": ("summary_schema",),
}
"""Public names without a target of their own, by reason."""


def unattacked(
    names: Iterable[str], targets: Iterable[str], spared: Iterable[str] = tuple(chain(*SPARED.values()))
) -> list[str]:
    """The public names that no target names and that are not spared.

    Args:
        names: As they are called in code.
        targets: As reports call them: the first word is the public name, with a module before or a method after it.
        spared: Names that need none.
    """
    known = {part for target in targets for part in target.split()[0].removesuffix("'s").split(".")}
    return sorted(set(names) - known - set(spared))


def needless(names: Iterable[str]) -> list[str]:
    """What is spared although there is no such public name."""
    return sorted(set(chain(*SPARED.values())) - set(names))
