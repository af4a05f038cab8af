"""Finished batches of rollouts in a folder, so that work that was stopped goes on where it was.

A batch has one file per record and a file that says what it is. That one is written last, so that a batch is there as a
whole or not at all. Its name is a fingerprint of everything the batch depends on: another sampler, schedule, library or
machine looks for other names.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trimtab.core.arrays import plain_tree, state_of
from trimtab.core.files import UNUSABLE, plain_name, read_bytes, read_json, sha256, write_atomically
from trimtab.core.record import Rollout

__all__ = ["BatchCache", "CachedBatch", "is_cache_file"]

_FORMAT = "trimtab-batch-1"
_LARGEST = 2**34  # bytes of a record
_NAME = re.compile(r"[0-9a-f]{32}-\d+(\.json|\.\d+\.safetensors)")


def is_cache_file(name: str) -> bool:
    """Whether a file is called as those of kept batches are.

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
        moved: The global generators that the first run drew from.
    """

    records: tuple[Rollout, ...]
    moved: tuple[str, ...] = ()


def folder_of(value: str | os.PathLike[str]) -> Path:
    """The path of a folder, if it can be one."""
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"finished batches are kept in a folder: got {value!r:.60} of type {type(value).__name__}")
    text = os.fspath(value)
    if not text or "\0" in text or any(len(part.encode()) > 255 for part in Path(text).parts):
        raise ValueError(f"finished batches are kept in a folder, and this can be the name of none: {text!r:.60}")
    return Path(text)


class BatchCache:
    """A folder of finished batches."""

    def __init__(self, folder: str | os.PathLike[str], progress: Callable[[str], None] = lambda text: None) -> None:
        """Make the folder if it is not there; `progress` is told of what is damaged."""
        self.folder, self.progress = folder_of(folder), progress
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"{self.folder}: finished batches are kept in a folder, and this is a file")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise ValueError(
                f"{self.folder}: finished batches are kept in a folder, and none can be made here, since "
                f"{error.filename} is a file or a link that leads nowhere; remove it, or give another folder"
            ) from error

    def write(self, fingerprint: str, batch: CachedBatch) -> bool:
        """Keep a batch; states in types of the caller's own cannot be kept, and the answer is then False."""
        trees = [plain_tree(record.final) for record in batch.records]
        if None in trees:
            return False
        sums = []
        for i, record in enumerate(batch.records):
            path = self._record(fingerprint, i)
            record.save(path)
            sums.append(sha256(read_bytes(path, _LARGEST)))
        facts = {"format": _FORMAT, "fingerprint": fingerprint, "sha256": sums, "trees": trees, "moved": batch.moved}
        write_atomically(self._facts(fingerprint), json.dumps(facts, indent=1).encode())
        return True

    def read(self, fingerprint: str) -> CachedBatch | None:
        """The batch of that fingerprint, if it was kept and is as it was written; one that is not is removed."""
        path = self._facts(fingerprint)
        if not path.is_file():
            return None
        try:
            facts = read_json(path)
            if facts["format"] != _FORMAT or facts["fingerprint"] != fingerprint:
                raise ValueError(f"{path}: of another batch")
            records = [self._checked(fingerprint, i, known) for i, known in enumerate(facts["sha256"])]
            whole = [_restored(record, tree) for record, tree in zip(records, facts["trees"], strict=True)]
            return CachedBatch(tuple(whole), tuple(map(str, facts["moved"])))
        except (OSError, *UNUSABLE) as error:
            self.progress(f"a kept batch is damaged and is run again ({error})")
            path.unlink(missing_ok=True)
            return None

    def _checked(self, fingerprint: str, i: int, known: str) -> Rollout:
        path = self._record(fingerprint, i)
        if sha256(read_bytes(path, _LARGEST)) != known:
            raise ValueError(f"{path}: not what was written")
        return Rollout.load(path)

    def _facts(self, fingerprint: str) -> Path:
        return self.folder / f"{plain_name(fingerprint)}.json"

    def _record(self, fingerprint: str, i: int) -> Path:
        return self.folder / f"{plain_name(fingerprint)}.{i}.safetensors"


def _restored(record: Rollout, tree: Sequence[object] | str) -> Rollout:
    """With states as the loop kept them."""
    states = None if record.states is None else state_of(tree, record.states)
    return replace(record, final=state_of(tree, record.final), states=states)
