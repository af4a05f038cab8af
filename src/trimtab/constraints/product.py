"""Constraints on parts of a state."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor

from trimtab.constraints.derived import changed
from trimtab.constraints.states import check_states, checked_answer
from trimtab.core.constraint import Constraint, Projection, check_constraint
from trimtab.core.errors import check_integer, check_number, check_type

__all__ = ["Part", "Product"]


@dataclass(frozen=True, eq=False)
class Part:
    """A run of the flattened state's coordinates and the constraint on it.

    Attributes:
        start: First coordinate.
        stop: One past the last.
        constraint: On these coordinates.
        shape: The event shape that the constraint expects; None leaves them flat.
        weight: Of this part's defect in the sum.
    """

    start: int
    stop: int
    constraint: Constraint
    shape: tuple[int, ...] | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what is no run of coordinates."""
        start, stop = check_integer(self.start, "start", 0), check_integer(self.stop, "stop")
        if start >= stop:
            raise ValueError(f"a part needs 0 <= start < stop: got {start} to {stop}")
        if not math.isfinite(check_number(self.weight, "the weight of a part", 0)):
            raise ValueError(f"the weight of a part is a finite number of at least 0: got {self.weight!r}")
        check_constraint(self.constraint, "the constraint of a part")
        if self.shape is not None:
            if not isinstance(self.shape, tuple | list):
                raise TypeError(f"the shape of a part is a tuple of whole numbers: got {self.shape!r:.60}")
            if math.prod(check_integer(length, "each length in the shape of a part") for length in self.shape) != (
                stop - start
            ):
                raise ValueError(f"a part of {stop - start} coordinates cannot have shape {tuple(self.shape)}")


@dataclass(frozen=True, eq=False)
class Product(Constraint):
    """A constraint for each of several parts of the state; coordinates in no part are free.

    Attributes:
        parts: Parts that do not overlap.

    Example:
        >>> import torch
        >>> from trimtab.constraints import Ball, Box
        >>> both = Product((Part(0, 2, Ball()), Part(2, 3, Box(0.0, 1.0))))
        >>> both.project(torch.tensor([[3.0, 4.0, -1.0]])).x
        tensor([[0.6000, 0.8000, 0.0000]])
    """

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        """Refuse parts that are empty or overlap: their projections would undo each other."""
        if not isinstance(self.parts, tuple | list) or not self.parts:
            raise TypeError(f"a product is of parts, as in Product((Part(0, 2, Ball()),)): got {self.parts!r:.60}")
        for part in self.parts:
            check_type(part, Part, "each part of a product", "as in Product((Part(0, 2, Ball()),))")
        for one, other in pairwise(sorted(self.parts, key=lambda part: part.start)):
            if one.stop > other.start:
                raise ValueError(
                    f"parts {one.start} to {one.stop} and {other.start} to {other.stop} overlap; "
                    "make one constraint of what they share"
                )

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        """What any of the parts wants to know beside the states."""
        return tuple(dict.fromkeys(name for part in self.parts for name in part.constraint.needs))

    @property
    def defect_is_projection(self) -> bool:  # type: ignore[override]
        """Whether measuring a defect projects any of the parts."""
        return any(part.constraint.defect_is_projection for part in self.parts)

    @property
    def is_projection(self) -> bool:  # type: ignore[override]
        """Whether every part leads onto its set."""
        return all(part.constraint.is_projection for part in self.parts)

    def project(self, x: Tensor, **context: Any) -> Projection:
        r"""Each part projected, (n, \*event), with outcomes: all parts converged, iterations added up."""
        check_states(x, "Product")
        flat = x.flatten(1).clone()
        converged = flat.isfinite().all(dim=1)  # parts that cannot fail say nothing of what is no state
        iterations = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        for part in self.parts:
            piece = self._of(part, x)
            whose = f"{type(part.constraint).__name__} of the part {part.start} to {part.stop}"
            answer = checked_answer(part.constraint.project(piece, **self._told(part, context)), piece, whose)
            flat[:, part.start : part.stop] = answer.x.flatten(1)
            if answer.converged is not None:
                converged &= answer.converged
            if answer.iterations is not None:
                iterations += answer.iterations
        return Projection(flat.reshape(x.shape), converged, iterations)

    def defect(self, x: Tensor, **context: Any) -> Tensor:
        r"""The weighted sum of the parts' defects, (n, \*event) to (n,)."""
        check_states(x, "Product")
        total = torch.zeros(len(x), dtype=x.dtype, device=x.device)
        for part in self.parts:
            total = total + part.weight * part.constraint.defect(self._of(part, x), **self._told(part, context))
        return total

    def take(self, rows: Tensor) -> Self:
        """The same parts for some samples."""
        parts = tuple(replace(part, constraint=part.constraint.take(rows)) for part in self.parts)
        return changed(self, parts=parts)

    def _of(self, part: Part, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        if part.stop > flat.shape[1]:
            raise ValueError(f"a part ends at coordinate {part.stop}, but states {tuple(x.shape)} have {flat.shape[1]}")
        piece = flat[:, part.start : part.stop]
        return piece.contiguous() if part.shape is None else piece.reshape(len(x), *part.shape)

    def _told(self, part: Part, context: dict[str, Any]) -> dict[str, Any]:
        """What a part needs to know; of the state before the update, its coordinates."""
        return {
            name: self._of(part, context[name]) if name == "previous" else context[name]
            for name in part.constraint.needs
        }
