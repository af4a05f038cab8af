"""Ways of correcting: what happens, what it costs and what the record says, whatever the way."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import trimtab as tt
from cases import Sphere, Walk
from trimtab.constraints import EnergyDescent, NonlinearEquality
from trimtab.constraints.ways import way_of, ways_of
from trimtab.core.budget import Cost, PerBatch
from trimtab.core.constraint import Improvement
from trimtab.core.record import work_of
from trimtab.loop.replay import replay
from trimtab.schedules import By, Fixed, FixedThreshold, Periodic, Stepwise, Terminal

T, N = 12, 5

pytestmark = pytest.mark.filterwarnings("ignore:.*is not a projection")


class Reporting(tt.Constraint):
    """The sphere by a solver of four halvings, with a cheaper way that is none and one that projects in one go."""

    improves = True

    def defect(self, x):
        return Sphere().defect(x)

    def project(self, x):
        y = Sphere().project(x)
        return tt.Projection(y, torch.ones(len(x), dtype=torch.bool), torch.full((len(x),), 4), self.defect(y))

    def improve(self, x, state, **context):
        y = (x + Sphere().project(x)) / 2
        return Improvement(y, self.defect(y), self.defect(y) < 1e-12, ())

    def cheaper(self):
        return {
            "nothing": tt.as_constraint(lambda x: x, self.defect),
            "at once": tt.as_constraint(Sphere().project, self.defect),
            "farther": tt.as_constraint(lambda x: x + 100, self.defect),
            "NaN": tt.as_constraint(lambda x: torch.full_like(x, torch.nan), self.defect),
            "half NaN": tt.as_constraint(
                lambda x: torch.where(x[:, :1] > 0, torch.nan, Sphere().project(x)), self.defect
            ),
            "liar": Liar(),
        }


class Liar(Sphere):
    """Reports a negative residual."""

    def project(self, x):
        return tt.Projection(x, None, None, torch.full_like(x[:, 0], -1.0))


CONSTRAINTS = {
    "reporting": Reporting(),
    "equation": NonlinearEquality(lambda y: (y * y).sum()[None] - 1),
    "energy": EnergyDescent(lambda x: (x * x).sum(dim=1), steps=4, step_size=0.1),
    "energy seen before": EnergyDescent(lambda x: (x * x).sum(dim=1), steps=4, step_size=0.1, measure_after=False),
}
SCHEDULES = {
    "stepwise": Stepwise(),
    "periodic": Periodic(4),
    "terminal": Terminal(),
    "fixed": Fixed([1, 5, -1]),
    "threshold": FixedThreshold(0.2, 4),
}
CLOSINGS = ["paid", "free", "none"]
UNITS = ["projection", "iteration"]


def run_of(constraint, schedule, n=N, **options):
    return tt.rollout(Walk(T), constraint, schedule, range(n), measure_defects=True, **options)


def whole(run):
    return run.way_names.index("whole") + 1


# ------------------------------------------------------------------ By


@pytest.mark.parametrize("closing", CLOSINGS)
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("kind", CONSTRAINTS)
@pytest.mark.parametrize("way", ["1 iteration", "3 iterations"])
def test_by_corrects_at_the_times_of_its_schedule_and_closes_whole(kind, name, way, closing):
    constraint, schedule = CONSTRAINTS[kind], By(way, SCHEDULES[name])
    run = run_of(constraint, schedule, closing=closing)
    assert run.way_names == (way, "whole")
    before = slice(0, T - 1 if closing == "paid" else T)
    fell_back = (run.ways[before] == 2).any()
    assert bool((run.projected == (run.ways > 0)).all())
    if name != "threshold":  # its times depend on the states, which depend on the way
        plain = run_of(constraint, SCHEDULES[name], closing=closing)
        assert torch.equal(run.projected, plain.projected)
    assert not fell_back  # none of these solvers goes up
    if closing == "paid":
        assert run.ways[-1].tolist() == [2] * N
        assert not bool(run.closing.any())
    elif closing == "free":
        assert run.closing.tolist() == (run.ways[-1] != 2).tolist()  # few iterations are not the closing projection
    else:
        assert not bool(run.closing.any())
    few = 1 if way == "1 iteration" else 3
    assert int(run.iterations[before][run.ways[before] == 1].max() if bool((run.ways[before] == 1).any()) else 0) <= few


@pytest.mark.parametrize("closing", CLOSINGS)
def test_only_a_whole_last_projection_is_feasible(closing):
    run = run_of(Reporting(), By("1 iteration"), closing=closing)
    assert run.feasible.tolist() == [closing != "none"] * N
    assert bool((Sphere().defect(run.final) < 1e-12).all()) == (closing != "none")


@dataclass(frozen=True)
class Mixed(tt.Schedule):
    """Stays, one iteration, whole, in turns that differ from sample to sample."""

    ways: tuple[str, ...] = ("1 iteration", "whole")
    budget: object = None
    unit: str = ""
    cost: object = None

    def decide(self, view):
        return (view.t + torch.arange(len(view.defect))) % 3


@pytest.mark.parametrize("closing", CLOSINGS)
def test_numbers_choose_ways(closing):
    run = run_of(Reporting(), Mixed(), closing=closing)
    expected = (torch.arange(T)[:, None] + torch.arange(N)) % 3
    if closing == "paid":
        expected[-1] = 2
    assert torch.equal(run.ways.long(), expected)
    assert torch.equal(run.iterations, torch.tensor([0, 1, 4])[run.ways.long()].int())
    assert run.feasible.tolist() == [closing != "none" or way == 2 for way in expected[-1].tolist()]


def test_true_is_the_last_of_the_ways():
    class Flags(Mixed):
        def decide(self, view):
            return torch.arange(len(view.defect)) % 2 == 0

    run = run_of(Reporting(), Flags(), closing="none")
    assert torch.equal(run.ways.long(), torch.tensor([2, 0, 2, 0, 2]).expand(T, N))


BAD = [
    torch.full((N,), 3),
    torch.full((N,), -1),
    torch.ones(N, dtype=torch.int32),
    torch.ones(N),
    torch.ones(N + 1, dtype=torch.int64),
    torch.ones(N, 1, dtype=torch.int64),
    1,
    None,
]


@pytest.mark.parametrize("answer", BAD, ids=repr)
def test_other_answers_raise_at_the_first_step(answer):
    class Wrong(Mixed):
        def decide(self, view):
            return answer

    with pytest.raises(ValueError, match=r"must decide with a \(5,\) bool tensor, or with \(n,\) int64 from 0 to 2"):
        run_of(Reporting(), Wrong())


def test_ways_that_do_not_exist_are_named():
    with pytest.raises(ValueError, match=r"has no way called 'frozen'.*'at once'"):
        run_of(Reporting(), By("frozen"))
    with pytest.raises(ValueError, match="no way called '1 iteration'"):
        run_of(Sphere(), By("1 iteration"))
    with pytest.raises(ValueError, match="no way called '0 iterations'"):
        way_of(Reporting(), "0 iterations")
    with pytest.raises(ValueError, match="schedule of whole projections"):
        By("1 iteration", By("2 iterations"))
    assert ways_of(Sphere()) == ("whole",)
    assert ways_of(Reporting(), 2) == ("1 iteration", "2 iterations", "whole")


# ------------------------------------------------------------------ what is no better is projected whole


@pytest.mark.parametrize(
    ("way", "falls"), [("nothing", False), ("at once", False), ("farther", True), ("NaN", True), ("liar", True)]
)
def test_what_is_not_finite_or_farther_off_is_projected_whole_and_both_are_counted(way, falls):
    run = run_of(Reporting(), By(way), closing="paid", unit="iteration")
    free = run.ways[:-1]
    assert bool((free == (2 if falls else 1)).all())
    # a way that reports no iterations costs one; whole costs four
    assert bool((run.iterations[:-1] == (1 + 4 if falls else 1)).all())
    assert run.calls["projection"] == (T - 1) * (2 if falls else 1) + 1
    assert run.rows["projection"] == run.calls["projection"] * N
    assert bool((run.residuals >= 0).all())
    assert bool(run.feasible.all())
    assert not bool(run.failed.any())
    if falls:
        plain = run_of(Reporting(), Stepwise())
        assert torch.equal(run.final, plain.final)
        assert torch.equal(run.residuals, plain.residuals)


def test_rows_fall_back_one_by_one():
    run = run_of(Reporting(), By("half NaN"), n=16, unit="iteration")
    again = run.ways[:-1] == 2
    assert 0 < int(again.sum()) < again.numel()
    assert torch.equal(run.iterations[:-1], torch.where(again, 5, 1).int())
    assert bool(run.final.isfinite().all())
    assert torch.allclose(run.residuals, torch.zeros_like(run.residuals), atol=1e-12)


def test_the_residual_of_a_cheaper_way_is_measured_where_measuring_is_projecting():
    class Half(tt.Constraint):
        defect_is_projection = True

        def project(self, x):
            return Sphere().project(x)

        def defect(self, x):
            return (x - self.project(x)).norm(dim=1)

        def cheaper(self):
            return {"half": tt.as_constraint(lambda x: (x + Sphere().project(x)) / 2, self.defect)}

    run = run_of(Half(), By("half"))
    assert torch.allclose(run.residuals[:-1], run.defects[:-1] / 2)
    assert run.residuals[-1].tolist() == [0.0] * N


# ------------------------------------------------------------------ accounts


@pytest.mark.parametrize("closing", CLOSINGS)
@pytest.mark.parametrize("kind", CONSTRAINTS)
def test_iterations_that_are_paid_for_are_those_that_were_made(kind, closing):
    run = run_of(CONSTRAINTS[kind], Mixed(unit="iteration", budget=None), closing=closing)
    assert run.unit == "iteration"
    assert torch.equal(run.spent, run.iterations.sum(dim=0))
    assert torch.equal(run.paid, run.iterations.sum(dim=0) + run.closing_iterations)
    assert torch.equal(run.all_iterations, run.paid)


@pytest.mark.parametrize("closing", CLOSINGS)
@pytest.mark.parametrize("schedule", [By("1 iteration", Periodic(4)), By("at once", Periodic(3))])
def test_projections_cost_one_whatever_their_way(schedule, closing):
    run = run_of(Reporting(), schedule, closing=closing)
    assert run.unit == "projection"
    assert run.spent.tolist() == [schedule.budget] * N


@pytest.mark.parametrize("closing", CLOSINGS)
@pytest.mark.parametrize("budget", [4, 7, 15, 30])
@pytest.mark.parametrize("shared", [False, True])
def test_a_budget_of_iterations_stops_at_the_correction_that_uses_it_up(budget, closing, shared):
    @dataclass(frozen=True)
    class Greedy(Mixed):
        def decide(self, view):
            return torch.full((len(view.defect),), 1 + view.t % 2)

    run = run_of(Reporting(), Greedy(unit="iteration", budget=PerBatch(budget) if shared else budget), closing=closing)
    steps = run.iterations[: T - (closing == "paid")].cumsum(dim=0)
    limit = budget - (closing == "paid")  # the closing projection's share, of which one iteration is kept
    before = torch.nn.functional.pad(steps[:-1], (0, 0, 1, 0))
    used = before.sum(dim=1, keepdim=True).expand_as(before) / N if shared else before
    corrected = run.projected[: len(steps)]
    assert bool((used[corrected] < limit).all())  # nothing starts once it is used up
    over = (steps[-1].double().mean() if shared else steps[-1].max()) - limit
    assert float(over) < 4  # by less than the one correction that uses it up


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("way", ["1 iteration", "whole"])
def test_no_budget_of_projections_is_overdrawn(shared, way):
    @dataclass(frozen=True)
    class Greedy(Mixed):
        def decide(self, view):
            return torch.full((len(view.defect),), 1 if way == "1 iteration" else 2)

    for budget in (1, 2, 5, T):
        run = run_of(Reporting(), Greedy(budget=PerBatch(budget) if shared else budget))
        assert int(run.spent.sum()) == N * budget
        assert shared or run.spent.tolist() == [budget] * N


COSTS = [Cost(0, 1, 0), Cost(0, 0, 1), Cost(5.0, 0.5, 0.25), Cost(1.0, 0.0, 0.0)]


@pytest.mark.parametrize("closing", CLOSINGS)
@pytest.mark.parametrize("cost", COSTS, ids=repr)
def test_seconds_are_those_of_calls_rows_and_iterations(cost, closing):
    run = run_of(Reporting(), Mixed(unit="second", cost=cost), closing=closing)
    expected = torch.zeros(N, dtype=torch.float64)
    for t in range(T):
        for way in (1, 2):
            rows = run.ways[t] == way
            share = cost.call / max(int(rows.sum()), 1)
            expected += rows * (share + cost.row) + cost.iteration * rows * run.iterations[t]
    assert torch.allclose(run.spent.double(), expected)
    total = cost.call * sum(len(set(ways.tolist()) - {0}) for ways in run.ways)
    total += cost.row * int(run.projected.sum()) + cost.iteration * int(run.iterations.sum())
    assert float(run.spent.sum()) == pytest.approx(total)


def test_the_cost_of_a_call_is_shared_by_its_rows():
    projected = torch.tensor([[True, True, False], [True, False, False]])
    ways, iterations = torch.tensor([[1, 2, 0], [1, 0, 0]]), torch.zeros(2, 3, dtype=torch.int64)
    paid = work_of(Cost(6.0, 1.0, 0.0), projected, iterations)
    assert paid.tolist() == [[4.0, 4.0, 0.0], [7.0, 0.0, 0.0]]
    paid = work_of(Cost(6.0, 1.0, 0.0), projected, iterations, ways)
    assert paid.tolist() == [[7.0, 7.0, 0.0], [7.0, 0.0, 0.0]]


# ------------------------------------------------------------------ replay and files


@pytest.mark.parametrize("closing", CLOSINGS)
@pytest.mark.parametrize("unit", [*UNITS, "second"])
@pytest.mark.parametrize("budget", [None, 5, PerBatch(5)], ids=repr)
def test_replay_computes_the_ways_again(unit, closing, budget):
    cost = Cost(0.5, 0.1, 0.2) if unit == "second" else None
    schedule = Mixed(unit=unit, cost=cost, budget=budget)
    run = run_of(Reporting(), schedule, closing=closing)
    assert torch.equal(replay(schedule, run), run.ways)
    by = By("1 iteration", FixedThreshold(0.2, 4))
    run = run_of(Reporting(), by, closing=closing)
    assert torch.equal(replay(by, run), run.ways)


@pytest.mark.parametrize("unit", [*UNITS, "second"])
def test_a_file_keeps_ways_and_costs(unit, tmp_path):
    schedule = Mixed(unit=unit, cost=Cost(0.5, 0.1, 0.2) if unit == "second" else None)
    run = run_of(Reporting(), schedule, closing="free")
    run.save(tmp_path / "run")
    again = tt.Rollout.load(tmp_path / "run")
    assert (again.way_names, again.cost, again.unit) == (run.way_names, run.cost, run.unit)
    for name in ("ways", "spent", "paid", "all_iterations", "feasible", "residuals"):
        assert torch.equal(getattr(again, name), getattr(run, name)), name
    assert torch.equal(replay(schedule, again), run.ways)


# ------------------------------------------------------------------ trials


@pytest.mark.parametrize("kind", CONSTRAINTS)
@pytest.mark.parametrize("closing", CLOSINGS)
def test_what_is_tried_beside_changes_nothing(kind, closing):
    class Tried(Mixed):
        def trials(self, n):
            return torch.tensor([1, 3])

    plain, tried = (run_of(CONSTRAINTS[kind], one, closing=closing) for one in (Mixed(), Tried()))
    for name in ("final", "defects", "residuals", "ways", "iterations", "closing_iterations", "spent", "projected"):
        assert torch.equal(getattr(plain, name), getattr(tried, name)), name
    assert plain.trials is None
    found = tried.trials
    assert set(found.way.tolist()) == {1}  # the other way is whole
    assert found.rows.tolist() == [1, 3]
    assert len(found.step) == 2 * (T - 1)
    assert bool((found.residual <= found.defect + 1e-12).all())
    assert bool(torch.cat([found.drift, found.length]).isfinite().all())
    assert bool((found.drift <= found.length + 1e-12).all())  # a sum is no longer than its parts
    assert int((tried.all_iterations - plain.all_iterations).sum()) == int(found.work.sum())


@pytest.mark.parametrize("way", ["NaN", "farther", "liar"])
def test_a_way_that_fails_is_tried_as_the_run_would_take_it(way):
    @dataclass(frozen=True)
    class Tried(Mixed):
        ways: tuple[str, ...] = (way, "whole")

        def decide(self, view):
            return torch.full((len(view.defect),), 2)

        def trials(self, n):
            return torch.arange(2)

    found = run_of(Reporting(), Tried()).trials
    assert torch.allclose(found.residual, torch.zeros_like(found.residual), atol=1e-12)
    assert set(found.work.tolist()) == {5.0}
    assert float(found.drift[1]) == 0.0
