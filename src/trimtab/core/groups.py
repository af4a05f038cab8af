"""Rows that are decided on and corrected together: one decision, one budget, one projection call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

__all__ = ["Groups", "as_groups"]


@dataclass(frozen=True, eq=False)
class Groups:
    """Which rows of a batch belong together.

    Attributes:
        labels: One whole number per row, (n,); rows with the same label are one group. Groups are counted in the order
            of their labels.
        defect: What the defect of a group is: the "sum" of its rows' defects, or the "largest" of them.

    Example:
        >>> import torch
        >>> robots = Groups(torch.tensor([0, 0, 1, 1]), defect="largest")
        >>> robots.n, robots.together(torch.tensor([1.0, 2.0, 0.0, 5.0]))
        (2, tensor([2., 5.]))
    """

    labels: Tensor
    defect: Literal["sum", "largest"] = "sum"

    def __repr__(self) -> str:
        """Return a one-line summary."""
        return f"Groups({self.n} groups of {len(self.labels)} rows, defect={self.defect!r})"

    def __post_init__(self) -> None:
        """Check that labels are one whole number per row."""
        labels = self.labels
        if not isinstance(labels, Tensor) or labels.ndim != 1 or labels.is_floating_point() or len(labels) == 0:
            got = f"{tuple(labels.shape)} of {labels.dtype}" if isinstance(labels, Tensor) else type(labels).__name__
            raise ValueError(f"groups must be labels, one whole number per row in an (n,) tensor: got {got}")
        if self.defect not in ("sum", "largest"):
            raise ValueError(f"the defect of a group must be 'sum' or 'largest': got {self.defect!r}")

    @cached_property
    def of_row(self) -> Tensor:
        """The group of each row, (n,), 0 to G - 1."""
        found: Tensor = torch.unique(self.labels, return_inverse=True)[1]
        return found

    @cached_property
    def n(self) -> int:
        """G, the number of groups."""
        return int(self.of_row.max()) + 1

    @cached_property
    def first_row(self) -> Tensor:
        """The first row of each group, (G,)."""
        rows = torch.arange(len(self.labels), device=self.labels.device)
        first = torch.full((self.n,), len(rows), device=rows.device)
        return first.scatter_reduce(0, self.of_row, rows, "amin")

    def together(self, values: Tensor) -> Tensor:
        """Reduce values per row to one per group, by sum or maximum as `defect` says: (…, n) to (…, G)."""
        out = torch.zeros(*values.shape[:-1], self.n, dtype=values.dtype, device=values.device)
        how = "sum" if self.defect == "sum" else "amax"
        return out.scatter_reduce(-1, self.of_row.expand_as(values), values, how, include_self=how == "sum")

    def means(self, values: Tensor) -> Tensor:
        """Return the mean of values per row over each group, (n,) to (G,)."""
        total = torch.zeros(self.n, dtype=values.dtype, device=values.device)
        of_row = self.of_row.to(values.device)
        return total.index_add(0, of_row, values) / of_row.bincount()

    def per_row(self, values: Tensor) -> Tensor:
        """Return the value of its group for each row, (…, G) to (…, n)."""
        return values[..., self.of_row]

    def largest(self, values: Tensor) -> Tensor:
        """Return the largest value among the rows of each group, (…, n) to (…, G)."""
        out = torch.zeros(*values.shape[:-1], self.n, dtype=values.dtype, device=values.device)
        return out.scatter_reduce(-1, self.of_row.expand_as(values), values, "amax", include_self=False)

    def any_row(self, mask: Tensor) -> Tensor:
        """Return whether any row of each group is true, (…, n) bool to (…, G) bool."""
        return self.largest(mask.int()).bool()

    def touched(self, mask: Tensor) -> Tensor:
        """Return all rows of the groups in which any row is true, (…, n) bool to (…, n) bool.

        Example:
            >>> import torch
            >>> Groups(torch.tensor([0, 0, 1, 1])).touched(torch.tensor([False, True, False, False]))
            tensor([ True,  True, False, False])
        """
        return self.per_row(self.any_row(mask))

    def apart(self, blocks: int) -> Groups:
        """Return groups for a batch that repeats the same samples `blocks` times; each copy gets its own groups.

        Example:
            >>> import torch
            >>> Groups(torch.tensor([5, 5, 8, 5, 5, 8])).apart(2).labels
            tensor([0, 0, 1, 2, 2, 3])
        """
        block = torch.arange(blocks, device=self.labels.device).repeat_interleave(len(self.labels) // blocks)
        return Groups(self.of_row + block * self.n, self.defect)

    def to(self, device: torch.device) -> Groups:
        """Return the same groups with their labels on `device`."""
        return self if self.labels.device == device else Groups(self.labels.to(device), self.defect)

    def take(self, rows: Tensor) -> Groups:
        """Return the groups of some rows; raise if they split a group."""
        some = self.of_row[rows]
        sizes = self.of_row.bincount()
        taken = some.bincount(minlength=self.n)
        if bool(((taken > 0) & (taken != sizes)).any()):
            raise ValueError("rows of a group belong together, and these rows split one; take whole groups")
        return Groups(self.labels[rows], self.defect)


def as_groups(groups: Groups | Tensor | Sequence[int] | None) -> Groups | None:
    """Return groups made of labels, groups as they are, and None as None."""
    if groups is None or isinstance(groups, Groups):
        return groups
    if not isinstance(groups, Tensor):
        labels = np.asarray(groups)
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise TypeError(f"groups must be whole numbers, one label per row: got {groups!r:.60}")
        groups = torch.from_numpy(labels)
    return Groups(groups)
