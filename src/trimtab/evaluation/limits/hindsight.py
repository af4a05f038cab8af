"""The hindsight limit: the best steps of each sample for its own noise, known in advance.

No schedule that decides as it goes can do better, and most of the gap to it is luck: it is a limit to measure against,
not a method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trimtab.core.checks import check_callable, check_integer
from trimtab.core.constraint import Constraint, check_constraint
from trimtab.core.noise import as_seeds
from trimtab.core.record import Rollout
from trimtab.core.rollout import Sampler, check_sampler, rollout, take_rows
from trimtab.prices.plan import cheapest_times, gap_costs
from trimtab.schedules import Fixed

__all__ = ["hindsight"]

Objective = Callable[[Rollout, Tensor], Tensor]


def path_objective(run: Rollout, rows: Tensor) -> Tensor:
    """Return path errors, (m,)."""
    return run.residuals.sum(dim=0)


def hindsight(
    sampler: Sampler,
    constraint: Constraint,
    seeds: Tensor,
    budget: int,
    starts: Sequence[Tensor] = (),
    *,
    objective: Objective = path_objective,
    rounds: int = 2,
    tries: int = 8,
    moves: int = 8,
    batch: int = 4096,
) -> Tensor:
    """Search a good mask for each sample, (T, n) bool, with exactly `budget` corrections each.

    The search starts with the best of even spacing and `starts`. It then branches: for every step v it follows the mask
    up to v, corrects there and no more. That shows what every gap between two corrections costs this sample, and the
    cheapest sequence of gaps is a new mask, kept if it is better when run. Last, single corrections are moved at random
    and kept if that helps.

    Args:
        sampler: For these seeds.
        constraint: For these seeds.
        seeds: (n,).
        budget: B.
        starts: Masks (T, n) to start with; the result of a sample is never worse than a mask that spends `budget`.
        objective: What to lower, from a record and the samples' rows; path error by default.
        rounds: Rounds of branching.
        tries: Rounds of moves.
        moves: Moves tried at once per sample and round.
        batch: Rollouts run together.
    """
    T, seeds = _checked(sampler, constraint, seeds, budget)
    n = len(seeds)
    check_callable(objective, "objective", "objective(run, rows)")
    for name, count, least in (("rounds", rounds, 0), ("tries", tries, 0), ("moves", moves, 1), ("batch", batch, 1)):
        check_integer(count, name, least)
    if not isinstance(starts, tuple | list) or not all(_is_mask(start, T, n) for start in starts):
        raise ValueError(f"starts must be a list of masks of shape ({T}, {n}), bool: got {starts!r:.60}")

    def cost(masks: Tensor, rows: Tensor) -> Tensor:
        """Return the objective of the samples `rows` under their masks (T, m), (m,)."""
        parts = []
        for part in _parts(len(rows), batch):
            run = _replay(sampler, constraint, seeds, masks[:, part], rows[part])
            parts.append(_checked_costs(objective(run, rows[part]), rows[part]))
        return torch.cat(parts)

    everyone = torch.arange(n)
    even = torch.arange(T)
    mask = ((even + 1) * budget // T > even * budget // T)[:, None].expand(T, n)
    best = cost(mask, everyone)

    def keep_better(candidate: Tensor, value: Tensor) -> None:
        nonlocal mask, best
        mask, best = torch.where(value < best, candidate, mask), torch.minimum(value, best)

    for start in starts:
        exact = (start.sum(dim=0) == budget).nonzero().flatten()
        if len(exact):
            value = torch.full_like(best, torch.inf)
            value[exact] = cost(start[:, exact], exact)
            keep_better(start, value)
    if not 0 < budget < T:
        return mask
    for _ in range(rounds):
        candidate = cheapest_times(gap_costs(_branch(sampler, constraint, seeds, mask, batch)), budget)[budget]
        keep_better(candidate, cost(candidate, everyone))
    generator = torch.Generator().manual_seed(0)
    rows = everyone.repeat_interleave(moves)
    for _ in range(tries):
        moved = _move_one(mask[:, rows], generator)
        value, which = cost(moved, rows).reshape(n, moves).min(dim=1)
        keep_better(moved.reshape(T, n, moves)[:, everyone, which], value)
    return mask


def _checked(sampler: Sampler, constraint: Constraint, seeds: Tensor, budget: int) -> tuple[int, Tensor]:
    check_sampler(sampler)
    check_constraint(constraint)
    check_integer(budget, f"a budget of corrections in T = {sampler.n_steps} steps", 0, sampler.n_steps)
    return sampler.n_steps, as_seeds(seeds)


def _is_mask(mask: object, n_steps: int, n: int) -> bool:
    return isinstance(mask, Tensor) and mask.dtype == torch.bool and tuple(mask.shape) == (n_steps, n)


def _checked_costs(values: object, rows: Tensor) -> Tensor:
    expected = f"objective(run, rows) must return one number per sample, shape {tuple(rows.shape)}"
    if not isinstance(values, Tensor) or values.shape != rows.shape:
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"{expected}: got {got}")
    if bool(values.isnan().any()):
        raise ValueError(f"{expected}: got NaN for {int(values.isnan().sum())} of {len(rows)} samples")
    return values


def _parts(n: int, size: int) -> list[slice]:
    return [slice(first, first + size) for first in range(0, n, size)]


def _replay(sampler: Sampler, constraint: Constraint, seeds: Tensor, masks: Tensor, rows: Tensor) -> Rollout:
    return rollout(
        take_rows(sampler, rows), constraint.take(rows), Fixed(masks), seeds[rows], closing="free", measure_defects=True
    )


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


def _branch(sampler: Sampler, constraint: Constraint, seeds: Tensor, mask: Tensor, batch: int) -> Tensor:
    """Return the residuals of all branches, (n, T + 1, T)."""
    T, n = mask.shape
    parts = []
    for part in _parts(n * (T + 1), batch):
        rows, masks = branches(mask, part)
        parts.append(_replay(sampler, constraint, seeds, masks, rows).residuals.double())
    return torch.cat(parts, dim=1).T.reshape(n, T + 1, T)


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
