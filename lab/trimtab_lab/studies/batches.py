"""Batches of a study: budgets in one batch, and whole groups of samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from trimtab.core.arrays import map_leaves, pick
from trimtab.core.noise import as_seeds
from trimtab.core.record import Closing, Rollout
from trimtab_lab.domains.base import Domain, Problem

__all__ = [
    "check_whole_groups",
    "counting",
    "n_deciders",
    "next_end",
    "part_of",
    "replicate_problem",
    "seed_ranges",
    "whole_groups",
]

_LARGEST_GROUP = 4096  # samples


def counting(closing: Closing) -> dict[str, Any]:
    """Return the options of every rollout of a study: all defects measured, closing projection paid or free."""
    return {"closing": closing, "measure_defects": True}


def replicate_problem(problem: Callable[[Tensor], Problem], seeds: Tensor, times: int) -> Problem:
    """Return a problem that repeats the seeds `times` times; each copy has its own groups.

    Only decisions are kept apart here: a sampler or constraint that couples rows by their seeds would couple the rows
    of all copies, which `trimtab_lab.studies.probe.probe_side_by_side` finds.
    """
    made = problem(seeds.repeat(times))
    return made if made.groups is None else replace(made, groups=made.groups.apart(times))


def n_deciders(problem: Problem) -> int:
    """Return the number of samples, or of groups if samples are decided on together."""
    return len(problem) if problem.groups is None else problem.groups.n


def part_of(run: Rollout, rows: slice) -> Rollout:
    """Return some samples of a run, without its times and counts, which are of the whole batch."""
    first = {name: getattr(run, name)[rows] for name in ("closing", "closing_failed", "seeds")}
    names = ("defects", "residuals", "projected", "failed", "iterations")
    along = {name: getattr(run, name)[:, rows].contiguous() for name in names}
    states: dict[str, Any] = {"final": pick(run.final, rows)}
    if run.states is not None:
        states["states"] = map_leaves(lambda leaf: leaf[:, rows].contiguous(), run.states)
    groups = None if run.groups is None else run.groups.take(torch.arange(run.projected.shape[1])[rows])
    closing = None if run.closing_iterations is None else run.closing_iterations[rows]
    extra = None if run.extra is None else run.extra[rows]
    made = replace(run, **first, **along, **states, groups=groups, seconds={}, calls={}, rows={})
    return replace(made, closing_iterations=closing, extra=extra, passes=None)


# ------------------------------------------------------------------ whole groups


def ends_of_groups(made: Domain, first: int, stop: int) -> list[int] | None:
    """Return the seeds from `first` to `stop`, inclusive, that directly follow the end of a group; None without groups.

    Example:
        >>> import trimtab as tt
        >>> ends_of_groups(tt.domain("so3"), 0, 8) is None
        True
    """
    low = max(first - 1, 0)
    groups = made.problem(as_seeds(range(low, stop + 1))).groups
    if groups is None:
        return None
    ends = (groups.labels.diff() != 0).nonzero().squeeze(1) + low + 1
    return [*([0] if first == 0 else []), *ends.tolist()]


def next_end(made: Domain, seed: int) -> int:
    """Return the first seed from this one on that starts a new group; the seed itself without groups."""
    for more in (64, _LARGEST_GROUP):
        ends = ends_of_groups(made, seed, seed + more)
        if ends is None:
            return seed
        if ends:
            return ends[0]
    raise ValueError(
        f"{made.name}: the group of the sample with seed {seed} has more than {_LARGEST_GROUP} samples; make groups "
        "of a few neighbouring seeds, as in groups=seeds // 4"
    )


def whole_groups(made: Domain, first: int, number: int) -> range:
    """Return `number` seeds that start with the first whole group from `first` on; raise if they cut a group."""
    start = next_end(made, first)
    check_whole_groups(made, seeds := range(start, start + number))
    return seeds


def check_whole_groups(made: Domain, seeds: range) -> None:
    """Check that seeds do not start or end within a group."""
    if made.problem(as_seeds(seeds[:1])).groups is None:
        return
    if next_end(made, seeds.start) != seeds.start:
        raise ValueError(
            f"{made.name}: the seeds {seeds.start} to {seeds.stop - 1} cut a group in two, as {seeds.start - 1} and "
            f"{seeds.start} are of one group; start with a whole group"
        )
    more = next_end(made, seeds.stop)
    if more != seeds.stop:
        fewer = [end - seeds.start for end in ends_of_groups(made, seeds.start + 1, seeds.stop) or ()]
        fitting = " or ".join(str(number) for number in [*fewer[-1:], more - seeds.start])
        raise ValueError(
            f"{made.name}: {len(seeds)} seeds from {seeds.start} on cut a group in two, as {seeds.stop - 1} and "
            f"{seeds.stop} are of one group; give a number of seeds that ends with a whole group, such as {fitting}"
        )


def seed_ranges(made: Domain, calibration: range, seeds: int, reference: int, block: int) -> dict[str, Any]:
    """Return the seed ranges that a run records, so that no task cuts a group; nothing without groups.

    Args:
        made: The domain.
        calibration: Its calibration seeds, in whole groups.
        seeds: Number of evaluation seeds, from 0 on.
        reference: Where the reference seeds start.
        block: Seeds per task.
    """
    ends = ends_of_groups(made, 0, seeds)
    if ends is None:
        return {}
    check_whole_groups(made, range(seeds))
    blocks = [0]
    while blocks[-1] < seeds:
        later = [end for end in ends if end > blocks[-1]]
        blocks.append(max((end for end in later if end <= blocks[-1] + block), default=later[0]))
    start = next_end(made, reference)
    others = [start, next_end(made, start + seeds)]
    return {"seeds": {"calibration": [calibration.start, calibration.stop], "reference": others, "blocks": blocks}}
