"""Constraints on parts of a state."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor

from trimtab.constraints.states import Wrapper, check_states, check_sub_answer, with_settings
from trimtab.core.checks import check_integer, check_number, check_type
from trimtab.core.constraint import Constraint, Projection, check_constraint

__all__ = ["Part", "Product"]


@dataclass(frozen=True, eq=False)
class Part:
    """Consecutive coordinates of the flattened state and the constraint on them.

    Attributes:
        start: First coordinate.
        stop: One past the last.
        constraint: The constraint on these coordinates.
        shape: The event shape that the constraint expects; None leaves them flat.
        weight: Weight of this part's defect in the sum.
    """

    start: int
    stop: int
    constraint: Constraint
    shape: tuple[int, ...] | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        """Check the coordinates, the shape and the weight."""
        start, stop = check_integer(self.start, "start", 0), check_integer(self.stop, "stop")
        if start >= stop:
            raise ValueError(f"a part needs 0 <= start < stop: got {start} to {stop}")
        if not math.isfinite(check_number(self.weight, "the weight of a part", 0)):
            raise ValueError(f"the weight of a part must be a finite number of at least 0: got {self.weight!r}")
        check_constraint(self.constraint, "the constraint of a part")
        if self.shape is None:
            return
        if not isinstance(self.shape, tuple | list):
            raise TypeError(f"the shape of a part must be a tuple of integers: got {self.shape!r:.60}")
        lengths = [check_integer(length, "each length in the shape of a part") for length in self.shape]
        if math.prod(lengths) != stop - start:
            raise ValueError(f"a part of {stop - start} coordinates cannot have shape {tuple(self.shape)}")


@dataclass(frozen=True, eq=False)
class Product(Wrapper):
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
        """Check that there are parts and that they do not overlap."""
        if not isinstance(self.parts, tuple | list) or not self.parts:
            raise TypeError(f"parts must be a tuple, as in Product((Part(0, 2, Ball()),)): got {self.parts!r:.60}")
        for part in self.parts:
            check_type(part, Part, "each part of a product", "as in Product((Part(0, 2, Ball()),))")
        for one, other in pairwise(sorted(self.parts, key=lambda part: part.start)):
            if one.stop > other.start:
                raise ValueError(
                    f"parts {one.start} to {one.stop} and {other.start} to {other.stop} overlap; "
                    "use one constraint for the coordinates that they share"
                )

    def _parts(self) -> tuple[Constraint, ...]:
        return tuple(part.constraint for part in self.parts)

    def project(self, x: Tensor, **context: Any) -> Projection:
        r"""Return states with each part projected, (n, \*event); a sample has converged if all its parts have."""
        check_states(x, "Product")
        flat = x.flatten(1).clone()
        converged = flat.isfinite().all(dim=1)  # parts that cannot fail do not report states that are not finite
        iterations = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        for part in self.parts:
            piece = self._piece(part, x)
            whose = f"{type(part.constraint).__name__} of the part {part.start} to {part.stop}"
            answer = check_sub_answer(part.constraint.project(piece, **self._context(part, context)), piece, whose)
            flat[:, part.start : part.stop] = answer.x.flatten(1)
            if answer.converged is not None:
                converged &= answer.converged
            if answer.iterations is not None:
                iterations += answer.iterations
        return Projection(flat.reshape(x.shape), converged, iterations)

    def defect(self, x: Tensor, **context: Any) -> Tensor:
        r"""Return the weighted sum of the parts' defects, (n, \*event) to (n,)."""
        check_states(x, "Product")
        total = torch.zeros(len(x), dtype=x.dtype, device=x.device)
        for part in self.parts:
            total = total + part.weight * part.constraint.defect(self._piece(part, x), **self._context(part, context))
        return total

    def take(self, rows: Tensor) -> Self:
        """Return the same parts for some samples."""
        parts = tuple(replace(part, constraint=part.constraint.take(rows)) for part in self.parts)
        return with_settings(self, parts=parts)

    def _piece(self, part: Part, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        if part.stop > flat.shape[1]:
            raise ValueError(f"a part ends at coordinate {part.stop}, but states {tuple(x.shape)} have {flat.shape[1]}")
        piece = flat[:, part.start : part.stop]
        return piece.contiguous() if part.shape is None else piece.reshape(len(x), *part.shape)

    def _context(self, part: Part, context: dict[str, Any]) -> dict[str, Any]:
        """Return the context that a part needs; of the previous state, it gets its own coordinates."""
        return {
            name: self._piece(part, context[name]) if name == "previous" else context[name]
            for name in part.constraint.needs
        }
