"""What the batches of a study have in common: options of rollouts, and parts of their records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trimtab.core.arrays import map_leaves, pick
from trimtab.core.record import Closing, Rollout

__all__ = ["counting", "part_of"]


def counting(closing: Closing) -> dict[str, Any]:
    """Return the options of every rollout of a study: all defects measured, closing projection paid or free."""
    return {"closing": closing, "measure_defects": True}


def part_of(run: Rollout, rows: slice) -> Rollout:
    """Return some samples of a run, without its times and counts, which are of the whole batch."""
    first = {name: getattr(run, name)[rows] for name in ("closing", "closing_failed", "seeds")}
    names = ("defects", "residuals", "projected", "failed", "iterations")
    along = {name: getattr(run, name)[:, rows].contiguous() for name in names}
    states: dict[str, Any] = {"final": pick(run.final, rows)}
    if run.states is not None:
        states["states"] = map_leaves(lambda leaf: leaf[:, rows].contiguous(), run.states)
    closing = None if run.closing_iterations is None else run.closing_iterations[rows]
    extra = None if run.extra is None else run.extra[rows]
    ways = None if run.ways is None else run.ways[:, rows].contiguous()
    made = replace(run, **first, **along, **states, seconds={}, calls={}, rows={}, call_log=(), trials=None)
    return replace(made, closing_iterations=closing, extra=extra, ways=ways)
