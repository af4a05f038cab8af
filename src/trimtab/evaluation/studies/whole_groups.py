"""Ranges of seeds that hold whole groups: samples that belong together are run together, or not at all.

The samples of a group follow each other in their seeds. Where groups begin is known only to the code that makes them,
so it is asked for once, before a study begins, and kept with the study as numbers.
"""

from __future__ import annotations

from typing import Any

from trimtab.core.noise import as_seeds
from trimtab.evaluation.domains.base import Domain

__all__ = ["check_whole_groups", "ends_of_groups", "next_end", "seed_ranges", "whole_groups"]

_LARGEST_GROUP = 4096  # samples; larger ones are not looked for


def ends_of_groups(made: Domain, first: int, stop: int) -> list[int] | None:
    """The seeds from `first` to `stop`, that one included, before which a group ends; None where there are no groups.

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
    """The first seed at or after this one before which a group ends; the seed itself where there are no groups."""
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
    """As many seeds, from the first whole group at or after `first` on; a number that cuts a group is refused."""
    begin = next_end(made, first)
    seeds = range(begin, begin + number)
    check_whole_groups(made, seeds)
    return seeds


def check_whole_groups(made: Domain, seeds: range) -> None:
    """Refuse seeds that begin or end within a group."""
    if made.problem(as_seeds(seeds[:1])).groups is None:
        return
    if next_end(made, seeds.start) != seeds.start:
        raise ValueError(
            f"{made.name}: the seeds {seeds.start} to {seeds.stop - 1} cut a group in two, as {seeds.start - 1} and "
            f"{seeds.start} belong together; begin with a whole group"
        )
    more = next_end(made, seeds.stop)
    if more != seeds.stop:
        fewer = [end - seeds.start for end in ends_of_groups(made, seeds.start + 1, seeds.stop) or ()]
        fitting = " or ".join(str(number) for number in [*fewer[-1:], more - seeds.start])
        raise ValueError(
            f"{made.name}: {len(seeds)} seeds from {seeds.start} on cut a group in two, as {seeds.stop - 1} and "
            f"{seeds.stop} belong together; take a number of seeds that whole groups fill, such as {fitting}"
        )


def seed_ranges(made: Domain, calibration: range, seeds: int, reference: int, block: int) -> dict[str, Any]:
    """What the record of a run says of a domain's seeds, so that no task of it cuts a group; nothing without groups.

    Args:
        made: The domain.
        calibration: Its calibration seeds, in whole groups.
        seeds: How many evaluation seeds, counted from 0.
        reference: Where the seeds of full projection begin that final samples are compared with.
        block: How many seeds a task should have.
    """
    ends = ends_of_groups(made, 0, seeds)
    if ends is None:
        return {}
    check_whole_groups(made, range(seeds))
    blocks = [0]
    while blocks[-1] < seeds:
        later = [end for end in ends if end > blocks[-1]]
        blocks.append(max((end for end in later if end <= blocks[-1] + block), default=later[0]))
    begin = next_end(made, reference)
    apart = [begin, next_end(made, begin + seeds)]
    return {"seeds": {"calibration": [calibration.start, calibration.stop], "reference": apart, "blocks": blocks}}
