"""Finished batches of rollouts in a folder, so that a call that was stopped can continue.

A batch has one file per record, and a JSON file that is written last: it is there whole or not at all. Its name is a
hash of everything that the batch depends on, so another sampler, schedule, library or machine looks for other names.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trimtab.core.arrays import plain_tree, state_of
from trimtab.core.files import UNUSABLE, plain_name, read_bytes, read_json, sha256, write_atomically
from trimtab.core.record import Rollout

__all__ = ["BatchCache", "CachedBatch", "is_cache_file"]

_FORMAT = "trimtab-batch-1"
_LARGEST = 2**34  # bytes of a record
_NAME = re.compile(r"[0-9a-f]{32}-\d+(\.json|\.\d+\.safetensors)")


def is_cache_file(name: str) -> bool:
    """Return whether a file has the name of a cached batch.

    Example:
        >>> is_cache_file(f"{'0' * 32}-1.json"), is_cache_file("my-notes.json")
        (True, False)
    """
    return _NAME.fullmatch(name) is not None


@dataclass(frozen=True, eq=False)
class CachedBatch:
    """A batch that was run, once or several times.

    Attributes:
        records: One per run.
        moved: The global random generators that the first run drew from.
    """

    records: tuple[Rollout, ...]
    moved: tuple[str, ...] = ()


def folder_of(value: str | os.PathLike[str]) -> Path:
    """Return the path of a folder; raise if the value cannot be one."""
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"finished batches are kept in a folder: got {value!r:.60} of type {type(value).__name__}")
    text = os.fspath(value)
    if not text or "\0" in text or any(len(part.encode()) > 255 for part in Path(text).parts):
        raise ValueError(f"finished batches are kept in a folder: got {text!r:.60}, which cannot be the name of one")
    return Path(text)


class BatchCache:
    """A folder of finished batches."""

    def __init__(self, folder: str | os.PathLike[str], progress: Callable[[str], None] = lambda text: None) -> None:
        """Create the folder if it does not exist; `progress` receives a line for each damaged batch."""
        self.folder, self.progress = folder_of(folder), progress
        if self.folder.is_file():
            raise ValueError(f"{self.folder}: finished batches are kept in a folder, and this is a file")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise ValueError(
                f"{self.folder}: finished batches are kept in a folder, and none can be made here, since "
                f"{error.filename} is a file or a link that leads nowhere; remove it, or give another folder"
            ) from error

    def write(self, name: str, batch: CachedBatch) -> bool:
        """Keep a batch; return False if its states have types of the user, which cannot be kept in files."""
        trees = [plain_tree(record.final) for record in batch.records]
        if None in trees:
            return False
        sums = []
        for i, record in enumerate(batch.records):
            record.save(self._record(name, i))
            sums.append(sha256(read_bytes(self._record(name, i), _LARGEST)))
        facts = {"format": _FORMAT, "fingerprint": name, "sha256": sums, "trees": trees, "moved": batch.moved}
        write_atomically(self._facts(name), json.dumps(facts, indent=1).encode())
        return True

    def read(self, name: str) -> CachedBatch | None:
        """Return a batch if it was kept and is as it was written; a damaged one is removed."""
        path = self._facts(name)
        if not path.is_file():
            return None
        try:
            facts = read_json(path)
            if facts["format"] != _FORMAT or facts["fingerprint"] != name:
                raise ValueError(f"{path}: belongs to another batch")
            pairs = enumerate(zip(facts["sha256"], facts["trees"], strict=True))
            records = tuple(self._load(name, i, known, tree) for i, (known, tree) in pairs)
            return CachedBatch(records, tuple(map(str, facts["moved"])))
        except (OSError, *UNUSABLE) as error:
            self.progress(f"a kept batch is damaged and is run again ({error})")
            path.unlink(missing_ok=True)
            return None

    def _load(self, name: str, i: int, known: str, tree: Any) -> Rollout:
        path = self._record(name, i)
        if sha256(read_bytes(path, _LARGEST)) != known:
            raise ValueError(f"{path}: changed since it was written")
        record = Rollout.load(path)
        states = None if record.states is None else state_of(tree, record.states)
        return replace(record, final=state_of(tree, record.final), states=states)

    def _facts(self, name: str) -> Path:
        return self.folder / f"{plain_name(name)}.json"

    def _record(self, name: str, i: int) -> Path:
        return self.folder / f"{plain_name(name)}.{i}.safetensors"
