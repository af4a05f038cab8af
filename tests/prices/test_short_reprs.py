"""What prints in a notebook is one short line, however many samples there are."""

from __future__ import annotations

import pytest
import torch

import trimtab as tt
from cases import Sphere, Walk
from trimtab.prices.price import Thresholds

MANY = torch.full((500,), 2)
TABLE = Thresholds(torch.full((12, 4), 0.3).index_fill(1, torch.tensor([0]), torch.inf))


def a_moment():
    seen = []
    corrector = tt.Corrector(Sphere(), lambda view: seen.append(repr(view)) or view.defect > 9, 12)
    corrector(torch.ones(500, 3), sigma=1.0)
    return seen[0]


THINGS = {
    "corrector": (
        lambda: repr(tt.Corrector(Sphere(), tt.Periodic(3), 12)),
        "Corrector(Periodic(budget=3), n_steps=12, closing='paid', next step 0)",
    ),
    "moment": (a_moment, "StepView(t=0 of 12, n=500, sigma context)"),
    "problem": (lambda: repr(tt.Problem(Walk(), Sphere(), range(500))), "Problem(Walk, Sphere, T=12, 500 seeds)"),
    "price": (
        lambda: repr(Thresholds(TABLE.table, method="dp", seeds=(1, 2))),
        "Thresholds(T=12, budgets up to 3, method='dp', objective='path', 2 calibration seeds)",
    ),
    "adaptive": (
        lambda: repr(TABLE.at(MANY)),
        f"PricedSchedule(price={TABLE!r}, budget=<(500,) of int64, 2 to 2>)",
    ),
}


@pytest.mark.parametrize("name", THINGS)
def test_one_short_line(name):
    make, expected = THINGS[name]
    assert make() == expected
    assert len(expected) < 200
