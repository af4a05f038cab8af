"""Write docs/reproduction.md: the paper's protocol on every kind of dynamics, its tables and figures.

    python docs/make_reproduction.py [--run runs/paper] [--workers 1]

Runs `trimtab reproduce --preset paper`, or what is left of it: a run that was stopped goes on, one of other code is
begun anew.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from PIL import Image

from _page import HERE, renew
from trimtab.cli.main import main as trimtab
from trimtab.core.files import read_json

FIGURES = {
    "": "Langevin dynamics",
    "-flow": "flows at constant speed",
    "-ramp": "flows at a growing speed",
    "-replica": "replicas, fitted to the paper's tables in sample",
}
TABLES = ("table1", "table3", "table1-adaptive-dp", "table3-adaptive-dp")
WIDTH = 1260


def picture(run: Path, name: str, words: str) -> str:
    """A figure of the run, smaller and in few colours, as a line of the page."""
    with Image.open(run / "figures" / f"{name}.png") as whole:
        small = whole.convert("RGB").resize(
            (WIDTH, round(WIDTH * whole.height / whole.width)), Image.Resampling.LANCZOS
        )
    few = small.quantize(256, method=Image.Quantize.MAXCOVERAGE)  # rare colours too: a line in the legend alone
    few.save(HERE / "images" / f"paper-{name}.png", optimize=True)
    return f"![{words}](images/paper-{name}.png)"


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
        renew("reproduction.md", table, text.replace("## ", "### ", 1))
    for metric, label in (("nepe", "NEPE"), ("endpoint", "Endpoint distance")):
        lines = [picture(run, f"{metric}{end}", f"{label} against budget: {what}") for end, what in FIGURES.items()]
        renew("reproduction.md", metric, "\n\n".join(lines))
    facts = read_json(run / "run.json")
    renew("reproduction.md", "time", f"That run took {facts['seconds'] / 60:.0f} minutes by the clock.")


if __name__ == "__main__":
    main()
