"""Calibration rollouts that several methods ask for: run once, all side by side, and handed out again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from trimtab.core.arrays import map_leaves, pick
from trimtab.core.noise import as_seeds
from trimtab.core.record import Closing, Rollout
from trimtab.core.runner import RunBatch
from trimtab.core.schedule import Schedule, Watched
from trimtab.core.view import StepView
from trimtab.evaluation.domains.base import Problem
from trimtab.prices.collect import Explore, spread_budgets
from trimtab.schedules import Terminal

__all__ = ["counting", "explore", "first_of", "n_deciders", "part_of", "replicate_problem", "runs_from"]

_RANDOM_BATCHES = 3  # the most that any method asks for


def counting(closing: Closing) -> dict[str, Any]:
    """How rollouts of a study are run: with the defects of all steps, and the closing projection counted or apart."""
    return {"closing": closing, "measure_defects": True}


def asked_for(n: int, n_steps: int, closing: Closing) -> list[Schedule]:
    """What the methods of `calibrate` run first, whatever they see, for all budgets up to T."""
    closing_reserve = int(closing == "paid")
    choices = n_steps - closing_reserve
    budgets = [closing_reserve + spread_budgets(n, choices, choices, seed=k) for k in range(_RANDOM_BATCHES)]
    return [Terminal(), *(Explore(budget, seed=k) for k, budget in enumerate(budgets))]


def replicate_problem(problem: Callable[[Tensor], Problem], seeds: Tensor, times: int) -> Problem:
    """The seeds `times` over in one problem, the groups of each time apart from those of the others.

    Only decisions are kept apart here: a sampler or constraint that couples rows by their seeds would couple those of
    all times, which `trimtab.evaluation.studies.probe.probe_side_by_side` refuses.
    """
    made = problem(seeds.repeat(times))
    return made if made.groups is None else replace(made, groups=made.groups.apart(times))


def first_of(problem: Callable[[Tensor], Problem], seeds: Tensor, most: int) -> Tensor:
    """The first of the seeds, no more than `most`, in whole groups; a first group that is larger comes whole.

    Args:
        problem: Makes the problem for seeds.
        seeds: Those to choose from, (n,); the samples of a group follow each other.
        most: How many are wanted.
    """
    groups = problem(seeds).groups
    if groups is None or len(seeds) <= most:
        return seeds[:most]
    changes = (groups.labels.diff() != 0).nonzero().squeeze(1) + 1
    ends = [*changes.tolist(), len(seeds)]
    return seeds[: max((end for end in ends if end <= most), default=ends[0])]


def n_deciders(problem: Problem) -> int:
    """How many things are decided on: samples, or groups of them."""
    return len(problem) if problem.groups is None else problem.groups.n


def explore(problem: Callable[[Tensor], Problem], seeds: Iterable[int] | Tensor, closing: Closing) -> Rollout:
    """Run all of `asked_for` side by side: the seeds once for each, one after the other."""
    seeds = as_seeds(seeds)
    alone = problem(seeds)
    schedules = asked_for(n_deciders(alone), alone.sampler.n_steps, closing)
    made = replicate_problem(problem, seeds, len(schedules))
    return made.rollout(_SideBySide(tuple(schedules), n_deciders(alone)), **counting(closing))


def runs_from(known: Rollout | None, problem: Problem, seeds: Iterable[int] | Tensor, closing: Closing) -> RunBatch:
    """`run(schedule)` for `calibrate`: a batch that `explore` has run already, or else a new one.

    Args:
        known: What `explore` returned for these seeds; None for nothing.
        problem: Made for these seeds.
        seeds: Calibration seeds.
        closing: Whether budgets count the closing projection.
    """
    seeds = as_seeds(seeds)
    n = len(seeds)
    schedules = [] if known is None else asked_for(n_deciders(problem), problem.sampler.n_steps, closing)

    def run(schedule: Schedule) -> Rollout:
        for i, other in enumerate(schedules):
            if known is not None and _same(schedule, other):
                return part_of(known, slice(i * n, (i + 1) * n))
        return problem.rollout(schedule, **counting(closing))

    return run


def part_of(run: Rollout, rows: slice) -> Rollout:
    """Some rollouts of a run; what they cost is left out, as that cannot be told apart."""
    first = {name: getattr(run, name)[rows] for name in ("closing", "closing_failed", "seeds")}
    names = ("defects", "residuals", "projected", "failed", "iterations")
    along = {name: getattr(run, name)[:, rows].contiguous() for name in names}
    states: dict[str, Any] = {"final": pick(run.final, rows)}
    if run.states is not None:
        states["states"] = map_leaves(lambda leaf: leaf[:, rows].contiguous(), run.states)
    groups = None if run.groups is None else run.groups.take(torch.arange(run.projected.shape[1])[rows])
    closing = None if run.closing_iterations is None else run.closing_iterations[rows]
    made = replace(run, **first, **along, **states, groups=groups, seconds={}, calls={}, rows={})
    return replace(made, closing_iterations=closing, passes=None)


def _same(one: Schedule, other: Schedule) -> bool:
    if isinstance(one, Watched):
        one = one.schedule
    if isinstance(one, Explore) and isinstance(other, Explore):
        at_random = one.thresholds is None and other.thresholds is None and one.seed == other.seed
        return at_random and torch.equal(torch.as_tensor(one.budget), torch.as_tensor(other.budget))
    return isinstance(one, Terminal) and isinstance(other, Terminal)


@dataclass(frozen=True, eq=False)
class _SideBySide(Schedule):
    """Several schedules without a memory, each for `n` samples or groups, one after the other."""

    schedules: tuple[Schedule, ...]
    n: int

    @property
    def budget(self) -> Tensor:
        """Of every sample, (n times the number of schedules,)."""
        return torch.cat([torch.as_tensor(s.budget).expand(self.n) for s in self.schedules])

    def decide(self, view: StepView) -> Tensor:
        """Each schedule for its own samples."""
        assert view.seeds is not None
        ends = range(0, len(view.defect) + 1, self.n)
        decided = []
        for schedule, (low, high) in zip(self.schedules, pairwise(ends), strict=True):
            decided.append(torch.as_tensor(schedule.decide(view.take(slice(low, high)))))
        return torch.cat(decided)
