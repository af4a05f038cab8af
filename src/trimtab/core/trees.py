"""The tree of a state: which types hold its arrays, by which keys, and of which kind each array is.

Arrays are read as torch tensors that share their memory, and a tree is built again with others in their place.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.utils.dlpack
from torch import Tensor

__all__ = ["Node", "as_tensor", "built", "kinds_of", "names_of", "plain_tree", "state_of", "tree_of"]


class Node(NamedTuple):
    """A branch of a tree of states: the type that holds it, the keys, and what is below each; None is a leaf."""

    kind: Any
    keys: tuple[Any, ...] = ()
    below: tuple[Node, ...] = ()


def tree_of(state: Any, found: list[Any]) -> Node:
    """The tree of a state; its arrays are collected in `found`."""
    if isinstance(state, Tensor | np.ndarray) or _is_jax(state):
        found.append(state)
        return Node("torch" if isinstance(state, Tensor) else "numpy" if isinstance(state, np.ndarray) else "jax")
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


def names_of(tree: Node, above: str = "") -> list[str]:
    """The name of each leaf: its keys, joined by dots."""
    if isinstance(tree.kind, str):
        return [above or "the state"]
    inside = f"{above}." if above else ""
    return [name for key, node in zip(tree.keys, tree.below, strict=True) for name in names_of(node, f"{inside}{key}")]


def kinds_of(tree: Node) -> list[str]:
    """The kinds of its arrays, "torch", "numpy" or "jax", each once."""
    if isinstance(tree.kind, str):
        return [tree.kind]
    return list(dict.fromkeys(kind for node in tree.below for kind in kinds_of(node)))


def built(tree: Node, leaves: Iterator[Tensor]) -> Any:
    """A tree of that form with these leaves, each as an array of its kind."""
    if isinstance(tree.kind, str):
        leaf = next(leaves)
        if tree.kind == "numpy":
            return leaf.numpy()
        if tree.kind == "jax":  # not imported yet where a file is read before anything is sampled
            return import_module("jax").dlpack.from_dlpack(leaf.contiguous())
        return leaf
    parts = [built(node, leaves) for node in tree.below]
    named = dict(zip(tree.keys, parts, strict=True))
    make = tree.kind
    if make is dict:
        return named
    if is_dataclass(tree.kind):
        return make(**named)
    if issubclass(make, dict):
        return _dict_of(make, named)
    return make(*parts) if hasattr(make, "_fields") else make(parts)


def _dict_of(kind: Any, named: dict[Any, Any]) -> Any:
    """A dictionary of a kind of its own, which may be made in another way than a plain one."""
    try:
        made = kind(named)
        if all(made[key] is part for key, part in named.items()):
            return made
    except (TypeError, KeyError):
        pass
    made = kind.__new__(kind)
    made.update(named)
    return made


_PLAIN: dict[str, type] = {"dict": dict, "list": list, "tuple": tuple}


def plain_tree(state: Any) -> Any:
    """The tree of a state as JSON can hold it; None if it has types of its own in it, which a file cannot name.

    Example:
        >>> plain_tree({"x": np.zeros(2), "y": [torch.zeros(2)]})
        ['dict', [['x', 'numpy'], ['y', ['list', [[0, 'torch']]]]]]
    """
    return _described(tree_of(state, []))


def _described(tree: Node) -> Any:
    if isinstance(tree.kind, str):
        return tree.kind
    below = [_described(node) for node in tree.below]
    if tree.kind not in _PLAIN.values() or None in below or not all(isinstance(key, str | int) for key in tree.keys):
        return None
    return [tree.kind.__name__, [[key, part] for key, part in zip(tree.keys, below, strict=True)]]


def state_of(tree: Any, arrays: Tensor | dict[str, Tensor]) -> Any:
    """The state with that `plain_tree`, of its arrays by name or of its only tensor."""
    if isinstance(arrays, Tensor):
        return arrays
    node = _node(tree)
    return built(node, iter([arrays[name] for name in names_of(node)]))


def _node(tree: Any) -> Node:
    if isinstance(tree, str):
        return Node(tree)
    kind, parts = tree
    return Node(_PLAIN[kind], tuple(key for key, _ in parts), tuple(_node(part) for _, part in parts))


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
    """The same memory as a tensor, wherever that can be had."""
    if isinstance(x, Tensor):
        return x
    if isinstance(x, np.ndarray):
        plain = x if x.flags.writeable and x.dtype.isnative else np.array(x, x.dtype.newbyteorder("="))
        try:
            try:
                return torch.from_numpy(plain)
            except ValueError:  # strides that torch has not: negative ones, or a field of a record
                return torch.from_numpy(np.ascontiguousarray(plain))
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
