"""Renew the tables of docs/results/domains.md: what adaptive correction gains over periodic, by kappa and by dynamics.

Run it from the repository's root: `python docs/make_domains.py [langevin] [flows] [ramps]`; all three unless told. The
studies are kept in runs/domains and go on where they were stopped; studies of other code are begun anew.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from _page import renew
from fit_replica import outcome

from trimtab_lab.domains import FLOWS, SYNTHETIC, VARIANTS, domain
from trimtab_lab.studies.config import Study, StudyError
from trimtab_lab.studies.engine import run_study
from trimtab_lab.studies.rows import write_rows
from trimtab_lab.studies.store import Store
from trimtab_lab.studies.summary import reported, summarise

PARTS = ("langevin", "flows", "ramps")
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
    """A line per domain: the gain of a schedule in NEPE at each kappa, and in endpoint distance at the default one."""
    kappas = [f"{kappa:g}" for kappa in STUDY.kappas]
    head = [SCHEDULES[key], "C_0.2", *(f"kappa = {kappa}" for kappa in kappas), "endpoint, kappa = 0.3"]
    lines = [head, ["---"] * len(head)]
    for name, by_kappa in summary["kappa"].items():
        gains = [by_kappa[kappa]["improvement"][key]["nepe"] for kappa in kappas]
        gains.append(by_kappa["0.3"]["improvement"][key]["endpoint"])
        held = f"{by_kappa['0.3']['concentration']['mean']:.2f}"
        lines.append([f"`{name}`", held, *(f"{gain['mean']:.0%} ± {gain['se']:.0%}" for gain in gains)])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def flow_table(summary: dict[str, Any]) -> str:
    """A line per domain and dynamics: NEPE and endpoint distance of three schedules, the paper's figures first."""
    columns = [f"{metric}, {who}" for who in ("periodic", *SCHEDULES.values()) for metric in ("NEPE", "endpoint")]
    head = ["domain", "dynamics", *columns]
    lines = [head, ["---"] * len(head)]
    for name in SYNTHETIC:
        paper = reported()["table1"][name]
        told = [f"{paper[metric][who][0]:.3g}" for who in ("periodic", "adaptive") for metric in ("nepe", "endpoint")]
        lines.append([f"`{name}`", "in the paper", *told, "", ""])
        for variant in ("", *VARIANTS):
            by_schedule = summary["domains"][f"{name}-{variant}" if variant else name]["schedules"]
            cells = [
                by_schedule[key]["0.25"][metric] for key in ("periodic", *SCHEDULES) for metric in ("nepe", "endpoint")
            ]
            words = [f"{cell['mean']:.3g} ± {cell['se']:.1g}" for cell in cells]
            lines.append(["", f"`{variant}`" if variant else "Langevin", *words])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def ramp_table() -> str:
    """What the paper's rule gains on the replica of `so3` when nothing but the profile of its speed changes."""
    lines = [["ramp p", "NEPE, periodic", "NEPE, the paper's rule", "gain"], ["---"] * 4]
    for ramp in (0.0, 0.5, 1.0, 1.5, 2.0, 2.5):
        periodic, _, adaptive, _ = outcome(domain("so3-replica", ramp=ramp), 0, 16)
        lines.append([f"{ramp:g}", f"{periodic:.3f}", f"{adaptive:.3f}", f"{1 - adaptive / periodic:.0%}"])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def summary_of(study: Study, part: str) -> dict[str, Any]:
    """Run what a study still lacks."""
    folder = Path("runs") / "domains" / part
    try:
        store = Store(folder, study, "resume")
    except (StudyError, ValueError) as error:
        print(f"{error}: begun anew", file=sys.stderr)
        store = Store(folder, study, "overwrite")
    with store:
        run_study(store, stream=sys.stderr)
        write_rows(store)
        return summarise(store.files)


def main(parts: list[str]) -> None:
    """Run the studies and renew the tables."""
    if "langevin" in parts:
        summary = summary_of(STUDY, "langevin")
        renew("results/domains.md", "tables", "\n\n".join(table(summary, key) for key in SCHEDULES))
    if "flows" in parts:
        study = replace(STUDY, domains=(*SYNTHETIC, *FLOWS), kappas=())
        renew("results/domains.md", "flows", flow_table(summary_of(study, "flows")))
    if "ramps" in parts:
        renew("results/domains.md", "ramps", ramp_table())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    # an empty list is among the choices because argparse checks the absence of names as one
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART", help=f"{', '.join(PARTS)}; or all")
    main(parser.parse_args().parts or list(PARTS))
