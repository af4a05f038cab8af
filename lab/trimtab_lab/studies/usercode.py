"""A sampler of the user as a domain, from "package.module:factory".

The factory returns a sampler and a constraint. If it takes `seeds`, it is called for every batch, so that data can
depend on the sample's seed; its other parameters are settings. `trimtab_lab.studies.probe` tries the result
before anything long is run.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import os
import pkgutil
import sys
import tomllib
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor

from trimtab.core.checks import unknown
from trimtab.core.constraint import Constraint, check_constraint
from trimtab.core.metrics import Distance, euclidean
from trimtab.core.noise import as_seeds
from trimtab.loop.rollout import Sampler, check_sampler
from trimtab_lab.domains import DOMAINS, domain
from trimtab_lab.domains.base import Domain, Problem
from trimtab_lab.files import parse_json, plain_name, read_bytes

__all__ = ["Source", "domain_from", "load_function", "read_settings", "record_of", "version_of"]

_EXPECTED = (
    "expected (sampler, constraint), (sampler, constraint, distance), a trimtab_lab.domains.Problem or a "
    "trimtab_lab.domains.Domain"
)
_LARGEST_SETTINGS = 2**20  # bytes
_MOST_STEPS = 1_000_000  # every step is recorded, so more would not fit in memory


@dataclass(frozen=True)
class Source:
    """Where a domain comes from; a value that can be written to a file and sent to another process.

    Attributes:
        name: The domain's name, also in file names.
        factory: "package.module:factory"; "" for a built-in domain.
        settings: Keyword arguments of the factory, as JSON text.
    """

    name: str
    factory: str
    settings: str = "{}"

    def __post_init__(self) -> None:
        """Check that the name can be part of a file name."""
        plain_name(self.name, "a sampler's name")

    @classmethod
    def built_in(cls, name: str, settings: Mapping[str, Any]) -> Source:
        """Return the source of a built-in domain."""
        if name not in DOMAINS:
            raise unknown("domain", name, DOMAINS)
        return cls(name, "", json.dumps(settings, sort_keys=True))

    @classmethod
    def of_user(cls, factory: str, settings: Mapping[str, Any], name: str | None = None) -> Source:
        """Return the source of a user's sampler, named after its module by default."""
        name = name or split(factory)[0].rpartition(".")[2]
        if name in DOMAINS:
            raise ValueError(f"{name!r} is the name of a built-in domain; choose another name with --name")
        return cls(name, factory, json.dumps(settings, sort_keys=True))


def read_settings(path: Path) -> dict[str, Any]:
    """Read keyword arguments for a factory from a JSON or TOML file."""
    if path.suffix not in (".json", ".toml"):
        raise ValueError(f"{path}: settings must be a .json or .toml file")
    if not path.is_file():
        raise ValueError(f"{path}: no such file; expected the factory's keyword arguments as JSON or TOML")
    try:
        text = read_bytes(path, _LARGEST_SETTINGS).decode("utf-8")
        settings = parse_json(text) if path.suffix == ".json" else tomllib.loads(text)
        if not isinstance(settings, dict):
            raise ValueError(f"expected keyword arguments, got {type(settings).__name__}")
        json.dumps(settings)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: not usable as settings: {error}") from error
    return settings


# ------------------------------------------------------------------ finding the factory


def split(spec: str, what: str = "a sampler") -> tuple[str, str]:
    """Return module and function of "package.module:function"; `what` names the function's purpose in errors.

    Example:
        >>> split("examples.my_sampler:make")
        ('examples.my_sampler', 'make')
    """
    module, colon, function = spec.partition(":")
    if not colon or not all(name.isidentifier() for name in [*module.split("."), function]) or module.endswith(".py"):
        part = "factory" if what == "a sampler" else "function"
        dotted = module.removesuffix(".py").replace("/", ".").strip(".")
        raise ValueError(
            f"{what} must be given as package.module:{part}, the dotted name of a module and a function in it: got "
            f"{spec!r} (perhaps {dotted or 'package.module'}:{function or part}?)"
        )
    return module, function


def load_function(spec: str, what: str = "a sampler") -> Callable[..., Any]:
    """Import the function that "package.module:function" names; the working directory is on the path."""
    module_name, name = split(spec, what)
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ValueError(f"{module_name} cannot be imported: {short_error(error)}") from error
        raise _no_module(module_name, error.name) from error
    except Exception as error:
        raise ValueError(f"{module_name} cannot be imported: {short_error(error)}") from error
    function = getattr(module, name, None)
    if function is None:
        known = [n for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module_name]
        if not (public := [n for n in known if not n.startswith("_")]):
            raise ValueError(f"{module_name} has no {name!r}, and defines no functions")
        raise unknown(f"{'factory' if what == 'a sampler' else 'function'} of {module_name}", name, public)
    if not callable(function):
        takes = "settings, and of seeds if its data depend on the sample" if what == "a sampler" else "the final states"
        raise ValueError(f"{spec} is not a function but {type(function).__name__}; {what} needs a function of {takes}")
    return function  # type: ignore[no-any-return]


def _no_module(wanted: str, missing: str) -> ValueError:
    parent = missing.rpartition(".")[0]
    places = list(importlib.import_module(parent).__path__) if parent else sys.path
    siblings = [module.name for module in pkgutil.iter_modules(places)]
    if not parent:
        siblings += [path.name for path in Path.cwd().iterdir() if path.is_dir() and path.name.isidentifier()]
    near = unknown("module", missing.rpartition(".")[2], siblings).args[0].partition(" Known:")[0].rstrip(".")
    return ValueError(f"{wanted}: {near}; modules are searched in the working directory and on Python's path")


def short_error(error: BaseException) -> str:
    """Describe an error in the user's code in one line, with its place."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    at = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{at}"


# ------------------------------------------------------------------ making the domain


@lru_cache(maxsize=8)
def domain_from(source: Source) -> Domain:
    """Make the domain, once per process: a factory may load a model."""
    settings = json.loads(source.settings)
    if source.name in DOMAINS:
        try:
            return _checked_length(domain(source.name, **settings))
        except (TypeError, RuntimeError, OverflowError, MemoryError) as error:
            raise ValueError(
                f"{source.name}: cannot be made with the settings {source.settings}: {short_error(error)}"
            ) from error
    spec, factory = source.factory, load_function(source.factory)
    text = (inspect.getdoc(factory) or "a sampler of your own").strip().splitlines()[0].rstrip(".")
    if not _check_settings(spec, factory, settings):
        made = _call(spec, factory, settings)
        if isinstance(made, Domain):
            return _checked_length(made)
        sampler, constraint, distance = _parts(spec, made)
        return Domain(
            source.name, text, lambda seeds: Problem(sampler, constraint, seeds, distance), distance, settings
        )

    def problem(seeds: Iterable[int] | Tensor) -> Problem:
        answer = _call(spec, factory, settings | {"seeds": as_seeds(seeds)})
        return Problem(*_parts(spec, answer)[:2], seeds, distance)

    _, _, distance = _parts(spec, _call(spec, factory, settings | {"seeds": as_seeds([0])}))
    return Domain(source.name, text, problem, distance, settings)


def _checked_length(made: Domain) -> Domain:
    _check_steps(made.name, made.problem(as_seeds([0])).sampler.n_steps)
    return made


def _check_steps(name: str, n_steps: object) -> None:
    if isinstance(n_steps, bool) or not isinstance(n_steps, int) or not 1 <= n_steps <= _MOST_STEPS:
        raise ValueError(f"{name}: n_steps must be a whole number from 1 to {_MOST_STEPS}: got {n_steps!r}")


def version_of(source: Source) -> str:
    """Return a hash of the settings, of the files that they name, and of the source of the factory's module.

    Modules that the factory's module imports are not included. Built-in domains are part of the package's version.
    """
    digest = hashlib.sha256(f"{source.factory} {source.settings}".encode())
    names = [value for value in json.loads(source.settings).values() if isinstance(value, str)]
    if source.factory:
        names.append(inspect.getsourcefile(inspect.unwrap(load_function(source.factory))) or "")
    for name in filter(os.path.isfile, names):
        digest.update(Path(name).read_bytes())
    return digest.hexdigest()[:16]


def record_of(source: Source) -> dict[str, Any]:
    """Return the record of a domain with its own settings or code: data to compare with, never code to run."""
    code = {"factory": source.factory} if source.factory else {}
    return code | {"settings": json.loads(source.settings), "code": version_of(source)}


def _check_settings(spec: str, factory: Callable[..., Any], settings: Mapping[str, Any]) -> bool:
    """Check settings against the factory's parameters; return whether it takes seeds."""
    parameters = inspect.signature(factory).parameters
    names = [name for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    own = [name for name in names if name != "seeds"]
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name in settings:
        if name not in own and not anything:
            raise (
                unknown(f"setting of {spec}", name, own)
                if own
                else ValueError(f"{spec} takes no settings: got {name!r}")
            )
    lacking = [name for name in own if parameters[name].default is inspect.Parameter.empty and name not in settings]
    if lacking:
        raise ValueError(f"{spec} needs {', '.join(lacking)}: give values in a file, with --config settings.json")
    return "seeds" in names


def _call(spec: str, factory: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    try:
        return factory(**arguments)
    except Exception as error:
        raise ValueError(f"{spec} failed: {short_error(error)}") from error


def _parts(spec: str, made: Any) -> tuple[Sampler, Constraint, Distance]:
    """Check what a factory returned."""
    if isinstance(made, Problem):
        made = (made.sampler, made.constraint, made.distance)
    if isinstance(made, Domain):
        raise ValueError(f"{spec} takes seeds and returned a Domain; a Domain makes its problems from seeds itself")
    if not isinstance(made, tuple | list) or len(made) not in (2, 3):
        count = f" of {len(made)}" if isinstance(made, tuple | list) else ""
        raise ValueError(f"{spec} returned {type(made).__name__}{count}; {_EXPECTED}")
    sampler, constraint = made[:2]
    if hasattr(sampler, "project") and hasattr(constraint, "step"):
        raise ValueError(f"{spec} returned the constraint first; {_EXPECTED}, in this order")
    try:
        check_sampler(sampler)
        check_constraint(constraint)
    except TypeError as error:
        raise ValueError(f"{spec}: {error}") from error
    _check_steps(spec, sampler.n_steps)
    distance = made[2] if len(made) == 3 else euclidean
    if not callable(distance):
        raise ValueError(f"{spec}: the distance must be a function of two batches of states: got {distance!r}")
    return sampler, constraint, distance
