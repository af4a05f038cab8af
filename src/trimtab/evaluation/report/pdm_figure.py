"""The trajectory sampler under several schedules: what it made, where it collided on the way, when it was projected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trimtab.constraints.obstacles.geometry import Obstacles, gaps
from trimtab.evaluation.studies.config import Study
from trimtab.evaluation.studies.traces import Trace
from trimtab.schedules.style import PAGE, label_of, look_of

__all__ = ["colliding", "trajectories"]

_COLLISION = "#E3120B"
_TOLERANCE = 1e-3  # penetration below this is the solver's own


def trajectories(
    plt: Any, traces: Mapping[tuple[str, float], Trace], circles: Sequence[Sequence[float]], study: Study
) -> Any:
    """One seed's trajectories under each schedule, with a raster of its projections and collisions below.

    The seed is the one of the examples that collides most if left alone. Thin lines are states kept in the second half
    of the rollout, the heavy one is the final state; what lies inside an obstacle is red.
    """
    wanted = [("terminal", 0.0), *((key, study.table_budget) for key in ("periodic", "adaptive:paper", "adaptive:dp"))]
    shown = [which for which in (*wanted, ("stepwise", 1.0)) if which in traces]
    late = traces["terminal", 0.0].defects
    seed = int(late[len(late) // 2 :].sum(dim=0).argmax())
    wide = PAGE / (len(shown) + 0.5)  # of one map, which is square; half of one is left for the words on the left
    figure, axes = plt.subplots(
        2, len(shown), figsize=(PAGE, wide + 1.05), squeeze=False,
        gridspec_kw={"height_ratios": (wide, 0.36), "hspace": 0.06, "wspace": 0.06},
    )  # fmt: skip
    figure.subplots_adjust(
        left=0.45 / (len(shown) + 0.5), right=0.995, top=1 - 0.36 / (wide + 1.05), bottom=0.36 / (wide + 1.05)
    )
    for i, which in enumerate(shown):
        trace, (upper, lower) = traces[which], axes[:, i]
        _draw_paths(plt, upper, trace, seed, np.asarray(circles))
        count = int(trace.projected[:, seed].sum())
        upper.set_title(
            f"{label_of(which[0])}\n{count} projections" if count else f"{label_of(which[0])}\nonly at the end"
        )
        _draw_raster(lower, trace, seed, look_of(which[0]).colour)
    axes[1, 0].set_yticks([0, 1], ["projected", "in collision"])
    words = (
        "heavy: final trajectory   thin: states kept on the way   red: inside an obstacle   ○ start   $\\times$ goal"
    )
    figure.text(
        0.5, 0.0, f"{words}   ticks: updates 1 to {len(trace.projected)}", ha="center", fontsize=7, color="#444444"
    )
    return figure


def _draw_paths(plt: Any, axis: Any, trace: Trace, seed: int, circles: NDArray[Any]) -> None:
    from matplotlib.collections import LineCollection

    assert trace.along is not None
    for x, y, r in circles:
        axis.add_patch(plt.Circle((x, y), r, color="#CFCFCF", lw=0, zorder=1))
    kept = trace.along[len(trace.along) // 2 :, :, seed].numpy()
    final = trace.path[:, seed].numpy()
    for path, colour, width, opacity in [*((p, "#8A8A8A", 0.5, 0.55) for p in kept), (final, "#111111", 1.4, 1.0)]:
        pieces = np.stack([path[:-1], path[1:]], axis=1)
        hit = colliding(path, circles)
        axis.add_collection(LineCollection(pieces[~hit], colors=colour, lw=width, alpha=opacity, zorder=2 + width))
        axis.add_collection(LineCollection(pieces[hit], colors=_COLLISION, lw=max(0.9, width), zorder=3 + width))
    axis.plot(*final[0], marker="o", color="white", markeredgecolor="#111111", markersize=4, ls="none", zorder=6)
    axis.plot(*final[-1], marker="X", color="#111111", markeredgecolor="white", markersize=5.5, ls="none", zorder=6)
    axis.set(xlim=(-1.03, 1.03), ylim=(-1.03, 1.03), aspect="equal", xticks=[], yticks=[])
    axis.grid(False)
    axis.spines[:].set_visible(True)
    axis.spines[:].set_color("#BBBBBB")


def _draw_raster(axis: Any, trace: Trace, seed: int, colour: str) -> None:
    projected = trace.projected[:, seed].numpy()
    inside = (trace.defects[:, seed].numpy() > _TOLERANCE) & ~projected
    steps = np.arange(1, len(projected) + 1)
    axis.vlines(steps[projected], -0.38, 0.38, color=colour, lw=0.7)
    axis.vlines(steps[inside], 0.62, 1.38, color=_COLLISION, lw=0.7, alpha=0.75)
    axis.set(xlim=(0, len(projected) + 1), ylim=(1.5, -0.5), yticks=[], xticks=[1, len(projected)])
    for label, side in zip(axis.get_xticklabels(), ("left", "right"), strict=True):
        label.set_horizontalalignment(side)  # so that neighbours do not touch
    axis.grid(False)
    axis.spines["left"].set_visible(False)
    axis.tick_params(axis="y", length=0)


def colliding(path: NDArray[Any], circles: NDArray[Any]) -> NDArray[Any]:
    """Which segments of a path (w, 2) enter a circle of (m, 3): (w - 1,) bool."""
    ends = torch.from_numpy(np.ascontiguousarray(path.T, dtype=np.float64))
    gap = gaps(Obstacles(torch.from_numpy(circles.astype(np.float64))), ends[:, :-1], ends[:, 1:])
    return np.asarray((gap < -_TOLERANCE).any(dim=0))
