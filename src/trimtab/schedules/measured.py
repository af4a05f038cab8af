"""Ask a run for the defects of all steps, whatever its schedule needs."""

from __future__ import annotations

from copy import copy

from trimtab.core.schedule import Schedule

__all__ = ["measured"]


def measured(schedule: Schedule) -> Schedule:
    """Return the same schedule, whose runs have all defects measured although it may not use them."""
    if schedule.uses_defects:
        return schedule
    same = copy(schedule)
    object.__setattr__(same, "uses_defects", True)
    return same
