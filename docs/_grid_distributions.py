"""The tables of docs/grid.md on final samples as distributions, from what docs/make_grid.py measured."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from trimtab.core.distributions import compare_samples, energy_excess
from trimtab.core.metrics import Summary
from trimtab.evaluation.domains.grid.domain import features
from trimtab.evaluation.domains.grid.model import shipped_model
from trimtab.evaluation.domains.grid.power import load_grid, loadings
from trimtab.evaluation.report.formats import Cell, Table

__all__ = ["distribution", "excess"]

Found = dict[tuple[str, float], dict[str, Tensor]]
Row = list[str | int | Cell]
STEPWISE = ("stepwise", 1.0)


def kinds_of(case: str, real: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
    """By name, from states (n, d) to what is compared of them."""
    grid, model = load_grid(case), shipped_model(case)
    seen = features(grid, real)
    unlike = seen.std(dim=0) > 1e-9  # a voltage that is held has no spread to be measured by
    return {
        "loadings and voltages": lambda x: features(grid, x),
        "loadings": lambda x: loadings(grid, x),
        "loadings and voltages, each in its standard deviation": (
            lambda x: features(grid, x)[:, unlike] / seen.std(dim=0)[unlike]
        ),
        "the whole state": model.standardise,
    }


def distribution(case: str, found: Found, real: Tensor) -> Table:
    """How far the final samples are from true operating points, in four kinds of numbers."""
    kinds = kinds_of(case, real)
    rows: list[Row] = []
    floors: dict[str, str] = {}
    for (name, budget), content in found.items():
        row: Row = [name, f"{budget:g}"]
        for kind, embed in kinds.items():
            near = compare_samples(content["final"][:, 0], real, embed=embed, shift=0.0, called="true points")
            row += [Cell(near.value), Cell(near.p)]
            floors[kind] = f"{kind} {near.floor:.4f} (95%: {near.floor_high:.4f})"
        rows.append(row)
    columns = ["Schedule", "B/T", *(text for kind in kinds for text in (kind, "p"))]
    notes = [
        f"Energy distance, a root, of {len(found[STEPWISE]['final'])} samples to {len(real)} true operating points "
        "with demands of their own, drawn alike. The whole state: all its numbers in units of the model's standard "
        "deviations.",
        f"Noise floors with so many samples: {'; '.join(floors.values())}.",
    ]
    return Table("distribution", f"{case}: final samples as distributions", columns, rows, notes)


def excess(case: str, found: Found, real: Tensor) -> Table:
    """The same without what noise adds: unbiased squares, and how much farther than stepwise samples."""
    rows: list[Row] = []
    for (name, budget), content in found.items():
        row: Row = [name, f"{budget:g}"]
        for embed in kinds_of(case, real).values():
            samples, stepwise = (embed(one["final"][:, 0]) for one in (content, found[STEPWISE]))
            truth = embed(real)
            row.append(_cell(energy_excess(samples, truth)))
            row.append(_cell(energy_excess(samples, truth, less=stepwise)))
        rows.append(row)
    columns = ["Schedule", "B/T"]
    for kind in kinds_of(case, real):
        columns += [kind, "less stepwise's"]
    notes = [
        "Squared energy distance, unbiased: it is 0 on average where nothing differs, and may fall below. ± is the "
        "standard error by leaving out one sample at a time; that of a difference is of paired samples."
    ]
    return Table("excess", f"{case}: the same without the noise floor", columns, rows, notes)


def _cell(found: Summary) -> Cell:
    return Cell(found.mean, found.se)
