"""How figures look: one colour, line style and marker per schedule, and the settings of matplotlib."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from trimtab.advice.figure import COLUMN, FORMATS, LOOKS, PAGE, figure_of, format_of

__all__ = ["COLUMN", "FORMATS", "PAGE", "Drawing", "Look", "figure_style", "format_of", "label_of", "look_of"]


@dataclass(frozen=True)
class Look:
    """The style of a schedule in figures."""

    colour: str
    marker: str
    dashes: str | tuple[int, tuple[float, ...]] = "-"


# Okabe and Ito's colours suit colour-blind readers; markers and dashes suit print without colour
_LOOKS = {name: Look(*look) for name, look in LOOKS.items()} | {
    "adaptive:paper": Look("#0072B2", "D"),
    "adaptive:on-policy": Look("#009E73", "^"),
    "trimtab": Look("#CC79A7", "X"),
    "hindsight": Look("#5D3A9B", "*", (0, (2, 1))),
}
_LABELS = {f"adaptive:{method}": f"adaptive ({method})" for method in ("paper", "on-policy", "dp", "value")}
_SPARE = ("#8C564B", "#1B7837", "#999933", "#4D4D4D")


def look_of(key: str) -> Look:
    """Return the style of a schedule; an unknown key gets one that depends only on its name."""
    return _LOOKS.get(key) or Look(_SPARE[sum(key.encode()) % len(_SPARE)], ".")


def label_of(key: str) -> str:
    """Return the name of a schedule in figures and tables."""
    return _LABELS.get(key, key)


class Drawing:
    """A small replacement for pyplot that leaves the user's backend and open figures alone."""

    def __init__(self) -> None:
        """Import the parts of matplotlib that need no backend."""
        import matplotlib.collections
        import matplotlib.patches
        import matplotlib.ticker

        self.matplotlib: Any = matplotlib
        self.Circle, self.NullLocator = matplotlib.patches.Circle, matplotlib.ticker.NullLocator

    def figure(self, **settings: Any) -> Any:
        """Return a figure for files and notebooks."""
        return figure_of(**settings)

    def subplots(
        self, rows: int = 1, columns: int = 1, *, figsize: tuple[float, float], layout: Any = None, **settings: Any
    ) -> tuple[Any, Any]:
        """Return a figure and its axes, as `pyplot.subplots` does."""
        figure = self.figure(figsize=figsize, layout=layout)
        return figure, figure.subplots(rows, columns, **settings)


@contextmanager
def figure_style() -> Iterator[Drawing]:
    """Yield a `Drawing` with our settings; restore the user's afterwards."""
    import matplotlib

    settings: Any = {
        "font.family": "DejaVu Sans",
        "font.size": 8,
        "axes.titlesize": 8.5,
        "axes.labelsize": 8,
        "xtick.labelsize": 7,
        "ytick.labelsize": 7,
        "legend.fontsize": 7.5,
        "legend.frameon": False,
        "lines.linewidth": 1.4,
        "lines.markersize": 3.5,
        "axes.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#E4E4E4",
        "grid.linewidth": 0.5,
        "axes.axisbelow": True,
        "axes.formatter.limits": (-2, 4),
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
        "figure.dpi": 100,
        "savefig.dpi": 300,
        "savefig.facecolor": "white",
        "svg.hashsalt": "trimtab",
        "pdf.fonttype": 42,
    }
    with matplotlib.rc_context(settings):
        yield Drawing()
