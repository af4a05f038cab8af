"""Figures of advice and of comparisons: loss against budget and cost, and how long a correction lasts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trimtab.advice.trials import WHOLE, Trial
from trimtab.core.checks import missing_extra
from trimtab.core.files import write_atomically

__all__ = ["COLUMN", "FORMATS", "LOOKS", "PAGE", "advice_figure", "comparison_figure", "figure_of", "format_of"]

COLUMN, PAGE = 3.4, 7.0
"""Widths of figures in one column and across the page, in inches."""

FORMATS: dict[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""File endings of figures, each with the metadata that keeps the date out of the file."""

LOOKS: dict[str, tuple[str, str, Any]] = {
    "terminal": ("#B2182B", "v", (0, (1, 1.2))),
    "stepwise": ("#000000", "s", (0, (4, 1.5))),
    "periodic": ("#E69F00", "o", (0, (3, 1))),
    "adaptive:dp": ("#D55E00", "P", "-"),
    "planned": ("#56B4E9", "h", (0, (5, 1, 1, 1))),
    "first": ("#1B7837", "<", (0, (1, 1))),
    "window": ("#8C564B", ">", (0, (6, 1))),
}
"""Colour, marker and dashes of a schedule: of Okabe and Ito, which suit colour-blind readers and print."""

_SPARE = ("#8C564B", "#1B7837", "#999933", "#4D4D4D")

_DOTTED: dict[str, Any] = {"color": "#444444", "lw": 0.8, "ls": (0, (2, 2))}
_KEYS = {"periodic": "periodic", "window": "window", "first": "first", "planned": "planned", "adaptive": "adaptive:dp"}
_NAMES = {"periodic": "even spacing", "window": "last steps", "first": "first steps", "adaptive": "by price"}


def advice_figure(advice: Any, path: Path | None = None) -> Any:
    """Draw advice, and write it into a .png, .svg or .pdf file if there is a path."""
    return _drawn(lambda: _advice(advice), path)


def comparison_figure(comparison: Any, measure: str, path: Path | None = None) -> Any:
    """Draw a measure of every schedule against its cost, and write it if there is a path."""
    return _drawn(lambda: _frontier(comparison, measure), path)


def format_of(path: Path) -> str:
    """Return the format of a figure file from its ending.

    Example:
        >>> format_of(Path("advice.svg"))
        'svg'
    """
    name = path.suffix.removeprefix(".")
    if name not in FORMATS:
        raise ValueError(f"{path}: a plot must be a .png, .svg or .pdf file")
    return name


def figure_of(**settings: Any) -> Any:
    """Return a matplotlib figure for files and notebooks, which leaves the user's backend and open figures alone."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(**settings)
    FigureCanvasAgg(figure)
    return figure


@contextmanager
def _style() -> Iterator[None]:
    """Draw with small fonts and a light grid; the user's settings come back afterwards."""
    try:
        import matplotlib
    except ImportError as error:
        raise missing_extra("matplotlib", "plot", "drawing figures") from error
    settings: Any = {"font.size": 8, "xtick.labelsize": 7, "ytick.labelsize": 7, "legend.frameon": False}
    settings |= {"lines.linewidth": 1.4, "lines.markersize": 3.5, "axes.spines.top": False, "axes.spines.right": False}
    settings |= {"axes.grid": True, "grid.color": "#E4E4E4", "grid.linewidth": 0.5, "axes.axisbelow": True}
    settings |= {"savefig.dpi": 300, "savefig.facecolor": "white", "svg.hashsalt": "trimtab"}
    with matplotlib.rc_context(settings):
        yield


def _drawn(draw: Callable[[], Any], path: Path | None) -> Any:
    ending = None if path is None else format_of(path)
    with _style():
        figure = draw()
        if path is not None and ending is not None:
            options: dict[str, Any] = {"metadata": FORMATS[ending], "bbox_inches": "tight", "pad_inches": 0.05}
            write_atomically(path, lambda file: figure.savefig(file, format=ending, **options))
    return figure


def _advice(advice: Any) -> Any:
    m = advice.measured
    timed = m.unit == "seconds"
    figure = figure_of(figsize=(PAGE if timed else PAGE * 0.72, 2.5))
    axes = figure.subplots(1, 3 if timed else 2)
    left, right = axes[0], axes[-1]
    _curves(left, advice, lambda trial: trial.cost("iterations") if m.unit == "iterations" else trial.projections)
    left.set_xlabel("iterations per sample" if m.unit == "iterations" else "projections per sample")
    left.set_ylabel("loss (0 is full projection)")
    if timed:
        _curves(axes[1], advice, lambda trial: trial.seconds * 1e3)
        axes[1].set_xlabel("ms per sample")
        if m.goal.limit is not None:
            axes[1].axvline(m.goal.limit * 1e3, **_DOTTED)
    for axis in axes[:-1]:
        axis.axhline(m.goal.tolerance, **_DOTTED)
    if m.effects is not None:
        share = m.effects.survival.numpy()
        right.plot(range(len(share)), share, color="#444444", marker=".")
        right.axhline(0.5, **_DOTTED)
        right.set_xlim(0, max(8, min(len(share) - 1, 4 * m.effects.half_life)))
        right.set_ylim(min(0.0, float(share.min())), 1.05)
    right.set_xlabel("steps after a correction")
    right.set_ylabel("share of its benefit left")
    handles, labels = left.get_legend_handles_labels()
    figure.tight_layout(rect=(0, 0, 1, 0.92))
    figure.legend(handles, labels, loc="upper center", ncols=len(labels), columnspacing=1.5)
    return figure


def _curves(axis: Any, advice: Any, place: Callable[[Trial], float]) -> None:
    m = advice.measured
    for times, key in _KEYS.items():
        tried = [t for t in m.trials if t.times == times and t.way == WHOLE and not t.candidate.shared]
        if tried:
            trials = sorted([m.terminal, *tried, m.stepwise], key=lambda trial: trial.budget)
            points = [(place(t), t.loss.mean, t.loss.low, t.loss.high) for t in trials]
            _curve(axis, key, _NAMES.get(times, times), points)
    others = [t for t in m.trials if t.way != WHOLE or t.candidate.shared]
    if others:
        axis.plot(
            [place(t) for t in others],
            [t.loss.mean for t in others],
            "x",
            color="#5D3A9B",
            label="cheaper or shared",
            zorder=4,
        )
    ring: dict[str, Any] = {"marker": "o", "markersize": 10, "mfc": "none", "mec": "#B2182B", "mew": 1.5, "ls": "none"}
    axis.plot([place(advice.trial)], [advice.trial.loss.mean], label="recommended", zorder=5, **ring)


def _frontier(comparison: Any, measure: str) -> Any:
    figure = figure_of(figsize=(COLUMN * 1.4, 2.8))
    axis = figure.subplots()
    iterates = comparison.iterates
    lines: dict[str, list[tuple[float, float, float, float]]] = {}
    for row in sorted(comparison.rows, key=lambda one: one.iterations if iterates else one.projections):
        found = row.mean(measure)
        cost = row.iterations if iterates else row.projections
        lines.setdefault(row.name, []).append((cost, found.mean, found.low, found.high))
    for name, points in lines.items():
        _curve(axis, name, name, points)
    axis.set_xlabel("solver iterations per sample" if iterates else "projections per sample")
    axis.set_ylabel(measure)
    figure.tight_layout(rect=(0, 0, 1, 0.9))
    figure.legend(*axis.get_legend_handles_labels(), loc="upper center", ncols=min(4, len(lines)))
    return figure


def _curve(axis: Any, key: str, label: str, points: list[tuple[float, float, float, float]]) -> None:
    """Draw a line through means, with a band for the intervals that are known."""
    colour, marker, dashes = LOOKS.get(key) or (_SPARE[sum(key.encode()) % len(_SPARE)], ".", "-")
    x, mean, low, high = (list(column) for column in zip(*points, strict=True))
    axis.plot(x, mean, color=colour, marker=marker, ls=dashes, label=label, zorder=3)
    known = [not math.isnan(end) for end in low]
    axis.fill_between(x, low, high, where=known, color=colour, alpha=0.2, lw=0)
