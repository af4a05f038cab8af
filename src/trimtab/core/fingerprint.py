"""A short hash of what samplers and constraints are, so that results of one problem are not taken for another's."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import CodeType, MethodType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["Fingerprint", "fingerprint", "full_fingerprint"]

_DEEPEST = 12  # objects within objects
_SCRIPTS = ("__main__", "__mp_main__")  # a script goes by another name in the processes that it starts


def fingerprint(*things: Any) -> str:
    """A short hash of what samplers and constraints are: their types, settings, functions and weights.

    Dataclass fields marked `metadata={"per_sample": True}` are left out, since they change with the seeds and not
    with the problem.

    Example:
        >>> fingerprint(lambda x: x.clamp(-1, 1)) == fingerprint(lambda x: x.clamp(-2, 2))
        False
    """
    walk = _Walk(per_sample=False)
    for thing in things:
        walk.feed(thing, 0)
    return walk.digest.hexdigest()[:16]


class Fingerprint(NamedTuple):
    """What objects are, and where their code is from.

    Attributes:
        content: A hash of types, settings, functions, weights, and of what belongs to the samples.
        files: A hash of the source file of each module that something was met of. What those files import is not
            looked at.
    """

    content: str
    files: dict[str, str]

    def fits(self, other: Fingerprint) -> bool:
        """Whether the two are of the same things; a function sent by value may be without its module."""
        both = self.files.keys() & other.files.keys()
        return self.content == other.content and all(self.files[name] == other.files[name] for name in both)


def full_fingerprint(*things: Any) -> Fingerprint:
    """As `fingerprint`, with what belongs to the samples, and with the source files of everything that was met."""
    walk = _Walk(per_sample=True)
    for thing in things:
        walk.feed(thing, 0)
    files = {}
    for name in sorted(walk.modules):
        file = getattr(sys.modules.get(name), "__file__", None)
        own = name.startswith("trimtab.") or name in _SCRIPTS  # scripts are hashed by what was met of them
        if file is not None and not own and Path(file).suffix == ".py":
            files[name] = hashlib.sha256(Path(file).read_bytes()).hexdigest()
    return Fingerprint(walk.digest.hexdigest(), files)


class _Walk:
    """Goes through objects and takes up what they are."""

    def __init__(self, per_sample: bool) -> None:
        self.per_sample, self.digest = per_sample, hashlib.sha256()
        self.modules: set[str] = set()
        self.classes: set[type] = set()
        self.within: list[int] = []  # what is being looked at, so that an object that holds itself comes to an end

    def feed(self, thing: Any, depth: int) -> None:
        kind = type(thing)
        self._class(kind, depth)
        if isinstance(thing, Tensor):
            self.digest.update(f"{thing.dtype}{tuple(thing.shape)}".encode())
            self.digest.update(_bytes(thing))
        elif isinstance(thing, np.ndarray | np.generic):
            self.digest.update(f"{thing.dtype}{thing.shape}".encode())
            self.digest.update(thing.tobytes() if thing.dtype != object else repr(thing).encode())
        elif isinstance(thing, str | bytes | int | float | complex | bool | None):
            self.digest.update(repr(thing).encode())
        elif isinstance(thing, CodeType):
            self.digest.update(thing.co_code + " ".join(thing.co_names).encode())
            self._all(thing.co_consts, depth)
        elif depth < _DEEPEST and id(thing) not in self.within:
            self.within.append(id(thing))
            for part in self._parts(thing):
                self.feed(part, depth + 1)
            self.within.pop()

    def _class(self, kind: type, depth: int) -> None:
        """By its name; one that was defined in a script or a notebook also by its functions, once."""
        for one in kind.__mro__ if kind.__module__ in _SCRIPTS else (kind,):
            self.digest.update(f"<{_module(one)}.{one.__qualname__}>".encode())
            self.modules.add(one.__module__)
            if one.__module__ in _SCRIPTS and one not in self.classes:
                self.classes.add(one)
                functions = {name: value for name, value in vars(one).items() if hasattr(value, "__code__")}
                self.feed(functions, depth + 1)

    def _all(self, things: Any, depth: int) -> None:
        for thing in things:
            self.feed(thing, depth + 1)

    def _parts(self, thing: Any) -> Iterator[Any]:
        """What an object is made of, in an order that is always the same."""
        if isinstance(thing, nn.Module):
            yield dict(thing.state_dict())
            for name, module in thing.named_modules():
                yield name
                yield f"{_module(type(module))}.{type(module).__qualname__}"
                yield {key: value for key, value in vars(module).items() if not key.startswith("_")}
        elif is_dataclass(thing) and not isinstance(thing, type):
            for f in fields(thing):
                if self.per_sample or not f.metadata.get("per_sample"):
                    yield f.name
                    yield getattr(thing, f.name)
        elif isinstance(thing, Mapping):
            for key in sorted(thing, key=str):
                yield str(key)
                yield thing[key]
        elif isinstance(thing, list | tuple):
            yield from thing
        elif isinstance(thing, set | frozenset):
            yield from sorted(map(repr, thing))
        elif isinstance(thing, functools.partial):
            yield from (thing.func, thing.args, thing.keywords)
        elif isinstance(thing, MethodType):
            yield from (thing.__func__, thing.__self__)
        elif isinstance(thing, type):
            self._class(thing, _DEEPEST)
        elif hasattr(thing, "__code__"):
            self.modules.add(thing.__module__ or "")
            yield thing.__qualname__
            yield thing.__code__
            yield from (thing.__defaults__, thing.__kwdefaults__)
            yield [cell.cell_contents for cell in thing.__closure__ or () if _is_filled(cell)]
        elif hasattr(thing, "__dict__"):
            yield vars(thing)


def _module(kind: type) -> str:
    return "a script" if kind.__module__ in _SCRIPTS else kind.__module__


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:  # a name that is not bound yet
        return False
    return True


def _bytes(tensor: Tensor) -> bytes:
    """The numbers of a tensor, row by row.

    A tensor with no element or one counts as contiguous whatever its strides say, so `contiguous` would leave strides
    that a view of its bytes is refused for; a clone has strides of its own.
    """
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().clone(memory_format=torch.contiguous_format)
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes()
