"""What one step does to a defect, and the program over it, against the same written plainly."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import free
import trimtab as tt
from price_cases import CALIBRATION, ZERO, Drift, mean_path_error
from trimtab.prices import transitions
from trimtab.prices.dynamic import solve
from trimtab.prices.explore import Explore, spread_budgets
from trimtab.prices.pools import Seen, neighbours
from trimtab.prices.transitions import NODES, Steps, estimate_transitions, occupancy, quantile_nodes


def explored(sampler, seeds=CALIBRATION):
    schedules = (Explore(spread_budgets(len(seeds), sampler.n_steps, 1.0, seed), seed=seed) for seed in range(2))
    return [free.rollout(sampler, ZERO, schedule, seeds) for schedule in schedules]


def some_steps(T: int, seed: int) -> Steps:
    generator = torch.Generator().manual_seed(seed)

    def weights(*shape: int) -> torch.Tensor:
        return torch.softmax(3 * torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1)

    nodes = torch.rand(T, NODES, generator=generator, dtype=torch.float64).cumsum(dim=1) / 8
    scale = 1 + torch.rand(T, generator=generator, dtype=torch.float64)
    after = [weights(T - 1, k, NODES) for k in (NODES, NODES, NODES, 1)]
    return Steps(scale, nodes, 0.05 * nodes, *after, weights(NODES), torch.ones(3, T - 1), 3)


def plain_prices(steps: Steps, B: int, weights: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The program as it is stated, one budget and one node at a time: the prices, and the cost at the beginning."""
    T, settle = len(steps.scale), 1 / steps.fresh_steps
    table = np.full((T, B + 1), np.inf)
    fresh, settled = np.zeros((2, B + 1, NODES))
    for t in reversed(range(T)):
        unit, defects = float(weights[t] * steps.scale[t]), (steps.nodes[t] * steps.scale[t]).numpy()
        stay_fresh, stay_settled, go = np.empty((3, B + 1, NODES))
        for b, k in itertools.product(range(B + 1), range(NODES)):
            stay_fresh[b, k] = stay_settled[b, k] = unit * float(steps.nodes[t, k])
            go[b, k] = unit * float(steps.residual[t, k])
            if t < T - 1:
                stay_fresh[b, k] += steps.alone[t, k].numpy() @ ((1 - settle) * fresh[b] + settle * settled[b])
                stay_settled[b, k] += steps.settled[t, k].numpy() @ settled[b]
                go[b, k] += steps.corrected[t, k].numpy() @ fresh[b]
        fresh, settled = stay_fresh.copy(), stay_settled.copy()
        for b in range(1, B + 1):
            rate = min(1.0, float(np.float32(b) / np.float32(T - t)))
            share = rate / (1 - (1 - rate) * (1 - settle))
            gain = share * stay_fresh[b] + (1 - share) * stay_settled[b] - go[b - 1]
            from_here_up = [gain[k:].sum() for k in range(NODES)]
            cut = int(np.argmax(from_here_up))
            if b >= T - t or (cut == 0 and from_here_up[0] > 0):
                table[t, b] = -np.inf
            elif from_here_up[cut] > 0:
                between = np.clip(gain[cut] / (gain[cut] - gain[cut - 1]), 0, 1) if gain[cut] > gain[cut - 1] else 0.0
                table[t, b] = defects[cut] + between * (defects[cut - 1] - defects[cut])
            spend = defects >= table[t, b]
            fresh[b], settled[b] = (
                np.where(spend, go[b - 1], stay_fresh[b]),
                np.where(spend, go[b - 1], stay_settled[b]),
            )
    return table, settled @ steps.start.numpy()


@pytest.mark.parametrize(("T", "B"), [(1, 1), (2, 2), (9, 9), (12, 4)])
@pytest.mark.parametrize("seed", range(3))
def test_prices_are_those_of_the_plain_program(T, B, seed):
    steps, weights = some_steps(T, seed), 0.5 + torch.rand(T, generator=torch.Generator().manual_seed(seed))
    table, expected = plain_prices(steps, B, weights)
    found = solve(steps, B, weights)
    np.testing.assert_allclose(found.table.numpy(), table, rtol=1e-9)
    np.testing.assert_allclose(found.expected.numpy(), expected, rtol=1e-11)
    without_costs = solve(steps, B, weights, keep_cost=False)
    assert torch.equal(without_costs.table, found.table)


@given(st.sampled_from([2, 3, 30, 64, 65, 300]), st.integers(1, 5), st.integers(1, 40), st.integers(0, 2**31))
def test_occupancy_reads_values_off_between_nodes(n, k, m, seed):
    rng = np.random.default_rng(seed)
    nodes, values = np.sort(rng.random(n)) + np.arange(n), rng.standard_normal(n)
    x = rng.uniform(nodes[0] - 1, nodes[-1], (k, m))
    x[:, 0] = rng.choice(nodes, k)  # ties
    found = occupancy(torch.from_numpy(nodes), torch.from_numpy(x)) @ torch.from_numpy(values)
    np.testing.assert_allclose(found.numpy(), np.interp(x, nodes, values).mean(axis=1), atol=1e-9)


def test_a_pool_holds_the_samples_around_a_step_in_order():
    runs = explored(Drift(0.3))
    seen = Seen(runs, None)
    relative = torch.cat([run.defects for run in runs], dim=1).double().numpy() / seen.scale[:, None]
    T = seen.n_steps
    pool = seen.around(T // 2)
    width = (len(pool.defects) // relative.shape[1] - 1) // 2
    around = slice(T // 2 - width, T // 2 + width + 1)
    np.testing.assert_allclose(pool.defects, np.sort(relative[around].ravel()))
    assert len(pool.alone.defect) + len(pool.corrected.defect) == len(pool.defects)
    pairs = dict(zip(relative[:-1].ravel().tolist(), relative[1:].ravel().tolist(), strict=True))
    for some in pool[:3]:
        assert (np.diff(some.defect) >= 0).all()
        if len(set(some.defect.tolist())) == len(some.defect):  # where defects are told apart, so are their successors
            assert [pairs[x] for x in some.defect.tolist()] == some.following.tolist()
    first, count = neighbours(pool.alone.defect, np.array([-1.0, 1e9]), 5)
    assert (first.tolist(), count) == ([0, len(pool.alone.defect) - 5], 5)


@pytest.mark.parametrize("kappa", [0.1, 0.5])
def test_steps_that_share_a_pool_are_priced_as_well(kappa, monkeypatch):
    """Long rollouts are estimated in blocks of steps; on a short one that costs no more than noise."""
    sampler = Drift(kappa)
    runs = explored(sampler)
    by_step = estimate_transitions(runs)
    monkeypatch.setattr(transitions, "_POOLS", sampler.n_steps // 3)
    by_block = estimate_transitions(runs)
    assert torch.equal(by_block.nodes[0], by_block.nodes[1])
    assert not torch.equal(by_step.nodes[0], by_step.nodes[1])
    for each in (by_block.alone, by_block.settled, by_block.corrected, by_block.alike):
        torch.testing.assert_close(each.sum(dim=-1), torch.ones_like(each[..., 0]))
    errors = []
    for steps in (by_step, by_block):
        prices = tt.prices.Thresholds(solve(steps, sampler.n_steps, keep_cost=False).table)
        errors.append(mean_path_error(prices.at(0.25), sampler, seeds=range(512)))
    assert errors[1] < 1.02 * errors[0]


@pytest.mark.parametrize("precision", [np.float32, np.float64])
@pytest.mark.parametrize("m", [1, 2, 24, 1000])
def test_levels_rise_from_the_least_value_to_the_largest_also_where_values_are_tied(precision, m):
    values = np.sort(np.random.default_rng(0).integers(0, 4, m).astype(np.float64))
    levels = quantile_nodes(values, precision)
    assert (np.diff(levels) > 0).all()
    assert (levels[0], round(levels[-1], 9)) == (values[0], values[-1])
    # every table so far was made of these, to the bit
    ranks = torch.linspace(0, torch.pi / 2, NODES, dtype=torch.float64).sin() ** 2
    apart = torch.arange(NODES, dtype=torch.from_numpy(np.zeros(0, precision)).dtype) * 1e-12
    expected = torch.from_numpy(values)[(ranks * (m - 1)).round().long()] + apart
    assert torch.equal(torch.from_numpy(levels), expected)
