"""Killed while it works: SIGKILL at file operations and moments spread over a whole run, then --resume."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trimtab.core.files import sha256
from trimtab.evaluation.studies.config import Study
from trimtab.evaluation.studies.usercode import Source, record_of

STUDY = Study(
    "torture",
    domains=("so3",),
    schedules=("terminal", "stepwise", "periodic", "adaptive:paper", "adaptive:dp"),
    budgets=(0.0, 0.25, 1.0),
    seeds=2,
    block=1,
    calibration_seeds=8,
    example_seeds=1,
    kappa_domains=(),
    samplers={"so3": record_of(Source.built_in("so3", {"n_steps": 12}))},
)
COMPARED = ("rows/", "thresholds/", "traces/", "summary.json", "domains.json", "tables/", "page.json")
FEWER_FORMATS = {"svg": {"Date": None}}


def contents(directory: Path) -> dict[str, str]:
    """Checksums of what must be the same to the byte however often a run was killed."""
    found = (path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
    kept = [name for name in found if name.startswith(COMPARED) and ".set-aside-" not in name]
    return {
        name: sha256((directory / name).read_bytes()) for name in sorted(kept) if not name.startswith("tables/cost")
    }


def work(directory: Path, report: bool = True) -> None:
    """A whole run, or what is missing of it: tasks, rows, tables, figures, page."""
    from trimtab.evaluation.report import figures, write_report
    from trimtab.evaluation.studies.engine import run_study
    from trimtab.evaluation.studies.rows import write_rows
    from trimtab.evaluation.studies.store import Store

    figures._FORMATS = FEWER_FORMATS
    with Store(directory, STUDY, "resume") as store:
        run_study(store, "serial")
        write_rows(store)
        if report:
            write_report(store.files)


@contextmanager
def counted(act: Callable[[int], None]) -> Iterator[None]:
    """Call `act(k)` before the k-th of the operations by which files reach the disk."""
    before: dict[str, Any] = {name: getattr(os, name) for name in ("fsync", "replace", "open")}
    number = 0

    def wrapped(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal number
            if name != "open" or (len(arguments) > 1 and arguments[1] & os.O_CREAT):
                number += 1
                act(number)
            return before[name](*arguments, **named)

        return call

    try:
        for name in before:
            setattr(os, name, wrapped(name))
        yield
    finally:
        for name, original in before.items():
            setattr(os, name, original)


def in_child(what: Callable[[], None], kill_after: float | None = None) -> int | None:
    """Run something in a process of its own; its exit code, or None if it was killed."""
    child = os.fork()
    if child == 0:
        try:
            with open(os.devnull, "w") as null:
                os.dup2(null.fileno(), 1)
            what()
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    return None if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def phase_of(directory: Path) -> str:
    """How far a run had come."""
    steps = (
        ("page", "report.html"),
        ("page", "page.json"),
        ("figures", "figures"),
        ("tables", "tables"),
        ("summary", "summary.json"),
        ("joining", "rows"),
    )
    for phase, name in steps:
        if (directory / name).exists():
            return phase
    names = [path.name for path in (directory / "work").glob("*.json")] if (directory / "work").is_dir() else []
    if any(".calibration-" not in name and ".explored" not in name for name in names):
        return "calibration and rollouts"
    return "calibration" if names else "claiming"


def run(count: int, seed: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """`count` kills, half at file operations spread evenly over a run, half at moments spread over it."""
    random.seed(seed)
    folder = Path(tempfile.mkdtemp(prefix="torture-kills-"))
    try:
        return _run(folder, count, progress)
    finally:
        shutil.rmtree(folder)


def _run(folder: Path, count: int, progress: Callable[[str], None]) -> dict[str, Any]:
    work(folder / "warm")  # so that every child finds all modules imported
    begin = time.monotonic()

    def tell_operations() -> None:
        seen = [0]
        with counted(lambda number: seen.__setitem__(0, number)):
            work(folder / "whole")
        (folder / "operations").write_text(str(seen[0]))

    assert in_child(tell_operations) == 0
    seconds = time.monotonic() - begin
    operations = int((folder / "operations").read_text())
    whole = contents(folder / "whole")
    phases: Counter[str] = Counter()
    differing: list[str] = []
    failed = alive = 0
    at_operations = count // 2
    for i in range(count):
        directory = folder / f"run-{i}"
        if i < at_operations:
            target = 1 + i * operations // at_operations

            def die(number: int, target: int = target) -> None:
                if number == target:
                    os.kill(os.getpid(), signal.SIGKILL)

            def until_killed(directory: Path = directory, die: Callable[[int], None] = die) -> None:
                with counted(die):
                    work(directory)

            ended = in_child(until_killed)
        else:
            moment = seconds * (i - at_operations + random.random()) / (count - at_operations)
            ended = in_child(lambda directory=directory: work(directory), kill_after=moment)
        alive += ended is not None
        phases[phase_of(directory) if directory.is_dir() else "claiming"] += 1
        failed += in_child(lambda directory=directory: work(directory)) != 0
        now = contents(directory)
        differing += [f"kill {i}: {name}" for name in whole if now.get(name) != whole[name]]
        differing += [f"kill {i}: {path}" for path in directory.rglob(".*.part")]
        shutil.rmtree(directory)
        progress(f"{i + 1} of {count} kills, {failed} not resumed, {len(differing)} differing files")
    return {
        "kills": count,
        "while working": count - alive,
        "operations of a run": operations,
        "phases": dict(sorted(phases.items())),
        "files compared": len(whole),
        "not resumed": failed,
        "differing files": len(differing),
        "examples": differing[:5],
    }
