"""Rows: one per rollout, joined from the finished tasks and kept as Parquet."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trimtab.core.metrics import nepe
from trimtab_lab.distributions import compare_samples, minimum_detectable_shift
from trimtab_lab.studies.config import Study, StudyError
from trimtab_lab.studies.schedules import study_schedule
from trimtab_lab.studies.store import RunFiles, Store
from trimtab_lab.studies.tasks import Task, equivalent_schedule, schedules_of, study_tasks
from trimtab_lab.studies.traces import ABOUT
from trimtab_lab.studies.work import QUALITY, finals_in

__all__ = ["FIDELITY", "SWEEP", "Rows", "check_arrow", "join_rows", "read_rows", "write_rows"]

SWEEP = "kappa-sweep"
"""The file of the rows of the kappa sweep."""

FIDELITY = ("distribution", "distribution_floor", "distribution_p", "distribution_shift")
"""Columns that are the same in all rows of a schedule at a budget: the energy distance to full projection on other
seeds, its 95% quantile if nothing differs, the p-value by permutation, and the smallest shift that would have been
detected. Null in the kappa sweep, for final states that are not finite, and for samples in groups, which are not
independent."""

COLUMNS: dict[str, str] = {
    "domain": "string",
    "kappa": "float64",
    "schedule": "string",
    "budget": "float64",
    "seed": "int64",
    "n_steps": "int64",
    "achieved_budget": "float64",
    "path_error": "float64",
    "endpoint": "float64",
    "nepe": "float64",
    "degenerate": "bool",
    "concentration": "float64",
    "projections": "int64",
    "closing": "bool",
    "failures": "int64",
    "iterations": "int64",
    **dict.fromkeys(FIDELITY, "float64"),
}
"""The columns with their Arrow types; a domain that judges its final states adds columns of numbers at the end."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Columns of equal length, one entry per rollout."""

    columns: Mapping[str, NDArray[Any]]

    def __len__(self) -> int:
        """Return the number of rollouts."""
        return len(self.columns["seed"])

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return one column."""
        return self.columns[name]

    def tensor(self, name: str) -> Tensor:
        """Return one column of numbers as a float64 tensor."""
        return torch.from_numpy(np.array(self.columns[name], dtype=np.float64))

    def where(self, **wanted: object) -> Rows:
        """Return the rows whose columns have these values."""
        keep = np.ones(len(self), dtype=bool)
        for name, value in wanted.items():
            keep &= self.columns[name] == value
        return self.take(keep)

    def take(self, keep: NDArray[Any]) -> Rows:
        """Return the rows of a mask or index."""
        return Rows({name: column[keep] for name, column in self.columns.items()})

    @property
    def qualities(self) -> list[str]:
        """The names of the qualities in which the domain judges its final states."""
        return [name.removeprefix(QUALITY) for name in self.columns if name.startswith(QUALITY)]

    def values(self, name: str) -> list[Any]:
        """Return the distinct values of a column, in order of appearance."""
        return list(dict.fromkeys(self.columns[name].tolist()))


# ------------------------------------------------------------------ joining


def join_rows(store: Store) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of a finished study by file, sorted by domain, kappa, schedule, budget and seed."""
    study = store.study
    files: dict[str, list[dict[str, Any]]] = {name: [] for name in study.domains}
    if study.kappas and study.kappa_domains:
        files[SWEEP] = []
    apart = fidelities(store)
    for task in study_tasks(study):
        rows = store.kept(task)["rows"]
        if task.kappa is None:
            rows = [row | apart.get((task.domain, task.schedule, row["budget"]), {}) for row in rows]
        files[task.domain if task.kappa is None else SWEEP].extend(rows)
    place = {name: i for i, name in enumerate((*study.domains, *study.kappa_domains, *study.all_schedules))}
    for name, rows in files.items():
        rows += [copy for row in rows for copy in _at_the_ends(study, row, name == SWEEP)]
        rows.sort(
            key=lambda row: (place[row["domain"]], row["kappa"], place[row["schedule"]], row["budget"], row["seed"])
        )
        _add_nepe(rows)
    return files


def _at_the_ends(study: Study, row: dict[str, Any], swept: bool) -> list[dict[str, Any]]:
    """Return copies of a terminal or stepwise row for all schedules with none or all of the budget."""
    budgets = (study.table_budget,) if swept else study.budgets_of(row["domain"])
    ends = [budget for budget in budgets if equivalent_schedule("any", budget) == row["schedule"]]
    on_grid = [key for key in schedules_of(study, row["domain"], swept) if study_schedule(key).only_budget is None]
    return [row | {"schedule": key, "budget": budget} for key in on_grid for budget in ends]


def _add_nepe(rows: list[dict[str, Any]]) -> None:
    """Add NEPE to each row, from its path error and those of the paired stepwise and terminal rollouts."""
    ends: dict[str, dict[tuple[Any, ...], float]] = {"stepwise": {}, "terminal": {}}
    for row in rows:
        if row["schedule"] in ends:
            ends[row["schedule"]][_pair(row)] = row["path_error"]
    own = torch.tensor([row["path_error"] for row in rows], dtype=torch.float64)
    low, high = (
        torch.tensor([ends[name][_pair(row)] for row in rows], dtype=torch.float64) for name in ("stepwise", "terminal")
    )
    for row, value in zip(rows, nepe(own, low, high).tolist(), strict=True):
        row["nepe"] = value
        row["degenerate"] = value != value


def _pair(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["domain"], None if row["kappa"] != row["kappa"] else row["kappa"], row["seed"]


def fidelities(store: Store) -> dict[tuple[str, str, float], dict[str, float | None]]:
    """Return the columns of `FIDELITY` by domain, schedule and budget."""
    found: dict[tuple[str, str, float], dict[str, float | None]] = {}
    tasks = [task for task in study_tasks(store.study) if task.kappa is None]
    for task in tasks:
        if task.kind != "reference":
            continue
        mine = [other for other in tasks if other.domain == task.domain and other.kind == "rollout"]
        reference = finals_in(store.shared(task), False)
        if len(reference) < 2 or not bool(reference.isfinite().all()):
            continue
        shift = minimum_detectable_shift(reference, len(reference))
        for (schedule, budget), samples in _final_states(store, mine).items():
            if bool(samples.isfinite().all()):
                result = compare_samples(samples, reference, shift=shift)
                numbers = (result.value, result.floor_high, result.p, result.shift)
                found[task.domain, schedule, budget] = {
                    name: value if math.isfinite(value) else None for name, value in zip(FIDELITY, numbers, strict=True)
                }
    return found


def _final_states(store: Store, tasks: list[Task]) -> dict[tuple[str, float], Tensor]:
    """Return the final states of all seeds by schedule and budget."""
    parts: dict[tuple[str, float], list[Tensor]] = {}
    for task in sorted(tasks, key=lambda task: task.first):
        rows = finals_in(store.shared(task), task.schedule == "stepwise")
        for budget, some in zip(task.budgets, torch.tensor_split(rows, len(task.budgets)), strict=True):
            parts.setdefault((task.schedule, budget), []).append(some)
    return {key: torch.cat(blocks) for key, blocks in parts.items()}


# ------------------------------------------------------------------ Parquet


def write_rows(store: Store) -> None:
    """Join the rows of a finished study and write them, with the facts about its domains."""
    for name, rows in join_rows(store).items():
        judged = dict.fromkeys((column for row in rows for column in row if column.startswith(QUALITY)), "float64")
        store.files.put(f"rows/{name}.parquet", parquet_bytes(rows, COLUMNS | judged))
    tasks = study_tasks(store.study)
    facts = {task.domain: store.kept(task)["about"] for task in tasks if task.describes}
    store.files.put(ABOUT, json.dumps({name: facts[name] for name in store.study.domains}, indent=1) + "\n")


def parquet_bytes(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str]) -> bytes:
    """Return rows with these columns and Arrow types as a Parquet file; a missing number is null."""
    arrow, parquet = check_arrow()
    listed = list(rows)
    data = {name: [_cast(row.get(name), kind) for row in listed] for name, kind in columns.items()}
    schema = arrow.schema([(name, arrow.type_for_alias(kind)) for name, kind in columns.items()])
    file = io.BytesIO()
    parquet.write_table(arrow.Table.from_pydict(data, schema=schema), file, compression="zstd")
    return file.getvalue()


def _cast(value: Any, kind: str) -> Any:
    return float(value) if kind == "float64" and value is not None else value


def read_rows(directory: Path, name: str) -> Rows:
    """Read the rows of one file of a run directory, without `.parquet`."""
    files, file = RunFiles(directory), f"rows/{name}.parquet"
    return rows_in(files.read(file), str(files.path(file)))


def rows_in(data: bytes, source: str) -> Rows:
    """Read the rows of a Parquet file; raise a StudyError that names the source for anything else."""
    arrow, _ = check_arrow()
    table = _table(data, source)
    wanted = COLUMNS | {column: "float64" for column in table.column_names if column.startswith(QUALITY)}
    wrong = [
        column
        for column, kind in wanted.items()
        if table.column_names.count(column) != 1 or table.column(column).type != arrow.type_for_alias(kind)
    ]
    if wrong or not len(table):
        raise StudyError(
            f"{source}: not rows of this version, {wrong or 'all'} missing; the run's --resume writes them"
        )
    return Rows({column: table.column(column).to_numpy() for column in wanted})


def _table(data: bytes, source: str) -> Any:
    arrow, parquet = check_arrow()
    try:
        table = parquet.read_table(io.BytesIO(data))
        table.validate(full=True)
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise StudyError(f"{source}: cannot be read ({error}); the run's --resume writes it again") from error
    return table


def check_arrow() -> tuple[Any, Any]:
    """Return pyarrow and its Parquet module, which are slow to import."""
    import pyarrow
    import pyarrow.parquet

    return pyarrow, pyarrow.parquet
