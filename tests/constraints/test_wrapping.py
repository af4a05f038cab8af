"""A constraint made of others says of itself what they say of themselves."""

from __future__ import annotations

import pytest
import torch

import trimtab as tt
from slow_ball import Slow, like_before, off_before, scaled, scaled_defect, shrunk
from trimtab.constraints import SE3, Part, Product, TimeLimit
from trimtab.core.constraint import Projection

WRAPPED = {
    "product": (lambda constraint: Product((Part(0, 2, Slow()), Part(2, 5, constraint))), (5,)),
    "pose": (lambda constraint: SE3(constraint), (3, 4)),
    "time limit": (lambda constraint: TimeLimit(constraint, 60.0), (3,)),
}


@pytest.fixture(params=WRAPPED)
def wrap(request):
    return WRAPPED[request.param]


def states(event):
    return 0.4 * torch.arange(float(torch.Size(event).numel() * 4)).reshape(4, *event).cos()


def test_what_a_part_needs_reaches_it(wrap):
    around, event = wrap
    constraint = around(tt.as_constraint(scaled, scaled_defect, needs=("sigma",)))
    assert constraint.needs == ("sigma",)
    x = states(event)
    assert (constraint.defect(x, sigma=torch.tensor(0.01)) > constraint.defect(x, sigma=torch.tensor(9.0))).all()
    corrector = tt.Corrector(constraint, tt.schedules.Stepwise(), 1)
    with pytest.raises(ValueError, match="needs sigma"):
        corrector(x)
    corrector = tt.Corrector(constraint, tt.schedules.Stepwise(), 1)
    corrected = corrector(x, sigma=torch.full((4,), 0.01))
    assert (constraint.defect(corrected, sigma=torch.full((4,), 0.01)) < 1e-5).all()


def test_a_part_is_told_its_own_coordinates_of_the_state_before(wrap):
    around, event = wrap
    x = states(event)
    constraint = around(tt.as_constraint(like_before, off_before, needs=("previous",)))
    corrector = tt.Corrector(constraint, tt.schedules.Stepwise(), 1)
    corrector.begin(0.5 * x)
    assert (constraint.defect(x, previous=0.5 * x) > 0.01).all()
    assert (constraint.defect(corrector(x), previous=0.5 * x) < 1e-5).all()


def test_looks_that_project_and_corrections_that_are_no_projections_are_told(wrap):
    around, _ = wrap
    cheap = tt.as_constraint(shrunk, Slow().defect)
    assert (around(cheap).defect_is_projection, around(cheap).is_projection) == (False, True)
    costly = tt.as_constraint(shrunk, is_projection=False)
    assert (around(costly).defect_is_projection, around(costly).is_projection) == (True, False)


def test_a_pose_is_not_done_before_its_translation_is():
    class Stuck(Slow):
        def project(self, x):
            return Projection(x, torch.tensor([True, False]))

    poses = torch.eye(3, 4).repeat(2, 1, 1)
    assert SE3(Stuck()).improve(poses).done.tolist() == [True, False]


@pytest.mark.parametrize(("answer", "got"), [(lambda x: None, "NoneType"), (lambda x: x[:, :1], r"\(4, 1\)")])
@pytest.mark.parametrize("name", ["product", "pose"])
def test_a_part_that_answers_with_no_states_of_its_own_is_named(name, answer, got):
    around, event = WRAPPED[name]
    constraint = around(tt.as_constraint(answer, Slow().defect))
    calls = [constraint.project] + ([constraint.improve] if constraint.improves else [])
    for call in calls:
        with pytest.raises(ValueError, match=rf"of (the part 2 to 5|translations) must return states .*: got {got}"):
            call(states(event))
