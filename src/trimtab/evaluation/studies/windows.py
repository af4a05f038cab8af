"""The best window: for every budget, the stretch of steps whose path error was least on calibration rollouts."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from trimtab.core.noise import as_seeds
from trimtab.core.record import Closing
from trimtab.evaluation.domains.base import Problem
from trimtab.evaluation.studies.explored import counting, first_of, n_deciders, replicate_problem
from trimtab.prices.plan import Plan
from trimtab.schedules import Fixed

__all__ = ["BEST_WINDOW", "best_windows"]

BEST_WINDOW = "best-window"
"""As studies call it."""

_SHARES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.95)  # of the steps, at which windows are tried
_PLACES = 8  # where each may begin, from the first step to the last possible one
_SAMPLES = 16  # at the most, unless a group has more


def best_windows(problem: Callable[[Tensor], Problem], seeds: Iterable[int] | Tensor, closing: Closing) -> Plan:
    """Try windows of a few lengths at a few places on some 16 of the calibration seeds; between, interpolate.

    Args:
        problem: Makes the problem for seeds.
        seeds: Calibration seeds.
        closing: Whether budgets count the closing projection.

    Returns:
        A plan whose row b is a stretch of b steps; if the budget pays for the closing projection, of b - 1 steps and
        the last.
    """
    tried, closing_reserve = first_of(problem, as_seeds(seeds), _SAMPLES), int(closing == "paid")
    T = problem(tried).sampler.n_steps - closing_reserve  # where there is a choice
    lengths = torch.tensor(sorted({max(1, round(share * T)) for share in _SHARES}))
    places = torch.linspace(0, 1, _PLACES, dtype=torch.float64)
    rows = _stretches(lengths.repeat_interleave(_PLACES), places.repeat(len(lengths)), T)  # (lengths x places, T)
    many = replicate_problem(problem, tried, len(rows))
    masks = _and_the_last(rows, closing_reserve).repeat_interleave(n_deciders(many) // len(rows), dim=0)
    run = many.rollout(Fixed(masks.T), **counting(closing)).grouped()
    costs = run.residuals.double().sum(dim=0).cpu().reshape(len(lengths), _PLACES, -1).mean(dim=2)
    best = places[costs.argmin(dim=1)]
    budgets = torch.arange(T + 1)
    right = torch.searchsorted(lengths, budgets).clamp(1, len(lengths) - 1)
    low, high = lengths[right - 1], lengths[right]
    share = ((budgets - low) / (high - low).clamp(min=1)).double().clamp(0, 1)  # one choice has one length
    begins = torch.lerp(best[right - 1], best[right], share)
    masks = _and_the_last(_stretches(budgets, begins, T), closing_reserve)
    masks = torch.cat([torch.zeros_like(masks[:closing_reserve]), masks])
    return Plan(masks, seeds=tuple(tried.tolist()), method=BEST_WINDOW, closing=closing)


def _and_the_last(masks: Tensor, closing_reserve: int) -> Tensor:
    """Masks (m, T) with as many steps more at the end, which are always corrected."""
    return torch.cat([masks, torch.ones(len(masks), closing_reserve, dtype=torch.bool)], dim=1)


def _stretches(lengths: Tensor, places: Tensor, n_steps: int) -> Tensor:
    """Each length (m,) at its place between the earliest (0) and the latest (1), (m,), as masks (m, T)."""
    first = (places * (n_steps - lengths)).round().long()[:, None]
    steps = torch.arange(n_steps)
    return (steps >= first) & (steps < first + lengths[:, None])
