"""The paper's prices of recorded runs: what they refuse to be made from."""

from __future__ import annotations

import pytest

import trimtab as tt
from cases import Sphere, Walk
from trimtab.prices import paper_prices


def recorded(n_steps=12, **options):
    return tt.rollout(Walk(n_steps), Sphere(), tt.Terminal(), range(4), **options)


def test_runs_whose_defects_were_not_measured_are_told_so():
    with pytest.raises(ValueError, match=r"were not measured, since Terminal\(\) does not need them: record them with"):
        paper_prices([recorded()])
    with pytest.raises(ValueError, match="were not measured"):
        paper_prices([recorded(measure_defects=True), recorded()])


def test_a_budget_has_to_pay_for_the_closing_projection():
    with pytest.raises(ValueError, match="a budget of 0 leaves nothing for the closing projection, which is one"):
        paper_prices([recorded(measure_defects=True)], 0)
    assert paper_prices([recorded(measure_defects=True, closing="free")], 0).budget == 0
    with pytest.raises(ValueError, match="one step, which the closing projection corrects"):
        paper_prices([recorded(1, measure_defects=True)])
