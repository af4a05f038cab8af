from __future__ import annotations

import copy
import pickle
import time

import pytest
import torch

import free
import trimtab as tt
from cases import Sphere, Walk, correct
from trimtab.core import bound_constraint
from trimtab.loop import run as run_module

# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize("n_steps", [0, -1, 2.0, True])
def test_impossible_step_counts_are_refused(n_steps):
    with pytest.raises((TypeError, ValueError), match="n_steps must be a whole number"):
        free.Corrector(Sphere(), tt.Stepwise(), n_steps)


@pytest.mark.parametrize("budget", [11, -1, 1.01, -0.1, True, "half", torch.tensor([11])])
def test_impossible_budgets_are_refused_before_anything_runs(budget):
    with pytest.raises(ValueError, match="budget"):
        free.Corrector(Sphere(), tt.Periodic(budget), 10)


def test_budgets_for_another_batch_are_refused():
    with pytest.raises(ValueError, match="budgets for 3 samples, but the batch has 5"):
        correct(torch.ones(5, 3), schedule=tt.Periodic(torch.tensor([1, 0, 1])))


@pytest.mark.parametrize("decision", [torch.ones(5), torch.ones(4, dtype=torch.bool), True])
def test_decisions_that_are_no_mask_are_refused(decision):
    with pytest.raises(ValueError, match=r"decide with a \(5,\) bool tensor"):
        correct(torch.ones(5, 3), schedule=lambda view: decision)


def test_a_schedule_class_is_not_a_schedule():
    with pytest.raises(TypeError, match="forget the parentheses"):
        correct(torch.ones(5, 3), schedule=tt.Stepwise)


def test_a_constraint_needs_its_methods():
    with pytest.raises(TypeError, match=r"derive from trimtab\.Constraint: got Linear"):
        free.Corrector(torch.nn.Linear(1, 1), tt.Stepwise(), 3)


def test_seeds_must_fit_the_batch():
    with pytest.raises(ValueError, match="3 seeds were given for a batch of 5"):
        correct(torch.ones(5, 3), seeds=range(3))


# ------------------------------------------------------------------ the life of a run


def test_too_few_calls_are_told():
    corrector = free.Corrector(Sphere(), tt.Stepwise(), 3)
    corrector(torch.ones(2, 3))
    with pytest.raises(RuntimeError, match="called 1 of 3 times"):
        corrector.rollout  # noqa: B018
    with pytest.raises(RuntimeError, match="called only 1 of 3 times"):
        corrector(torch.ones(2, 3), 0)
    corrector.reset()
    corrector(torch.ones(2, 3), 0)
    with pytest.raises(RuntimeError, match="called 0 of 3 times"), corrector:
        pass


def test_a_run_that_has_made_steps_is_not_given_up_for_a_new_one():
    corrector = free.Corrector(Sphere(), tt.Stepwise(), 3)
    x = torch.ones(2, 3)
    corrector.begin(x)
    corrector.begin(2 * x)  # nothing is lost yet
    corrector(x)
    with pytest.raises(RuntimeError, match=r"called only 1 of 3 times; call reset\(\) first"):
        corrector.begin(x)
    assert corrector.t == 1
    corrector(x)
    corrector(x)
    corrector.begin(x)
    assert corrector.t == 0


def test_too_many_calls_are_told():
    corrector = free.Corrector(Sphere(), tt.Stepwise(), 1)
    with corrector:
        corrector(torch.ones(2, 3))
        with pytest.raises(RuntimeError, match="more than n_steps = 1 times"):
            corrector(torch.ones(2, 3))


def test_a_step_out_of_order_is_told():
    corrector = free.Corrector(Sphere(), tt.Stepwise(), 3)
    corrector(torch.ones(2, 3), 0)
    with pytest.raises(RuntimeError, match="expected step 1 of 3 next: got t = 2"):
        corrector(torch.ones(2, 3), 2)


def test_a_batch_that_changes_size_is_told():
    corrector = free.Corrector(Sphere(), tt.Stepwise(), 3)
    corrector(torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"is \(4, 3\) of torch.float32 where \(2, 3\)"):
        corrector(torch.ones(4, 3))


def test_a_step_that_failed_half_way_is_not_paid_for_twice():
    class Moody(Sphere):
        def project(self, x):
            if moods.pop():
                raise RuntimeError("no licence")
            return super().project(x)

    moods = [False] * 20 + [True]
    corrector = free.Corrector(Moody(), tt.schedules.Fixed(torch.tensor([True, False, True])), 3)
    with pytest.raises(RuntimeError, match="no licence"):
        corrector(torch.ones(5, 3), 0)
    for t in (None, 1):
        with pytest.raises(RuntimeError, match=r"step 0 of 3 failed half-way.* t = 0 or after reset\(\)"):
            corrector(torch.ones(5, 3), t)
    for t in range(3):
        corrector(torch.ones(5, 3), t)
    assert corrector.rollout.spent.tolist() == [2] * 5
    corrector.reset()
    corrector(torch.ones(5, 3))
    with pytest.raises(ValueError, match="NaN"):  # found before anything is decided: the step can be made again
        corrector(torch.full((5, 3), torch.nan))
    corrector(torch.ones(5, 3), 1)
    corrector(torch.ones(5, 3), 2)
    assert corrector.rollout.spent.tolist() == [2] * 5


def test_an_error_inside_the_block_is_not_hidden():
    with pytest.raises(ZeroDivisionError), free.Corrector(Sphere(), tt.Stepwise(), 3):
        raise ZeroDivisionError


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda corrector: pickle.loads(pickle.dumps(corrector))])
def test_a_copy_made_in_mid_run_goes_on_by_itself(duplicate):
    table = torch.full((9, 4), 0.02, dtype=torch.float64)
    table[:, 0] = torch.inf
    for schedule in (tt.prices.Thresholds(table).at(3), tt.Periodic(3)):
        corrector = free.Corrector(Sphere(), schedule, 9)
        noise = torch.randn(9, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / 20
        x = torch.eye(3, dtype=torch.float64)[[0, 1, 2, 0, 1]]
        for t in range(4):
            x = corrector(x + noise[t], t)
        other, y = duplicate(corrector), x
        for t in range(4, 9):
            x = corrector(x + noise[t], t)
        before = corrector.rollout.projected.clone()
        for t in range(4, 9):
            y = other(y + noise[t], t)
        assert torch.equal(x, y)
        for mine, theirs in ((before, corrector.rollout.projected), (before, other.rollout.projected)):
            assert torch.equal(mine, theirs)
        assert torch.equal(corrector.rollout.residuals, other.rollout.residuals)


@pytest.mark.parametrize("hours", [-30, 30])
def test_a_copy_that_goes_on_by_another_clock_keeps_its_seconds(hours, monkeypatch, tmp_path):
    """A clock begins anew when a machine is booted, and each machine has its own."""
    corrector = free.Corrector(Sphere(), tt.Periodic(2), 4)
    x = torch.ones(2, 3)
    for t in range(2):
        x = corrector(2 * x, t)
    written = pickle.dumps(corrector)
    for module in (bound_constraint, run_module):
        monkeypatch.setattr(module, "perf_counter", lambda: time.perf_counter() + 3600 * hours)
    other = pickle.loads(written)
    for t in range(2, 4):
        x = other(2 * x, t)
    assert all(0 <= seconds < 1000 for seconds in other.rollout.seconds.values())
    other.rollout.save(tmp_path / "run.safetensors")
    tt.Rollout.load(tmp_path / "run.safetensors")


def test_proposals_are_not_modified():
    x = torch.full((4, 3), 2.0)
    correct(x, schedule=lambda view: torch.tensor([True, False, True, False]))
    assert (x == 2).all()


# ------------------------------------------------------------------ records


@pytest.mark.parametrize("defect", [None, Sphere().defect])
def test_schedules_that_do_not_look_can_do_without_defects(defect):
    sphere = tt.as_constraint(Sphere().project, defect)
    seen = free.rollout(Walk(), sphere, tt.Periodic(3), range(4))
    blind = free.rollout(Walk(), sphere, tt.Periodic(3), range(4), measure_defects=False)
    assert torch.equal(blind.final, seen.final)
    assert torch.equal(blind.projected, seen.projected)
    assert blind.defects.isnan().all()
    assert blind.residuals.isnan().all()
    assert blind.rows == {"update": 48, "defect": 0, "projection": 12}


def test_schedules_that_look_need_defects():
    with pytest.raises(ValueError, match="FixedThreshold decides by defects"):
        free.rollout(Walk(), Sphere(), tt.schedules.FixedThreshold(0.1), range(4), measure_defects=False)


def test_steps_can_be_logged():
    seen = []
    corrector = free.Corrector(Sphere(), tt.Stepwise(), 3, on_step=lambda t, numbers: seen.append((t, numbers)))
    for _ in range(3):
        corrector(torch.full((2, 4), 1.0))
    assert [t for t, _ in seen] == [0, 1, 2]
    assert seen[0][1] == {"defect": 1.0, "residual": 0.0, "projected": 1.0}


# ------------------------------------------------------------------ precision


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_measured_and_projected_in_float32(dtype):
    seen = []

    def project(x):
        seen.append(x.dtype)
        return Sphere().project(x)

    corrector = free.Corrector(tt.as_constraint(project, Sphere().defect), tt.Stepwise(), 1)
    y = corrector(torch.full((2, 3), 3.0, dtype=dtype))
    assert y.dtype == dtype
    assert seen == [torch.float32]
    assert corrector.rollout.defects.dtype == torch.float32


def test_a_logging_function_is_called_as_a_projection_is():
    seen: list[tuple[bool, bool]] = []

    def on_step(t, numbers):
        seen.append((torch.is_autocast_enabled("cpu"), torch.is_grad_enabled()))

    corrector = tt.Corrector(Sphere(), tt.Stepwise(), n_steps=2, on_step=on_step)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(2):
            corrector(torch.full((2, 3), 2.0))
        assert torch.is_autocast_enabled("cpu")
    assert seen == [(False, False)] * 2


def test_autocast_does_not_reach_the_projection():
    def project(x):
        return x @ torch.eye(3)

    constraint = tt.as_constraint(project, lambda x: (x @ torch.eye(3)).abs().sum(dim=1))
    x = torch.full((2, 3), 1.0001)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(correct(x, constraint), x)
    corrector = tt.Corrector(constraint, tt.Stepwise(), 2)
    corrector.begin(x)
    for _ in range(2):  # whether there is one is asked at every call
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(corrector(x), x)


@pytest.mark.parametrize("begin", [False, True])
def test_a_run_may_leave_and_enter_inference_mode(begin):
    counting = tt.as_constraint(
        lambda x: tt.Projection(Sphere().project(x), torch.ones(len(x)).bool(), torch.ones(len(x)).int()),
        Sphere().defect,
    )
    finals = []
    for inside in ((), (0, 1, 3)):
        corrector = free.Corrector(counting, tt.Periodic(3), 6)
        x = torch.ones(3, 2)
        if begin:
            with torch.inference_mode(mode=0 in inside):
                corrector.begin(x)
        for t in range(6):
            with torch.inference_mode(mode=t in inside):
                x = corrector(x + 0.5, t)
        finals.append(x)
        assert not corrector.rollout.projected.is_inference()
    assert torch.equal(*finals)


def test_no_gradient_flows_through_a_correction():
    x = torch.ones(2, 3, requires_grad=True)
    assert not correct(x * 2).requires_grad


def test_a_sampler_is_told_from_a_constraint():
    with pytest.raises(TypeError, match=r"a sampler has n_steps.*Sphere has no n_steps"):
        free.rollout(Sphere(), Walk(), tt.Stepwise(), [1])
