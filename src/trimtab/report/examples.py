"""page.json: example rollouts and words for the interactive page (its structure is in docs/studies.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trimtab._version import __version__
from trimtab.domains import Domain
from trimtab.schedules.style import label_of, look_of
from trimtab.studies.config import Study, budget_name
from trimtab.studies.reported import reported_beside
from trimtab.studies.rows import Rows, read_rows
from trimtab.studies.schedules import KEYS
from trimtab.studies.store import trace_path, write_text
from trimtab.studies.tasks import made_domain, runner, schedules_of, study_tasks
from trimtab.studies.traces import Trace
from trimtab.studies.views import view_of

__all__ = ["obstacles_of", "surface_of", "traces_of", "write_examples"]

_HILLY = ("terrain", "terrain-ridge")

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


def write_examples(directory: Path, summary: dict[str, Any]) -> Path:
    """Write page.json of a run directory."""
    config = {name: value for name, value in summary["config"].items() if name != "code"}
    study = Study.from_facts(config)
    page = {
        "version": 1,
        "title": "Correction schedules compared",
        "preset": study.preset,
        "trimtab": __version__,
        "table_budget": budget_name(study.table_budget),
        "budgets": [budget_name(budget) for budget in study.budgets],
        "schedules": [
            {"key": key, "label": label_of(key), "colour": look_of(key).colour, "summary": KEYS[key].summary}
            for key in study.schedules
        ],
        "metrics": [{"key": key, "label": label, "summary": text} for key, (label, text) in _METRICS.items()],
        "domains": {name: _domain(directory, study, name) for name in study.domains},
    }
    path = directory / "page.json"
    write_text(path, json.dumps(page, allow_nan=False, separators=(",", ":")))
    return path


def _domain(directory: Path, study: Study, name: str) -> dict[str, Any]:
    made, view, rows = made_domain(name, origin=study.origin(name)), view_of(name), read_rows(directory, name)
    examples: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for (schedule, budget), trace in traces_of(directory, study, name).items():
        numbers = rows.where(schedule=schedule, budget=budget)
        listed = [_example(trace, i, numbers) for i in range(len(trace.seeds))]
        examples.setdefault(schedule, {})[budget_name(budget)] = listed
    tables = {table: reported_beside(table, name, study.samplers) for table in ("table1", "win_rates")}
    return {
        "label": view.label,
        "summary": made.summary,
        "n_steps": int(rows["n_steps"][0]),
        "settings": dict(made.settings),
        "seeds": list(range(study.example_seeds)),
        "path": {"title": view.title, "labels": list(view.axes)},
        "surface": _surface(made),
        "obstacles": obstacles_of(made),
        "paper": tables if any(tables.values()) else None,
        "examples": examples,
    }


def traces_of(directory: Path, study: Study, name: str) -> dict[tuple[str, float], Trace]:
    """The example rollouts of a domain by schedule and budget."""
    kept = {
        (task.schedule, budget): Trace.load(trace_path(directory, task, budget))
        for task in study_tasks(study)
        if task.domain == name and task.kappa is None and task.examples
        for budget in task.budgets
    }
    wanted = [
        (key, budget)
        for key in schedules_of(study, name)
        for budget in study.budgets
        if kept and KEYS[key].only_budget is None
    ]
    return kept | {(key, budget): kept[runner(key, budget), budget] for key, budget in wanted}


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
    } | {metric: _rounded(row.tensor(metric))[0] for metric in ("nepe", "path_error", "endpoint")}


def obstacles_of(made: Domain) -> list[list[float]] | None:
    """The circles [x, y, r] that a domain's paths must stay out of; None where there are none."""
    obstacles = getattr(made.problem([0]).constraint, "obstacles", None)
    circles = getattr(obstacles, "circles", None)
    return None if circles is None else [[round(value, 4) for value in circle] for circle in circles.tolist()]


def surface_of(
    made: Domain,
    points: int = 61,
    u_range: tuple[float, float] = (-2.0, 2.0),
    v_range: tuple[float, float] = (-1.6, 1.6),
) -> tuple[Tensor, Tensor, Tensor] | None:
    """A terrain's height field: u (points,), v (points,) and z (points, points) by v and u; None for other domains."""
    height = getattr(made.problem([0]).constraint, "height", None) if made.name in _HILLY else None
    if height is None:
        return None
    u = torch.linspace(*u_range, points, dtype=torch.float64)
    v = torch.linspace(*v_range, points, dtype=torch.float64)
    return u, v, height(u.repeat(points), v.repeat_interleave(points)).reshape(points, points)


def _surface(made: Domain) -> dict[str, Any] | None:
    surface = surface_of(made)
    if surface is None:
        return None
    u, v, z = surface
    return {"x": _rounded(u), "y": _rounded(v), "z": [_rounded(line) for line in z]}


def _rounded(values: Tensor) -> list[float | None]:
    """Four digits are enough to look at; JSON has no NaN."""
    return [None if value != value else float(f"{value:.4g}") for value in values.tolist()]
