"""The tables and the figure of docs/effort.md, from what docs/make_effort.py measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from _page import HERE
from trimtab.schedules.style import figure_style, look_of

__all__ = ["SHARES", "draw", "ends_table", "seconds_table", "table"]

SHARES = (0.1, 0.25, 0.5)
BY_PRICE = (
    "whole, dp for path",
    "whole, default",
    "repeat for path",
    "repeat for endpoint",
    "iterations, default",
    "mean budget for endpoint",
)
BASELINES = (
    "whole, evenly",
    "whole, last steps",
    "whole, best window",
    "whole, geometric",
    "whole, random ramp",
    "whole, accumulated defect",
    "whole, event with a gap",
    "whole, above noise",
    "whole, until below",
    "one iteration, evenly",
    "inexact at every step",
    "one tau",
)
METHODS = (*BASELINES, *BY_PRICE)
DRAWN = {  # the schedule whose look it has; whole projections are dashed
    "whole, evenly": "periodic",
    "one iteration, evenly": "periodic",
    "whole, default": "raced",
    "iterations, default": "raced",
    "repeat for path": "repeat",
    "one tau": "one tau",
}
Row = dict[str, Any]
MEASURES: dict[str, tuple[Callable[[Row], float], Callable[[Row], str]]] = {
    "NEPE": (lambda row: row["NEPE"][0], lambda row: f"{row['NEPE'][0]:.3f}"),
    "median endpoint": (lambda row: row["median"], lambda row: f"{row['median']:.1e}"),
    "mean endpoint": (
        lambda row: row["endpoint"][0],
        lambda row: f"{row['endpoint'][0]:.2g} ± {row['endpoint'][1]:.1g}",
    ),
}


def table(cells: dict[str, Any]) -> str:
    """Errors at equal cost, one table per domain."""
    shown = {name: cell for name, cell in cells.items() if cell["rows"]}
    return "\n\n".join(f"**{name}**\n\n{_one_table(cell)}" for name, cell in shown.items())


def _one_table(cell: dict[str, Any]) -> str:
    columns = [(share, name) for share in SHARES for name in MEASURES]
    lines = ["| way | " + " | ".join(f"{share:.0%}: {name}" for share, name in columns) + " |"]
    lines.append("|---" * (1 + len(columns)) + "|")
    found = {(row["share"], row["method"]): row for row in cell["rows"]}
    best = {
        (share, name): min(
            (MEASURES[name][0](row) for (s, _), row in found.items() if s == share and not _off(row)), default=None
        )
        for share, name in columns
    }
    for method in METHODS:
        texts = []
        for share, name in columns:
            row = found.get((share, method))
            if row is None:
                texts.append("out of reach")
                continue
            value, text = MEASURES[name]
            shown = f"**{text(row)}**" if not _off(row) and value(row) == best[share, name] else text(row)
            first = name == next(iter(MEASURES))
            texts.append(f"{shown} ({row['cost']:.0%})" if first and _off(row) else shown)
        lines.append(f"| {method} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def _off(row: Row) -> bool:
    """Whether a run cost something else than it was to cost: told in brackets, and not the best of a column."""
    return bool(abs(row["cost"] - row["share"]) > 0.15 * row["share"])


def ends_table(cells: dict[str, Any]) -> str:
    """What full projection takes, and the simplest ways to take less."""
    lines = [
        "| domain | iterations of full projection, per step | one iteration at every step: cost, NEPE, "
        "endpoint | two iterations at every step | at the end alone: NEPE, endpoint |",
        "|---|---|---|---|---|",
    ]
    for name, cell in cells.items():
        each = [cell["ends"].get(f"{number} at every step") for number in ("one iteration", "two iterations")]
        shown = [
            f"{end['cost']:.0%}, {end['NEPE'][0]:.3f}, {end['endpoint'][0]:.2g}" if end else "not measured"
            for end in each
        ]
        end = cell["ends"]["terminal"]
        shown.append(f"{end['NEPE'][0]:.3f}, {end['endpoint'][0]:.2g}")
        lines.append(f"| {name} | {cell['iterations'] / cell['steps']:.2f} | " + " | ".join(shown) + " |")
    judged = {name: cell["ends"] for name, cell in cells.items() if "length" in cell["ends"]["full"]}
    for name, ends in judged.items():
        told = [f"{end} {row['length'][0]:.3f} ± {row['length'][1]:.3f}" for end, row in ends.items()]
        lines += ["", f"Length of the final trajectories of {name}: {', '.join(told)}."]
    return "\n".join(lines)


def seconds_table(cells: dict[str, Any]) -> str:
    """Iterations and seconds side by side, as shares of those of full projection."""
    timed_ones = {name: cell["timing"] for name, cell in cells.items() if "timing" in cell}
    ways = [row["way"] for row in next(iter(timed_ones.values()))]
    lines = ["| domain | " + " | ".join(ways) + " |", "|---|" + "---|" * len(ways)]
    for name, rows in timed_ones.items():
        shown = [f"{row['cost']:.0%} / {row['seconds']:.0%}" for row in rows]
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def draw(cells: dict[str, Any]) -> None:
    """The median distance of final states against what was spent."""
    cells = {name: cell for name, cell in cells.items() if cell["rows"]}
    with figure_style() as plt:
        figure, axes = plt.subplots(1, len(cells), figsize=(2.7 * len(cells), 3.4), squeeze=False, layout="constrained")
        for axis, (name, cell) in zip(axes[0], cells.items(), strict=True):
            for method, key in DRAWN.items():
                rows = [row for row in cell["rows"] if row["method"] == method]
                look, dashes = look_of(key), "--" if method.startswith("whole") else "-"
                costs, ends = [row["cost"] for row in rows], [row["median"] for row in rows]
                axis.plot(costs, ends, ls=dashes, color=look.colour, marker=look.marker, label=method)
            axis.set(title=name, xlabel="iterations, share of full", yscale="log")
        axes[0][0].set_ylabel("median endpoint distance")
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        figure.savefig(HERE / "images" / "effort.svg", metadata={"Date": None})
