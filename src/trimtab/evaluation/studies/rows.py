"""Rows: one a rollout, joined from the finished tasks and kept as Parquet."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trimtab.core.checks import check_type, missing_extra
from trimtab.core.metrics import nepe
from trimtab.evaluation.studies.config import Study
from trimtab.evaluation.studies.domain_info import ABOUT
from trimtab.evaluation.studies.errors import StudyError
from trimtab.evaluation.studies.fidelity import FIDELITY, fidelities
from trimtab.evaluation.studies.run_files import RunFiles
from trimtab.evaluation.studies.schedules import study_schedule
from trimtab.evaluation.studies.store import Store
from trimtab.evaluation.studies.tasks import equivalent_schedule, schedules_of, study_tasks
from trimtab.evaluation.studies.work import GROUP, QUALITY

__all__ = ["SWEEP", "Rows", "join_rows", "read_rows", "read_timing", "write_rows"]

UNIT = "unit"
"""The column that says what budgets count, where that is not projections."""

SWEEP = "kappa-sweep"
"""The file of the rows of the kappa sweep."""

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
    "state_error": "float64",
    "nepe": "float64",
    "degenerate": "bool",
    "concentration": "float64",
    "projections": "int64",
    "closing": "bool",
    "failures": "int64",
    "iterations": "int64",
    **dict.fromkeys(FIDELITY, "float64"),
}
"""Of the rows, with their Arrow types; a domain that judges its final states adds columns of numbers at the end."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Columns of equal length, one entry a rollout."""

    columns: Mapping[str, NDArray[Any]]

    def __post_init__(self) -> None:
        """Refuse columns that do not belong together."""
        columns = self.columns if isinstance(self.columns, Mapping) else {}
        lengths = {name: len(column) for name, column in columns.items() if isinstance(column, np.ndarray)}
        if "seed" not in lengths or len(lengths) != len(columns) or len(set(lengths.values())) != 1:
            raise ValueError(f"rows are arrays of one length by name, 'seed' among them: got {self.columns!r:.60}")

    def __len__(self) -> int:
        """Number of rollouts."""
        return len(self.columns["seed"])

    def __getitem__(self, name: str) -> NDArray[Any]:
        """One column."""
        return self.columns[name]

    def tensor(self, name: str) -> Tensor:
        """One column of numbers, for `trimtab.core.metrics`."""
        return torch.from_numpy(np.array(self.columns[name], dtype=np.float64))

    def where(self, **wanted: object) -> Rows:
        """The rows whose columns have these values."""
        keep = np.ones(len(self), dtype=bool)
        for name, value in wanted.items():
            keep &= self.columns[name] == value
        return Rows({name: column[keep] for name, column in self.columns.items()})

    def units(self) -> Rows:
        """What was measured independently of each other: the rows themselves, or the means of groups.

        The rows of samples that were decided on together become one, with the mean of each number; those that are NaN
        are left out of it. Of what is no number, or told rows apart, it has the first row's.
        """
        if GROUP not in self.columns:
            return self
        same = ("domain", "kappa", "schedule", "budget", GROUP)
        keys = zip(*(map(repr, self.columns[name].tolist()) for name in same), strict=True)
        places: dict[tuple[str, ...], int] = {}
        unit = np.array([places.setdefault(key, len(places)) for key in keys])
        first = np.unique(unit, return_index=True)[1]
        return Rows(
            {
                name: column[first] if name in same or column.dtype.kind != "f" else _means(column, unit)
                for name, column in self.columns.items()
            }
        )

    @property
    def qualities(self) -> list[str]:
        """What the domain's own judgement of its final states is about, if it has one."""
        return [name.removeprefix(QUALITY) for name in self.columns if name.startswith(QUALITY)]

    def values(self, name: str) -> list[Any]:
        """The distinct values of a column, in the order they come."""
        return list(dict.fromkeys(self.columns[name].tolist()))


def _means(column: NDArray[Any], unit: NDArray[Any]) -> NDArray[Any]:
    """The mean of the numbers of each unit that are not NaN, by the unit of each row, (n,) to (units,)."""
    known = ~np.isnan(column)
    total, count = np.bincount(unit, np.where(known, column, 0.0)), np.bincount(unit, known)
    mean: NDArray[Any] = np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)
    return mean


def join_rows(store: Store) -> dict[str, list[dict[str, Any]]]:
    """The rows of a finished study by file, in an order of their own: domain, kappa, schedule, budget, seed."""
    check_type(store, Store, "store, where a study is kept,")
    files: dict[str, list[dict[str, Any]]] = {name: [] for name in store.study.domains}
    if store.study.kappas and store.study.kappa_domains:
        files[SWEEP] = []
    told = fidelities(store)
    for task in study_tasks(store.study):
        rows = store.rows(task)
        if task.kappa is None:
            rows = [row | told.get((task.domain, task.schedule, row["budget"]), {}) for row in rows]
        files[task.domain if task.kappa is None else SWEEP].extend(rows)
    study = store.study
    for name, rows in files.items():
        swept = name == SWEEP
        budgets = (study.table_budget,) if swept else study.budgets
        rows += [copy for row in rows for copy in _at_the_ends(study, row, budgets, swept)]
    place = {name: i for i, name in enumerate((*study.domains, *study.kappa_domains, *study.schedules))}
    for rows in files.values():
        rows.sort(
            key=lambda row: (place[row["domain"]], row["kappa"], place[row["schedule"]], row["budget"], row["seed"])
        )
        _join_nepe(rows)
    return files


def _at_the_ends(study: Study, row: dict[str, Any], budgets: Sequence[float], swept: bool) -> list[dict[str, Any]]:
    """The rows that a terminal or stepwise rollout stands for: those of all schedules with no or all of the budget."""
    ends = [budget for budget in budgets if equivalent_schedule("any", budget) == row["schedule"]]
    on_grid = [key for key in schedules_of(study, row["domain"], swept) if study_schedule(key).only_budget is None]
    return [row | {"schedule": key, "budget": budget} for key in on_grid for budget in ends]


def _join_nepe(rows: list[dict[str, Any]]) -> None:
    """Add NEPE to each row, from its own path error and those of the paired stepwise and terminal rollouts."""
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
    """What paired rollouts share; a kappa that is not a number is still the same one."""
    return row["domain"], None if row["kappa"] != row["kappa"] else row["kappa"], row["seed"]


def write_rows(store: Store) -> None:
    """Join the rows of a finished study and write them, and the timing beside them."""
    for name, rows in join_rows(store).items():
        judged = dict.fromkeys((column for row in rows for column in row if column.startswith(QUALITY)), "float64")
        judged |= {} if store.study.unit == "projection" else {UNIT: "string"}
        judged |= {GROUP: "int64"} if any(GROUP in row for row in rows) else {}
        store.files.put(f"rows/{name}.parquet", parquet_bytes(rows, COLUMNS | judged))
    tasks = study_tasks(store.study)
    said = {task.domain: store.about(task) for task in tasks if task.describes}
    store.files.put(ABOUT, json.dumps({name: said[name] for name in store.study.domains}, indent=1) + "\n")
    timing = [store.timing(task) for task in tasks]
    columns = dict.fromkeys((name for row in timing for name in row), "float64")
    columns |= {"task": "string", "domain": "string", "schedule": "string"}
    store.files.put("timing.parquet", parquet_bytes(timing, columns))


def parquet_bytes(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str]) -> bytes:
    """Rows with these columns and Arrow types as a Parquet file; a missing number is null."""
    arrow, parquet = _arrow()
    types = _types(arrow)
    schema = arrow.schema([(name, types[kind]) for name, kind in columns.items()])
    listed = list(rows)
    data = {
        name: [None if row.get(name) is None else _cast(row[name], kind) for row in listed]
        for name, kind in columns.items()
    }
    table = arrow.Table.from_pydict(data, schema=schema)
    file = io.BytesIO()
    parquet.write_table(table, file, compression="zstd")
    return file.getvalue()


def _types(arrow: Any) -> dict[str, Any]:
    """Arrow's types by the names that columns have them under."""
    return {"string": arrow.string(), "float64": arrow.float64(), "int64": arrow.int64(), "bool": arrow.bool_()}


def _cast(value: Any, kind: str) -> Any:
    return float(value) if kind == "float64" else value


def read_rows(directory: Path, name: str) -> Rows:
    """The rows of one file of a run directory, without `.parquet`; they must be what the run wrote."""
    files = RunFiles(directory)
    file = f"rows/{name}.parquet"
    return rows_in(files.read(file), str(files.path(file)))


def rows_in(data: bytes, source: str) -> Rows:
    """The rows of a Parquet file; anything else is a StudyError that names the source."""
    pyarrow, parquet = _arrow()
    types = _types(pyarrow)
    try:
        table = parquet.read_table(io.BytesIO(data))
        table.validate(full=True)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise StudyError(f"{source}: cannot be read ({error}); the run's --resume writes it again") from error
    judged = [column for column in table.column_names if column.startswith(QUALITY)]
    wanted = COLUMNS | dict.fromkeys(judged, "float64")
    wanted |= {name: kind for name, kind in ((UNIT, "string"), (GROUP, "int64")) if name in table.column_names}
    wrong = [
        column
        for column, kind in wanted.items()
        if table.column_names.count(column) != 1 or table.column(column).type != types[kind]
    ]
    if wrong or not len(table):
        raise StudyError(
            f"{source}: not rows of this version, {wrong or 'all'} missing; the run's --resume writes them"
        )
    return Rows({column: table.column(column).to_numpy() for column in wanted})


def read_timing(directory: Path) -> list[dict[str, Any]]:
    """Seconds, calls and rows handled, one entry a task; none if the run has no timing."""
    files = RunFiles(directory)
    if not files.path("timing.parquet").is_file():
        return []
    pyarrow, parquet = _arrow()
    try:
        return list(parquet.read_table(io.BytesIO(files.read("timing.parquet"))).to_pylist())
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise StudyError(
            f"{files.path('timing.parquet')}: cannot be read ({error}); --resume writes it again"
        ) from error


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise missing_extra("pyarrow", "studies", "writing rows") from error
    return pyarrow, pyarrow.parquet
