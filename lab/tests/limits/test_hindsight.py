from __future__ import annotations

from itertools import combinations

import pytest
import torch

import free
import trimtab as tt
from cases import CONSTRAINTS, Walk
from trimtab_lab.limits.hindsight import hindsight


def path_errors(mask, sampler, seeds):
    return free.rollout(sampler, CONSTRAINTS["ball"](seeds), tt.schedules.Fixed(mask), seeds).residuals.sum(dim=0)


def best_of_all(sampler, constraint, seeds, budget):
    """The truly best mask for each sample by trying all of them, (T, n) bool."""
    T, n = sampler.n_steps, len(seeds)
    masks = torch.stack(
        [torch.zeros(T).index_fill(0, torch.tensor(c), 1).bool() for c in combinations(range(T), budget)]
    )
    errors = torch.stack([path_errors(mask[:, None].expand(T, n), sampler, seeds) for mask in masks])
    return masks[errors.argmin(dim=0)].T.clone()


@pytest.fixture(params=[1, 3, 7])
def small(request):
    sampler, seeds = Walk(n_steps=8), torch.arange(12)
    return sampler, seeds, request.param


def test_hindsight_finds_nearly_the_best_of_all_masks(small):
    sampler, seeds, budget = small
    best = best_of_all(sampler, CONSTRAINTS["ball"](seeds), seeds, budget)
    found = hindsight(sampler, CONSTRAINTS["ball"](seeds), seeds, budget)
    limit, value = path_errors(best, sampler, seeds), path_errors(found, sampler, seeds)
    assert (found.sum(dim=0) == budget).all()
    assert (value >= limit - 1e-12).all()
    assert value.mean() <= 1.02 * limit.mean()


def test_all_masks_are_tried():
    sampler, seeds = Walk(n_steps=6), torch.arange(5)
    best = path_errors(best_of_all(sampler, CONSTRAINTS["ball"](seeds), seeds, 2), sampler, seeds)
    for i in range(6):
        for j in range(i):
            mask = torch.zeros(6, 5, dtype=torch.bool)
            mask[[i, j]] = True
            assert (path_errors(mask, sampler, seeds) >= best - 1e-12).all()


def test_hindsight_is_never_worse_than_even_spacing():
    sampler, seeds = Walk(), torch.arange(6)
    even = free.rollout(sampler, CONSTRAINTS["ball"](seeds), tt.Periodic(4), seeds).projected
    found = hindsight(sampler, CONSTRAINTS["ball"](seeds), seeds, 4, rounds=0, tries=2)
    assert (path_errors(found, sampler, seeds) <= path_errors(even, sampler, seeds)).all()


def test_hindsight_does_not_depend_on_the_batch_size():
    sampler, seeds = Walk(), torch.arange(6)
    whole = hindsight(sampler, CONSTRAINTS["ball"](seeds), seeds, 4)
    parts = hindsight(sampler, CONSTRAINTS["ball"](seeds), seeds, 4, batch=7)
    assert torch.equal(whole, parts)


@pytest.mark.parametrize("budget", [0, 12])
def test_extreme_budgets_leave_no_choice(budget):
    found = hindsight(Walk(), CONSTRAINTS["ball"](torch.arange(3)), torch.arange(3), budget)
    assert torch.equal(found, torch.full((12, 3), budget > 0))
