"""Write docs/results/reproduction.md: the paper's protocol on every kind of dynamics, its tables and figures.

    python docs/make_reproduction.py [--run runs/paper] [--workers 1]

Runs `trimtab reproduce --preset paper`, or what is left of it: a run that was stopped goes on, one of other code is
begun anew.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import Any

from _page import HERE, renew
from PIL import Image

from trimtab.cli.main import main as trimtab
from trimtab.core.files import read_json
from trimtab.evaluation.domains import dynamics_of
from trimtab.evaluation.report.figures import frontier
from trimtab.schedules.style import figure_style

FIGURES = {
    "": "Langevin dynamics",
    "-flow": "flows at constant speed",
    "-ramp": "flows at a growing speed",
    "-replica": "replicas, fitted to the paper's tables in sample",
}
LABELS = {"nepe": "NEPE", "endpoint": "endpoint distance"}
TABLES = ("table1", "table3", "table1-adaptive-dp", "table3-adaptive-dp")
ON_TOP = "adaptive:dp"  # another curve is often the same
WIDTH = 1260


def with_one_on_top(summary: dict[str, Any]) -> dict[str, Any]:
    """The same numbers, the schedule that is to be seen in any case last."""
    domains = {
        name: content | {"schedules": dict(sorted(content["schedules"].items(), key=lambda item: item[0] == ON_TOP))}
        for name, content in summary["domains"].items()
    }
    return summary | {"domains": domains}


def picture(summary: dict[str, Any], metric: str, ending: str) -> str:
    """The domains with one kind of dynamics, in few colours, as a line of the page."""
    names = [name for name in summary["domains"] if dynamics_of(name) == (ending[1:] or "langevin")]
    with figure_style() as plt:
        drawn = io.BytesIO()
        frontier(plt, summary, metric, LABELS[metric], names).savefig(drawn, bbox_inches="tight", pad_inches=0.03)
    with Image.open(drawn) as whole:
        small = whole.convert("RGB").resize(
            (WIDTH, round(WIDTH * whole.height / whole.width)), Image.Resampling.LANCZOS
        )
    few = small.quantize(256, method=Image.Quantize.MAXCOVERAGE)  # rare colours too: a line in the legend alone
    few.save(HERE / "images" / f"paper-{metric}{ending}.png", optimize=True)
    words = LABELS[metric][0].upper() + LABELS[metric][1:]
    return f"![{words} against budget: {FIGURES[ending]}](../images/paper-{metric}{ending}.png)"


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("runs") / "paper")
    parser.add_argument("--workers", help="processes to use; one per core if not given")
    options = parser.parse_args()
    run: Path = options.run
    command = ["reproduce", "--preset", "paper", "--out", str(run)]
    if options.workers:
        command += ["--workers", options.workers]
    if trimtab([*command, "--resume"]) != 0 and trimtab([*command, "--overwrite"]) != 0:
        raise SystemExit("the study did not finish; run this again to go on")
    for table in TABLES:
        text = (run / "tables" / f"{table}.md").read_text(encoding="utf-8")
        renew("results/reproduction.md", table, text.replace("## ", "### ", 1))
    summary = with_one_on_top(read_json(run / "summary.json"))
    for metric in LABELS:
        renew("results/reproduction.md", metric, "\n\n".join(picture(summary, metric, ending) for ending in FIGURES))


if __name__ == "__main__":
    main()
