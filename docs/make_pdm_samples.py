"""Write what docs/pdm.md says of unconstrained samples: beside planned trajectories, and by number of inner steps.

    python docs/make_pdm_samples.py [--checkpoint FILE --circles MAP.json]

With a public checkpoint and its map the inner steps are also shown for that model.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from make_pdm import Row
from matplotlib.figure import Figure
from torch import Tensor

from _page import HERE, renew
from trimtab.evaluation.domains import domain
from trimtab.evaluation.domains.pdm import load_model, sample, trajectory_quality
from trimtab.evaluation.domains.pdm.train import figure, validate
from trimtab.evaluation.report.formats import Cell, Table

INNER = (5, 25, 100)
DRAWN = 12


def against_plans() -> str:
    """Samples of the shipped model beside planned trajectories and straight runs."""
    figure(load_model(), HERE / "images" / "pdm-samples.png")
    rows: list[Row] = []
    for name, quality in validate(load_model()).items():
        numbers = (quality[what] for what in ("collides", "length", "roughness", "jump"))
        rows.append([name, *(Cell(number) for number in numbers)])
    table = Table(
        "samples",
        "Unconstrained samples of the shipped model beside the data it learned from",
        ["", "collide", "length", "roughness", "jump"],
        rows,
        [
            "Four maps the model never saw, 64 starts and goals each. Planned: by the planner that made the training "
            "data. Straight: from start to goal at once. Roughness is the mean turn in radians, jump the longer of "
            "the first and the last segment."
        ],
    )
    picture = (
        "\n![Planned trajectories and samples](images/pdm-samples.png)\n\n"
        "The numbers above the rows of the figure are those of the trajectories it draws, 24 per map and on other "
        "seeds; the hit share is that of segments which enter an obstacle.\n"
    )
    return table.markdown().replace("## ", "### ") + picture


def by_inner_steps(settings: dict[str, dict[str, Any]], seeds: int) -> str:
    """Samples with few and many Langevin updates per level: a table and a figure."""
    rows: list[Row] = []
    drawing = Figure(figsize=(3.1 * len(INNER), 3.3 * len(settings)), layout="constrained")
    axes = drawing.subplots(len(settings), len(INNER), squeeze=False)
    for i, (name, options) in enumerate(settings.items()):
        for j, inner in enumerate(INNER):
            problem = domain("pdm", inner_steps=inner, **options).problem(range(seeds))
            sampler: Any = problem.sampler
            constraint: Any = problem.constraint
            circles = constraint.obstacles.circles if sampler.circles is None else sampler.circles
            x = sample(sampler, range(seeds))
            quality = trajectory_quality(x, circles)
            numbers = (quality.length, quality.roughness, quality.jump)
            cells = [Cell(float(v.mean()), float(v.std() / seeds**0.5)) for v in numbers]
            rows.append([name, inner, sampler.n_steps, *cells])
            draw(axes[i][j], x[:DRAWN], circles)
            axes[i][j].set_title(f"{name}, {inner} inner steps", fontsize=9)
    drawing.savefig(HERE / "images" / "pdm-inner-steps.png", dpi=110)
    table = Table(
        "inner",
        "Inner steps",
        ["Model", "inner steps", "updates", "length", "roughness", "jump"],
        rows,
        [f"Unconstrained samples, {seeds} seeds, mean ± standard error."],
    )
    picture = "\n![Samples by number of inner steps](images/pdm-inner-steps.png)\n"
    return table.markdown().replace("## ", "### ") + picture


def draw(axes: Any, x: Tensor, circles: Tensor) -> None:
    """States (n, 4, w) among circles (m, 3)."""
    from matplotlib.patches import Circle

    for cx, cy, r in circles.tolist():
        axes.add_patch(Circle((cx, cy), r, color="0.85", linewidth=0))
    for path in x[:, :2].double():
        axes.plot(path[0].tolist(), path[1].tolist(), linewidth=0.8)
    axes.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), aspect="equal", xticks=[], yticks=[])


def main() -> None:
    """Replace both parts of the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, help="a public PDM checkpoint")
    parser.add_argument("--circles", type=Path, help="its map")
    parser.add_argument("--seeds", type=int, default=32, help="samples per model and number of inner steps")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    settings: dict[str, dict[str, Any]] = {"shipped": {}}
    if arguments.checkpoint is not None:
        settings["public"] = {"checkpoint": str(arguments.checkpoint), "circles": str(arguments.circles)}
    renew("pdm.md", "samples", against_plans())
    renew("pdm.md", "inner", by_inner_steps(settings, arguments.seeds))


if __name__ == "__main__":
    main()
