"""Kill a study while it runs, damage its files, resume it, compare: `python kills.py KILLS SEED`; 1 if files differ.

Each run is a forked child that gets SIGKILL at one of the operations by which files reach the disk. Every second one
also finds a file that is torn, empty, zeroed or lost, as after a power failure.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trimtab_lab.files import sha256
from trimtab_lab.studies.config import Study
from trimtab_lab.studies.engine import run_study
from trimtab_lab.studies.rows import write_rows
from trimtab_lab.studies.store import Store
from trimtab_lab.studies.usercode import Source, record_of

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


def study(directory: Path) -> None:
    """Run the study, or what is missing of it."""
    with Store(directory, STUDY, "resume") as store:
        run_study(store, "serial")
        write_rows(store)


def contents(directory: Path) -> dict[str, str]:
    """Return the checksums of the results."""
    paths = [path for folder in ("rows", "thresholds", "traces") for path in (directory / folder).rglob("*.*")]
    kept = [path for path in paths if path.is_file() and ".set-aside-" not in path.name]
    return {path.relative_to(directory).as_posix(): sha256(path.read_bytes()) for path in sorted(kept)}


def on_each_operation(act: Callable[[int], None]) -> None:
    """Call `act(k)` before the k-th operation by which files reach the disk, in this process from now on."""
    number = 0

    def wrapped(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal number
            if name != "open" or (len(arguments) > 1 and arguments[1] & os.O_CREAT):
                number += 1
                act(number)
            return original(*arguments, **named)

        return call

    for name in ("fsync", "replace", "open"):
        setattr(os, name, wrapped(name, getattr(os, name)))


def in_child(work: Callable[[], None]) -> int:
    """Run something in a forked process; return its status."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitpid(child, 0)[1]


def damage(directory: Path, r: random.Random) -> None:
    """Damage one file as a power failure could."""
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != ".lock")
    if files:
        path = r.choice(files)
        data = path.read_bytes()
        kind = r.choice(["torn", "empty", "zeros", "lost"])
        if kind == "lost":
            path.unlink()
        else:
            path.write_bytes({"torn": data[: len(data) // 2], "empty": b"", "zeros": bytes(len(data))}[kind])


def main(kills: int, seed: int) -> int:
    """Return the number of runs that could not be resumed or gave other results."""
    r, wrong = random.Random(seed), 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        study(folder / "whole")
        whole = contents(folder / "whole")

        def count() -> None:
            on_each_operation(lambda number: (folder / "operations").write_text(str(number)))
            study(folder / "counted")

        assert in_child(count) == 0
        operations = int((folder / "operations").read_text())
        for i in range(kills):
            directory, target = folder / f"run-{i}", 1 + (i * operations + r.randrange(operations)) // kills

            def killed(directory: Path = directory, target: int = target) -> None:
                on_each_operation(lambda number: os.kill(os.getpid(), signal.SIGKILL) if number == target else None)
                study(directory)

            in_child(killed)
            if i % 2:
                damage(directory, r)
            resumed = in_child(lambda directory=directory: study(directory)) == 0
            if not resumed or contents(directory) != whole:
                wrong += 1
                print(f"kill {i} at operation {target} of {operations}: {'other files' if resumed else 'not resumed'}")
    print(f"{kills} kills over {operations} operations, {wrong} wrong")
    return wrong


if __name__ == "__main__":
    code = min(1, main(int(sys.argv[1]), int(sys.argv[2])))
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: a thread pool of a native library (pyarrow's or torch's) was once still running while its static
    # objects were destroyed, which ended the process with "terminate called without an active exception".
    os._exit(code)
