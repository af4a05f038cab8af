"""States of any kind: an array or a tree of arrays, in torch, numpy or JAX, with the samples along the first dimension.

Inside the loop a state is the tuple of its leaves as torch tensors. They share the memory of what came in: numpy and
JAX arrays are read through DLPack or the buffer protocol, and answers go back in the same kind and the same tree.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.core.trees import as_tensor, built, kinds_of, names_of, tree_of

__all__ = [
    "Form",
    "Leaves",
    "all_finite",
    "difference",
    "finite_rows",
    "map_leaves",
    "numbers_of",
    "pick",
    "put_rows",
    "rowwise",
    "signed",
    "take_leaves",
    "true_rows",
]

Leaves = tuple[Tensor, ...]
"""The arrays of a state as tensors, (n, …) each."""

_HALF = (torch.float16, torch.bfloat16)
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


class Form:
    """How a loop keeps its states: the tree, and the kind, shape and dtype of each leaf.

    Example:
        >>> import numpy as np
        >>> form = Form({"position": np.zeros((4, 3)), "charge": np.ones(4)})
        >>> form.n, [tuple(leaf.shape) for leaf in form.leaves({"position": np.ones((4, 3)), "charge": np.ones(4)})]
        (4, [(4, 3), (4,)])
    """

    def __init__(self, state: Any, *, floats: bool = True) -> None:
        """Look at the first state of a run; refuse what cannot be one.

        Args:
            state: One array or a tree of arrays.
            floats: Whether there must be floats among them.
        """
        found: list[Any] = []
        self.tree = tree_of(state, found)
        self.names = names_of(self.tree)
        if len(set(self.names)) < len(self.names):  # a file knows arrays by their names
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise ValueError(f"two arrays of the state are both called {twice}; give one of them another key")
        leaves = tuple(map(as_tensor, found))
        if not leaves:
            raise ValueError("states must hold at least one array with one row per sample: got an empty tree")
        for name, leaf in zip(self.names, leaves, strict=True):
            if leaf.layout is not torch.strided or leaf.is_meta:
                raise ValueError(
                    f"states must be dense arrays with numbers in them: {name} is {leaf.layout} on {leaf.device}"
                )
            if leaf.ndim < 1 or leaf.numel() == 0 or len(leaf) != len(leaves[0]):
                raise ValueError(
                    f"states must have one row per sample, at least one, the same number in every array: {name} is "
                    f"{tuple(leaf.shape)} of {leaf.dtype}"
                )
        if floats and not any(leaf.is_floating_point() for leaf in leaves):
            raise ValueError(
                f"states must be floats with one row per sample: got {tuple(leaves[0].shape)} of {leaves[0].dtype} "
                "(integer tokens have no distance to a feasible set)"
            )
        self.single = isinstance(state, Tensor)
        self.n, self.device = len(leaves[0]), leaves[0].device
        self.shapes, self.dtypes = [leaf.shape for leaf in leaves], [leaf.dtype for leaf in leaves]
        self.wide = [torch.float32 if dtype in _HALF else dtype for dtype in self.dtypes]
        self.exact = self.wide == self.dtypes
        self.dtype = torch.float64 if torch.float64 in self.dtypes else torch.float32

    def leaves(self, state: Any, n: int | None = None, *, wide: bool = False) -> Leaves:
        """The arrays of a state of this form as tensors; a state of another form is refused.

        Args:
            state: As the loop keeps it.
            n: How many samples it is to have, if not all.
            wide: Whether half-precision arrays are in float32, as constraints see them.
        """
        found: Leaves
        if self.single:
            if not isinstance(state, Tensor):
                raise TypeError(f"states must be torch tensors as at the first step: got {type(state).__name__}")
            found = (state,)
            usual = n is None and not wide and state.shape == self.shapes[0] and state.dtype is self.dtypes[0]
            if usual and not state.is_meta:
                return found
        else:
            parts: list[Any] = []
            tree = tree_of(state, parts)
            if tree != self.tree:
                got, first = (f"{names_of(one)} of {', '.join(kinds_of(one))}" for one in (tree, self.tree))
                raise TypeError(f"states must be the tree {first} arrays as at the first step: got {got} arrays")
            found = tuple(map(as_tensor, parts))
        for leaf, shape, dtype, name in zip(
            found, self.shapes, self.wide if wide else self.dtypes, self.names, strict=True
        ):
            if leaf.is_meta:
                raise ValueError(f"{name} is on the device 'meta' and holds no numbers; give states that do")
            if leaf.dtype is not dtype or (leaf.shape != shape if n is None else leaf.shape != (n, *shape[1:])):
                wanted = tuple(shape) if n is None else (n, *shape[1:])
                raise ValueError(
                    f"{name} is {tuple(leaf.shape)} of {leaf.dtype} where {wanted} of {dtype} was expected, as at the "
                    "first step"
                )
        return found

    def state(self, leaves: Leaves) -> Any:
        """The leaves as the loop keeps its states."""
        return leaves[0] if self.single else built(self.tree, iter(leaves))

    def of_names(self, arrays: Tensor | dict[str, Tensor]) -> Any:
        """The state with these arrays by name, as a file keeps them; of a single tensor, that tensor."""
        return arrays if isinstance(arrays, Tensor) else self.state(tuple(arrays[name] for name in self.names))

    def widened(self, leaves: Leaves) -> Leaves:
        """Half-precision leaves in float32, in which they are measured and projected."""
        return tuple(leaf.float() if leaf.dtype in _HALF else leaf for leaf in leaves)

    def narrowed(self, leaves: Leaves) -> Leaves:
        """The leaves in the loop's own dtypes again."""
        return tuple(leaf.to(dtype) for leaf, dtype in zip(leaves, self.dtypes, strict=True))


# ------------------------------------------------------------------ whole states


def map_leaves(change: Callable[[Tensor], Tensor], state: Any) -> Any:
    """A state of the same tree and kind, each of its arrays changed; `change` takes and returns tensors.

    Example:
        >>> map_leaves(torch.neg, {"x": np.ones((1, 3)), "y": torch.ones(1)})
        {'x': array([[-1., -1., -1.]]), 'y': tensor([-1.])}
    """
    form = Form(state, floats=False)
    return form.state(tuple(change(leaf) for leaf in form.leaves(state)))


def pick(state: Any, index: Any) -> Any:
    """The state whose arrays are `array[index]`: some rows, or one step of the states along a path."""
    return map_leaves(lambda leaf: leaf[index], state)


def numbers_of(state: Any) -> Tensor:
    """All numbers of a state, (n, d) float64, one array after the other in the order of their names."""
    form = Form(state, floats=False)
    named = sorted(zip(form.names, form.leaves(state), strict=True), key=lambda pair: pair[0])
    leaves = (torch.view_as_real(leaf) if leaf.is_complex() else leaf for _, leaf in named)
    return torch.cat([leaf.detach().reshape(form.n, -1).double() for leaf in leaves], dim=1)


def difference(a: Tensor, b: Tensor) -> Tensor:
    """How far two leaves are apart, a - b, (n, …), as floats: in their own dtype where that is one, else in float64.

    Example:
        >>> difference(torch.tensor([True, False]), torch.tensor([False, False]))
        tensor([1., 0.], dtype=torch.float64)
    """
    if a.is_complex() or b.is_complex():
        return torch.view_as_real(a - b)
    return a - b if a.is_floating_point() or b.is_floating_point() else a.double() - b.double()


# ------------------------------------------------------------------ rows of leaves


def take_leaves(leaves: Leaves, rows: Tensor) -> Leaves:
    """The rows (k,) of every leaf."""
    try:
        if len(leaves) == 1:  # mostly
            return (leaves[0].index_select(0, rows),)
        return tuple([leaf.index_select(0, rows) for leaf in leaves])
    except NotImplementedError:
        return tuple(signed(leaf).index_select(0, rows).view(leaf.dtype) for leaf in leaves)


def put_rows(leaves: Leaves, rows: Tensor, some: Leaves) -> Leaves:
    """New leaves with the rows (k,) replaced."""
    try:
        if len(leaves) == len(some) == 1:  # mostly
            return (leaves[0].index_copy(0, rows, some[0]),)
        return tuple([leaf.index_copy(0, rows, part) for leaf, part in zip(leaves, some, strict=True)])
    except NotImplementedError:
        pairs = ((leaf, signed(leaf), signed(part)) for leaf, part in zip(leaves, some, strict=True))
        return tuple(leaf.index_copy(0, rows, part).view(like.dtype) for like, leaf, part in pairs)


def signed(leaf: Tensor) -> Tensor:
    """The same memory as signed numbers: torch has no rows of large unsigned ones, of which keys of JAX are made."""
    return leaf.view(_SIGNED[leaf.dtype]) if leaf.dtype in _SIGNED else leaf


def true_rows(mask: Any) -> Tensor:
    """The rows where a mask (n,), a numpy array or a tensor, is true: (k,) int64."""
    if type(mask) is np.ndarray:
        return torch.from_numpy(mask.nonzero()[0])
    rows: Tensor = mask.nonzero().squeeze(1)
    return rows


def rowwise(mask: Tensor, like: Tensor) -> Tensor:
    """A (n,) mask shaped to broadcast over the events of `like`."""
    return mask.reshape(-1, *([1] * (like.ndim - 1)))


def all_finite(leaves: Leaves) -> bool:
    """Whether every number is finite."""
    for leaf in leaves:
        try:
            flat = leaf.numpy().ravel("K")
            # NaN is the largest and the least of all; argmax is several times faster than max on few numbers
            finite = not leaf.is_complex() and flat.item(flat.argmax()) < inf and flat.item(flat.argmin()) > -inf
        except (RuntimeError, TypeError, ValueError):  # of a device, a dtype of torch's own, or no numbers
            finite = False
        if not finite and not bool(leaf.isfinite().all()):
            return False
    return True


def finite_rows(leaves: Leaves) -> Tensor:
    """Which samples have finite numbers only, (n,) bool."""
    good = [leaf.reshape(len(leaf), -1).isfinite().all(dim=1) for leaf in leaves]
    return torch.stack(good).all(dim=0)
