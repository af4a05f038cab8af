"""Advice as a figure: what each budget loses, what that costs, and how long a correction lasts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from trimtab.advice.measured import Recommendation
from trimtab.advice.trial import Trial
from trimtab.core.files import write_atomically
from trimtab.schedules.style import FORMATS, PAGE, figure_style, format_of, look_of

__all__ = ["advice_figure"]

_DOTTED: dict[str, Any] = {"color": "#444444", "lw": 0.8, "ls": (0, (2, 2))}
_KEYS = {"periodic": "periodic", "window": "window", "planned": "planned", "adaptive": "adaptive:dp"}


def advice_figure(advice: Recommendation, path: Path | None = None) -> Any:
    """Draw it, and write it into a .png, .svg or .pdf file if there is a path."""
    ending = None if path is None else format_of(path)
    with figure_style() as plt:
        figure = draw_advice(plt, advice)
        if path is not None and ending is not None:
            options: dict[str, Any] = {"metadata": FORMATS[ending], "bbox_inches": "tight", "pad_inches": 0.05}
            write_atomically(path, lambda file: figure.savefig(file, format=ending, **options))
    return figure


def draw_advice(plt: Any, advice: Recommendation) -> Any:
    """Loss against budget, against time if it was asked for, and how long a correction lasts."""
    m = advice.measured
    timed = m.unit == "seconds"
    figure, axes = plt.subplots(1, 3 if timed else 2, figsize=(PAGE if timed else PAGE * 0.72, 2.5))
    left, right = axes[0], axes[-1]
    _curves(left, advice, lambda trial: trial.budget / m.n_steps)
    left.set_xlabel("budget B/T")
    left.set_ylabel("loss (0 full projection, 1 terminal)")
    if timed:
        _curves(axes[1], advice, lambda trial: trial.seconds * 1e3)
        axes[1].set_xlabel("ms per sample")
        if m.limit is not None:
            axes[1].axvline(m.limit * 1e3, **_DOTTED)
    for axis in axes[:-1]:
        axis.set_ylim(bottom=0)
        if m.tolerance is not None:
            axis.axhline(m.tolerance, **_DOTTED)
    if m.tolerance is not None:
        words: dict[str, Any] = {"fontsize": 6.5, "ha": "right", "va": "bottom", "color": "#444444"}
        left.annotate(f"tolerance {m.tolerance:g}", (1.0, m.tolerance), **words)
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


def _curves(axis: Any, advice: Recommendation, place: Callable[[Trial], float]) -> None:
    m = advice.measured
    for kind, key in _KEYS.items():
        trials = m.of(kind)
        if len(trials) == 2:  # the ends alone: this kind was not measured
            continue
        look = look_of(key)
        x = [place(trial) for trial in trials]
        axis.plot(
            x,
            [t.loss.mean for t in trials],
            color=look.colour,
            marker=look.marker,
            ls=look.dashes,
            label=kind,
            zorder=3,
        )
        axis.fill_between(
            x, [t.loss.low for t in trials], [t.loss.high for t in trials], color=look.colour, alpha=0.2, lw=0
        )
    chosen = [t for t in (m.terminal, m.stepwise, *m.trials) if t.kind == advice.kind and t.budget == advice.budget]
    axis.plot(
        [place(chosen[0])], [chosen[0].loss.mean], marker="o", markersize=10, mfc="none", mec="#B2182B", mew=1.5,
        ls="none", label="recommended", zorder=5,
    )  # fmt: skip
