"""Write docs/results/reproduction.md: every table and figure of the paper, from the run of `make reproduce`.

    python docs/make_reproduction.py [--run runs/main] [--workers 1]

Runs `trimtab reproduce`, or what is left of it: a run that was stopped continues, one of other code starts again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from _page import HERE, renew
from PIL import Image

from trimtab.cli.main import main as trimtab

TABLES = {
    "agreement": ("agreement",),
    "paper": ("table1", "table2", "table3"),
    "tails": ("tails",),
    "others": ("table1-adaptive-dp", "table3-adaptive-dp", "table1-trimtab", "table3-trimtab"),
}
FIGURES = {
    "title": "A path over ridges and its height off the ground, by terminal, stepwise and both rules",
    "regime": "Distance to the stepwise path over time, for both rules: concentrated and even defects",
    "nepe-ramp": "NEPE against budget: flows at a growing speed",
    "nepe-replica": "NEPE against budget: replicas, fitted to the paper's tables",
    "nepe-pdm": "NEPE against budget: projected diffusion with the shipped model",
    "endpoint-ramp": "Endpoint distance against budget: flows at a growing speed",
    "endpoint-replica": "Endpoint distance against budget: replicas, fitted to the paper's tables",
}
WIDTH = 1260


def picture(run: Path, name: str) -> str:
    """Copy a figure in few colours, and return its line of the page."""
    with Image.open(run / "figures" / f"{name}.png") as whole:
        size = (WIDTH, round(WIDTH * whole.height / whole.width))
        small = whole.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    few = small.quantize(256, method=Image.Quantize.MAXCOVERAGE)  # rare colours too: a line in the legend alone
    few.save(HERE / "images" / f"paper-{name}.png", optimize=True)
    return f"![{FIGURES[name]}](../images/paper-{name}.png)"


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("runs") / "main")
    parser.add_argument("--workers", help="processes to use; one per core if not given")
    options = parser.parse_args()
    command = ["reproduce", "--out", str(options.run), *(["--workers", options.workers] if options.workers else [])]
    if trimtab([*command, "--resume"]) != 0 and trimtab([*command, "--overwrite"]) != 0:
        raise SystemExit("the study did not finish; run this again to continue")
    for part, names in TABLES.items():
        texts = [(options.run / "tables" / f"{name}.md").read_text(encoding="utf-8") for name in names]
        renew("results/reproduction.md", part, "\n".join(texts).replace("## ", "### "))
    renew("results/reproduction.md", "figures", "\n\n".join(picture(options.run, name) for name in FIGURES))


if __name__ == "__main__":
    main()
