"""Which public names are attacked, and why some are not: a name that is in neither list fails a test."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from itertools import chain
from pathlib import Path

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
        *("Decisions", "DecisionState", "ScheduleInputs", "ProjectedSampler"),
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


def main(root: Path) -> int:
    """Print what is forgotten, and what is spared for nothing; 0 if that is nothing at all.

    Args:
        root: Of the checkout, for the list of public names that the API reference is made from.
    """
    from torture.inputs import OPTIONAL, all_targets, installed

    sys.path.insert(0, str(root / "docs" / "site"))
    public = [name.name for name in import_module("api").public_names(root / "src")]
    missing = sorted(set(OPTIONAL) - set(installed()))
    targets = all_targets()
    found = {
        "attacked by nothing": unattacked(public, targets),
        "spared, but not public": needless(public),
        "spared, but attacked": sorted(set(chain(*SPARED.values())) - set(unattacked(public, targets, ()))),
    }
    print("\n".join(f"{what}: {', '.join(names)}" for what, names in found.items() if names))
    print(f"{len(set(public))} public names, {len(targets)} targets", *(f"without {name}" for name in missing))
    return int(any(found.values()))


def needless(names: Iterable[str]) -> list[str]:
    """What is spared although there is no such public name."""
    return sorted(set(chain(*SPARED.values())) - set(names))
