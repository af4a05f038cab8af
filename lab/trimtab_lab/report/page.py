"""The interactive page: a run's `summary.json` and example rollouts in one file that needs nothing else.

The page's source is in `assets/`: a template, a style sheet and a few scripts, put together here. Example rollouts are
packed to 16 bits per number, which keeps a whole study to a few megabytes.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files as resource_files
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from trimtab._version import __version__
from trimtab_lab.domains import base_of, dynamics_of
from trimtab_lab.files import read_json
from trimtab_lab.report.study_tables import agreement, projected_diffusion
from trimtab_lab.report.style import label_of, look_of
from trimtab_lab.studies.config import Study, budget_name
from trimtab_lab.studies.rows import Rows, read_rows
from trimtab_lab.studies.schedules import STUDY_SCHEDULES
from trimtab_lab.studies.store import RunFiles, trace_name
from trimtab_lab.studies.summary import reported, reported_beside
from trimtab_lab.studies.tasks import equivalent_schedule, schedules_of, study_tasks
from trimtab_lab.studies.traces import Trace, read_about

__all__ = ["examples", "page_html", "traces_of", "write_page"]

SCRIPTS = ("data.js", "draw.js", "frontier.js", "trace.js", "scene.js", "sweep.js", "words.js", "tables.js", "page.js")
"""The scripts of the page, in this order."""

LIMIT = 4_000_000
"""Characters; while a page is larger, example rollouts are left out: first seeds, then budgets."""

_LEVELS = 65534  # numbers become 0..65534 between their least and greatest; 65535 is "none"
_METRICS = {
    "nepe": (
        "NEPE",
        "Normalised excess path error: (path error - stepwise path error) / (terminal - stepwise path error) "
        "of the same seed; 0 is stepwise correction, 1 is terminal correction.",
    ),
    "endpoint": ("endpoint distance", "Distance of the final state to that of the stepwise rollout of the same seed."),
    "path_error": ("path error", "The defects of the states kept, summed over the path."),
    "achieved_budget": ("achieved budget", "The share of steps that were projected, without the closing projection."),
    "iterations": ("solver iterations", "Iterations of the solver for one sample, the closing projection included."),
}


# ------------------------------------------------------------------ page.json: example rollouts and words


def examples(files: RunFiles, summary: dict[str, Any]) -> dict[str, Any]:
    """Return the contents of page.json."""
    study = Study.from_summary(summary)
    facts = read_about(files, study.domains)
    metrics = dict(_METRICS)
    if study.closing == "paid":
        text = "The share of steps that were projected, the closing projection included."
        metrics["achieved_budget"] = ("achieved budget", text)
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
            for key in study.all_schedules
        ],
        "metrics": [{"key": key, "label": label, "summary": text} for key, (label, text) in metrics.items()],
        "open": _opening(study),
        "agreement": [_plain(table) for table in agreement(summary)],
        "table2": [_plain(table) for table in projected_diffusion(summary)],
        "pictures": _pictures(files),
        "domains": {name: _domain(files, study, name, facts[name]) for name in study.domains},
    }


def _opening(study: Study) -> dict[str, str]:
    """Return what the page shows first: the first domain, and there the paper's rule if the study is the paper's."""
    schedule = {"schedule": "adaptive:paper"} if "trimtab" in study.schedules else {}
    return {"domain": study.domains[0]} | schedule


_FIGURES = {
    "title": "Figure 1. One path over the ridged terrain: projected at the end only, after every step, and with a "
    "quarter of the projections by the paper's rule and by the dynamic program. Of the example rollouts of this run on "
    "ridges it is the one that leaves the terrain farthest if it is left alone.",
    "regime": "Figure 2. Distance to the stepwise path of one seed, and when each schedule projects, the paper's rule "
    "and the dynamic program among them: where defects are concentrated in time (left), and on a round hill, where "
    "every step makes the same defect (right).",
    "nepe-ramp": "Figure 3. NEPE against the budget; diamonds are the paper's numbers. Dynamics: ramp.",
    "nepe-replica": "Figure 3 with dynamics that were fitted to the paper's numbers (replica).",
    "nepe-pdm": "Figure 4. Projected diffusion for trajectories, with the shipped model: NEPE against the budget.",
    "trajectories": "Figure 5. One trajectory of projected diffusion under each schedule; ticks are projections.",
    "endpoint-ramp": "Figure 6. Distance of final states to those of full projection. Dynamics: ramp.",
    "endpoint-replica": "Figure 6 with dynamics that were fitted to the paper's numbers (replica).",
}


def _pictures(files: RunFiles) -> list[dict[str, Any]]:
    """Return the figures that the paper has too, small enough for the page, with captions."""
    shown = [name for name in _FIGURES if files.names(f"figures/{name}.png")]
    if not shown:
        return []
    from PIL import Image  # comes with matplotlib

    pictures = []
    for name in shown:
        picture = Image.open(io.BytesIO(files.read(f"figures/{name}.png"))).convert("RGB")
        width = round(picture.width * 120 / 300)  # pixels on the page, of 300 per inch in the file
        picture.thumbnail((1500, 1500))
        small = io.BytesIO()
        picture.quantize(128).save(small, "PNG", optimize=True)
        data = base64.b64encode(small.getvalue()).decode("ascii")
        pictures.append({"caption": _FIGURES[name], "width": width, "data": f"data:image/png;base64,{data}"})
    return pictures


def _plain(table: Any) -> dict[str, Any]:
    rows = [[str(cell) for cell in row] for row in table.rows]
    return {"title": table.title, "columns": list(table.columns), "rows": rows, "notes": list(table.notes)}


def _domain(files: RunFiles, study: Study, name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    rows = read_rows(files.directory, name)
    kept: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for (schedule, budget), trace in traces_of(files, study, name).items():
        numbers = rows.where(schedule=schedule, budget=budget)
        listed = [_example(trace, i, numbers) for i in range(len(trace.seeds))]
        kept.setdefault(schedule, {})[budget_name(budget)] = listed
    tables = {table: reported_beside(table, name, study.facts()) for table in ("table1", "win_rates")}
    surface = facts["surface"] and {  # half as many points along each side are enough here
        "x": facts["surface"]["x"][::2],
        "y": facts["surface"]["y"][::2],
        "z": [line[::2] for line in facts["surface"]["z"][::2]],
    }
    return {
        "label": facts["label"],
        "summary": facts["summary"],
        "base": base_of(name),
        "dynamics": dynamics_of(name),
        "n_steps": int(rows["n_steps"][0]),
        "settings": facts["settings"],
        "seeds": list(range(study.example_seeds)),
        "path": facts["path"],
        "surface": surface,
        "obstacles": facts["obstacles"],
        "graph": facts.get("graph"),
        "paper": tables if any(tables.values()) else None,
        "examples": kept,
    }


def traces_of(files: RunFiles, study: Study, name: str) -> dict[tuple[str, float], Trace]:
    """Return the example rollouts of a domain by schedule and budget."""
    kept = {
        (task.schedule, budget): Trace.load(files.checked(trace_name(task, budget)))
        for task in study_tasks(study)
        if task.domain == name and task.kappa is None and task.examples
        for budget in task.budgets
    }
    wanted = [
        (key, budget)
        for key in schedules_of(study, name)
        for budget in study.budgets_of(name)
        if kept and STUDY_SCHEDULES[key].only_budget is None
    ]
    return kept | {(key, budget): kept[equivalent_schedule(key, budget), budget] for key, budget in wanted}


def _example(trace: Trace, i: int, rows: Rows) -> dict[str, Any]:
    seed = int(trace.seeds[i])
    row = rows.where(seed=seed)
    example = {
        "seed": seed,
        "defects": _four_digits(trace.defects[:, i]),
        "projected": trace.projected[:, i].nonzero().squeeze(1).tolist(),
        "closing": bool(trace.closing[i]),
        "state_error": _four_digits(trace.state_error[:, i]),
        "path": [_four_digits(point) for point in trace.path[:, i]],
    }
    return example | {metric: _four_digits(row.tensor(metric))[0] for metric in ("nepe", "path_error", "endpoint")}


def _four_digits(values: Tensor) -> list[float | None]:
    """Return numbers with four digits, which is enough to look at; None for NaN."""
    return [None if value != value else float(f"{value:.4g}") for value in values.tolist()]


# ------------------------------------------------------------------ the page


def write_page(files: RunFiles, summary: Mapping[str, Any], page: Mapping[str, Any]) -> Path:
    """Write `page.json` and `report.html` into a run directory; return where the page is.

    Args:
        files: The files of the run.
        summary: The contents of `summary.json`.
        page: The contents of `page.json`; see above.
    """
    files.put("page.json", json.dumps(page, allow_nan=False, separators=(",", ":")))
    run = files.path("run.json")
    seconds = read_json(run).get("seconds") if run.is_file() else None
    folders = (("rows/", ".parquet"), ("tables/", ".csv"), ("figures/", ".pdf"))
    found = [name for folder, ending in folders for name in files.names(folder) if name.endswith(ending)]
    found += [name for name in ("summary.json", "page.json", "run.json") if files.path(name).is_file()]
    links = {"name": files.directory.resolve().name, "files": found, "seconds": seconds}
    return files.put("report.html", page_html(summary, page, links))


def page_html(summary: Mapping[str, Any], page: Mapping[str, Any], links: Mapping[str, Any] | None = None) -> str:
    """Return the page as text.

    Args:
        summary: The contents of `summary.json`.
        page: The contents of `page.json`; what is missing is not shown.
        links: `{"name": the run's name, "files": paths relative to the page, "seconds": of the run}`.
    """
    if not isinstance(summary.get("domains"), Mapping) or not summary["domains"]:
        raise ValueError(f'summary.json holds no "domains": it has {sorted(summary)}; run the study again')
    seeds = max((len(domain.get("seeds") or ()) for domain in (page.get("domains") or {}).values()), default=0)
    html, summary = "", _clean(summary)
    for keep, stride in [*((n, 1) for n in range(seeds, 1, -1)), (1, 1), (1, 2), (1, 4), (1, 8), (0, 1)]:
        data = {"summary": summary, "page": _packed_page(page, keep, stride), "links": dict(links or {})}
        html = _assemble(_as_script_text(data))
        if len(html) <= LIMIT:
            break
    return html


def _packed_page(page: Mapping[str, Any], keep: int, stride: int) -> dict[str, Any]:
    """Return the page with `keep` example rollouts per setting, at every `stride`-th budget and the table's."""
    table = page.get("table_budget")
    domains = (page.get("domains") or {}).items()
    return {**page, "domains": {name: _packed_domain(domain, keep, stride, table) for name, domain in domains}}


def _packed_domain(domain: Mapping[str, Any], keep: int, stride: int, table: str | None) -> dict[str, Any]:
    packed = dict(domain)
    packed["seeds"] = list(domain.get("seeds") or ())[:keep]
    packed["examples"] = {
        key: {
            budget: [_packed_example(example) for example in examples[:keep]]
            for i, (budget, examples) in enumerate(sorted(budgets.items()))
            if i % stride == 0 or budget == table
        }
        for key, budgets in (domain.get("examples") or {}).items()
    }
    surface = domain.get("surface")
    if surface:
        packed["surface"] = {**surface, "z": _pack([height for row in surface["z"] for height in row])}
    return packed


def _packed_example(example: Mapping[str, Any]) -> dict[str, Any]:
    packed = dict(example)
    for name in ("defects", "state_error"):
        if example.get(name) is not None:
            packed[name] = _pack(example[name])
    if example.get("path"):
        packed["path"] = _pack([coordinate for point in example["path"] for coordinate in point])
    return packed


def _pack(values: Sequence[float | None]) -> dict[str, Any]:
    """Return numbers as little-endian 16-bit integers in base64, between their least and their greatest."""
    numbers = np.array([math.nan if value is None else value for value in values], dtype=float)
    known = np.isfinite(numbers)
    low, high = (float(numbers[known].min()), float(numbers[known].max())) if known.any() else (0.0, 0.0)
    levels = np.full(len(numbers), _LEVELS + 1)
    levels[known] = np.rint((numbers[known] - low) * (_LEVELS / (high - low) if high > low else 0.0))
    return {"low": low, "high": high, "levels": base64.b64encode(levels.astype("<u2").tobytes()).decode("ascii")}


def _assemble(data: str) -> str:
    assets = resource_files("trimtab_lab.report") / "assets"
    parts = {
        "css": (assets / "page.css").read_text(encoding="utf-8"),
        "script": "\n".join((assets / name).read_text(encoding="utf-8") for name in SCRIPTS),
        "data": data,  # last, so that no mark inside the data is replaced
    }
    html = (assets / "template.html").read_text(encoding="utf-8")
    for name, text in parts.items():
        html = html.replace(f"@@{name}@@", text, 1)
    return html


def _as_script_text(value: object) -> str:
    """Return JSON that may stand inside a script element: nothing in it ends the element or a line."""
    text = json.dumps(_clean(value, digits=17), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _clean(value: Any, digits: int = 7) -> Any:
    """Return a value for JSON: None for NaN and infinities, and numbers with `digits` significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _clean(item, digits) for key, item in value.items()}
    return [_clean(item, digits) for item in value] if isinstance(value, list | tuple) else value
