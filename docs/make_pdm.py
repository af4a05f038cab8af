"""Write the tables and figures of docs/pdm.md from finished runs of the trajectory sampler.

    trimtab reproduce --only pdm --out runs/pdm
    trimtab reproduce --only pdm --checkpoint FILE --circles FILE --eligible-from 6 --out runs/pdm-public
    python docs/make_pdm.py --own runs/pdm --public runs/pdm-public

Each part is replaced only if its run is given. Figures are those of the shipped model.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from trimtab.report.style import label_of
from trimtab.report.table import Cell, Table

HERE = Path(__file__).parent
FIGURES = {
    "nepe": "NEPE against budget",
    "trajectories": "Trajectories under each schedule, collisions in red, with a raster of projections",
}


def by_budget(summary: dict[str, Any]) -> Table:
    """NEPE of every schedule at every budget."""
    schedules = summary["domains"]["pdm"]["schedules"]
    budgets = [b for b in schedules["periodic"] if b not in ("0.00", "1.00")]
    rows: list[list[str | int | Cell]] = []
    for key in schedules:
        if key not in ("terminal", "stepwise"):
            values = [schedules[key][budget]["nepe"] for budget in budgets]
            rows.append([label_of(key), *(Cell(value["mean"], value["se"]) for value in values)])
    return Table("nepe", "NEPE by budget", ["Schedule", *(f"B/T = {budget}" for budget in budgets)], rows)


def tables_of(run: Path) -> str:
    """The tables of a run, and what was run."""
    summary = json.loads((run / "summary.json").read_text())
    config = summary["config"]
    settings = config["samplers"].get("pdm", {}).get("settings", {})
    first = settings.get("eligible_from", 0)
    T = summary["domains"]["pdm"]["n_steps"]
    said = (
        f"Preset `{config['preset']}`: {config['seeds']} evaluation seeds, each with a start and goal of its own, "
        f"{config['calibration_seeds']} calibration seeds, levels from {first} on, T = {T}, "
        f"{summary['domains']['pdm']['failures']} projections failed."
    )
    stored = [(run / "tables" / f"{name}.md").read_text() for name in ("table2", "quality-pdm", "cost")]
    whole = "\n".join([by_budget(summary).markdown(), *stored])
    return said + "\n\n" + whole.replace("## ", "### ")


def figures_of(run: Path) -> str:
    """Copy a run's figures beside the page; the lines that show them."""
    for name in FIGURES:
        shutil.copyfile(run / "figures" / f"{name}.png", HERE / "images" / f"pdm-{name}.png")
    return "".join(f"\n![{words}](images/pdm-{name}.png)\n" for name, words in FIGURES.items())


def main() -> None:
    """Replace the parts whose runs are given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--own", type=Path, help="a run of the shipped model")
    parser.add_argument("--public", type=Path, help="a run of a public checkpoint")
    arguments = parser.parse_args()
    page = HERE / "pdm.md"
    for name in ("own", "public"):
        run: Path | None = getattr(arguments, name)
        if run is not None:
            head, rest = page.read_text().split(f"<!-- {name} -->\n")
            _, tail = rest.split(f"<!-- end {name} -->\n")
            pictures = figures_of(run) if name == "own" else ""
            page.write_text(f"{head}<!-- {name} -->\n{tables_of(run)}{pictures}<!-- end {name} -->\n{tail}")


if __name__ == "__main__":
    main()
