"""Small studies for the tests of studies and reports."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from shutil import copytree

from filelock import FileLock

from trimtab_lab.studies.config import Study
from trimtab_lab.studies.engine import run_study
from trimtab_lab.studies.rows import write_rows
from trimtab_lab.studies.store import Store

SMALL = Study(
    "small",
    domains=("so3",),
    schedules=("terminal", "stepwise", "periodic", "adaptive:paper"),
    budgets=(0.0, 0.25, 1.0),
    seeds=3,
    block=2,
    calibration_seeds=4,
    example_seeds=1,
)
SHORT = replace(SMALL, budgets=(0.25,), seeds=2, block=1)
SWEPT = replace(
    SMALL,
    domains=("terrain", "terrain-ridge"),
    seeds=2,
    kappas=(0.0, 0.5),
    kappa_domains=("terrain-ridge",),
    kappa_seeds=2,
)


SHARED: list[Path] = []  # the folder of a session of tests, as `conftest.py` sets it


@cache
def finished(study: Study) -> Path:
    """A finished run of a study; made once in a session, by whichever process is first, and copied for each process."""
    run = SHARED[0] / sha256(repr(study).encode()).hexdigest()[:16]
    done = run.with_suffix(".done")
    with FileLock(run.with_suffix(".lock")):
        if not done.exists():
            finish(run, study)
            done.touch()
    return Path(copytree(run, SHARED[0] / f"{run.name}-{os.getpid()}"))


def finish(
    directory: Path,
    study: Study = SMALL,
    engine: str = "serial",
    workers: int | None = None,
    factories: dict[str, str] | None = None,
) -> Path:
    """Run a study to its rows."""
    with Store(directory, study, "resume") as store:
        run_study(store, engine, workers, factories=factories)
        write_rows(store)
    return directory


def row_hashes(directory: Path) -> dict[str, str]:
    """What must be the same to the byte in every run of the same study."""
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in sorted((directory / "rows").glob("*.parquet"))}
