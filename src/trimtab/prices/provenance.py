"""What every price keeps about how it was made, and what a schedule passes on of the price it follows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, get_args

from torch import Tensor

from trimtab._version import __version__
from trimtab.core.budget import Budget, Unit, units
from trimtab.core.checks import check_type
from trimtab.core.files import UNUSABLE, load_tensors
from trimtab.core.record import Closing
from trimtab.core.schedule import Schedule

__all__ = ["Priced", "Provenance", "budget_within", "reading"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Provenance:
    """How a price was made; every price has these, given by name.

    Attributes:
        method: How it was estimated.
        seeds: The calibration seeds; evaluation on any of them is refused.
        objective: What the price is meant to lower.
        fingerprint: Of the sampler and the constraint it was calibrated on; "" if unknown. It is kept for whoever wants
            to know (`trimtab.core.identity`), and nothing is refused by it: it differs between two versions of one
            class, and between two batches whose data is not marked as that of their samples.
        closing: The accounting it was made for, "paid", "free" or "none"; "" for any.
        version: Of the library that made it.
        notes: Anything else worth keeping, JSON only.
    """

    method: str = "by hand"
    seeds: tuple[int, ...] = ()
    objective: str = "path"
    fingerprint: str = ""
    closing: str = ""
    version: str = __version__
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what a file could not keep, or a run not check."""
        for name in ("method", "objective", "fingerprint", "version", "closing"):
            check_type(getattr(self, name), str, f"{name} of prices")
        if self.closing not in ("", *get_args(Closing)):
            raise ValueError(f"the closing of prices is 'paid', 'free', 'none' or '' for any: got {self.closing!r}")
        check_type(self.notes, Mapping, "notes of prices")  # type: ignore[type-abstract]

    def told(self) -> dict[str, Any]:
        """What a file keeps of it, as JSON; the version is written by every file anyway."""
        names = (each.name for each in fields(Provenance) if each.name != "version")
        return {name: getattr(self, name) for name in names} | {"notes": dict(self.notes)}


@contextmanager
def reading(path: str | os.PathLike[str], kind: str, what: str) -> Iterator[tuple[dict[str, Tensor], dict[str, Any]]]:
    """The tensors and facts of a file, seeds as prices keep them; one that makes no price in the block is refused.

    Args:
        path: Of the file.
        kind: As the file says it.
        what: It was to be, as an error calls it.
    """
    tensors, facts = load_tensors(path, kind)
    try:
        yield tensors, facts | {"seeds": tuple(map(int, facts["seeds"]))}
    except UNUSABLE as error:
        raise ValueError(f"{path}: not {what}: {error}") from error


def budget_within(budget: Budget, n_steps: int, largest: int, unit: Unit = "projection") -> int | Tensor:
    """The budget in units, if prices that go up to `largest` serve it.

    Example:
        >>> budget_within(0.25, 100, 50)
        25
    """
    b = units(budget, n_steps, unit)
    if (int(b.max()) if isinstance(b, Tensor) else b) > largest:
        what = ("correction" if unit == "projection" else "iteration") + "s" * (largest != 1)
        raise ValueError(
            f"a budget of {b} is more than the {largest} {what} that these prices go up to; calibrate with a larger one"
        )
    return b


class Priced(Schedule):
    """A schedule that follows a price."""

    @property
    def made_from(self) -> Provenance:
        """The price."""
        raise NotImplementedError(f"{type(self).__name__} must say which price it follows: def made_from(self)")

    @property
    def calibration_seeds(self) -> tuple[int, ...]:
        """Seeds this schedule must not be evaluated on: those of the price."""
        return self.made_from.seeds

    @property
    def closing(self) -> str:
        """The accounting the price was made for."""
        return self.made_from.closing
