"""A batch of rollouts as a worker runs it, in this process or in another one."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from trimtab.core.batch_cache import CachedBatch
from trimtab.core.errors import EngineError
from trimtab.core.identity import Fingerprint, full_fingerprint
from trimtab.core.machine import THREADS, machine_facts
from trimtab.core.problem import Problem
from trimtab.core.repeatable import as_record, twice
from trimtab.core.schedule import Schedule

__all__ = ["Answer", "Work", "bytes_of", "place", "run_here", "run_there"]


class Work(NamedTuple):
    """A batch to be run."""

    schedule: Schedule
    options: dict[str, Any]
    times: int
    fingerprint: Fingerprint
    dtype: torch.dtype


class Answer(NamedTuple):
    """What a worker gives back, and what its numbers depend on besides."""

    finished: CachedBatch
    place: dict[str, Any]


def run_here(work: Work, shared: Mapping[str, Any]) -> Answer:
    """Run a batch in this process."""
    source, run = shared["source"], shared["source"]
    if isinstance(source, Problem):
        run = partial(source.rollout, **work.options)
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        if work.times == 2:
            first, second, moved = twice(run, work.schedule)
            return Answer(CachedBatch((first, second), moved), place())
        return Answer(CachedBatch((as_record(run(work.schedule)),)), place())
    finally:
        torch.set_num_threads(threads)


def run_there(sent: bytes, shared: Mapping[str, bytes]) -> bytes:
    """Run a batch in a worker; everything comes and goes as bytes."""
    source, fingerprint = _received(shared["source"])
    work = pickle.loads(sent)
    torch.set_default_dtype(work.dtype)
    if not fingerprint.fits(work.fingerprint):
        raise EngineError(
            "a worker has another sampler than this process: its module there is of another version, or the problem "
            "changes as it is made or run"
        )
    return bytes_of(run_here(work, {"source": source}))


@lru_cache(maxsize=4)
def _received(sent: bytes) -> tuple[Any, Fingerprint]:
    """What is sampled, made once per worker, and its fingerprint."""
    kind, thing = pickle.loads(sent)
    source = thing() if kind == "make" else thing
    return source, full_fingerprint(source)


def bytes_of(thing: object) -> bytes:
    """For other processes: functions of a module by their name, others by what they are if cloudpickle is there."""
    try:
        import cloudpickle as by_value  # type: ignore[import-untyped]
    except ImportError:
        by_value = pickle
    try:
        data: bytes = by_value.dumps(thing)
    except Exception as error:  # whatever the objects raise that refuse to be sent
        raise ValueError(
            f"this cannot be sent to other processes ({type(error).__name__}: {error}); define its functions and "
            "classes in a module rather than in place, or install cloudpickle, or give Engine(make=…) a function of a "
            "module that makes the problem, or use engine='serial'"
        ) from error
    return data


@lru_cache(maxsize=1)
def _code() -> str:
    """A hash of this package."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def place() -> dict[str, Any]:
    """What numbers depend on besides the problem: the code, the libraries and the processor."""
    return machine_facts() | {"trimtab": _code()}
