"""The run directory: locked while it is written, and filled with one finished task at a time.

A manifest, `files.jsonl`, lists every file of the run with its checksum, before the file is written. So a run that was
killed can continue, a damaged file is noticed and made again, and files of somebody else are never removed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from filelock import FileLock, Timeout

from trimtab._version import __version__
from trimtab.core.files import as_path, write_atomically
from trimtab_lab.files import parse_json, plain_name, read_bytes, sha256
from trimtab_lab.studies.config import Study, StudyError
from trimtab_lab.studies.tasks import Task, code_version

if TYPE_CHECKING:
    from trimtab_lab.studies.work import Result

__all__ = ["MANIFEST", "RUN", "RunFiles", "Store", "open_run", "read_run", "study_of", "trace_name"]

RUN = "run.json"
MANIFEST = "files.jsonl"
_LOCK = ".lock"
_FORMAT = "trimtab-run"
_LARGEST = 4 * 2**30  # bytes of one file of a run


class RunFiles:
    """The files that a run wrote into its directory, by relative name ("rows/so3.parquet").

    Attributes:
        directory: Where they are.
        listed: Whether the directory has a manifest of ours.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Read the manifest, if there is one."""
        self.directory = as_path(directory)
        self._sums: dict[str, str] = {}
        path = self.directory / MANIFEST
        if path.is_symlink():
            raise StudyError(f"{path}: is a link; a run writes its manifest into an ordinary file: remove the link")
        lines = read_bytes(path).decode("utf-8", errors="replace").splitlines() if path.is_file() else []
        self.listed = bool(lines) and lines[0] == json.dumps({"format": _FORMAT})
        for line in lines[1:]:
            try:
                entry = json.loads(line)
                self.path(entry["file"])
                self._sums[entry["file"]] = str(entry["sha256"])
            except (ValueError, TypeError, KeyError, AttributeError):  # a line that a power failure cut short
                continue

    def path(self, name: str) -> Path:
        """Return where a file is; raise if the name leads out of the directory."""
        parts = [plain_name(part, "a file of a run") for part in name.split("/")]
        for i in range(1, len(parts)):
            if (folder := self.directory.joinpath(*parts[:i])).is_symlink():
                raise StudyError(f"{folder}: is a link; a run writes into ordinary folders: remove the link")
        return self.directory / name

    def names(self, folder: str = "") -> list[str]:
        """Return the files of the run that are in a folder; all by default."""
        return sorted(name for name in self._sums if name.startswith(folder) and self.path(name).is_file())

    def put(self, name: str, data: bytes | str) -> Path:
        """List a file, then write it atomically and durably."""
        path = self.path(name)
        data = data.encode() if isinstance(data, str) else data
        self._sums[name] = sha256(data)
        with (self.directory / MANIFEST).open("a" if self.listed else "w", encoding="utf-8") as file:
            if not self.listed:
                file.write(json.dumps({"format": _FORMAT}))
            file.write("\n" + json.dumps({"file": name, "sha256": self._sums[name]}))
            file.flush()
            os.fsync(file.fileno())
        self.listed = True
        path.parent.mkdir(parents=True, exist_ok=True)
        _part(path).unlink(missing_ok=True)
        write_atomically(path, data, temporary=_part(path))
        return path

    def intact(self, name: str) -> bool:
        """Return whether a file is there, as the run wrote it."""
        path = self.path(name)
        if path.is_symlink() or not path.is_file():
            return False
        return sha256(read_bytes(path, _LARGEST)) == self._sums.get(name)

    def read(self, name: str) -> bytes:
        """Return the contents of a file, which must be as the run wrote it."""
        path = self.path(name)
        if not path.is_file():
            raise StudyError(
                f"{path}: no such file: the run is not finished (continue it with --resume), or another version made it"
            )
        data = read_bytes(path, _LARGEST)
        if sha256(data) != self._sums.get(name):
            why = "its checksum is not that of what the run wrote" if self.listed else f"no {MANIFEST} to check it by"
            raise StudyError(f"{path}: {why}; --resume makes it again")
        return data

    def read_json(self, name: str) -> Any:
        """Return the contents of a JSON file."""
        return parse_json(self.read(name), str(self.path(name)))

    def checked(self, name: str) -> Path:
        """Return where a file is, after checking that it is as the run wrote it."""
        self.read(name)
        return self.path(name)

    def remove_parts(self) -> None:
        """Remove half-written files of a killed process."""
        for name in self._sums:
            _part(self.path(name)).unlink(missing_ok=True)

    def remove_all(self) -> None:
        """Remove what the run wrote, run.json last, and empty folders; files that were edited since stay."""
        self.remove_parts()
        for name in sorted(self._sums, key=lambda name: name == RUN):
            if self.intact(name):
                self.path(name).unlink()
        folders = {parent for name in self._sums for parent in self.path(name).parents}
        for folder in sorted(folders - {self.directory, *self.directory.parents}, reverse=True):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        (self.directory / MANIFEST).unlink(missing_ok=True)
        self._sums, self.listed = {}, False


def _part(path: Path) -> Path:
    """Return where a file is written before it is put in place."""
    return path.with_name(f".{path.name}.part")


# ------------------------------------------------------------------ the record of a run


def read_run(directory: Path) -> dict[str, Any]:
    """Return the facts in a run's run.json. They are data: none of them names code that will be run."""
    path = directory / RUN
    if not path.is_file():
        raise StudyError(
            f"{directory}: not a run directory (it has no {RUN}); make one with `trimtab reproduce` or `compare`"
        )
    again = "the command that made the run, with --resume, writes it again"
    try:
        facts = parse_json(read_bytes(path), str(path))
    except ValueError as error:
        raise StudyError(f"{error}; {again}") from error
    if not isinstance(facts, dict) or facts.get("format") != _FORMAT:
        raise StudyError(f"{path}: not written by trimtab")
    for name, kind in (("config", dict), ("identity", str), ("code", str), ("seconds", int | float)):
        if not isinstance(facts.get(name), kind):
            raise StudyError(f"{path}: has no usable {name!r} (got {facts.get(name)!r}); {again}")
    return facts


def study_of(directory: Path) -> Study:
    """Return the study of a run directory."""
    facts = read_run(directory)
    try:
        return Study.from_facts(facts["config"])
    except (ValueError, TypeError) as error:
        raise StudyError(
            f"{directory / RUN}: its configuration cannot be used ({error}); read it with the trimtab that wrote it "
            f"({facts.get('trimtab', 'of an unknown version')}), or run it again with --overwrite"
        ) from error


def _identity(study: Study) -> str:
    """Return a hash of everything that rows depend on: the study's settings and the code."""
    facts = json.dumps(study.facts(), sort_keys=True)
    return hashlib.sha256(f"{facts} {code_version()}".encode()).hexdigest()[:16]


class Store:
    """A run directory that this process writes; use it as a context manager.

    Attributes:
        directory: Where it is.
        study: What is run in it.
        files: What the run has written.
    """

    def __init__(
        self,
        directory: Path,
        study: Study,
        mode: Literal["new", "resume", "overwrite"] = "new",
        progress: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Claim a directory.

        Args:
            directory: Made if missing; it must be empty or hold a run.
            study: What will be run.
            mode: What to do with a run that is there: "new" raises unless none of its tasks was finished, "resume"
                continues it if study and code are the same and raises otherwise, "overwrite" removes what it wrote.
            progress: Called with a line about each damaged file.
        """
        self.directory, self.study, self._progress = directory, study, progress
        self.identity = _identity(study)
        self.machines: list[dict[str, Any]] = []
        self._lock = _locked(directory)
        try:
            self.files = RunFiles(directory)
            self._claim(mode)
        except BaseException:
            self._lock.release()
            raise

    def _claim(self, mode: str) -> None:
        there = (self.directory / RUN).exists() or self.files.listed
        if there and mode == "new":
            if self.files.names("work/") or not self.files.listed:
                raise StudyError(
                    f"{self.directory} holds a run already: continue it with --resume, replace it with --overwrite, or "
                    "choose another directory with --out"
                )
            mode = "overwrite"
        if there and mode == "overwrite":
            self.files.remove_all()
        elif there:
            self._continue()
        self.files.remove_parts()
        if not self.files.intact(RUN):
            self._write_facts(complete=False, seconds=0.0)

    def _continue(self) -> None:
        """Check that the run that is there is of the same study and code."""
        try:
            facts = read_run(self.directory)
        except StudyError as error:
            if not self.files.listed:
                raise
            self._progress(f"{error}")
            return
        if facts["identity"] != self.identity:
            old, new = facts["config"], json.loads(json.dumps(self.study.facts()))
            changed = [
                f"{name} was {old[name]}, now {new[name]}" for name in new if old.get(name, new[name]) != new[name]
            ]
            what = "; ".join(changed) or f"the code or a library was {facts['code']}, now {code_version()}"
            raise StudyError(
                f"{self.directory} was run with something else, and its rows cannot be mixed with new ones ({what}); "
                "start again with --overwrite or in another directory with --out"
            )
        kept = facts.get("machines")
        self.machines = [m for m in kept if isinstance(m, dict)] if isinstance(kept, list) else []

    def _write_facts(self, complete: bool, seconds: float) -> None:
        facts = {
            "format": _FORMAT,
            "version": 3,
            "trimtab": __version__,
            "identity": self.identity,
            "code": code_version(),
            "config": self.study.facts(),
            "machines": self.machines,
            "complete": complete,
            "seconds": seconds,
        }
        self.files.put(RUN, json.dumps(facts, indent=2) + "\n")

    # -------------------------------------------------------------- finished tasks

    def finished(self, tasks: Iterable[Task]) -> set[str]:
        """Return the names of the tasks whose results are here, undamaged and of this code and study."""
        return {task.name for task in tasks if self._is_finished(task)}

    def _is_finished(self, task: Task) -> bool:
        names = [_work(task), *([_shared(task)] if task.has_output else [])]
        names += [trace_name(task, budget) for budget in task.budgets if task.examples]
        for name in names:
            if not self.files.intact(name):
                if os.path.lexists(self.files.path(name)):
                    self._progress(f"{self.files.path(name)}: damaged, or edited since the run wrote it; made again")
                return False
        return bool(self.kept(task)["identity"] == self.identity)

    def keep(self, task: Task, result: Result) -> None:
        """Write the files of a finished task. Its JSON file comes last: without it a task is not finished."""
        if result.code != code_version():
            raise StudyError(
                f"a worker runs other code ({result.code}) than this process ({code_version()}): the source or the "
                "libraries differ, or changed since the start"
            )
        if result.machine not in self.machines:
            self.machines.append(result.machine)
            self._write_facts(complete=False, seconds=self._seconds())
        if result.shared is not None:
            self.files.put(_shared(task), result.shared)
        for budget, data in result.traces.items():
            self.files.put(trace_name(task, budget), data)
        kept = {
            "identity": self.identity,
            "machine": self.machines.index(result.machine),
            "rows": result.rows,
            "about": result.about,
        }
        self.files.put(_work(task), json.dumps(kept))

    def kept(self, task: Task) -> dict[str, Any]:
        """Return the "rows" and "about" of a finished task."""
        return dict(self.files.read_json(_work(task)))

    def shared(self, task: Task) -> bytes:
        """Return the file of a finished task that other tasks need."""
        return self.files.read(_shared(task))

    # -------------------------------------------------------------- the end of a session

    def _seconds(self) -> float:
        return float(read_run(self.directory)["seconds"])

    def add_seconds(self, seconds: float, complete: bool) -> None:
        """Add the time of a session, and record whether every task is finished."""
        self._write_facts(complete, self._seconds() + seconds)

    def __enter__(self) -> Self:
        """Return the store."""
        return self

    def __exit__(self, *_: object) -> None:
        """Unlock the directory."""
        self._lock.release()


@contextmanager
def open_run(directory: Path) -> Iterator[RunFiles]:
    """Open the files of a run, locked while they are written."""
    read_run(directory)
    with _locked(directory):
        yield RunFiles(directory)


def _work(task: Task) -> str:
    return f"work/{task.name}.json"


def _shared(task: Task) -> str:
    return f"{'thresholds' if task.kind == 'calibrate' else 'work'}/{task.name}.safetensors"


def trace_name(task: Task, budget: float) -> str:
    """Return the file of a task's example rollouts at one of its budgets."""
    return f"traces/{task.name_at(budget)}.safetensors"


def _locked(directory: Path) -> FileLock:
    """Make a directory if needed, check that it is ours, and lock it until it is released or the process ends."""
    try:
        _check_foreign(directory)
        directory.mkdir(parents=True, exist_ok=True)
        lock = FileLock(directory / _LOCK, timeout=0)
        lock.acquire()
    except Timeout as error:
        raise StudyError(
            f"{directory}: another process is working in it; wait for it, or choose another with --out"
        ) from error
    except (FileExistsError, NotADirectoryError) as error:
        raise StudyError(f"{directory}: a file is in the way; choose another directory with --out") from error
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise StudyError(f"{directory}: cannot be written to ({why}); choose another with --out") from error
    return lock


def _check_foreign(directory: Path) -> None:
    """Raise if a directory holds anything but a run of ours, hidden files included."""
    present = sorted(path.name for path in directory.iterdir() if path.name != _LOCK) if directory.is_dir() else []
    if not present or RunFiles(directory).listed:
        return
    if RUN not in present:
        some = ", ".join(present[:3]) + (", …" if len(present) > 3 else "")
        raise StudyError(
            f"{directory} is not empty and not a trimtab run (it holds {some}); nothing was changed: choose another "
            "directory with --out"
        )
    read_run(directory)  # raises for a run.json of somebody else
