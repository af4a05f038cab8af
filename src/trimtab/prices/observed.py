"""What a learner keeps of a run: its traces, and what it cost."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trimtab.core.record import Rollout
from trimtab.prices.fit import Traces

__all__ = ["Spent", "as_traces", "spent_in", "work_per_sample"]


class Spent(NamedTuple):
    """What a run cost, in all: of samples, control samples, and pilots, which follow full projection.

    Attributes:
        samples: How many, (3,) for samples, control, pilots; each of the others likewise.
        corrections: Before the closing projection.
        work: Solver iterations, or corrections if the solver counts none, the closing projection included.
        closing: The part of it that the closing projection takes.
        trials: What was tried beside.
        calls: Of the solver, for all samples together.
        steps: At how many steps some sample was corrected.
        seconds: In the solver.
        missing: Samples whose quality is NaN or infinite.
    """

    samples: list[int]
    corrections: list[float]
    work: list[float]
    closing: list[float]
    trials: float
    calls: int
    steps: int
    seconds: float
    missing: int = 0


def work_per_sample(run: Rollout, counted: bool) -> Tensor:
    """Return the work of each sample, (n,): solver iterations if they are counted, or projections."""
    return (run.all_iterations if counted else run.projected.sum(dim=0) + run.closing).cpu().double()


def as_traces(run: Rollout, ways: Tensor, work: Tensor, n_choices: int) -> Traces:
    """Return the traces of a run, whose tried outcomes name ways as the run does."""
    trials, nothing = run.trials, torch.zeros(5, 0, dtype=torch.float64)
    tried = nothing if trials is None else torch.stack([part.double().cpu() for part in trials[:5]])
    kept = (part[:n_choices].detach().cpu() for part in (run.residuals, ways, work.int()))
    return Traces(run.defects.detach().cpu().double(), *kept, tried)  # type: ignore[call-arg]


def spent_in(run: Rollout, groups: list[Tensor], counted: bool) -> Spent:
    """Return what a run cost, by groups of rows, in iterations if they are counted."""
    steps = run.projected[:-1] if run.closing_rule == "paid" else run.projected
    work = run.iterations if counted else run.projected
    closing = run.closing_iterations if run.closing_iterations is not None and counted else run.closing
    closing = closing + (work[-1] if run.closing_rule == "paid" else 0)
    total = work.sum(dim=0) + (closing if run.closing_rule != "paid" else 0)
    by_row = (steps.sum(dim=0), total, closing)
    sums = [[float(part.cpu()[rows].sum()) for rows in groups] for part in by_row]
    count = [int(torch.zeros(run.projected.shape[1])[rows].numel()) for rows in groups]
    tried = 0.0 if run.trials is None else float(run.trials.work.sum())
    called = int(run.projected.any(dim=1).sum())
    done, paid, closed = sums
    return Spent(count, done, paid, closed, tried, run.calls["projection"], called, run.seconds["projection"])
