"""Finished batches in a folder, under a key that names the problem they are of.

A batch is one safetensors file and one JSON file, which is written last: it is there whole or not at all. Beside it is
what can be checked cheaply before it is used: versions, the class of the constraint, steps, shapes and defects.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from trimtab._version import __version__
from trimtab.core.arrays import Form, plain_tree, state_of
from trimtab.core.checks import EngineError
from trimtab.core.files import UNUSABLE, as_path, read_json, write_atomically
from trimtab.core.record import Rollout
from trimtab.core.repeatable import RunBatch, differing
from trimtab.loop.rollout import Problem

try:  # it takes functions apart that are defined in place, as in a notebook
    import cloudpickle as by_value
except ImportError:
    by_value = pickle

__all__ = ["KeptBatches", "by_value", "name_of"]


class KeptBatches:
    """A folder of finished batches of one problem, which `key` names."""

    def __init__(self, folder: str | os.PathLike[str], key: str | None) -> None:
        """Make the folder if it is not there."""
        self.folder = as_path(folder)
        if not isinstance(key, str) or not key.strip():
            raise ValueError(
                "keep=folder needs key='my problem v1', a text that says whose batches these are; change it when code "
                f"or data of the problem change: got key={key!r}"
            )
        self.key = key
        if os.path.lexists(self.folder) and not self.folder.is_dir():
            raise ValueError(f"{self.folder}: expected a folder for finished batches: got a file or a broken link")
        self.folder.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, record: Rollout, source: Problem | RunBatch) -> None:
        """Write a finished batch of a source."""
        tree = plain_tree(record.final)
        if tree is None:
            warnings.warn("states of types of your own cannot be kept in files: such batches run again", stacklevel=2)
            return
        record.save(self.folder / f"{name}.safetensors")
        told = {"key": self.key, "tree": tree, "problem": _facts(record, source)}
        write_atomically(self.folder / f"{name}.json", json.dumps(told, indent=1).encode())

    def read(self, name: str, source: Problem | RunBatch) -> Rollout | None:
        """Return a kept batch, None if there is none; raise if it is of another problem. A damaged one is removed."""
        path = self.folder / f"{name}.json"
        if not path.is_file():
            return None
        try:
            told = read_json(path)
            tree, facts = told["tree"], dict(told["problem"])
            record = Rollout.load(path.with_suffix(".safetensors"))  # compared with its checksum
            states = None if record.states is None else state_of(tree, record.states)
            record = replace(record, final=state_of(tree, record.final), states=states)
        except (OSError, *UNUSABLE) as error:
            warnings.warn(f"a kept batch is damaged and is run again ({error})", stacklevel=2)
            path.unlink(missing_ok=True)
            return None
        self._check(facts, _facts(record, source))
        return record

    def compare(self, kept: Rollout, again: Rollout) -> None:
        """Raise if a kept batch that was run again has another result."""
        self._check(_facts(kept), _facts(again), differing(again, kept, 1e-9))

    def _check(self, kept: dict[str, Any], now: dict[str, Any], otherwise: str | None = None) -> None:
        changed = [f"{fact} was {kept.get(fact)} and is {now[fact]}" for fact in now if kept.get(fact) != now[fact]]
        if changed or otherwise:
            raise EngineError(
                f"what is kept in {self.folder} under key={self.key!r} is not of this problem and version: "
                f"{'; '.join(changed) or otherwise}. Give another key, or another folder"
            )


def name_of(*parts: Any) -> str:
    """Return a name made from what batches are told apart by; "" if that cannot be pickled."""
    told = io.BytesIO()
    try:
        _Numbers(told).dump(parts)
    except Exception as error:  # objects that cannot be pickled raise what they like
        warnings.warn(
            f"this batch is neither kept nor run ahead: {parts!r:.60} cannot be pickled ({error})", stacklevel=2
        )
        return ""
    return hashlib.sha256(told.getvalue()).hexdigest()[:32]


class _Numbers(by_value.Pickler):  # type: ignore[misc]
    """Pickles tensors as their numbers, so that equal schedules have equal bytes."""

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, Tensor):
            return bytes, (f"{thing.dtype} {thing.shape}".encode() + thing.detach().cpu().numpy().tobytes(),)
        return super().reducer_override(thing) if by_value is not pickle else NotImplemented


def _facts(record: Rollout, source: Problem | RunBatch | None = None) -> dict[str, Any]:
    facts = {"trimtab": __version__, "torch": torch.__version__, "n_steps": record.n_steps}
    facts["state shape"] = str([tuple(shape) for shape in Form(record.final, floats=False).shapes])
    facts["defect scale"] = f"{record.defects[0].double().nanmedian():.6g}"
    if isinstance(source, Problem):
        facts |= {"n_steps": source.n_steps, "constraint": type(source.constraint).__name__}
    return facts
