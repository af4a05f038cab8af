"""Figures of advice and of comparisons: loss against budget and cost, and how long a correction lasts."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trimtab.advice.trials import WHOLE, Trial
from trimtab.core.files import write_atomically
from trimtab.schedules.style import COLUMN, FORMATS, PAGE, figure_style, format_of, look_of

__all__ = ["advice_figure", "comparison_figure"]

_DOTTED: dict[str, Any] = {"color": "#444444", "lw": 0.8, "ls": (0, (2, 2))}
_KEYS = {"periodic": "periodic", "window": "window", "first": "first", "planned": "planned", "adaptive": "adaptive:dp"}
_NAMES = {"periodic": "even spacing", "window": "last steps", "first": "first steps", "adaptive": "by price"}


def advice_figure(advice: Any, path: Path | None = None) -> Any:
    """Draw advice, and write it into a .png, .svg or .pdf file if there is a path."""
    return _drawn(lambda plt: _advice(plt, advice), path)


def comparison_figure(comparison: Any, measure: str, path: Path | None = None) -> Any:
    """Draw a measure of every schedule against its cost, and write it if there is a path."""
    return _drawn(lambda plt: _frontier(plt, comparison, measure), path)


def _drawn(draw: Callable[[Any], Any], path: Path | None) -> Any:
    ending = None if path is None else format_of(path)
    with figure_style() as plt:
        figure = draw(plt)
        if path is not None and ending is not None:
            options: dict[str, Any] = {"metadata": FORMATS[ending], "bbox_inches": "tight", "pad_inches": 0.05}
            write_atomically(path, lambda file: figure.savefig(file, format=ending, **options))
    return figure


def _advice(plt: Any, advice: Any) -> Any:
    m = advice.measured
    timed = m.unit == "seconds"
    figure, axes = plt.subplots(1, 3 if timed else 2, figsize=(PAGE if timed else PAGE * 0.72, 2.5))
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
        axis.plot([place(t) for t in others], [t.loss.mean for t in others], "x", color="#5D3A9B", label="cheaper or shared", zorder=4)
    ring: dict[str, Any] = {"marker": "o", "markersize": 10, "mfc": "none", "mec": "#B2182B", "mew": 1.5, "ls": "none"}
    axis.plot([place(advice.trial)], [advice.trial.loss.mean], label="recommended", zorder=5, **ring)


def _frontier(plt: Any, comparison: Any, measure: str) -> Any:
    figure, axis = plt.subplots(1, 1, figsize=(COLUMN * 1.4, 2.8))
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
    look = look_of(key)
    x, mean, low, high = (list(column) for column in zip(*points, strict=True))
    axis.plot(x, mean, color=look.colour, marker=look.marker, ls=look.dashes, label=label, zorder=3)
    known = [not math.isnan(end) for end in low]
    axis.fill_between(x, low, high, where=known, color=look.colour, alpha=0.2, lw=0)
