"""States of any kind: an array or a tree of arrays, in torch, numpy or JAX, with samples along the first dimension.

Inside the loop a state is the tuple of its leaves as torch tensors. They share memory with what the loop passed in:
numpy and JAX arrays are read through DLPack or the buffer protocol, and answers go back in the same kind and tree.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from importlib import import_module
from math import inf
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.utils.dlpack
from torch import Tensor

__all__ = [
    "Form",
    "Leaves",
    "all_finite",
    "as_tensor",
    "difference",
    "finite_rows",
    "map_leaves",
    "numbers_of",
    "pick",
    "plain_tree",
    "put_rows",
    "rowwise",
    "state_of",
    "take_leaves",
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
        """Read the form of the first state of a run; raise if it cannot be a state.

        Args:
            state: One array or a tree of arrays.
            floats: Whether at least one array must hold floats.
        """
        found: list[Any] = []
        self.tree = tree_of(state, found)
        self.names = [name for name, _ in named_kinds(self.tree)]
        if len(set(self.names)) < len(self.names):  # a file knows arrays by their names
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise ValueError(f"two arrays of the state are both called {twice}; give one of them another key")
        leaves = tuple(map(as_tensor, found))
        if not leaves:
            raise ValueError("states must hold at least one array with one row per sample: got an empty tree")
        for name, leaf in zip(self.names, leaves, strict=True):
            dense = leaf.layout is torch.strided and not leaf.is_meta
            if not dense or leaf.ndim < 1 or leaf.numel() == 0 or len(leaf) != len(leaves[0]):
                raise ValueError(
                    "states must be dense arrays with numbers in them and one row per sample, at least one, the same "
                    f"number in every array: {name} is {tuple(leaf.shape)} of {leaf.dtype}, {leaf.layout} on "
                    f"{leaf.device}"
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
        """Return the arrays of a state as tensors; raise if the state has another form.

        Args:
            state: As the loop keeps it.
            n: How many samples it must have; all by default.
            wide: Whether half-precision arrays must be in float32, as constraints see them.
        """
        found: Leaves = (state,)
        like = type(state) is Tensor and self.single and n is None and not wide and not state.is_meta
        if like and state.shape == self.shapes[0] and state.dtype is self.dtypes[0]:
            return found  # its own leaf, as in most loops
        if self.single and not isinstance(state, Tensor):
            raise TypeError(f"states must be torch tensors as at the first step: got {type(state).__name__}")
        if not self.single:
            parts: list[Any] = []
            tree = tree_of(state, parts)
            if tree != self.tree:
                got, first = (", ".join(f"{name} ({kind})" for name, kind in named_kinds(t)) for t in (tree, self.tree))
                raise TypeError(f"states must be the same tree of arrays as at the first step, {first}: got {got}")
            found = tuple(map(as_tensor, parts))
        for leaf, shape, dtype, name in zip(
            found, self.shapes, self.wide if wide else self.dtypes, self.names, strict=True
        ):
            wanted = shape if n is None else (n, *shape[1:])
            if leaf.shape != wanted or leaf.dtype is not dtype:
                raise ValueError(
                    f"{name} is {tuple(leaf.shape)} of {leaf.dtype} where {tuple(wanted)} of {dtype} was expected, as "
                    "at the first step"
                )
            if leaf.is_meta:
                raise ValueError(f"{name} is on the device 'meta' and holds no numbers; give states that do")
        return found

    def state(self, leaves: Leaves) -> Any:
        """Return a state with these leaves, as the loop keeps it."""
        return leaves[0] if self.single else built(self.tree, iter(leaves))

    def of_names(self, arrays: Tensor | dict[str, Tensor]) -> Any:
        """Return the state with these arrays by name, as a file keeps them; a single tensor is itself."""
        return arrays if isinstance(arrays, Tensor) else self.state(tuple(arrays[name] for name in self.names))

    def widened(self, leaves: Leaves) -> Leaves:
        """Return half-precision leaves in float32, in which they are measured and projected."""
        return leaves if self.exact else tuple(map(Tensor.to, leaves, self.wide))

    def narrowed(self, leaves: Leaves) -> Leaves:
        """Return the leaves in the loop's own dtypes."""
        return leaves if self.exact else tuple(map(Tensor.to, leaves, self.dtypes))


# ------------------------------------------------------------------ whole states


def map_leaves(change: Callable[[Tensor], Tensor], state: Any) -> Any:
    """Return a state of the same tree and kind with `change`, a function of a tensor, applied to each array.

    Example:
        >>> map_leaves(torch.neg, {"x": np.ones((1, 3)), "y": torch.ones(1)})
        {'x': array([[-1., -1., -1.]]), 'y': tensor([-1.])}
    """
    form = Form(state, floats=False)
    return form.state(tuple(change(leaf) for leaf in form.leaves(state)))


def pick(state: Any, index: Any) -> Any:
    """Return the state whose arrays are `array[index]`: some rows, or one step of the states along a path."""
    return map_leaves(lambda leaf: leaf[index], state)


def numbers_of(state: Any) -> Tensor:
    """Return all numbers of a state, (n, d) float64, one array after the other in the order of their names."""
    form = Form(state, floats=False)
    named = sorted(zip(form.names, form.leaves(state), strict=True), key=lambda pair: pair[0])
    leaves = (torch.view_as_real(leaf) if leaf.is_complex() else leaf for _, leaf in named)
    return torch.cat([leaf.detach().reshape(form.n, -1).double() for leaf in leaves], dim=1)


def difference(a: Tensor, b: Tensor) -> Tensor:
    """Return a - b of two leaves, (n, …), as floats: in their own dtype if that is one, else in float64.

    Example:
        >>> difference(torch.tensor([True, False]), torch.tensor([False, False]))
        tensor([1., 0.], dtype=torch.float64)
    """
    if a.is_complex() or b.is_complex():
        return torch.view_as_real(a - b)
    return a - b if a.is_floating_point() or b.is_floating_point() else a.double() - b.double()


# ------------------------------------------------------------------ rows of leaves


def take_leaves(leaves: Leaves, rows: Tensor) -> Leaves:
    """Return the rows (k,) of every leaf."""
    return tuple([leaf[rows] for leaf in leaves])


def put_rows(leaves: Leaves, rows: Tensor, some: Leaves) -> Leaves:
    """Return new leaves with the rows (k,) replaced."""
    new = []
    for leaf, part in zip(leaves, some, strict=True):
        signed = _SIGNED.get(leaf.dtype)  # torch cannot write rows of large unsigned numbers, such as keys of JAX
        if signed is None:
            new.append(leaf.index_copy(0, rows, part))
        else:
            new.append(leaf.view(signed).index_copy(0, rows, part.view(signed)).view(leaf.dtype))
    return tuple(new)


def rowwise(mask: Tensor, like: Tensor) -> Tensor:
    """Return a (n,) mask shaped to broadcast over the events of `like`."""
    return mask.reshape(-1, *([1] * (like.ndim - 1)))


def all_finite(leaves: Leaves) -> bool:
    """Return whether every number is finite."""
    for leaf in leaves:
        with suppress(RuntimeError, TypeError, ValueError):  # on a device, of a dtype that numpy lacks, or empty
            flat = leaf.numpy().ravel("K")  # of few numbers, numpy finds the largest several times faster than torch
            if not leaf.is_complex() and flat.item(flat.argmax()) < inf and flat.item(flat.argmin()) > -inf:
                continue
        if not bool(leaf.isfinite().all()):
            return False
    return True


def finite_rows(leaves: Leaves) -> Tensor:
    """Return which samples have only finite numbers, (n,) bool."""
    good = [leaf.reshape(len(leaf), -1).isfinite().all(dim=1) for leaf in leaves]
    return torch.stack(good).all(dim=0)


# ------------------------------------------------------------------ trees


class Node(NamedTuple):
    """A node of a state's tree."""

    kind: Any  # the type of a container; the kind of array of a leaf
    keys: tuple[Any, ...] = ()
    below: tuple[Node, ...] = ()


def tree_of(state: Any, found: list[Any]) -> Node:
    """Return the tree of a state; append its arrays to `found`."""
    kind = _kind_of(state)
    if kind is not None:
        found.append(state)
        return Node(kind)
    if isinstance(state, dict):
        keys, parts = tuple(state), tuple(state.values())
    elif isinstance(state, list | tuple):
        keys, parts = tuple(getattr(state, "_fields", range(len(state)))), tuple(state)
    elif is_dataclass(state) and not isinstance(state, type):
        keys = tuple(f.name for f in fields(state))
        parts = tuple(getattr(state, key) for key in keys)
    else:
        raise TypeError(
            "states must be a torch tensor, a numpy or JAX array, or a tuple, list, dict or dataclass of those: got "
            f"{type(state).__name__}"
        )
    return Node(type(state), keys, tuple(tree_of(part, found) for part in parts))


def named_kinds(tree: Node, above: str = "") -> list[tuple[str, str]]:
    """Return the name of each leaf, its keys joined by dots, and the kind of its array."""
    if isinstance(tree.kind, str):
        return [(above or _ONLY, tree.kind)]
    pairs = zip(tree.keys, tree.below, strict=True)
    return [leaf for key, node in pairs for leaf in named_kinds(node, _joined(above, key))]


def built(tree: Node, leaves: Iterator[Tensor]) -> Any:
    """Build a state from its tree and its leaves; each becomes an array of the kind that the tree names."""
    make = tree.kind
    if isinstance(make, str):
        return _as_kind(next(leaves), make)
    parts = [built(node, leaves) for node in tree.below]
    named = dict(zip(tree.keys, parts, strict=True))
    if is_dataclass(tree.kind):
        return make(**named)
    if issubclass(make, dict):
        return named if make is dict else _dict_of(make, named)
    return make(*parts) if hasattr(make, "_fields") else make(parts)


def _dict_of(kind: Any, named: dict[Any, Any]) -> Any:
    """Build a dictionary of a subclass, whose constructor may not take a dict."""
    with suppress(TypeError, KeyError):
        made = kind(named)
        if all(made[key] is part for key, part in named.items()):
            return made
    made = kind.__new__(kind)
    made.update(named)
    return made


def plain_tree(state: Any) -> Any:
    """Return the tree of a state as JSON can hold it; None if it has custom types, which a file cannot name.

    Example:
        >>> plain_tree({"x": np.zeros(2), "y": [torch.zeros(2)]})
        ['dict', [['x', 'numpy'], ['y', ['list', [[0, 'torch']]]]]]
    """
    kind = _kind_of(state)
    if kind is not None or type(state) not in _PLAIN.values():
        return kind
    items = state.items() if isinstance(state, dict) else enumerate(state)
    parts = [[key, plain_tree(part)] for key, part in items]
    known = all(part is not None and isinstance(key, str | int) for key, part in parts)
    return [type(state).__name__, parts] if known else None


def state_of(tree: Any, arrays: Tensor | dict[str, Tensor], name: str = "") -> Any:
    """Build the state that a `plain_tree` describes from its arrays by name, or from its only tensor."""
    if isinstance(arrays, Tensor):
        return arrays
    if isinstance(tree, str):
        return _as_kind(arrays[name or _ONLY], tree)
    kind, parts = tree
    made = {key: state_of(part, arrays, _joined(name, key)) for key, part in parts}
    return made if kind == "dict" else _PLAIN[kind](made.values())


_PLAIN: dict[str, type] = {"dict": dict, "list": list, "tuple": tuple}
_ONLY = "the state"  # the name of an array that is the whole state


def _joined(above: str, key: object) -> str:
    return f"{above}.{key}" if above else str(key)


# ------------------------------------------------------------------ kinds of arrays


def _kind_of(x: Any) -> str | None:
    """Return "torch", "numpy" or "jax"; None for what is not an array."""
    if isinstance(x, Tensor):
        return "torch"
    return "numpy" if isinstance(x, np.ndarray) else "jax" if _is_jax(x) else None


def _as_kind(leaf: Tensor, kind: str) -> Any:
    """Return a tensor as an array of that kind."""
    if kind == "jax":  # may not be imported yet when a file is read
        return import_module("jax").dlpack.from_dlpack(leaf.contiguous())
    return leaf.numpy() if kind == "numpy" else leaf


def _is_jax(x: Any) -> bool:
    jax = sys.modules.get("jax")
    if jax is None or not isinstance(x, jax.Array):
        return False
    if isinstance(x, jax.core.Tracer):
        raise TypeError(
            "a Corrector cannot be called inside jit, vmap or scan: which rows it projects depends on values that are "
            "not there yet while JAX traces. Call it between jitted steps, or use "
            "trimtab.integrations.jax.decision_function, a pure function of the same table that traces"
        )
    return True


def as_tensor(x: Any) -> Tensor:
    """Return an array as a tensor that shares its memory if possible."""
    if isinstance(x, Tensor):
        return x
    if isinstance(x, np.ndarray):
        try:
            with suppress(ValueError):  # strides or a byte order that torch lacks
                return torch.from_numpy(x if x.flags.writeable else x.copy())
            return torch.from_numpy(np.array(x, x.dtype.newbyteorder("="), order="C"))
        except TypeError as error:
            raise TypeError(
                "states must hold numbers of a kind that torch has, as float32 or float64: got a numpy array of "
                f"{x.dtype}"
            ) from error
    try:
        tensor: Tensor = torch.utils.dlpack.from_dlpack(x)
    except Exception as error:  # JAX and torch raise what they like
        if not str(getattr(x, "dtype", "")).startswith("key<"):
            raise
        raise TypeError(
            f"states must hold numbers: got an array of JAX's keys, {x.dtype}; keep jax.random.key_data(keys) in the "
            "state, and make keys of it with jax.random.wrap_key_data"
        ) from error
    return tensor
