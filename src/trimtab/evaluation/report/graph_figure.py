"""Final states on a network under several schedules: how full each edge is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trimtab.evaluation.studies.config import Study
from trimtab.evaluation.studies.traces import Trace
from trimtab.schedules.style import PAGE, label_of

__all__ = ["networks"]


def networks(plt: Any, traces: Mapping[tuple[str, float], Trace], graph: Mapping[str, Any], study: Study) -> Any:
    """One seed's final state under each schedule, edges coloured by their load; the first example's.

    Below each, the largest difference of an edge's load from that of the stepwise sample.
    """
    wanted = [("terminal", 0.0), *((key, study.table_budget) for key in ("periodic", "adaptive:paper", "adaptive:dp"))]
    shown = [which for which in (*wanted, ("stepwise", 1.0)) if which in traces]
    places = np.asarray(graph["places"], dtype=float)
    ends = [places[list(edge)] for edge in graph["edges"]]
    reference = traces["stepwise", 1.0].path[:, 0, 1].numpy()
    figure, axes = plt.subplots(1, len(shown), figsize=(PAGE, 1.9), squeeze=False)
    for axis, which in zip(axes[0], shown, strict=True):
        loads = traces[which].path[:, 0, 1].numpy()
        lines = plt.matplotlib.collections.LineCollection(
            ends, array=loads, cmap="viridis_r", clim=(0, 1), linewidths=2.2, zorder=1
        )
        axis.add_collection(lines)
        axis.scatter(*places.T, s=7, color="white", edgecolors="#444444", linewidths=0.7, zorder=2)
        axis.set_title(label_of(which[0]) + ("" if which[1] in (0.0, 1.0) else f"\nB/T = {which[1]:g}"), fontsize=7.5)
        far = float(np.abs(loads - reference).max())
        axis.set_xlabel("the reference" if which[0] == "stepwise" else f"{far:.1%} off at most", fontsize=7)
        axis.set(xticks=[], yticks=[])
        axis.grid(False)
        axis.margins(0.08)
        for side in axis.spines.values():
            side.set_visible(False)
    figure.colorbar(lines, ax=axes[0].tolist(), label="share of a rating", shrink=0.75, pad=0.02)
    return figure
