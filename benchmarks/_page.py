"""The page of results: the table in `docs/performance.md`, and the plots of how cost grows."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

from _runner import Row, table, write_text
from trimtab.core.checks import missing_extra

__all__ = ["BEGIN", "END", "growth_figure", "renew_page", "renewed"]

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
_GROWTH = "cost-growth.svg"


def renew_page(page: Path, rows: list[Row], facts: dict[str, str]) -> None:
    """Put the table between the markers of `page`, and the plots into `cost-growth.svg` beside it."""
    text = renewed(page.read_text(encoding="utf-8"), rows, facts)
    series = [one for row in rows for one in row.get("series", ())]
    if series:
        write_text(page.with_name(_GROWTH), growth_figure(series))
    write_text(page, text)


def renewed(text: str, rows: list[Row], facts: dict[str, str]) -> str:
    r"""The page's text with a new table between its markers.

    Example:
        >>> print(renewed("Speed\n<!-- bench:begin -->\nold\n<!-- bench:end -->", [], {"torch": "2"}))
        Speed
        <!-- bench:begin -->
        | claim | against | ratio | interval | target | met | inputs |
        | --- | --- | --- | --- | --- | --- | --- |
        <BLANKLINE>
        Measured with torch 2.
        <!-- bench:end -->
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(END) < text.index(BEGIN):
        raise ValueError(f"the page needs one line {BEGIN} and after it one line {END}, to put the table between")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    measured = ", ".join(f"{key} {value}" for key, value in facts.items())
    return f"{before}{BEGIN}\n{table(rows, markdown=True)}\n\nMeasured with {measured}.\n{END}{after}"


def growth_figure(series: list[dict[str, Any]]) -> str:
    """An SVG drawing: one panel for each quantity on the x axis, logarithmic, with a line of slope one to compare."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_extra("matplotlib", "studies", "the plots") from error
    panels = list(dict.fromkeys((one["x"], one.get("y", "seconds")) for one in series))
    columns = min(len(panels), 3)
    figure = Figure(figsize=(4.2 * columns, 3.4 * math.ceil(len(panels) / columns)), layout="constrained")
    for i, (x_name, y_name) in enumerate(panels):
        axes = figure.add_subplot(math.ceil(len(panels) / columns), columns, i + 1)
        here = [one for one in series if (one["x"], one.get("y", "seconds")) == (x_name, y_name)]
        for one in here:
            xs, ys = zip(*one["points"], strict=True)
            axes.loglog(xs, ys, "o-", markersize=4, label=one["label"])
        (x0, _), (x1, y1) = here[0]["points"][0], here[0]["points"][-1]
        axes.loglog([x0, x1], [y1 * x0 / x1, y1], "--", color="0.6", linewidth=1, label="linear")
        sizes = sorted({x for one in here for x, _ in one["points"]})
        axes.set_xticks(sizes, [f"{x:,}" for x in sizes], rotation=45, fontsize=8)
        axes.set_xticks([], minor=True)
        axes.set_xlabel(x_name)
        axes.set_ylabel(y_name)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "trimtab", "svg.fonttype": "path"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()
