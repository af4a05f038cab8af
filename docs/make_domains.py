"""Renew the table of docs/domains.md: what adaptive correction gains over periodic, by kappa.

Run it from the repository's root: `python docs/make_domains.py`
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from _page import renew
from trimtab.studies.config import Study
from trimtab.studies.engine import run_study
from trimtab.studies.rows import write_rows
from trimtab.studies.store import Store
from trimtab.studies.summary import summarise

SCHEDULES = {"adaptive:paper": "the paper's rule", "adaptive:dp": "dynamic program"}
STUDY = Study(
    "domains",
    schedules=("terminal", "stepwise", "periodic", *SCHEDULES),
    budgets=(0.0, 0.25, 1.0),
    seeds=64,
    block=64,
    example_seeds=0,
    kappas=(0.0, 0.1, 0.3, 0.8),
    kappa_seeds=64,
)


def table(summary: dict[str, Any], key: str) -> str:
    """A line a domain: the gain of a schedule in NEPE at each kappa, and in endpoint distance at the default one."""
    kappas = [f"{kappa:g}" for kappa in STUDY.kappas]
    head = [SCHEDULES[key], "C_0.2", *(f"kappa = {kappa}" for kappa in kappas), "endpoint, kappa = 0.3"]
    lines = [head, ["---"] * len(head)]
    for domain, by_kappa in summary["kappa"].items():
        gains = [by_kappa[kappa]["improvement"][key]["nepe"] for kappa in kappas]
        gains.append(by_kappa["0.3"]["improvement"][key]["endpoint"])
        held = f"{by_kappa['0.3']['concentration']['mean']:.2f}"
        lines.append([f"`{domain}`", held, *(f"{gain['mean']:.0%} ± {gain['se']:.0%}" for gain in gains)])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def main() -> None:
    """Run the study in a directory that goes away, and renew the table."""
    with TemporaryDirectory() as folder, Store(Path(folder) / "run", STUDY) as store:
        run_study(store)
        write_rows(store)
        summary = summarise(store.directory)
    renew("domains.md", "tables", "\n\n".join(table(summary, key) for key in SCHEDULES))


if __name__ == "__main__":
    main()
