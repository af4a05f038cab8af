"""The run directory: claimed, locked, and filled one finished task at a time."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Self

from trimtab._version import __version__
from trimtab.core.files import parse_json, read_bytes
from trimtab.core.machine import machine_facts
from trimtab.evaluation.studies.config import Study
from trimtab.evaluation.studies.errors import StudyError
from trimtab.evaluation.studies.run_files import SUMS, SUMS_PART, RunFiles
from trimtab.evaluation.studies.tasks import Task, code_version
from trimtab.evaluation.studies.work import Result

__all__ = ["RUN", "Store", "identity_of", "open_run", "read_run", "study_of", "trace_name"]

RUN = "run.json"
_FORMAT = "trimtab-run"
_LOCK = ".lock"
_MARK = b"trimtab-run\n"  # in the lock: what is left to know a run by if run.json and the list are both damaged


def identity_of(study: Study) -> str:
    """A hash of all that rows depend on: the study's settings and the code."""
    facts = json.dumps(study.facts(), sort_keys=True)
    return hashlib.sha256(f"{facts} {code_version()}".encode()).hexdigest()[:16]


def read_run(directory: Path) -> dict[str, Any]:
    """The facts of a run directory, from its run.json: data, none of which names code that will be run."""
    path = directory / RUN
    if not path.is_file():
        raise StudyError(
            f"{directory}: not a run directory (it has no run.json); make one with `trimtab reproduce` or `compare`"
        )
    try:
        facts = parse_json(read_bytes(path), str(path))
    except ValueError as error:
        raise StudyError(
            f"{error}; the command that made the run, with --resume, sets it aside and writes it again"
        ) from error
    if not isinstance(facts, dict) or facts.get("format") != _FORMAT:
        raise StudyError(f"{path}: not written by trimtab")
    for name, kind in (("config", dict), ("identity", str), ("code", str), ("seconds", int | float)):
        if not isinstance(facts.get(name), kind):
            raise StudyError(
                f"{path}: has no usable {name!r} (got {facts.get(name)!r}); the command that made the run, with "
                "--resume, sets it aside and writes it again"
            )
    return facts


def study_of(directory: Path) -> Study:
    """The study that a run directory holds."""
    facts = read_run(directory)
    try:
        return Study.from_facts(facts["config"])
    except (ValueError, TypeError) as error:
        raise StudyError(
            f"{directory / RUN}: its configuration cannot be used ({error}); read it with the trimtab that wrote it "
            f"({facts.get('trimtab', 'of an unknown version')}), or run it again with --overwrite"
        ) from error


class Store:
    """A run directory that this process works on; use it as a context manager.

    Attributes:
        directory: Where it is.
        study: What is run in it.
        files: What the run has put there.
    """

    def __init__(
        self,
        directory: Path,
        study: Study,
        mode: Literal["new", "resume", "overwrite"] = "new",
        *,
        mix_machines: bool = False,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        """Claim a directory.

        Args:
            directory: Made if missing. One that holds anything but a run of ours is refused.
            study: What will be run.
            mode: What to do with a run that is there already: "new" refuses it unless none of its tasks was finished,
                "resume" goes on with it if study and code are the same and refuses it otherwise, "overwrite" removes
                what it wrote.
            mix_machines: Whether to go on with a run of a machine whose arithmetic may differ in the last bits, and to
                keep results of such workers; run.json then says so.
            progress: Told of what is found damaged, one line each.
        """
        self.directory = directory
        self.study = study
        self.identity = identity_of(study)
        self.mix_machines = mix_machines
        _check_foreign(directory)
        _make_writable(directory)
        self._lock = _locked(directory)
        try:
            self.files = RunFiles(directory, progress) if progress else RunFiles(directory)
            self.machines: list[dict[str, Any]] = []
            self._claim(mode)
        except BaseException:
            self._lock.close()
            raise

    def _claim(self, mode: str) -> None:
        there = (self.directory / RUN).exists() or self.files.listed
        if there and mode == "new" and self._is_empty():
            mode = "overwrite"
        if there and mode == "overwrite":
            self.files.remove_all(last=RUN)
        elif there and mode == "resume":
            self._go_on()
        elif there:
            raise StudyError(
                f"{self.directory} holds a run already: go on with it by --resume, replace it by --overwrite, or "
                "choose another directory with --out"
            )
        self.files.tidy()
        if self.machines:  # those whose results are here: better refused now than after the first task
            self._note_machine(machine_facts())
        if not (self.directory / RUN).exists():
            self._write_facts(complete=False, seconds=0.0)

    def _is_empty(self) -> bool:
        """Whether no task of the run was ever finished, so that there is nothing to lose by beginning again."""
        work = self.directory / "work"
        return self.files.listed and not (work.is_dir() and any(work.iterdir()))

    def _go_on(self) -> None:
        """Refuse a run of something else; a run.json that cannot be read is set aside, the study being known."""
        try:
            facts = read_run(self.directory)
        except StudyError:
            if not self.files.listed and not _is_marked(self.directory):  # then nothing says that it is a run of ours
                raise
            if os.path.lexists(self.directory / RUN):
                self.files.set_aside(RUN)
            return
        self._check_changes(facts)
        kept = facts.get("machines")
        self.machines = [m for m in kept if isinstance(m, dict)] if isinstance(kept, list) else []

    def _check_changes(self, facts: dict[str, Any]) -> None:
        if facts["identity"] == self.identity:
            return
        old, new = facts["config"], json.loads(json.dumps(self.study.facts()))
        # a setting that the run does not know is of a later version, whose code is another as well
        changed = [f"{name} was {old[name]}, now {new[name]}" for name in new if name in old and old[name] != new[name]]
        what = "; ".join(changed) or f"the code or a library was {facts['code']}, now {code_version()}"
        raise StudyError(
            f"{self.directory} was run with something else, and its rows cannot be mixed with new ones ({what}); "
            "start again with --overwrite or in another directory with --out"
        )

    def _note_machine(self, facts: dict[str, Any]) -> None:
        """Refuse another machine than those whose results are here, unless mixing was asked for."""
        if facts in self.machines:
            return
        if self.machines and not self.mix_machines:
            old = self.machines[0]
            changed = [f"{n} was {old.get(n)}, now {facts[n]}" for n in facts if facts[n] != old.get(n)]
            raise StudyError(
                f"{self.directory}: the results here were made on a machine that may compute other last bits "
                f"({'; '.join(changed)}); go on there, or with --mix-machines, which run.json will say"
            )
        self.machines.append(facts)

    def _write_facts(self, complete: bool, seconds: float) -> None:
        facts = {
            "format": _FORMAT,
            "version": 2,
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
        """Names of those tasks whose results are here, whole and of this very code and study.

        A result that is not what was written is set aside, and its task is not finished.
        """
        return {task.name for task in tasks if self._is_finished(task)}

    def _is_finished(self, task: Task) -> bool:
        whole = True
        for name in [_work(task.name), *_files_of(task)]:
            there = os.path.lexists(self.files.path(name))
            if there and not self.files.intact(name):
                self.files.set_aside(name)
                there = False
            whole = whole and there
        return whole and self._kept(task)["identity"] == self.identity

    def keep(self, task: Task, result: Result) -> None:
        """Keep a finished task. Its own file comes last: a task without it is not finished."""
        if result.code != code_version():
            raise StudyError(
                f"a worker runs other code ({result.code}) than this process ({code_version()}): the source or the "
                "libraries differ, or changed since the start"
            )
        if result.machine not in self.machines:
            self._note_machine(result.machine)
            self._write_facts(complete=False, seconds=self._seconds())
        if result.shared is not None:
            self.files.put(_shared(task), result.shared)
        for budget, data in result.traces.items():
            self.files.put(trace_name(task, budget), data)
        kept = {
            "identity": self.identity,
            "task": task.name,
            "machine": self.machines.index(result.machine),
            "rows": result.rows,
            "timing": result.timing,
            "about": result.about,
        }
        self.files.put(_work(task.name), json.dumps(kept))

    def rows(self, task: Task) -> list[dict[str, Any]]:
        """The rows of a finished task."""
        return list(self._kept(task)["rows"])

    def timing(self, task: Task) -> dict[str, Any]:
        """The timing of a finished task."""
        return dict(self._kept(task)["timing"])

    def about(self, task: Task) -> dict[str, Any] | None:
        """What a finished task says of its domain, if it does."""
        said: dict[str, Any] | None = self._kept(task)["about"]
        return said

    def shared(self, task: Task) -> bytes:
        """The file of a finished task that others need."""
        return self.files.read(_shared(task))

    def _kept(self, task: Task) -> dict[str, Any]:
        return dict(self.files.read_json(_work(task.name)))

    # -------------------------------------------------------------- the end of a session

    def _seconds(self) -> float:
        return float(read_run(self.directory)["seconds"])

    def add_seconds(self, seconds: float, complete: bool) -> None:
        """Book the wall clock of a session, and whether every task is done."""
        self._write_facts(complete, self._seconds() + seconds)

    def __enter__(self) -> Self:
        """The store itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the directory."""
        _let_go(self.files, self._lock)


class open_run:  # noqa: N801  (used like the built-in `open`)
    """The files of a run directory that is there, locked while they are written; use it as a context manager."""

    def __init__(self, directory: Path, progress: Callable[[str], None] | None = None) -> None:
        """Refuse what is no run directory."""
        read_run(directory)
        self._lock = _locked(directory)
        try:
            self._files = RunFiles(directory, progress) if progress else RunFiles(directory)
            if self._files.listed and not self._files.intact(RUN):
                self._files.progress(
                    f"{directory / RUN}: not what the run wrote (damaged, or edited since); the command that made the "
                    "run, with --resume, sets it aside and writes it again"
                )
        except BaseException:
            self._lock.close()
            raise

    def __enter__(self) -> RunFiles:
        """What the run has put there."""
        return self._files

    def __exit__(self, *_: object) -> None:
        """Let go of the directory."""
        _let_go(self._files, self._lock)


def _let_go(files: RunFiles, lock: Any) -> None:
    try:
        with suppress(OSError):  # a full disk, for one: then the list stays as long as it is
            files.tidy()
    finally:
        lock.close()


def _work(name: str) -> str:
    return f"work/{name}.json"


def _shared(task: Task) -> str:
    folder = "thresholds" if task.kind == "calibrate" else "work"
    return f"{folder}/{task.name}.safetensors"


def trace_name(task: Task, budget: float) -> str:
    """The file of a task's example rollouts at one of its budgets, in a run directory."""
    return f"traces/{task.name_at(budget)}.safetensors"


def _files_of(task: Task) -> list[str]:
    """The files of a finished task besides its own."""
    shared = [_shared(task)] if task.shares else []
    return shared + [trace_name(task, budget) for budget in task.budgets if task.examples]


def _check_foreign(directory: Path) -> None:
    """Anything in a directory but a run of ours is somebody else's, hidden files too."""
    if not directory.is_dir():
        return
    present = sorted(path.name for path in directory.iterdir() if path.name not in (_LOCK, SUMS_PART))
    if not present or _is_marked(directory) or (SUMS in present and RunFiles(directory).listed):
        return
    if RUN not in present:
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
        follow = getattr(os, "O_NOFOLLOW", 0)  # a link could lead to a file of somebody else's
        file = os.fdopen(os.open(directory / _LOCK, os.O_CREAT | os.O_RDWR | follow, 0o666), "r+")
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
    if not file.read(1):
        os.write(file.fileno(), _MARK)
        os.fsync(file.fileno())
    return file


def _is_marked(directory: Path) -> bool:
    lock = directory / _LOCK
    return lock.is_file() and not lock.is_symlink() and lock.stat().st_size == len(_MARK) and lock.read_bytes() == _MARK
