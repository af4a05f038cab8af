"""A made-up run directory for the page's tests: every schedule key, every kind of picture, and gaps in the data."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from trimtab_lab.report.page import write_page
from trimtab_lab.report.style import label_of
from trimtab_lab.studies.store import RunFiles

KEYS = (
    "terminal",
    "stepwise",
    "periodic",
    "adaptive:paper",
    "adaptive:on-policy",
    "adaptive:dp",
    "trimtab",
    "planned",
    "hindsight",
)
BUDGETS = tuple(f"{i / 20:.2f}" for i in range(21))
T = 60
LABELS = {
    "so3": "SO(3)",
    "terrain": "Terrain",
    "pdm": "Planning",
    "so3-flow": "SO(3) flow",
    "terrain-flow": "Terrain flow",
    "grid": "Power grid",
}
CIRCLES = [[0.3, 0.2, 0.2], [-0.3, -0.2, 0.25], [0.1, -0.6, 0.15]]
_SHARPNESS = {"periodic": 1.0, "adaptive:paper": 2.2, "adaptive:on-policy": 2.8, "adaptive:dp": 3.2}


def height(u: float, v: float) -> float:
    return 0.3 * math.sin(1.5 * u) * math.cos(1.2 * v)


def _on_sphere(t: int, off: float) -> list[float]:
    a = 0.05 * t
    return [(1 + off) * math.cos(a), (1 + off) * math.sin(a) * 0.8, (1 + off) * math.sin(a) * 0.6]


def _over_ground(t: int, off: float) -> list[float]:
    u, v = -1.6 + 3.1 * t / T, 0.6 * math.sin(t / 9) + off
    return [u, v, height(u, v) + off]


def _plan(t: int, off: float) -> list[float]:
    return [-0.9 + 1.8 * t / T, 0.5 * math.sin(t / 12) + off]


PATHS: dict[str, Callable[[int, float], list[float]]] = {
    "so3": _on_sphere,
    "so3-flow": _on_sphere,
    "terrain-flow": _over_ground,
    "terrain": _over_ground,
    "pdm": _plan,
    "grid": _plan,
}
LINES = [[1.0, 0.1], [2.0, 0.55], [3.0, 1.0]]  # loads of a network's lines
GRAPH = {"places": [[0.0, 0.0], [1.0, 0.0], [0.5, 1.0]], "edges": [[0, 1], [1, 2], [2, 0]]}


def _rollout(key: str, budget: str, seed: int, path: Callable[[int, float], list[float]] | None) -> dict[str, Any]:
    random = Random(seed)
    noise = [random.expovariate(1 / (0.5 if 25 < t < 33 else 0.05)) for t in range(T)]
    b = round(float(budget) * T)
    worst = sorted(sorted(range(T), key=lambda t: -noise[t])[:b])
    times = worst if key not in ("periodic", "planned") else [t for t in range(T) if (t + 1) * b // T > t * b // T]
    defect, defects, kept = 0.0, [], [0.0]
    for t in range(T):
        defect = 0.8 * defect + noise[t]
        defects.append(defect)
        defect = 0.0 if t in times else defect
        kept.append(defect)
    return {
        "seed": seed,
        "defects": defects,
        "projected": times,
        "closing": T - 1 not in times,
        "state_error": kept[1:],
        "path": None if path is None else [path(t, 0.1 * kept[t]) for t in range(T + 1)],
        "path_error": sum(kept),
        "nepe": None,
        "endpoint": kept[-1],
    }


def _budgets(key: str) -> tuple[str, ...]:
    return {"terminal": ("0.00",), "stepwise": ("1.00",)}.get(key, BUDGETS)


def _numbers(key: str, budget: str) -> dict[str, Any]:
    b = float(budget)
    nepe = (1 - b) ** _SHARPNESS.get(key, 2.5)
    return {
        "nepe": {"mean": nepe, "se": 0.02 * (b + 0.2), "n": 16},
        "endpoint": {"mean": 0.2 * (1 - b), "se": 0.01, "n": 16},
        "path_error": {"mean": 12 * nepe, "se": 0.3, "n": 16},
        "state_error": {"mean": math.nan, "se": math.nan, "n": 0},
        "achieved_budget": {"mean": b, "se": 0.0, "n": 16},
    }


def _apart(key: str) -> dict[str, Any]:
    p = 0.01 if key == "periodic" else 0.4
    return {"value": 0.5, "floor": 0.4, "p": p, "shift": 0.3, "n": 16}


def _summary(domains: tuple[str, ...]) -> dict[str, Any]:
    numbers: dict[str, Any] = {
        "schedules": {key: {budget: _numbers(key, budget) for budget in _budgets(key)} for key in KEYS},
        "win_rate": {
            key: {
                "endpoint": {"mean": 0.6, "se": 0.03, "n": 336},
                "pathwise": {"mean": 0.88, "se": 0.02, "n": 336},
                "median_improvement": 0.5,
            }
            for key in KEYS[3:]
        },
        "concentration": {"q": 0.2, "mean": 0.7, "se": 0.01},
        "degenerate": 0,
        "distribution": {key: {budget: _apart(key) for budget in _budgets(key)} for key in KEYS},
    }
    config = {"preset": "toy", "seeds": 16, "calibration_seeds": 64}
    out: dict[str, Any] = {"version": 1, "config": config, "seconds": 1.5, "domains": dict.fromkeys(domains, numbers)}
    if "pdm" in domains:  # judges its final states by a measure of its own
        length = {
            key: {b: {"length": {"mean": 2 + float(b), "se": 0.1, "n": 16}} for b in _budgets(key)} for key in KEYS
        }
        differ = {key: {budget: _apart("periodic") for budget in _budgets(key)} for key in KEYS}  # by their seeds
        out["domains"]["pdm"] = numbers | {"quality": length, "distribution": differ}
    gains = {key: {"nepe": {"mean": 0.3, "se": 0.1}, "endpoint": {"mean": -0.2, "se": 0.1}} for key in KEYS[3:]}
    swept = {kappa: {"concentration": {"mean": 0.5}, "improvement": gains} for kappa in ("0", "0.3")}
    out["kappa"] = {name: swept for name in domains if name in ("so3", "terrain")}
    # a domain of one schedule and two budgets, with values missing: nothing may break
    few = {"0.00": {"nepe": {"mean": None, "se": None, "n": 0}}, "0.50": {"nepe": {"mean": 0.4, "se": None, "n": 1}}}
    out["domains"]["reaction-flow"] = {"schedules": {"periodic": few, "own-rule": few}}
    return out


def _page(domains: tuple[str, ...]) -> dict[str, Any]:
    axis = [-2 + i / 10 for i in range(41)]
    surface = {"x": axis, "y": axis, "z": [[height(u, v) for u in axis] for v in axis]}
    return {
        "version": 1,
        "title": "a toy </script><script>document.title='broken'</script> \u2028 & more",
        "preset": "toy",
        "table_budget": "0.25",
        "paper_budget": "0.25",
        "budgets": list(BUDGETS),
        "schedules": [
            {"key": key, "label": label_of(key), "colour": "#332288", "summary": f"{key} in one sentence."}
            for key in KEYS
        ],
        "metrics": [],
        "domains": {
            name: {
                "label": LABELS[name],
                "base": name.removesuffix("-flow"),
                "dynamics": None if name in ("pdm", "grid") else "flow" if name.endswith("-flow") else "langevin",
                "summary": "a domain made up for <b>tests</b>",
                "n_steps": T,
                "settings": {"kappa": 0.2},
                "seeds": [0, 1],
                "path": {"title": "the path", "labels": ["x", "y", "z"][: 2 if name in ("pdm", "grid") else 3]},
                "surface": surface if "terrain" in name else None,
                "obstacles": CIRCLES if name == "pdm" else None,
                "graph": GRAPH if name == "grid" else None,
                "paper": {"table1": {"nepe": {"adaptive": [0.13, 0.0016], "improvement": [0.45, 0.04]}}},
                "examples": {
                    key: {
                        budget: [
                            _rollout(key, budget, seed, PATHS[name]) | ({"path": LINES} if name == "grid" else {})
                            for seed in (0, 1)
                        ]
                        for budget in _budgets(key)
                    }
                    for key in KEYS
                },
            }
            for name in domains
        },
    }


def write_toy_run(folder: Path, domains: tuple[str, ...] = ("so3", "terrain", "pdm"), **page: Any) -> Path:
    """Fill a run directory with `summary.json` (NaN included, as Python writes it), files of rows and the page.

    What is given by name stands in the page instead of what is usual.
    """
    folder.mkdir(parents=True)
    files = RunFiles(folder)
    for name in domains:
        files.put(f"rows/{name}.parquet", b"")
    files.put("summary.json", json.dumps(_summary(domains)))
    return write_page(files, _summary(domains), _page(domains) | page)
