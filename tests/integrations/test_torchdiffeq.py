"""torchdiffeq and flow_matching's solver, every method they have, against the libraries themselves."""

from __future__ import annotations

import pytest
import torch

import free
import trimtab as tt
from cases import Ball, Sphere

torchdiffeq = pytest.importorskip("torchdiffeq", reason="needs the flows extra")
from torchdiffeq._impl.odeint import SOLVERS  # noqa: E402

from trimtab.integrations.torchdiffeq import FIXED, odeint  # noqa: E402

# torchdiffeq's own remark, with and without us, on an iteration of at most four rounds
pytestmark = pytest.mark.filterwarnings("ignore:Functional iteration did not converge")

METHODS = sorted(SOLVERS)
ONE_STEP = ["euler", "midpoint", "heun2", "heun3", "rk4"]
NOWHERE = tt.as_constraint(lambda x: x, lambda x: torch.zeros(len(x), dtype=x.dtype))
F64 = {"dtype": torch.float64}


def swirl(t, x):
    """A velocity that depends on time and leaves the sphere."""
    return torch.stack([-x[:, 1], x[:, 0], 0.5 * torch.cos(3 * t) * x[:, 2]], dim=1) + 0.2 * x


def start(n=4):
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(0), **F64)


def times(backwards=False, k=9):
    t = torch.linspace(0, 1, k, **F64)
    return t.flip(0) if backwards else t


def needs(method):
    if method == "scipy_solver":
        pytest.importorskip("scipy", reason="a method of torchdiffeq that needs scipy")


@pytest.mark.slow
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_a_constraint_that_changes_nothing_changes_nothing(method, backwards):
    """Bit for bit where steps are fixed; to the tolerances where the solver chooses them."""
    needs(method)
    x, t, tolerances = start(), times(backwards), {"rtol": 1e-8, "atol": 1e-8}
    bare = torchdiffeq.odeint(swirl, x, t, method=method, **tolerances)
    path, record = odeint(swirl, x, t, NOWHERE, tt.Stepwise(), method=method, **tolerances)
    assert record.n_steps == 8
    if method in FIXED:
        assert torch.equal(path, bare)
    else:
        # against a much finer solution: at points within a step torchdiffeq itself is only as good as it interpolates
        exact = torchdiffeq.odeint(swirl, x, t, method="rk4", options={"step_size": 1 / 800})
        torch.testing.assert_close(path, exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_only_step_ends_are_corrected(method):
    needs(method)
    corrected = []

    def project(x):
        corrected.append(len(asked))
        return Sphere().project(x)

    asked = []

    def velocity(t, x):
        asked.append(t)
        return swirl(t, x)

    path, record = odeint(velocity, start(), times(), tt.as_constraint(project, Sphere().defect), tt.Stepwise(),
                          method=method, rtol=1e-5, atol=1e-5)  # fmt: skip
    assert record.n_steps == len(corrected) == 8
    assert (Sphere().defect(path[1:].reshape(-1, 3)) < 1e-12).all()
    assert torch.equal(path[0], start())
    assert corrected == sorted(set(corrected))  # the model was asked between any two of them
    assert torch.equal(path[-1], record.final)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("step_size", [0.125, 0.3])
@pytest.mark.parametrize("method", ONE_STEP)
def test_a_one_step_method_is_its_segments(method, step_size, backwards):
    """What a user would write by hand: one call a step, and the corrector after each."""
    constraint, x = Ball(torch.tensor([0.4, 0.8, 1.2, 1.6])), start()
    ends = [*torch.arange(0, 1, step_size, **F64).tolist(), 1.0]
    grid = torch.tensor([1 - t for t in ends] if backwards else ends, **F64)
    corrector = free.Corrector(constraint, tt.Periodic(3), len(grid) - 1)
    for k in range(len(grid) - 1):
        x = corrector(torchdiffeq.odeint(swirl, x, grid[k : k + 2], method=method)[-1], k)
    path, record = odeint(swirl, start(), times(backwards, 2), constraint, tt.Periodic(3), method=method,
                          options={"step_size": step_size})  # fmt: skip
    torch.testing.assert_close(path[-1], x, rtol=0, atol=1e-13)
    assert torch.equal(record.projected, corrector.rollout.projected)


def test_states_are_reported_as_corrected_wherever_a_step_ends():
    path, _ = odeint(swirl, start(), times(k=5), Sphere(), tt.Stepwise(), method="rk4", options={"step_size": 0.125})
    assert (Sphere().defect(path[1:].reshape(-1, 3)) < 1e-12).all()
    between, _ = odeint(
        swirl, start(), torch.tensor([0, 0.2, 1], **F64), Sphere(), tt.Stepwise(), method="euler",
        options={"step_size": 0.125},
    )  # fmt: skip
    assert (Sphere().defect(between[1]) > 0).all()  # no step ends at 0.2


@pytest.mark.parametrize("method", ["dopri5", "bosh3"])
def test_a_solver_goes_on_with_the_step_size_it_had(method):
    """Beginning anew at each point costs less than a solve of its own for each."""
    asked = []

    def velocity(t, x):
        asked.append(t)
        return swirl(t, x)

    t, tolerances = times(k=11), {"rtol": 1e-6, "atol": 1e-6, "method": method}
    odeint(velocity, start(), t, NOWHERE, tt.Stepwise(), **tolerances)
    ours, x = len(asked), start()
    for k in range(10):
        x = torchdiffeq.odeint(velocity, x, t[k : k + 2], **tolerances)[-1]
    assert ours < len(asked) - ours


@pytest.mark.parametrize("method", ["rk4", "dopri5"])
def test_a_constraint_may_ask_for_the_time_and_the_state_before(method):
    asked = []

    def project(x, time, previous):
        asked.append(float(time))
        return torch.maximum(x, 0.5 * previous)

    needy = tt.as_constraint(project, lambda x, time, previous: x[:, 0] * 0, needs=("time", "previous"))
    odeint(swirl, start(), times(), needy, tt.Stepwise(), method=method)
    assert asked == times()[1:].tolist()


def test_contradictory_options_are_refused():
    options = {"step_size": 0.1, "grid_constructor": lambda f, y, t: t}
    with pytest.raises(ValueError, match="not both"):
        odeint(swirl, start(), times(), NOWHERE, tt.Stepwise(), method="euler", options=options)


def test_a_grid_that_does_not_span_the_times_is_refused():
    options = {"grid_constructor": lambda f, y, t: torch.linspace(float(t[0]), float(t[-1]) / 2, 5)}
    with pytest.raises(ValueError, match=r"must start and end as t does, at 0 and 1: got 0 and 0\.5"):
        odeint(swirl, start(), torch.tensor([0.0, 1.0]), NOWHERE, tt.Stepwise(), method="rk4", options=options)


def test_options_that_are_none_of_a_corrector_are_told_by_name():
    with pytest.raises(TypeError, match="unknown option of odeint 'keep_state'; did you mean 'keep_states'"):
        odeint(swirl, start(), times(), NOWHERE, tt.Stepwise(), method="euler", keep_state=True)


@pytest.mark.parametrize("y0", [(torch.ones(2, 3),), {"y": torch.ones(2, 3)}])
def test_a_tree_is_refused_with_what_to_do(y0):
    with pytest.raises(TypeError, match=r"y0 must be one tensor.*stack its parts"):
        odeint(swirl, y0, times(), NOWHERE, tt.Stepwise(), method="euler")


# ------------------------------------------------------------------ flow_matching


def solvers(constraint, schedule):
    solver = pytest.importorskip("flow_matching.solver", reason="needs the flows extra")
    from trimtab.integrations.flow_matching import ProjectedODESolver

    def velocity(x, t, strength=1.0):
        return strength * swirl(t, x)

    return solver.ODESolver(velocity), ProjectedODESolver(velocity, constraint, schedule)


@pytest.mark.parametrize("method", METHODS)
def test_flow_matching_samples_as_before_where_nothing_is_projected(method):
    needs(method)
    bare, projected = solvers(NOWHERE, tt.Stepwise())
    arguments = {
        "step_size": 0.125 if method in FIXED else None,
        "method": method,
        "time_grid": times(k=5),
        "return_intermediates": True,
        "strength": 0.5,
        "rtol": 1e-7,
        "atol": 1e-7,
    }
    expected, path = bare.sample(start(), **arguments), projected.sample(start(), **arguments)
    if method in FIXED:
        assert torch.equal(path, expected)
    else:
        exact = bare.sample(start(), **arguments | {"method": "rk4", "step_size": 1 / 800})
        torch.testing.assert_close(path, exact, rtol=0, atol=1e-4)
    assert projected.rollout.n_steps == (8 if method in FIXED else 4)


@pytest.mark.parametrize("method", METHODS)
def test_flow_matching_ends_feasible_within_budget(method):
    needs(method)
    _, projected = solvers(Sphere(), tt.Periodic(2))
    x = projected.sample(start(), step_size=0.1 if method in FIXED else None, method=method,
                         time_grid=times(k=2 if method in FIXED else 11))  # fmt: skip
    assert (Sphere().defect(x) < 1e-12).all()
    assert projected.rollout.n_steps == 10
    assert projected.rollout.spent.tolist() == [2] * 4


def test_flow_matching_refuses_what_it_cannot_do():
    _, projected = solvers(Sphere(), tt.Stepwise())
    with pytest.raises(RuntimeError, match="call sample first"):
        projected.rollout  # noqa: B018
    with pytest.raises(ValueError, match="no gradient flows"):
        projected.sample(start(), step_size=0.1, enable_grad=True)
