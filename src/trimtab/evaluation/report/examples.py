"""page.json: example rollouts and words for the interactive page (its structure is in docs/studies.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from trimtab._version import __version__
from trimtab.evaluation.domains import base_of, dynamics_of
from trimtab.evaluation.studies.config import Study, budget_name
from trimtab.evaluation.studies.domain_info import read_about
from trimtab.evaluation.studies.paper_values import reported, reported_beside
from trimtab.evaluation.studies.rows import Rows, read_rows
from trimtab.evaluation.studies.run_files import RunFiles
from trimtab.evaluation.studies.schedules import STUDY_SCHEDULES
from trimtab.evaluation.studies.store import trace_name
from trimtab.evaluation.studies.tasks import equivalent_schedule, schedules_of, study_tasks
from trimtab.evaluation.studies.traces import Trace
from trimtab.schedules.style import label_of, look_of

__all__ = ["examples", "traces_of"]

_METRICS = {
    "nepe": (
        "NEPE",
        "Normalised excess path error: (path error - stepwise path error) / (terminal - stepwise path error) "
        "of the same seed; 0 is stepwise correction, 1 is terminal correction.",
    ),
    "endpoint": ("endpoint distance", "Distance of the final state to that of the stepwise rollout of the same seed."),
    "path_error": ("path error", "The defects of the states kept, summed over the path."),
    "state_error": ("state error", "Distance to the stepwise rollout of the same seed, summed over the path."),
    "achieved_budget": ("achieved budget", "The share of steps that were projected; the closing one is apart."),
}


def examples(files: RunFiles, summary: dict[str, Any]) -> dict[str, Any]:
    """What page.json of a run directory says."""
    study = Study.from_summary(summary)
    said = read_about(files, study.domains)
    return {
        "version": 1,
        "title": "Correction schedules compared",
        "preset": study.preset,
        "trimtab": __version__,
        "table_budget": budget_name(study.table_budget),
        "paper_budget": reported()["table_budget"],
        "budgets": [budget_name(budget) for budget in study.budgets],
        "schedules": [
            {"key": key, "label": label_of(key), "colour": look_of(key).colour, "summary": STUDY_SCHEDULES[key].summary}
            for key in study.schedules
        ],
        "metrics": [{"key": key, "label": label, "summary": text} for key, (label, text) in _metrics(study).items()],
        "domains": {name: _domain(files, study, name, said[name]) for name in study.domains},
    }


def _metrics(study: Study) -> dict[str, tuple[str, str]]:
    if study.unit == "projection" and study.closing == "free":
        return _METRICS
    text = "What was spent of the iterations of full projection on the same samples; the closing ones are apart."
    if study.closing == "paid":
        text = "The share of steps that were projected, the closing one among them."
    return _METRICS | {"achieved_budget": ("achieved budget", text)}


def _domain(files: RunFiles, study: Study, name: str, said: Mapping[str, Any]) -> dict[str, Any]:
    rows = read_rows(files.directory, name)
    kept: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for (schedule, budget), trace in traces_of(files, study, name).items():
        numbers = rows.where(schedule=schedule, budget=budget)
        listed = [_example(trace, i, numbers) for i in range(len(trace.seeds))]
        kept.setdefault(schedule, {})[budget_name(budget)] = listed
    tables = {table: reported_beside(table, name, study.facts()) for table in ("table1", "win_rates")}
    return {
        "label": said["label"],
        "summary": said["summary"],
        "base": base_of(name),
        "dynamics": dynamics_of(name),
        "n_steps": int(rows["n_steps"][0]),
        "settings": said["settings"],
        "seeds": list(range(study.example_seeds)),
        "path": said["path"],
        "surface": _coarser(said["surface"]),
        "obstacles": said["obstacles"],
        "graph": said.get("graph"),
        "paper": tables if any(tables.values()) else None,
        "examples": kept,
    }


def traces_of(files: RunFiles, study: Study, name: str) -> dict[tuple[str, float], Trace]:
    """The example rollouts of a domain by schedule and budget."""
    kept = {
        (task.schedule, budget): Trace.load(files.checked(trace_name(task, budget)))
        for task in study_tasks(study)
        if task.domain == name and task.kappa is None and task.examples
        for budget in task.budgets
    }
    wanted = [
        (key, budget)
        for key in schedules_of(study, name)
        for budget in study.budgets
        if kept and STUDY_SCHEDULES[key].only_budget is None
    ]
    return kept | {(key, budget): kept[equivalent_schedule(key, budget), budget] for key, budget in wanted}


def _example(trace: Trace, i: int, rows: Rows) -> dict[str, Any]:
    seed = int(trace.seeds[i])
    row = rows.where(seed=seed)
    return {
        "seed": seed,
        "defects": _rounded(trace.defects[:, i]),
        "projected": trace.projected[:, i].nonzero().squeeze(1).tolist(),
        "closing": bool(trace.closing[i]),
        "state_error": _rounded(trace.state_error[:, i]),
        "path": [_rounded(point) for point in trace.path[:, i]],
        **_effort(trace, i),
    } | {metric: _rounded(row.tensor(metric))[0] for metric in ("nepe", "path_error", "endpoint")}


def _effort(trace: Trace, i: int) -> dict[str, Any]:
    """How many iterations each step that corrected made, and what they left, where a budget counts iterations."""
    if trace.iterations is None or trace.residuals is None:
        return {}
    made = trace.iterations[:, i][trace.projected[:, i]]
    return {"iterations": made.tolist(), "residuals": _rounded(trace.residuals[:, i])}


def _coarser(surface: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A surface with half as many points along each side, which is enough for the page."""
    if surface is None:
        return None
    return {"x": surface["x"][::2], "y": surface["y"][::2], "z": [line[::2] for line in surface["z"][::2]]}


def _rounded(values: Tensor) -> list[float | None]:
    """Four digits are enough to look at; JSON has no NaN."""
    return [None if value != value else float(f"{value:.4g}") for value in values.tolist()]
