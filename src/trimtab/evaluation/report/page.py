"""The interactive page: a run directory's `summary.json` and `page.json` in one file that needs nothing else.

The page's own source is in `assets/`: a template, a style sheet and a few scripts, readable as they are and put
together here. Example rollouts are packed to 16 bits a number, which keeps a whole study to a few megabytes.
"""

from __future__ import annotations

import base64
import json
import math
from array import array
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from sys import byteorder
from typing import Any

from trimtab.core.files import read_json
from trimtab.evaluation.studies.run_files import RunFiles

__all__ = ["page_html", "write_page"]

SCRIPTS = ("data.js", "draw.js", "frontier.js", "trace.js", "scene.js", "sweep.js", "words.js", "tables.js", "page.js")
"""Put into the page in this order, as one script."""

LIMIT = 4_000_000
"""Characters; while a page is larger, example rollouts are left out: first seeds, then budgets between others."""

_LEVELS = 65534  # numbers become 0..65534 between their least and greatest; 65535 stands for "none"


def write_page(files: RunFiles, summary: Mapping[str, Any], page: Mapping[str, Any]) -> Path:
    """Write `page.json` and `report.html` into a run directory, and say where the page is.

    Args:
        files: Of the run directory.
        summary: The contents of `summary.json`.
        page: The contents of `page.json`, the example rollouts; see docs/studies.md.
    """
    files.put("page.json", json.dumps(page, allow_nan=False, separators=(",", ":")))
    run = files.path("run.json")
    seconds = read_json(run).get("seconds") if run.is_file() else None
    links = {"name": files.directory.resolve().name, "files": _links(files), "seconds": seconds}
    return files.put("report.html", page_html(summary, page, links))


def page_html(summary: Mapping[str, Any], page: Mapping[str, Any], links: Mapping[str, Any] | None = None) -> str:
    """The page as text.

    Args:
        summary: The contents of `summary.json`.
        page: The contents of `page.json`; what is missing is not shown.
        links: `{"name": the run's name, "files": paths relative to the page}`.
    """
    if not isinstance(summary.get("domains"), Mapping) or not summary["domains"]:
        raise ValueError(f'summary.json holds no "domains": it has {sorted(summary)}; run the study again')
    seeds = max((len(domain.get("seeds") or ()) for domain in (page.get("domains") or {}).values()), default=0)
    html, summary = "", _rounded(summary)
    for keep, stride in [*((n, 1) for n in range(seeds, 1, -1)), (1, 1), (1, 2), (1, 4), (1, 8), (0, 1)]:
        data = {"summary": summary, "page": _packed_page(page, keep, stride), "links": dict(links or {})}
        html = _assemble(_as_script_text(data))
        if len(html) <= LIMIT:
            break
    return html


def _links(files: RunFiles) -> list[str]:
    """The run's files that the page leads to; those alone that the run itself wrote."""
    folders = (("rows/", ".parquet"), ("tables/", ".csv"), ("figures/", ".pdf"))
    found = [name for folder, ending in folders for name in files.names(folder) if name.endswith(ending)]
    return found + [name for name in ("summary.json", "page.json", "run.json") if files.path(name).is_file()]


# ------------------------------------------------------------------ packing


def _packed_page(page: Mapping[str, Any], keep: int, stride: int) -> dict[str, Any]:
    """The page with `keep` example rollouts a setting, at every `stride`-th budget and at the table's."""
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
        heights = [height for row in surface["z"] for height in row]
        packed["surface"] = {**surface, "z": _pack(heights)}
    return packed


def _packed_example(example: Mapping[str, Any]) -> dict[str, Any]:
    packed = dict(example)
    for name in ("defects", "state_error", "residuals"):
        if example.get(name) is not None:
            packed[name] = _pack(example[name])
    path = example.get("path")
    if path:
        packed["path"] = _pack([coordinate for point in path for coordinate in point])
    return packed


def _pack(values: Sequence[float | None]) -> dict[str, Any]:
    """Numbers as little-endian 16-bit integers in base64, between their least and their greatest."""
    finite = [v for v in values if v is not None and math.isfinite(v)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    scale = _LEVELS / (high - low) if high > low else 0.0
    levels = array(
        "H",
        (round((v - low) * scale) if v is not None and math.isfinite(v) else _LEVELS + 1 for v in values),
    )
    if byteorder == "big":
        levels.byteswap()
    return {"low": low, "high": high, "levels": base64.b64encode(levels.tobytes()).decode("ascii")}


# ------------------------------------------------------------------ putting together


def _assemble(data: str) -> str:
    assets = files("trimtab.evaluation.report") / "assets"
    parts = {
        "css": (assets / "page.css").read_text(encoding="utf-8"),
        "script": "\n".join((assets / name).read_text(encoding="utf-8") for name in SCRIPTS),
        "data": data,  # last, so that no mark inside the data is taken for one of the template's
    }
    html = (assets / "template.html").read_text(encoding="utf-8")
    for name, text in parts.items():
        html = html.replace(f"@@{name}@@", text, 1)
    return html


def _as_script_text(value: object) -> str:
    """JSON that may stand inside a script element: no NaN, and nothing that could end the element or a line."""
    text = json.dumps(_without_nan(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _rounded(value: Any) -> Any:
    """The same with seven digits of every number: more than anybody sees, in half the room."""
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.7g}")
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


def _without_nan(value: object) -> object:
    """The same with None for NaN and infinities, which JSON has no word for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return value
