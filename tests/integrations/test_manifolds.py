from __future__ import annotations

import math
import warnings

import pytest
import torch

import free
import trimtab as tt
from trimtab.core.noise import Noise
from trimtab.integrations.flows import FlowSampler
from trimtab.integrations.manifolds import manifold_constraint

flow_manifolds = pytest.importorskip("flow_matching.utils.manifolds", reason="flow_matching is not installed")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the library's own imports
    geoopt = pytest.importorskip("geoopt", reason="geoopt is not installed")

F64 = {"dtype": torch.float64}
CASES = {
    "flow_matching sphere": (lambda: flow_manifolds.Sphere(), (3,)),
    "flow_matching product of spheres": (lambda: flow_manifolds.Sphere(), (4, 3)),
    "flow_matching torus": (lambda: flow_manifolds.FlatTorus(), (2,)),
    "flow_matching Euclidean": (lambda: flow_manifolds.Euclidean(), (3,)),
    "geoopt sphere": (lambda: geoopt.Sphere(), (3,)),
    "geoopt Stiefel": (lambda: geoopt.Stiefel(canonical=False), (4, 2)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_defect_vanishes_exactly_on_the_manifold(case):
    make, event = CASES[case]
    constraint = manifold_constraint(make())
    x = 3 * torch.randn(16, *event, generator=torch.Generator().manual_seed(0), **F64)
    assert constraint.defect(x).shape == (16,)
    assert (constraint.defect(constraint.project(x)) < 1e-12).all()
    moved = (constraint.project(x) - x).flatten(1).norm(dim=1) > 1e-9
    assert torch.equal(constraint.defect(x) > 1e-9, moved)
    assert not getattr(constraint, "defect_is_projection", False)
    alone = constraint.take(torch.tensor([5])).defect(x[5:6])
    torch.testing.assert_close(alone, constraint.defect(x)[5:6])


def test_without_a_cheap_defect_the_price_is_stated():
    with pytest.warns(UserWarning, match="every measurement costs a projection"):
        constraint = manifold_constraint(geoopt.BirkhoffPolytope())
    assert constraint.defect_is_projection
    assert manifold_constraint(geoopt.BirkhoffPolytope(), "projection").defect_is_projection
    own = manifold_constraint(geoopt.BirkhoffPolytope(), lambda x: (x.sum(dim=-1) - 1).abs().amax(dim=1))
    assert not own.defect_is_projection
    plane = geoopt.Sphere(intersection=torch.eye(3)[:, :2])
    with pytest.warns(UserWarning, match="no cheap defect"):
        manifold_constraint(plane)
    with pytest.raises(ValueError, match="a manifold needs projx"):
        manifold_constraint(torch.nn.Linear(1, 1))


def test_a_defect_is_not_chosen_by_a_name_that_anybody_may_give():
    class Sphere:
        def projx(self, x):
            return 2 * x / x.norm(dim=-1, keepdim=True)

    class Doubled(flow_manifolds.Sphere):
        def projx(self, x):
            return 2 * super().projx(x)

    class Named(flow_manifolds.Sphere):
        """With the projection of the library."""

    for own in (Sphere(), Doubled()):
        with pytest.warns(UserWarning, match="no cheap defect"):
            constraint = manifold_constraint(own)
        x = constraint.project(torch.randn(3, 4, generator=torch.Generator().manual_seed(0)))
        assert (constraint.defect(x) < 1e-6).all()
    assert not manifold_constraint(Named()).defect_is_projection


@pytest.mark.parametrize("every_step", [True, False])
def test_flow_matching_s_own_solver_is_reproduced_bit_for_bit(every_step):
    from flow_matching.solver import RiemannianODESolver
    from flow_matching.utils import ModelWrapper

    class Velocity(torch.nn.Module):
        def forward(self, x, t):
            return torch.stack([-x[:, 1], x[:, 0], torch.cos(3 * t) * x[:, 2]], dim=1)

    manifold = flow_manifolds.Sphere()
    sampler = FlowSampler(velocity=Velocity(), n_steps=16, event=(3,))
    x = sampler.start(Noise(torch.arange(8), torch.float32))
    theirs = RiemannianODESolver(manifold, ModelWrapper(Velocity())).sample(
        x, step_size=1 / 16, projx=every_step, proju=False, method="euler"
    )
    schedule = tt.Stepwise() if every_step else tt.Terminal()
    ours = free.rollout(sampler, manifold_constraint(manifold), schedule, range(8))
    assert torch.equal(ours.final, theirs if every_step else manifold.projx(theirs))


def test_torus_wraps():
    constraint = manifold_constraint(flow_manifolds.FlatTorus())
    x = torch.tensor([[-1.0, 7.0], [0.0, 3.0]], **F64)
    torch.testing.assert_close(constraint.defect(x), torch.tensor([math.hypot(1, 7 - 2 * math.pi), 0.0], **F64))
