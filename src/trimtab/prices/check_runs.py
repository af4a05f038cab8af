"""Whether the runs of a loop belong together: the same batch each time, and under the schedule that it was given."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trimtab.core.record import Rollout
from trimtab.core.repeatable import as_record

__all__ = ["check_corrections_happen", "check_schedule_is_used", "check_uncorrected", "same_batch"]

_HAND_IT_ON = "it must hand the schedule that it is given to its Corrector"


def same_batch(answer: object, first: Rollout) -> Rollout:
    """What `run(schedule)` returned, if it is a record of the same batch as the first one, whatever the schedule."""
    record = as_record(answer)
    got, wanted = (
        f"{one.defects.shape[1]} samples over {one.n_steps} steps with closing={one.closing_rule!r}"
        for one in (record, first)
    )
    if got != wanted:
        raise ValueError(f"run(schedule) must run the same batch each time: first it ran {wanted}, and then {got}")
    if record.seeds is not None and first.seeds is not None and not torch.equal(record.seeds, first.seeds):
        raise ValueError("run(schedule) must run the same seeds each time, in the same order: got others than at first")
    return record


def check_schedule_is_used(alone: Rollout, full: Rollout) -> None:
    """Refuse runs under `Terminal()` and `Stepwise()` that are corrected alike; of one step they may be."""
    if alone.n_steps > 1 and torch.equal(alone.projected, full.projected):
        raise ValueError(f"run(schedule) made the same corrections under Stepwise() as under Terminal(): {_HAND_IT_ON}")


def check_uncorrected(alone: Rollout) -> None:
    """Refuse the steps at which there is a choice, under `Terminal()`, if any of them was corrected."""
    if bool(alone.projected.any()):
        raise ValueError(f"run(schedule) made corrections on the way under Terminal(), which makes none: {_HAND_IT_ON}")


def check_corrections_happen(explored: Sequence[Rollout]) -> None:
    """Refuse runs without a correction, under schedules that spend a budget whatever the defects are."""
    if not any(bool(run.projected.any()) for run in explored):
        raise ValueError(f"run(schedule) corrected nothing under schedules that correct some samples: {_HAND_IT_ON}")
