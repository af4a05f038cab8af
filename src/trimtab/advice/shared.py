"""Batches that several questions ask for, run once: what advice calibrates with."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.core.identity import full_fingerprint
from trimtab.core.record import Rollout
from trimtab.core.repeatable import as_record
from trimtab.core.runner import Foreseen, RunBatch, ahead
from trimtab.core.schedule import Schedule, Watched
from trimtab.prices.objective import SkipWindow
from trimtab.schedules import Stepwise, Terminal

__all__ = ["Shared"]


class Shared(Foreseen):
    """A `run(schedule)` that counts its batches and keeps those that do not depend on what was found before.

    The uncorrected batch, the one corrected at every step and those that leave out a window are the same for every
    price that is calibrated on these samples, and for whoever compares with them.

    Attributes:
        count: Batches that were run.
    """

    def __init__(self, run: RunBatch) -> None:
        """Around a function that runs a batch."""
        self._run, self.count = run, 0
        self._kept: dict[str, Rollout] = {}
        self._begun: set[str] = set()

    def __call__(self, schedule: Schedule) -> Rollout:
        """One batch, run if it is not there."""
        name = _name(schedule)
        if name not in self._kept:
            self.count += 1
            record = as_record(self._run(schedule))
            if not name:
                return record
            self._kept[name] = record
        return self._kept[name]

    def ahead(self, schedules: Sequence[Schedule]) -> None:
        """Begin those that will be run."""
        new = [(schedule, _name(schedule)) for schedule in schedules]
        ahead(self._run, [one for one, name in new if name not in self._begun and name not in self._kept])
        self._begun |= {name for _, name in new if name}


def _name(schedule: Schedule) -> str:
    """Of a batch that is kept; "" for all others."""
    decides = schedule.schedule if isinstance(schedule, Watched) else schedule
    return str(full_fingerprint(schedule)) if isinstance(decides, Terminal | Stepwise | SkipWindow) else ""
