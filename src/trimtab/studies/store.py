"""The run directory: claimed, locked, and filled one finished task at a time."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Self

from trimtab._version import __version__
from trimtab.core.files import write_atomically
from trimtab.studies.config import Study
from trimtab.studies.errors import StudyError
from trimtab.studies.tasks import Task, code_version
from trimtab.studies.work import Result

__all__ = ["Store", "identity_of", "read_run", "trace_path", "write_text"]

_FORMAT = "trimtab-run"
_OURS = (
    "work",
    "thresholds",
    "rows",
    "timing.parquet",
    "traces",
    "tables",
    "figures",
    "summary.json",
    "page.json",
    "report.html",
    "run.json",
)


def identity_of(study: Study) -> str:
    """A hash of all that rows depend on: the study's settings and the code."""
    facts = json.dumps(study.facts(), sort_keys=True)
    return hashlib.sha256(f"{facts} {code_version()}".encode()).hexdigest()[:16]


def read_run(directory: Path) -> dict[str, Any]:
    """The facts of a run directory, from its run.json."""
    path = directory / "run.json"
    if not path.is_file():
        raise StudyError(
            f"{directory}: not a run directory (it has no run.json); make one with `trimtab reproduce` or `compare`"
        )
    try:
        facts = json.loads(path.read_text())
    except ValueError as error:
        raise StudyError(f"{path}: cannot be read ({error})") from error
    if not isinstance(facts, dict) or facts.get("format") != _FORMAT:
        raise StudyError(f"{path}: not written by trimtab")
    return facts


class Store:
    """A run directory that this process works on; use it as a context manager.

    Attributes:
        directory: Where it is.
        study: What is run in it.
    """

    def __init__(self, directory: Path, study: Study, mode: Literal["new", "resume", "overwrite"] = "new") -> None:
        """Claim a directory.

        Args:
            directory: Made if missing. One that holds anything but a run of ours is refused.
            study: What will be run.
            mode: What to do with a run that is there already: "new" refuses it, "resume" goes on with it if study and
                code are the same and refuses it otherwise, "overwrite" removes it.
        """
        self.directory = directory
        self.study = study
        self.identity = identity_of(study)
        _refuse_foreign(directory)
        _make_writable(directory)
        self._lock = _locked(directory)
        try:
            self._claim(mode)
        except BaseException:
            self._lock.close()
            raise

    def _claim(self, mode: str) -> None:
        there = (self.directory / "run.json").exists()
        if there and mode == "overwrite":
            for name in _OURS:  # run.json last: until then it is a run of ours
                _remove(self.directory / name)
        elif there and mode == "resume":
            self._refuse_changes(read_run(self.directory))
        elif there:
            raise StudyError(
                f"{self.directory} holds a run already: go on with it by --resume, replace it by --overwrite, or "
                "choose another directory with --out"
            )
        for leftover in self.directory.rglob(".*.tmp"):  # of a process that was killed while it wrote
            leftover.unlink(missing_ok=True)
        if not (self.directory / "run.json").exists():  # first of all: it makes the directory ours
            self._write_facts(complete=False, seconds=0.0)
        for name in ("work", "thresholds", "traces"):
            (self.directory / name).mkdir(exist_ok=True)

    def _refuse_changes(self, facts: dict[str, Any]) -> None:
        if facts.get("identity") == self.identity:
            return
        old, new = facts.get("config", {}), self.study.facts()
        changed = [f"{name} was {old.get(name)}, now {new[name]}" for name in new if old.get(name) != new[name]]
        what = "; ".join(changed) or f"the code or a library was {facts.get('code')}, now {code_version()}"
        raise StudyError(
            f"{self.directory} was run with something else, and its rows cannot be mixed with new ones ({what}); "
            "start again with --overwrite or in another directory with --out"
        )

    def _write_facts(self, complete: bool, seconds: float) -> None:
        facts = {
            "format": _FORMAT,
            "version": 1,
            "trimtab": __version__,
            "identity": self.identity,
            "code": code_version(),
            "config": self.study.facts(),
            "complete": complete,
            "seconds": seconds,
        }
        write_text(self.directory / "run.json", json.dumps(facts, indent=2) + "\n")

    # -------------------------------------------------------------- finished tasks

    def finished(self, tasks: Iterable[Task]) -> set[str]:
        """Names of those tasks whose results are here, whole and of this very code and study."""
        return {task.name for task in tasks if self._kept(task.name) is not None and self._files_present(task)}

    def keep(self, task: Task, result: Result) -> None:
        """Keep a finished task. Its own file comes last: a task without it is not finished."""
        if result.code != code_version():
            raise StudyError(
                f"a worker runs other code ({result.code}) than this process ({code_version()}): the source or the "
                "libraries differ, or changed since the start"
            )
        if result.shared is not None:
            _write(self._shared(task), result.shared)
        for budget, data in result.traces.items():
            _write(trace_path(self.directory, task, budget), data)
        kept = {"identity": self.identity, "task": task.name, "rows": result.rows, "timing": result.timing}
        write_text(self._work(task.name), json.dumps(kept))

    def rows(self, task: Task) -> list[dict[str, Any]]:
        """The rows of a finished task."""
        kept = self._kept(task.name)
        assert kept is not None, f"{task.name} is not finished"
        return list(kept["rows"])

    def timing(self, task: Task) -> dict[str, Any]:
        """The timing of a finished task."""
        kept = self._kept(task.name)
        assert kept is not None, f"{task.name} is not finished"
        return dict(kept["timing"])

    def shared(self, task: Task) -> bytes:
        """The file of a finished task that others need."""
        return self._shared(task).read_bytes()

    def _kept(self, name: str) -> dict[str, Any] | None:
        try:
            kept = json.loads(self._work(name).read_text())
        except (FileNotFoundError, ValueError):  # a file cut short by a power failure is an unfinished task
            return None
        return kept if isinstance(kept, dict) and kept.get("identity") == self.identity else None

    def _files_present(self, task: Task) -> bool:
        shares = task.kind != "rollout" or task.schedule == "stepwise"
        files = [self._shared(task)] if shares else []
        files += [trace_path(self.directory, task, budget) for budget in task.budgets if task.examples]
        return all(path.is_file() for path in files)

    def _work(self, name: str) -> Path:
        return self.directory / "work" / f"{name}.json"

    def _shared(self, task: Task) -> Path:
        folder = "thresholds" if task.kind == "calibrate" else "work"
        return self.directory / folder / f"{task.name}.safetensors"

    # -------------------------------------------------------------- the end of a session

    def add_seconds(self, seconds: float, complete: bool) -> None:
        """Book the wall clock of a session, and whether every task is done."""
        before = float(read_run(self.directory).get("seconds", 0.0))
        self._write_facts(complete, before + seconds)

    def __enter__(self) -> Self:
        """The store itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the directory."""
        self._lock.close()


def trace_path(directory: Path, task: Task, budget: float) -> Path:
    """Where a task's example rollouts at one of its budgets are in a run directory."""
    return directory / "traces" / f"{task.name_at(budget)}.safetensors"


def _refuse_foreign(directory: Path) -> None:
    """Anything in a directory but a run of ours is somebody else's; hidden files do not count."""
    if not directory.is_dir():
        return
    present = sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))
    if not present:
        return
    if "run.json" not in present:
        some = ", ".join(present[:3]) + (", …" if len(present) > 3 else "")
        raise StudyError(
            f"{directory} is not empty and not a trimtab run (it holds {some}); nothing was touched: choose another "
            "directory with --out"
        )
    read_run(directory)  # a run.json of somebody else's is refused too


def _make_writable(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise StudyError(f"{directory}: a file is in the way; choose another directory with --out") from error
    except OSError as error:
        raise StudyError(f"{directory}: cannot be made ({error.strerror}); choose another with --out") from error


def _locked(directory: Path) -> Any:
    """An open, locked file; closing it, or dying, unlocks the directory."""
    try:
        file = (directory / ".lock").open("a")
    except OSError as error:
        raise StudyError(f"{directory}: cannot be written to ({error.strerror}); choose another with --out") from error
    try:
        import fcntl
    except ImportError:  # no such locks here: two runs in one directory are then not noticed
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise StudyError(
            f"{directory}: another process is working in it; wait for it, or choose another with --out"
        ) from error
    return file


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        with suppress(FileNotFoundError):
            path.unlink()


def write_text(path: Path, text: str) -> None:
    """Put a text file in place in one step."""
    _write(path, text.encode())


def _write(path: Path, data: bytes) -> None:
    def fill(file: Path) -> None:
        file.write_bytes(data)

    write_atomically(path, fill)
