"""Operating points to look at: the load of every line, and the grid as a picture."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trimtab.evaluation.domains.grid.case import CASES, Grid
from trimtab.evaluation.domains.grid.power import loadings, parts
from trimtab.evaluation.domains.grid.rated import load_grid

__all__ = ["draw_grid", "line_profile"]


def line_profile(x: Tensor) -> Tensor:
    """States (m, 2, d) as curves (m, lines, 2): numbers of lines from 1 on, and their loads as shares of ratings."""
    grid = next(grid for case in CASES if (grid := load_grid(case)).dimension == x.shape[-1])
    load = loadings(grid, x[:, 0].double())
    number = torch.arange(1, load.shape[1] + 1, dtype=load.dtype).expand_as(load)
    return torch.stack([number, load], dim=2)


def draw_grid(axes: Any, grid: Grid, x: Tensor) -> Any:
    """Draw an operating point, (d,): lines coloured by load, circles for loads, squares for generation, by their size.

    Returns:
        The coloured lines, for a colour bar.
    """
    from matplotlib.collections import LineCollection

    load = loadings(grid, x[None])[0]
    cut = parts(grid, x[None])
    ends = [[grid.places[bus] for bus in branch.ends] for branch in grid.branches]
    lines = LineCollection(ends, array=load.numpy(), cmap="viridis_r", clim=(0, 1), linewidths=3, zorder=1)
    axes.add_collection(lines)
    for buses, power, marker, colour in (
        (grid.load_buses, cut.load[0], "o", "#999999"),
        (grid.generator_buses, cut.generation[0], "s", "#D55E00"),
    ):
        at = [grid.places[bus] for bus in buses]
        sizes = [12 + 300 * max(0.0, float(p)) / float(cut.load.sum()) for p in power]
        axes.scatter([p[0] for p in at], [p[1] for p in at], s=sizes, marker=marker, color=colour, zorder=2, alpha=0.85)
    for bus, (px, py) in enumerate(grid.places):
        axes.annotate(str(bus + 1), (px, py), fontsize=7, ha="center", va="center", zorder=3)
    axes.set(xticks=[], yticks=[])
    axes.autoscale()
    axes.margins(0.08)
    return lines
