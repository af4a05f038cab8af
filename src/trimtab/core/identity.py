"""A short hash of what samplers and constraints are, so that results of one problem are not taken for another's."""

from __future__ import annotations

import dis
import functools
import hashlib
import random
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from logging import Logger
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
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
    with the problem, and so are states of random generators. Of a script, what its functions read and call counts too.

    Example:
        >>> fingerprint(lambda x: x.clamp(-1, 1)) == fingerprint(lambda x: x.clamp(-2, 2))
        False
    """
    walk = _Walk(per_sample=False)
    for thing in things:
        walk.feed(thing, 0)
    walk.digest.update(walk.read().encode())
    return walk.digest.hexdigest()[:16]


class Fingerprint(NamedTuple):
    """What objects are, and where their code is from.

    Attributes:
        content: A hash of types, settings, functions, weights, and of what belongs to the samples.
        files: A hash of the source file of each module that something was met of. What those files import is not
            looked at.
        read: A hash of what functions of a script read and call, and of the states of random generators (of numpy,
            torch and `random`) that were met, as they are now; "" if there are none. Files do not tell it, since a
            notebook has none.
    """

    content: str
    files: dict[str, str]
    read: str = ""

    def fits(self, other: Fingerprint) -> bool:
        """Whether the two are of the same things; a function sent by value may be without its module.

        What a script's functions read may be the time it was started or a list that grows, and a generator may be
        seeded in each run whatever its state is: they do not count here.
        """
        both = self.files.keys() & other.files.keys()
        return self.content == other.content and all(self.files[name] == other.files[name] for name in both)


def full_fingerprint(*things: Any) -> Fingerprint:
    """As `fingerprint`, with what belongs to the samples, and with the source files of everything that was met.

    A random generator counts with its state, by which batches of one seed are told from those of another. Who draws
    from one that was made outside has another fingerprint afterwards; one that is made in each run has none to count.
    """
    walk = _Walk(per_sample=True)
    for thing in things:
        walk.feed(thing, 0)
    content, read = walk.digest.hexdigest(), walk.read()
    files = {}
    for name in sorted(walk.modules):
        file = getattr(sys.modules.get(name), "__file__", None)
        own = name.startswith("trimtab.") or name in _SCRIPTS  # scripts are hashed by what was met of them
        if file is not None and not own and Path(file).suffix == ".py":
            files[name] = hashlib.sha256(Path(file).read_bytes()).hexdigest()
    return Fingerprint(content, files, read)


class _Walk:
    """Goes through objects and takes up what they are."""

    def __init__(self, per_sample: bool, once: bool = False) -> None:
        self.per_sample, self.digest = per_sample, hashlib.sha256()
        self.once: dict[int, Any] | None = {} if once else None  # objects that are looked into once, where asked for
        self.modules: set[str] = set()
        self.classes: dict[type, None] = {}  # of scripts, in the order in which they were met
        self.functions: dict[FunctionType, None] = {}
        self.generators: list[str] = []  # hashes of their states
        self.within: list[int] = []  # what is being looked at, so that an object that holds itself comes to an end

    def feed(self, thing: Any, depth: int) -> None:
        kind = type(thing)
        self._class(kind, depth)
        if self.per_sample and isinstance(thing, _GENERATORS):
            self.generators.append(fingerprint(_state_of(thing)))
        if isinstance(thing, Tensor):
            self.digest.update(f"{thing.dtype}{tuple(thing.shape)}".encode())
            self.digest.update(_bytes(thing))
        elif isinstance(thing, np.ndarray | np.generic):
            self.digest.update(f"{thing.dtype}{thing.shape}".encode())
            self.digest.update(thing.tobytes() if thing.dtype != object else repr(thing).encode())
        elif (numbers := _jax_numbers(thing)) is not None:
            self.feed(numbers, depth)
        elif isinstance(thing, str | bytes | int | float | complex | bool | None):
            self.digest.update(repr(thing).encode())
        elif isinstance(thing, CodeType):
            self.digest.update(f"{len(thing.co_code)}:".encode() + thing.co_code + " ".join(thing.co_names).encode())
            self._all(thing.co_consts, depth)
        elif depth < _DEEPEST and id(thing) not in self.within:
            self.within.append(id(thing))
            self._all(self._parts(thing, depth), depth)
            self.within.pop()

    def _class(self, kind: type, depth: int) -> None:
        """By its name; one that was defined in a script or a notebook also by its functions, once."""
        for one in kind.__mro__ if kind.__module__ in _SCRIPTS else (kind,):
            self.digest.update(f"<{_module(one)}.{one.__qualname__}>".encode())
            self.modules.add(one.__module__)
            if one.__module__ in _SCRIPTS and one not in self.classes:
                self.classes[one] = None
                functions = {name: value for name, value in vars(one).items() if hasattr(value, "__code__")}
                self.feed(functions, depth + 1)

    def read(self) -> str:
        """What the functions of scripts that were met read and call, and so on; what their classes hold besides."""
        beyond = _Walk(self.per_sample, once=True)
        beyond.classes, beyond.functions = dict(self.classes), dict(self.functions)
        told: set[Any] = set()
        while new := [one for one in (*beyond.functions, *beyond.classes) if one not in told]:
            told.update(new)
            for one in new:
                known = one.__globals__ if isinstance(one, FunctionType) else vars(one)
                names = _names_read(one.__code__) if isinstance(one, FunctionType) else set(known)
                for name in sorted(name for name in names if name in known and not name.startswith("__")):
                    beyond.feed(name, 0)
                    beyond.feed(known[name], 0)
        self.modules |= beyond.modules
        read = beyond.digest.hexdigest() if told else ""
        generators = [*self.generators, *beyond.generators]
        return hashlib.sha256(" ".join([read, *generators]).encode()).hexdigest() if generators else read

    def _all(self, things: Any, depth: int) -> None:
        """What belongs to one object, between marks: [[1], 2] is not [[1, 2]]."""
        self.digest.update(b"(")
        for thing in things:
            self.feed(thing, depth + 1)
        self.digest.update(b")")

    def _parts(self, thing: Any, depth: int) -> Iterator[Any]:
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
            self._class(thing, depth)
        elif isinstance(thing, ModuleType):
            self.modules.add(thing.__name__)
            yield thing.__name__
        elif isinstance(thing, property):
            yield from (thing.fget, thing.fset)
        elif isinstance(thing, staticmethod | classmethod):
            yield thing.__func__
        elif hasattr(thing, "__code__"):
            self.modules.add(thing.__module__ or "")
            if thing.__module__ in _SCRIPTS and isinstance(thing, FunctionType):
                self.functions[thing] = None
            yield thing.__qualname__
            yield thing.__code__
            yield from (thing.__defaults__, thing.__kwdefaults__)
            yield [cell.cell_contents for cell in thing.__closure__ or () if _is_filled(cell)]
        elif isinstance(thing, Logger):  # holds all others, and what each has let through so far
            yield thing.name
        elif hasattr(thing, "__dict__"):
            if self.once is not None:
                if id(thing) in self.once:
                    return
                self.once[id(thing)] = thing
            yield _sent(thing)
        else:  # a dtype, a range, a function that is compiled
            told = repr(thing)
            if re.search("(?i)0x[0-9a-f]{6}", told):  # where it lies, which is no part of it
                yield getattr(thing, "__qualname__", "")
                yield from _slots(thing).items()
            else:
                yield told


def _jax_numbers(thing: Any) -> np.ndarray | None:
    """The numbers of an array of JAX, whose attributes do not hold them; None of all else, and of keys, whose do."""
    jax = sys.modules.get("jax")
    if jax is None or not isinstance(thing, jax.Array):
        return None
    with suppress(Exception):  # of what is being traced there are none, and others may lie on another machine
        return np.asarray(thing)
    return None


_GENERATORS = (np.random.Generator, np.random.BitGenerator, np.random.RandomState, torch.Generator, random.Random)


def _state_of(generator: Any) -> Any:
    """What decides the numbers that a random generator draws next; None of one that asks the system for them."""
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.BitGenerator):
        return generator.state
    if isinstance(generator, np.random.RandomState | torch.Generator):
        return generator.get_state()
    with suppress(NotImplementedError):
        return generator.getstate()
    return None


def _names_read(code: CodeType) -> set[str]:
    """The global names that a function reads, with those within it; one that it sets itself is no setting."""
    steps = list(dis.get_instructions(code))
    names = {step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            names |= _names_read(inner)
    return names - {step.argval for step in steps if step.opname == "STORE_GLOBAL"}


def _module(kind: type) -> str:
    return "a script" if kind.__module__ in _SCRIPTS else kind.__module__


def _sent(thing: Any) -> dict[str, Any]:
    """An object's attributes as its copy in another process has them, without what it leaves out of copies."""
    attributes: dict[str, Any] = {**vars(thing), **_slots(thing)}
    if any("__getstate__" in vars(kind) for kind in type(thing).__mro__[:-1]):
        with suppress(Exception):  # what refuses to be copied is what it holds
            state = thing.__getstate__()
            return state if isinstance(state, dict) else attributes
    return attributes


def _slots(thing: Any) -> dict[str, Any]:
    """What an object holds in `__slots__`, which is not in its dictionary."""
    state = object.__getstate__(thing)
    return state[1] if isinstance(state, tuple) else {}


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
