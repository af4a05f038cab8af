"""What one step does to a defect, and the program over it, against the same written plainly."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import free
from price_cases import CALIBRATION, ZERO, Drift
from trimtab.calibration.collect import Explore, spread_budgets
from trimtab.prices.program import solve
from trimtab.prices.transitions import NODES, Pools, Steps, interpolation_weights, neighbours, quantile_nodes


def explored(sampler, seeds=CALIBRATION):
    schedules = (Explore(spread_budgets(len(seeds), sampler.n_steps, 1.0, seed), seed=seed) for seed in range(2))
    return [free.rollout(sampler, ZERO, schedule, seeds) for schedule in schedules]


def some_steps(T: int, seed: int) -> Steps:
    generator = torch.Generator().manual_seed(seed)

    def weights(*shape: int) -> torch.Tensor:
        return torch.softmax(3 * torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1)

    nodes = torch.rand(T, NODES, generator=generator, dtype=torch.float64).cumsum(dim=1) / 8
    scale = 1 + torch.rand(T, generator=generator, dtype=torch.float64)
    alone, corrected = weights(T - 1, NODES, NODES), weights(T - 1, NODES, NODES)
    return Steps(scale, nodes, 0.05 * nodes, alone, corrected, weights(NODES), torch.ones(2, T - 1))


def plain_prices(steps: Steps, B: int, weights: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The program as it is stated, one budget and one node at a time: the prices, and the cost at the beginning."""
    T = len(steps.scale)
    table = np.full((T, B + 1), np.inf)
    value = np.zeros((B + 1, NODES))
    for t in reversed(range(T)):
        unit, defects = float(weights[t] * steps.scale[t]), (steps.nodes[t] * steps.scale[t]).numpy()
        stay, go = np.empty((2, B + 1, NODES))
        for b, k in itertools.product(range(B + 1), range(NODES)):
            stay[b, k] = unit * float(steps.nodes[t, k])
            go[b, k] = unit * float(steps.residual[t, k])
            if t < T - 1:
                stay[b, k] += steps.alone[t, k].numpy() @ value[b]
                go[b, k] += steps.corrected[t, k].numpy() @ value[b]
        value = stay.copy()
        for b in range(1, B + 1):
            gain = stay[b] - go[b - 1]
            from_here_up = [gain[k:].sum() for k in range(NODES)]
            cut = int(np.argmax(from_here_up))
            if b >= T - t or (cut == 0 and from_here_up[0] > 0):
                table[t, b] = -np.inf
            elif from_here_up[cut] > 0:
                between = np.clip(gain[cut] / (gain[cut] - gain[cut - 1]), 0, 1) if gain[cut] > gain[cut - 1] else 0.0
                table[t, b] = defects[cut] + between * (defects[cut - 1] - defects[cut])
            value[b] = np.where(defects >= table[t, b], go[b - 1], stay[b])
    return table, value @ steps.start.numpy()


@pytest.mark.parametrize(("T", "B"), [(1, 1), (2, 2), (9, 9), (12, 4)])
@pytest.mark.parametrize("seed", range(3))
def test_prices_are_those_of_the_plain_program(T, B, seed):
    steps, weights = some_steps(T, seed), 0.5 + torch.rand(T, generator=torch.Generator().manual_seed(seed))
    table, expected = plain_prices(steps, B, weights)
    found = solve(steps, B, weights)
    np.testing.assert_allclose(found.table.numpy(), table, rtol=1e-9)
    np.testing.assert_allclose(found.expected.numpy(), expected, rtol=1e-11)


@given(st.sampled_from([2, 3, 30, 64, 65, 300]), st.integers(1, 5), st.integers(1, 40), st.integers(0, 2**31))
def test_occupancy_reads_values_off_between_nodes(n, k, m, seed):
    rng = np.random.default_rng(seed)
    nodes, values = np.sort(rng.random(n)) + np.arange(n), rng.standard_normal(n)
    x = rng.uniform(nodes[0] - 1, nodes[-1], (k, m))
    x[:, 0] = rng.choice(nodes, k)  # ties
    found = interpolation_weights(nodes, x) @ values
    np.testing.assert_allclose(found, np.interp(x, nodes, values).mean(axis=1), atol=1e-9)


def test_a_pool_holds_the_samples_around_a_step_in_order():
    runs = explored(Drift(0.3))
    seen = Pools(runs)
    relative = torch.cat([run.defects for run in runs], dim=1).double().numpy() / seen.scale[:, None]
    T = seen.n_steps
    pool = seen.around(T // 2, widen=False)
    width = (len(pool.defects) // relative.shape[1] - 1) // 2
    around = slice(T // 2 - width, T // 2 + width + 1)
    np.testing.assert_allclose(pool.defects, np.sort(relative[around].ravel()))
    assert len(pool.alone.defect) + len(pool.corrected.defect) == len(pool.defects)
    pairs = dict(zip(relative[:-1].ravel().tolist(), relative[1:].ravel().tolist(), strict=True))
    for some in pool[:2]:
        assert (np.diff(some.defect) >= 0).all()
        if len(set(some.defect.tolist())) == len(some.defect):  # where defects are told apart, so are their successors
            assert [pairs[x] for x in some.defect.tolist()] == some.following.tolist()
    first, count = neighbours(pool.alone.defect, np.array([-1.0, 1e9]), 5)
    assert (first.tolist(), count) == ([0, len(pool.alone.defect) - 5], 5)


@pytest.mark.parametrize("m", [1, 2, 24, 1000])
def test_levels_rise_from_the_least_value_to_the_largest_also_where_values_are_tied(m):
    values = np.sort(np.random.default_rng(0).integers(0, 4, m).astype(np.float64))
    levels = quantile_nodes(values)
    assert (np.diff(levels) > 0).all()
    assert (levels[0], round(levels[-1], 9)) == (values[0], values[-1])
