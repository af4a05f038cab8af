"""Identify code and data by a hash of everything they are made of: what would be sent to a worker.

`identity` is the proof by which finished batches are reused: it walks through an object as pickle would, and raises if
a part cannot be hashed. Code of the user (scripts, notebooks, modules that are not installed) is hashed by value with
the globals that it reads, as they are now; installed code by its name and the version of its package.
"""

from __future__ import annotations

import copyreg
import dis
import functools
import hashlib
import importlib.metadata
import platform
import random
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import lru_cache
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["THREADS", "UnidentifiedError", "environment", "fingerprint", "identity", "machine_facts", "user_modules"]

THREADS = 1
"""Threads of a batch or task: sums may be split, and so rounded, differently with more."""


class UnidentifiedError(TypeError):
    """Raised for an object that cannot be hashed whole; the message names the part."""


def identity(*things: Any) -> str:
    """Return a hash of things as they are now: all attributes, tensors and closures, and code by value.

    Two calls agree if, and only if, the same would be sent to a worker. The state of random generators counts.

    Raises:
        UnidentifiedError: If a part cannot be hashed, such as an open file or a lock.

    Example:
        >>> identity([1, 2]) == identity([1, 2]), identity([[1], 2]) == identity([[1, 2]])
        (True, False)
    """
    return _Walk(True, set()).hash(things)


def fingerprint(*things: Any) -> str:
    """Return a short hash by which samplers and constraints can be named in files.

    It leaves out what changes with the samples and not with the problem: dataclass fields that are marked
    `metadata={"per_sample": True}` and states of random generators. Parts that cannot be hashed count by their type.

    Example:
        >>> fingerprint(lambda x: x.clamp(-1, 1)) == fingerprint(lambda x: x.clamp(-2, 2))
        False
    """
    return _Walk(False, set()).hash(things)[:16]


def user_modules(*things: Any) -> list[types.ModuleType]:
    """Return the imported modules of the user that things need; scripts and notebooks are not among them."""
    names: set[str] = set()
    with suppress(UnidentifiedError):
        _Walk(True, names).hash(things)
    return [sys.modules[name] for name in sorted(names) if name in sys.modules]


# ------------------------------------------------------------------ the environment


def machine_facts() -> dict[str, Any]:
    """Return the facts on which the last bits of a result depend; libraries choose instructions by the processor."""
    found: Any = np.show_config(mode="dicts")
    simd = found.get("SIMD Extensions", {})
    return {
        "processor": platform.machine(),
        "torch_instructions": torch.backends.cpu.get_cpu_capability(),
        "numpy_instructions": " ".join([*simd.get("baseline", ()), *simd.get("found", ())]),
        "threads": THREADS,
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
    }


def environment() -> dict[str, Any]:
    """Return what numbers depend on besides the problem: the machine, the libraries and the code of trimtab."""
    return machine_facts() | {"trimtab": _trimtab_code()}


@lru_cache(maxsize=1)
def _trimtab_code() -> str:
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


# ------------------------------------------------------------------ whose code it is

_SCRIPTS = ("__main__", "__mp_main__")  # a script has the second name in the processes that it starts


def _is_users(module: object) -> bool:
    """Whether code belongs to the user: it is neither installed, nor built in, nor part of trimtab."""
    root = module.partition(".")[0] if isinstance(module, str) else "builtins"  # compiled classes may have no name
    if root in _SCRIPTS:
        return True
    if root == "trimtab" or root in sys.stdlib_module_names:
        return False
    with suppress(ImportError, ValueError):
        found: Any = sys.modules.get(root) or find_spec(root)
        places = [getattr(found, name, None) for name in ("__file__", "origin")]
        return not _is_installed(next(filter(None, [*places, *getattr(found, "__path__", [])]), ""))
    return True


@lru_cache
def _is_installed(place: str) -> bool:
    path, installed = Path(place).resolve(), {Path(path).resolve() for path in sysconfig.get_paths().values()}
    return not {"site-packages", "dist-packages"}.isdisjoint(path.parts) or not installed.isdisjoint(path.parents)


@lru_cache
def _version(root: str) -> str:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(root)
    return str(getattr(sys.modules.get(root), "__version__", ""))


def _named(thing: Any) -> str | None:
    """Return "module.name" if that is where the very object is found, as pickle would send it; None if not."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return str(thing) if isinstance(thing, type) else None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}.{name}" if found is thing else None


# ------------------------------------------------------------------ the walk

_ATOMS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented))
_GENERATORS = (np.random.Generator, np.random.BitGenerator, np.random.RandomState, torch.Generator, random.Random)
_OF_NO_CLASS = {"__annotations__", "__dict__", "__firstlineno__", "__module__", "__slotnames__", "__weakref__"}


def _contents(cell: types.CellType) -> Iterator[Any]:
    with suppress(ValueError):  # a name that is not bound yet
        yield cell.cell_contents


_OF_CODE = ("code", "consts", "names", "varnames", "freevars", "cellvars", "argcount", "kwonlyargcount", "flags")
_PARTS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (torch.Generator, lambda made: (str(made.device), made.get_state())),
    (types.CodeType, attrgetter(*(f"co_{name}" for name in _OF_CODE))),
    (types.MethodType, attrgetter("__func__", "__self__")),
    (types.BuiltinFunctionType, attrgetter("__module__", "__qualname__", "__self__")),
    (types.CellType, _contents),
    (property, attrgetter("fget", "fset", "fdel")),
    (staticmethod | classmethod | functools._lru_cache_wrapper, lambda made: (made.__wrapped__,)),
    (functools.cached_property, attrgetter("attrname", "func")),
    (types.MemberDescriptorType | types.GetSetDescriptorType, attrgetter("__name__", "__qualname__")),
)
"""What an object of a type is made of, for types that pickle does not take apart."""


class _Walk:
    """Feeds objects to a hash, part by part."""

    def __init__(self, whole: bool, modules: set[str]) -> None:
        self.whole, self.modules, self.digest = whole, modules, hashlib.sha256()
        self.seen: dict[int, int] = {}  # the number of each object by its id
        self.alive: list[Any] = []  # temporary objects too, so that no id is used twice

    def hash(self, things: tuple[Any, ...]) -> str:
        try:
            self.feed(things)
        except RecursionError:
            if self.whole:
                raise UnidentifiedError("it is nested too deeply to be hashed") from None
        return self.digest.hexdigest()

    def put(self, text: str, data: bytes = b"") -> None:
        self.digest.update(f"{len(text)},{len(data)}:{text}".encode(errors="surrogatepass") + data)

    def feed(self, thing: Any) -> None:
        kind = type(thing)
        if kind in _ATOMS:
            self.put(kind.__name__, thing if kind is bytes else repr(thing).encode(errors="surrogatepass"))
            return
        if kind is not tuple:  # equal tuples may be one object or two, by chance; sharing anything else matters
            if id(thing) in self.seen:
                self.put("seen", str(self.seen[id(thing)]).encode())
                return
            self.seen[id(thing)] = len(self.seen)
            self.alive.append(thing)
        self.put("(")
        for part in thing if kind is tuple else self._parts(thing):
            self.feed(part)
        self.put(")")

    def _parts(self, thing: Any) -> Iterator[Any]:
        kind = type(thing)
        if kind in (list, dict, types.MappingProxyType):
            yield kind.__name__
            yield from thing if kind is list else dict(thing).items()
        elif kind in (set, frozenset):
            yield kind.__name__
            yield from sorted(_Walk(self.whole, self.modules).hash((one,)) for one in thing)  # in any order
        elif isinstance(thing, Tensor):
            yield from self._tensor(thing)
        elif isinstance(thing, np.ndarray | np.generic):
            yield from (kind, str(thing.dtype), thing.shape)
            yield thing.tolist() if thing.dtype.hasobject else thing.tobytes()
        elif "jax" in sys.modules and (numbers := _jax_numbers(thing)) is not None:
            yield from ("jax", str(thing.dtype), numbers)
        elif isinstance(thing, type | types.FunctionType):
            yield from self._code(thing)
        elif isinstance(thing, types.ModuleType):
            yield self._module(thing.__name__)
        elif not self.whole and isinstance(thing, _GENERATORS):
            yield kind
        elif not self.whole and is_dataclass(thing):
            yield kind
            yield from ((f.name, getattr(thing, f.name)) for f in fields(thing) if not f.metadata.get("per_sample"))
        else:
            parts = next((parts for known, parts in _PARTS if isinstance(thing, known)), self._reduced)
            yield kind
            yield from parts(thing)

    def _reduced(self, thing: Any) -> Iterator[Any]:
        """Yield what pickle would keep of an object: the arguments and the state that make it again."""
        try:
            reduce = copyreg.dispatch_table.get(type(thing))
            made = reduce(thing) if reduce else thing.__reduce_ex__(4)
        except Exception as error:
            if self.whole:
                what = f"{type(thing).__module__}.{type(thing).__qualname__}"
                raise UnidentifiedError(f"an object of type {what} cannot be hashed ({error})") from error
            yield vars(thing) if hasattr(thing, "__dict__") else getattr(thing, "__qualname__", "")
            return
        if isinstance(made, str):  # the name of something that there is once
            yield from (made, getattr(thing, "__module__", None), getattr(thing, "__wrapped__", None))
            return
        for part in made:
            if isinstance(thing, nn.Module) and isinstance(part, dict):
                part = _with_hooks_in_order(part)
            if isinstance(part, dict):  # cached properties of installed code follow from the rest of the object
                known = {key: getattr(type(thing), key, None) for key in part if isinstance(key, str)}
                cached = {key: one for key, one in known.items() if isinstance(one, functools.cached_property)}
                derived = {key for key, one in cached.items() if not _is_users(one.func.__module__)}
                part = {key: value for key, value in part.items() if key not in derived}
            yield tuple(part) if isinstance(part, Iterator) else part

    def _tensor(self, tensor: Tensor) -> Iterator[Any]:
        yield from (type(tensor), str(tensor.dtype), tuple(tensor.shape), tensor.device.type, vars(tensor) or None)
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
            yield from self._reduced(tensor)
        elif not tensor.is_meta:
            plain = tensor.detach().resolve_conj().resolve_neg().cpu().clone(memory_format=torch.contiguous_format)
            yield plain.reshape(-1).view(torch.uint8).numpy().tobytes()

    def _code(self, thing: Any) -> Iterator[Any]:
        """Yield a function or a class: the user's by value, installed ones by name, if they have one."""
        mine, name = _is_users(thing.__module__), _named(thing)
        if name is not None and not mine:
            yield from (name, _version(name.partition(".")[0]))
            return
        yield from ("code", thing.__qualname__, self._module(thing.__module__) if mine else "")
        if isinstance(thing, type):
            yield from (type(thing), thing.__bases__)
            yield from ((key, value) for key, value in vars(thing).items() if key not in {*_OF_NO_CLASS, "_abc_impl"})
            return
        yield from (thing.__code__, thing.__defaults__, thing.__kwdefaults__, thing.__dict__ or None, thing.__closure__)
        if mine:
            names, attributes, imported = _names(thing.__code__, self.whole)
            for name in sorted(names & thing.__globals__.keys()):
                yield name
                yield from self._global(thing.__globals__[name], attributes)
            for module in _users_modules(imported, thing.__globals__.get("__package__") or ""):
                yield from self._global(module, attributes)

    def _global(self, thing: Any, attributes: set[str]) -> Iterator[Any]:
        """Yield a global that a function reads; of the user's own modules also the attributes that it reads."""
        yield thing
        if isinstance(thing, types.ModuleType) and _is_users(thing.__name__):
            for name in sorted(attributes & vars(thing).keys()):
                yield name
                yield from self._global(vars(thing)[name], attributes - {name})

    def _module(self, name: str) -> str:
        """Return a module's part of the hash: its version, or the hash of its source if it is the user's."""
        if name in _SCRIPTS:
            return "a script"  # hashed by what is met of it: an edit elsewhere is no other code
        if not _is_users(name):
            return f"{name} {_version(name.partition('.')[0])}"
        self.modules.add(name)
        path = Path(getattr(sys.modules.get(name), "__file__", None) or "")
        source = path.read_bytes() if path.suffix == ".py" and path.is_file() else b""
        return f"{name} {hashlib.sha256(source).hexdigest()}"


def _names(code: types.CodeType, whole: bool) -> tuple[set[str], set[str], set[str]]:
    """Return the global names, the attributes and the modules that some code reads, with the functions in it.

    A global that a function also sets is state of its own: the proof needs it, a short name does without.
    """
    steps = list(dis.get_instructions(code))
    names = {step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    imported = {step.argval for step in steps if step.opname == "IMPORT_NAME"}
    attributes = set(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            more = _names(inner, whole)
            names, attributes, imported = names | more[0], attributes | more[1], imported | more[2]
    written = set() if whole else {step.argval for step in steps if step.opname == "STORE_GLOBAL"}
    return names - written, attributes, imported


def _users_modules(names: set[str], package: str) -> Iterator[types.ModuleType]:
    """Yield the user's modules among those that a function of a package imports when it is called."""
    for name in sorted(names):
        for full in (name, f"{package}.{name}".lstrip(".")):
            with suppress(ImportError, ValueError, AttributeError):
                if _is_users(full):
                    yield importlib.import_module(full)


def _with_hooks_in_order(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a module whose hooks are numbered from 0; torch counts all hooks of a process."""
    hooks = {key: value for key, value in state.items() if "_hooks" in key and isinstance(value, dict)}
    rank = {number: k for k, number in enumerate(sorted({number for found in hooks.values() for number in found}))}
    return state | {key: {rank[number]: one for number, one in found.items()} for key, found in hooks.items()}


def _jax_numbers(thing: Any) -> np.ndarray | None:
    """Return the numbers of an array or of keys of JAX; None for everything else."""
    jax = sys.modules["jax"]
    if not isinstance(thing, jax.Array):
        return None
    with suppress(Exception):  # there are none while JAX traces
        keys = jax.dtypes.issubdtype(thing.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(thing) if keys else thing)
    return None
