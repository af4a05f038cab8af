"""The hindsight limit: the best steps of each sample for its own noise, known in advance.

No schedule that decides as it goes can do better, and most of the gap to it is luck: it is a limit to measure against,
not a method.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trimtab.core.constraint import Constraint
from trimtab.core.record import Rollout
from trimtab.loop.rollout import Sampler, rollout, take_rows
from trimtab.prices.plan import cheapest_times, gap_costs
from trimtab.schedules import Fixed

__all__ = ["hindsight"]

_MOVES = 8  # tried at once per sample and round


def hindsight(
    sampler: Sampler,
    constraint: Constraint,
    seeds: Tensor,
    budget: int,
    *,
    rounds: int = 2,
    tries: int = 8,
    batch: int = 4096,
) -> Tensor:
    """Search the mask of least path error for each sample, (T, n) bool, with exactly `budget` corrections each.

    The search starts with even spacing. It then branches: for every step v it follows the mask up to v, corrects there
    and no more. That shows what every gap between two corrections costs this sample, and the cheapest sequence of gaps
    is a new mask, kept if it is better when run. Last, single corrections are moved at random and kept if that helps.

    Args:
        sampler: For these seeds.
        constraint: For these seeds.
        seeds: (n,).
        budget: B.
        rounds: Rounds of branching.
        tries: Rounds of moves.
        batch: Rollouts run together.
    """
    T, n = sampler.n_steps, len(seeds)

    def replay(masks: Tensor, rows: Tensor) -> Rollout:
        some, its = take_rows(sampler, rows), constraint.take(rows)
        return rollout(some, its, Fixed(masks), seeds[rows], closing="free", measure_defects=True)

    def cost(masks: Tensor, rows: Tensor) -> Tensor:
        """Return the path errors of the samples `rows` under their masks (T, m), (m,)."""
        runs = [replay(masks[:, part], rows[part]) for part in _parts(len(rows), batch)]
        return torch.cat([run.residuals.sum(dim=0) for run in runs])

    def branched() -> Tensor:
        """Return the residuals of all branches, (n, T + 1, T)."""
        some = (branches(mask, part) for part in _parts(n * (T + 1), batch))
        residuals = [replay(masks, rows).residuals.double() for rows, masks in some]
        return torch.cat(residuals, dim=1).T.reshape(n, T + 1, T)

    everyone, steps = torch.arange(n), torch.arange(T)
    mask = ((steps + 1) * budget // T > steps * budget // T)[:, None].expand(T, n)
    if not 0 < budget < T:
        return mask
    best = cost(mask, everyone)

    def keep_better(candidate: Tensor, value: Tensor) -> None:
        nonlocal mask, best
        mask, best = torch.where(value < best, candidate, mask), torch.minimum(value, best)

    for _ in range(rounds):
        candidate = cheapest_times(gap_costs(branched()), budget)[budget]
        keep_better(candidate, cost(candidate, everyone))
    generator = torch.Generator().manual_seed(0)
    rows = everyone.repeat_interleave(_MOVES)
    for _ in range(tries):
        moved = _move_one(mask[:, rows], generator)
        value, which = cost(moved, rows).reshape(n, _MOVES).min(dim=1)
        keep_better(moved.reshape(T, n, _MOVES)[:, everyone, which], value)
    return mask


def _parts(n: int, size: int) -> list[slice]:
    return [slice(first, first + size) for first in range(0, n, size)]


def branches(mask: Tensor, part: slice = slice(None)) -> tuple[Tensor, Tensor]:
    """Return each sample's mask up to each step v, with a correction there and none after it.

    Args:
        mask: (T, n) bool.
        part: Some of the n (T + 1) branches; the T + 1 of a sample are consecutive, the first without a correction.

    Returns:
        The sample of each branch, (m,), and its mask, (T, m).

    Example:
        >>> rows, masks = branches(torch.tensor([[True], [True], [False]]))
        >>> masks.T.int().tolist()
        [[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """
    T, n = mask.shape
    rows, at = torch.arange(n).repeat_interleave(T + 1)[part], torch.arange(-1, T).repeat(n)[part]
    steps = torch.arange(T)[:, None]
    return rows, (mask[:, rows] & (steps < at)) | (steps == at)


def _move_one(masks: Tensor, generator: torch.Generator) -> Tensor:
    """Return each mask (T, m) with one of its corrections moved, mostly to a nearby step."""
    T, m = masks.shape
    everyone = torch.arange(m)
    source = torch.rand(T, m, generator=generator).masked_fill(~masks, -1).argmax(dim=0)
    far = (torch.arange(T)[:, None] - source).abs() > 4
    local = torch.rand(m, generator=generator) < 0.7
    score = torch.rand(T, m, generator=generator) - (far & local).double()
    target = score.masked_fill(masks, -9).argmax(dim=0)
    moved = masks.clone()
    moved[source, everyone] = False
    moved[target, everyone] = True
    return moved
