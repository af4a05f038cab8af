"""The hindsight limit: the best schedule of each sample for its own noise, known in advance.

No schedule that decides as it goes can do better, and most of the difference to it is luck: it is a limit to measure
against, not a method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from math import comb

import torch
from torch import Tensor

from trimtab.core.checks import check_callable, check_integer
from trimtab.core.constraint import Constraint, check_constraint
from trimtab.core.noise import as_seeds
from trimtab.core.record import Rollout
from trimtab.core.rollout import Sampler, check_sampler, rollout, take_rows
from trimtab.prices.plan import cheapest_times, gap_costs
from trimtab.schedules import Fixed

__all__ = ["best_of_all", "hindsight"]

Objective = Callable[[Rollout, Tensor], Tensor]


def path_objective(run: Rollout, rows: Tensor) -> Tensor:
    """Path error, (m,)."""
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
    """A mask for each sample that is as good as a strong search finds, (T, n) bool, exactly `budget` each.

    It begins with the best of `starts`. Then it branches: for every step v it follows the present mask up to v,
    corrects there and leaves the sample alone from then on. That shows what every gap between two corrections costs
    this very sample, and the cheapest way through the gaps is a schedule; it is kept where it is better when really
    run. Last, single corrections are moved at random and kept where that helps.

    Args:
        sampler: For these seeds.
        constraint: For these seeds.
        seeds: (n,).
        budget: B.
        starts: Masks (T, n) to begin with, such as those of all known schedules; for each sample the result is
            never worse than any that spends `budget` on it, and others are left out.
        objective: What to lower, of a record and the samples' rows; path error by default.
        rounds: Of branching.
        tries: Rounds of moves.
        moves: Moves tried at once for each sample and round.
        batch: Rollouts run together.
    """
    T, seeds = _checked(sampler, constraint, seeds, budget)
    n = len(seeds)
    check_callable(objective, "objective", "objective(run, rows)")
    for name, count, least in (("rounds", rounds, 0), ("tries", tries, 0), ("moves", moves, 1), ("batch", batch, 1)):
        check_integer(count, name, least)
    if not isinstance(starts, tuple | list) or not all(_is_mask(start, T, n) for start in starts):
        raise ValueError(f"starts are masks of shape ({T}, {n}), bool, in a list: got {starts!r:.60}")

    def cost(masks: Tensor, rows: Tensor) -> Tensor:
        """The objective of the samples `rows` under their masks (T, m), (m,)."""
        return torch.cat(
            [
                _costs(
                    objective(_replay(sampler, constraint, seeds, masks[:, part], rows[part]), rows[part]), rows[part]
                )
                for part in _parts(len(rows), batch)
            ]
        )

    everyone = torch.arange(n)
    even = torch.arange(T)
    periodic = ((even + 1) * budget // T > even * budget // T)[:, None].expand(T, n)
    mask, best = periodic, cost(periodic, everyone)

    def keep_better(candidate: Tensor, value: Tensor) -> None:
        nonlocal mask, best
        mask, best = torch.where(value < best, candidate, mask), torch.minimum(value, best)

    for start in starts:
        exact = (start.sum(dim=0) == budget).nonzero().flatten()
        if len(exact):
            value = torch.full_like(best, torch.inf)
            value[exact] = cost(start[:, exact], exact)
            keep_better(start, value)
    for _ in range(rounds if 0 < budget < T else 0):
        candidate = cheapest_times(gap_costs(_branch(sampler, constraint, seeds, mask, batch)), budget)[budget]
        keep_better(candidate, cost(candidate, everyone))
    generator = torch.Generator().manual_seed(0)
    rows = everyone.repeat_interleave(moves)
    for _ in range(tries if 0 < budget < T else 0):
        moved = _move_one(mask[:, rows], generator)
        value, which = cost(moved, rows).reshape(n, moves).min(dim=1)
        keep_better(moved.reshape(T, n, moves)[:, everyone, which], value)
    return mask


def best_of_all(sampler: Sampler, constraint: Constraint, seeds: Tensor, budget: int) -> Tensor:
    """The truly best mask for each sample by trying all of them, (T, n) bool; for small T only."""
    T, seeds = _checked(sampler, constraint, seeds, budget)
    n = len(seeds)
    if comb(T, budget) * n > 2_000_000:
        raise ValueError(f"{comb(T, budget)} masks for T = {T} and a budget of {budget} are too many; use hindsight()")
    choices = list(combinations(range(T), budget))
    masks = torch.zeros(T, len(choices), dtype=torch.bool)
    for i, times in enumerate(choices):
        masks[list(times), i] = True
    rows = torch.arange(n).repeat_interleave(len(choices))
    every = masks.repeat(1, n)
    error = path_objective(_replay(sampler, constraint, seeds, every, rows), rows)
    return masks[:, error.reshape(n, len(choices)).argmin(dim=1)]


def _checked(sampler: Sampler, constraint: Constraint, seeds: Tensor, budget: int) -> tuple[int, Tensor]:
    """T and the seeds, of what can be searched."""
    check_sampler(sampler)
    check_constraint(constraint)
    check_integer(budget, f"a budget of corrections in T = {sampler.n_steps} steps", 0, sampler.n_steps)
    return sampler.n_steps, as_seeds(seeds)


def _is_mask(mask: object, n_steps: int, n: int) -> bool:
    return isinstance(mask, Tensor) and mask.dtype == torch.bool and tuple(mask.shape) == (n_steps, n)


def _costs(values: object, rows: Tensor) -> Tensor:
    if not isinstance(values, Tensor) or values.shape != rows.shape:
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"objective(run, rows) must give one number per sample, shape {tuple(rows.shape)}: got {got}")
    if bool(values.isnan().any()):
        raise ValueError(
            f"objective(run, rows) must give one number per sample: got NaN for {int(values.isnan().sum())} of "
            f"{len(rows)} samples"
        )
    return values


def _parts(n: int, size: int) -> list[slice]:
    return [slice(first, first + size) for first in range(0, n, size)]


def _replay(sampler: Sampler, constraint: Constraint, seeds: Tensor, masks: Tensor, rows: Tensor) -> Rollout:
    return rollout(
        take_rows(sampler, rows), constraint.take(rows), Fixed(masks), seeds[rows], closing="free", measure_defects=True
    )


def branches(mask: Tensor, part: slice = slice(None)) -> tuple[Tensor, Tensor]:
    """Each sample's mask up to each step v, with a correction there and none since: what a gap costs begins so.

    Args:
        mask: (T, n) bool.
        part: Of the n (T + 1) branches; a sample's T + 1 lie side by side, the first of them without a correction.

    Returns:
        The sample that each branch is of, (m,), and its mask, (T, m).

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
    """Residuals along `mask` up to a correction at each step v, and none since, (n, T + 1, T); row 0: none at all."""
    T, n = mask.shape
    parts = []
    for part in _parts(n * (T + 1), batch):
        rows, masks = branches(mask, part)
        parts.append(_replay(sampler, constraint, seeds, masks, rows).residuals.double())
    return torch.cat(parts, dim=1).T.reshape(n, T + 1, T)


def _move_one(masks: Tensor, generator: torch.Generator) -> Tensor:
    """Each mask (T, m) with one of its corrections moved, mostly to a step close by."""
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
