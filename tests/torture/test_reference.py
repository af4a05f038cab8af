"""Algorithm 1 and the paper's price table, written again in plain Python, against the library.

States are numbers, the feasible set is [-1, 1], and all numbers are multiples of 1/4, so that ties between defects and
prices are common and every comparison is exact.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import trimtab as tt
from torture.scale import TIMES


class Expected(NamedTuple):
    final: float
    defects: list[float]
    residuals: list[float]
    projected: list[bool]
    closed: bool


def algorithm_1(updates: list[float], table: list[list[float]], budget: int, closing: str) -> Expected:
    """Run one sample: the paper's loop, and what happens at its end."""
    x, left, last = 0.0, budget, len(updates) - 1
    defects, residuals, projected = [], [], []
    for t, update in enumerate(updates):
        x = x + update
        defects.append(max(abs(x) - 1, 0.0))
        reserve = 1 if closing == "paid" and t < last else 0
        chosen = left > reserve and defects[t] >= table[t][left]
        if closing == "paid" and t == last:
            chosen = True
        if chosen:
            x, left = min(max(x, -1.0), 1.0), left - 1
        residuals.append(max(abs(x) - 1, 0.0))
        projected.append(chosen)
    closed = closing == "free" and not projected[-1]
    return Expected(min(max(x, -1.0), 1.0) if closed else x, defects, residuals, projected, closed)


def paper_table(defects: list[list[float]], budget: int) -> list[list[float]]:
    """Return lambda[t][b]: the pooled defects from step t on exceed it in a share b / (T - t)."""
    T, n = len(defects), len(defects[0])
    table = []
    for t in range(T):
        pool = sorted((value for row in defects[t:] for value in row), reverse=True)
        table.append([math.inf] + [pool[b * n - 1] if b < T - t else -math.inf for b in range(1, budget + 1)])
    return table


INTERVAL = tt.as_constraint(lambda x: x.clamp(-1, 1), lambda x: (x.abs() - 1).clamp(min=0)[:, 0])
quarters = st.integers(-8, 8).map(lambda k: k / 4)


@st.composite
def cases(draw):
    T, n = draw(st.integers(1, 8)), draw(st.integers(1, 5))
    closing = draw(st.sampled_from(["paid", "free", "none"]))
    most = draw(st.integers(int(closing == "paid"), T))
    updates = draw(st.lists(st.lists(quarters, min_size=n, max_size=n), min_size=T, max_size=T))
    if draw(st.booleans()):
        runs = draw(st.lists(st.lists(quarters.map(abs), min_size=3, max_size=3), min_size=T, max_size=T))
        table = paper_table(runs, most)
        assert tt.prices.quantile_table(torch.tensor(runs, dtype=torch.float64), most).tolist() == table
    else:
        price = st.one_of(quarters, st.sampled_from([math.inf, -math.inf]))
        rows = st.lists(price, min_size=most, max_size=most)
        table = [[math.inf, *draw(rows)] for _ in range(T)]
    budgets = draw(st.lists(st.integers(int(closing == "paid"), most), min_size=n, max_size=n))
    return updates, table, budgets, closing


@settings(max_examples=150 * TIMES)
@given(cases())
def test_the_loop_decides_and_spends_as_the_reference(case):
    updates, table, budgets, closing = case
    T, n = len(updates), len(budgets)
    price = tt.prices.Thresholds(torch.tensor(table, dtype=torch.float64))
    corrector = tt.Corrector(INTERVAL, price.at(torch.tensor(budgets)), T, closing=closing)
    x = torch.zeros(n, 1, dtype=torch.float64)
    for t in range(T):
        x = corrector(x + torch.tensor(updates[t], dtype=torch.float64)[:, None], t)
    run = corrector.rollout
    for i in range(n):
        expected = algorithm_1([step[i] for step in updates], table, budgets[i], closing)
        assert run.projected[:, i].tolist() == expected.projected
        assert run.defects[:, i].tolist() == expected.defects
        assert run.residuals[:, i].tolist() == expected.residuals
        assert (float(x[i, 0]), bool(run.closing[i])) == (expected.final, expected.closed)
        assert int(run.spent[i]) == sum(expected.projected) <= budgets[i]
        assert int(run.paid[i]) == sum(expected.projected) + expected.closed
