"""Algorithm 1 inside the step: laws of corrections that are bought one iteration at a time."""

import copy
import itertools
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import trimtab as tt
from cases import Walk
from trimtab.core.budget import units
from trimtab.core.constraint import Improvement
from trimtab.core.groups import Groups
from trimtab.loop.replay import replay
from trimtab.prices import Adaptive, Thresholds

T = 12
SEEDS = range(7)


class Halving(tt.Constraint):
    """The sphere, reached by iterations that leave a share of the defect, and are done below a tolerance."""

    improves = True

    def __init__(self, share: float = 0.5, tolerance: float = 1e-3) -> None:
        self.share, self.tolerance = share, tolerance

    def defect(self, x: Tensor) -> Tensor:
        return (x.norm(dim=1) - 1).abs()

    def improve(self, x, state, **context):
        count = torch.zeros(len(x), dtype=torch.int64) if state is None else state[0]
        radius = x.norm(dim=1)
        there = (radius - 1).abs() <= self.tolerance
        new = torch.where(there, radius, 1 + self.share * (radius - 1))
        y = x * (new / radius)[:, None]
        defect = self.defect(y)
        return Improvement(y, defect, defect <= self.tolerance, (count + 1,))

    def project(self, x):
        spent, y = torch.zeros(len(x), dtype=torch.int64), x
        while bool((open_rows := self.defect(y) > self.tolerance).any()):
            y = torch.where(open_rows[:, None], self.improve(y, None).x, y)
            spent += open_rows
        return tt.Projection(y, torch.ones(len(x), dtype=torch.bool), spent, self.defect(y))


def flat_prices(price: float, budget: int, closing_reserve: int = 1) -> Thresholds:
    table = torch.full((T, budget + 1), price, dtype=torch.float64)
    table[:, 0] = torch.inf
    return Thresholds(table, unit="iteration", closing_reserve=closing_reserve)


def run(schedule, constraint=None, **options) -> tt.Rollout:
    return tt.rollout(Walk(T), constraint or Halving(), schedule, SEEDS, **options)


@settings(max_examples=25)
@given(st.floats(0.01, 0.5), st.integers(1, 60), st.integers(1, 4), st.sampled_from(["paid", "free", "none"]))
def test_no_budget_is_exceeded_before_the_closing_and_every_decision_can_be_replayed(price, budget, kept, closing):
    schedule = flat_prices(price, budget + kept, kept).at(budget + kept)
    record = run(schedule, closing=closing)
    before_the_end = record.iterations[:-1].sum(dim=0)
    assert int(before_the_end.max()) <= (budget if closing == "paid" else budget + kept)
    assert torch.equal(replay(schedule, record), record.iterations.long())
    assert torch.equal(record.projected, record.iterations > 0)
    assert record.unit == "iteration"
    assert torch.equal(record.spent, record.iterations.sum(dim=0))


def test_a_sample_iterates_until_the_price_is_not_reached_any_more():
    record = run(flat_prices(0.05, 10_000).at(10_000), closing="none")
    assert float(record.residuals.max()) < 0.05
    expected = (record.defects / 0.05).log2().floor().clamp(min=-1) + 1  # halvings until below
    assert torch.equal(record.iterations.double(), expected)


def test_where_one_iteration_is_the_whole_projection_nothing_changes():
    table = flat_prices(0.1, T).table
    whole = run(Adaptive(Thresholds(table), 5), Halving(share=0.0))
    parts = run(Adaptive(Thresholds(table, unit="iteration"), 5), Halving(share=0.0))
    assert torch.equal(whole.projected, parts.projected)
    assert torch.equal(whole.final, parts.final)
    assert torch.equal(whole.paid, parts.paid)


def test_a_schedule_that_fixes_its_times_buys_one_iteration_each_time():
    record = run(tt.Periodic(4), unit="iteration", measure_defects=True, closing="none")
    assert record.iterations.sum(dim=0).tolist() == [4] * len(SEEDS)
    assert bool((record.residuals[record.projected] > 1e-3).any())  # which does not finish


@pytest.mark.parametrize("closing", ["paid", "free"])
def test_a_run_ends_feasible_and_its_closing_iterations_are_counted(closing):
    record = run(flat_prices(0.3, 8).at(8), closing=closing)
    assert float(Halving().defect(record.final).max()) <= 1e-3
    assert torch.equal(record.paid, record.all_iterations)
    assert bool((record.paid >= record.spent).all())


@pytest.mark.parametrize("closing", ["paid", "free"])
def test_a_closing_projection_that_does_not_tell_its_iterations_is_one(closing):
    class Silent(Halving):
        def project(self, x):
            return super().project(x).x

    record = run(tt.Terminal(), Silent(), unit="iteration", closing=closing)
    assert record.paid.tolist() == record.all_iterations.tolist() == [1] * len(SEEDS)
    assert record.spent.tolist() == [int(closing == "paid")] * len(SEEDS)
    assert torch.equal(replay(tt.Terminal(), record), record.iterations.long())


def test_a_function_is_asked_again_after_each_iteration():
    seen = []

    def below(view: tt.StepView) -> Tensor:
        seen.append((view.t, view.defect.clone(), view.spent.clone()))
        return view.defect >= 0.1

    record = run(below, unit="iteration", closing="none")
    assert float(record.residuals.max()) < 0.1
    steps = [t for t, _, _ in seen]
    assert max(map(steps.count, set(steps))) > 1
    for (t, defect, spent), (u, later, after) in itertools.pairwise(seen):
        if t == u:  # one unit was paid for each sample that is nearer now
            assert torch.equal(after - spent, (later < defect).long())


def test_what_the_solver_carries_goes_with_its_rows():
    counts = {}

    class Counting(Halving):
        def improve(self, x, state, **context):
            answer = super().improve(x, state)
            for row, count in zip(x.tolist(), answer.state[0].tolist(), strict=True):
                counts[tuple(row)] = count
            return answer

    record = run(flat_prices(0.05, 10_000).at(10_000), Counting(), closing="none")
    assert max(counts.values()) == int(record.iterations.max()) > 1


@pytest.mark.parametrize(
    ("per_step", "expected"), [(1, [1] * T), (2, [2] * T), (1.5, [1, 2] * 6), (0.25, [0, 0, 0, 1] * 3)]
)
def test_a_solver_that_is_cut_short_makes_so_many_iterations_at_every_step(per_step, expected):
    schedule = tt.schedules.Inexact(per_step)
    record = run(schedule, Halving(tolerance=1e-9), closing="none")
    assert record.iterations[:, 0].tolist() == expected
    assert torch.equal(replay(schedule, record), record.iterations.long())
    with pytest.raises(ValueError, match="made for unit='iteration'"):
        run(schedule, unit="projection")


class SetUp(Halving):
    """As before, but beginning costs three units more than going on, and going on two."""

    begin, go_on = 5, 2

    def improve(self, x, state, **context):
        answer = super().improve(x, state)
        cost = torch.where(answer.state[0] == 1, self.begin, self.go_on)
        return answer._replace(cost=cost)

    def project(self, x):
        whole = super().project(x)
        spent = whole.iterations
        return whole._replace(iterations=torch.where(spent > 0, self.begin + self.go_on * (spent - 1), 0))


@settings(max_examples=25, deadline=None)
@given(st.floats(0.01, 0.5), st.integers(1, 90), st.sampled_from(["paid", "free", "none"]))
def test_what_an_iteration_costs_is_what_it_spends(price, budget, closing):
    schedule = flat_prices(price, budget + 1).at(budget + 1)
    record = run(schedule, SetUp(), closing=closing)
    on_the_way = record.iterations[:-1] if closing == "paid" else record.iterations
    begun, units = on_the_way > 0, on_the_way - SetUp.begin
    assert bool((units[begun] >= 0).all())
    assert bool((units[begun] % SetUp.go_on == 0).all())
    assert torch.equal(record.spent, record.iterations.sum(dim=0))
    assert torch.equal(record.paid, record.all_iterations)
    most = budget + (0 if closing == "paid" else 1)
    assert int(on_the_way.sum(dim=0).max()) <= most - 1 + SetUp.begin  # no more than the last iteration beyond it
    assert torch.equal(replay(schedule, record), record.iterations.long())
    if record.passes is not None:
        assert int(record.passes.cost.sum()) == int(on_the_way.sum())
    if closing != "none":  # whatever iterations cost on the way, the run ends feasible
        assert bool((SetUp().defect(record.final) <= SetUp().tolerance).all())


@pytest.mark.parametrize("closing", ["paid", "free", "none"])
@pytest.mark.parametrize("budget", [2, 3, 7])
def test_where_an_iteration_costs_more_than_is_left_nothing_is_left(budget, closing):
    """And not less than nothing, which would be the price of another column, or of none."""
    seen = []

    class Watching(Adaptive):
        def decide(self, view):
            seen.extend([view.arrays(self)[1].min(), view.budget_left.min(), view.spendable.min()])
            seen.extend([view.take(slice(0, 2)).budget_left.min(), view.take(slice(0, 2)).spendable.min()])
            return super().decide(view)

    prices = flat_prices(0.0, budget)
    record = run(Watching(prices, budget), SetUp(), closing=closing)
    on_the_way = record.iterations[:-1] if closing == "paid" else record.iterations
    assert int(on_the_way.sum(dim=0).min()) >= budget - (closing == "paid")
    assert int(on_the_way.sum(dim=0).max()) <= budget - (closing == "paid") - 1 + SetUp.begin
    assert min(map(int, seen)) == 0
    assert torch.equal(replay(Adaptive(prices, budget), record), record.iterations.long())


def test_a_closing_that_is_paid_for_is_had_although_one_iteration_took_what_was_kept_for_it():
    record = run(tt.Periodic(2), SetUp(), unit="iteration", measure_defects=True)
    assert int(record.iterations[:-1].sum(dim=0).min()) > 2
    assert bool(record.projected[-1].all())
    assert bool((SetUp().defect(record.final) <= SetUp().tolerance).all())
    assert torch.equal(replay(tt.Periodic(2), record), record.iterations.long())


def test_a_schedule_that_is_asked_once_spends_what_its_iteration_cost():
    record = run(tt.Periodic(4), SetUp(), unit="iteration", measure_defects=True, closing="none")
    assert record.iterations[record.iterations > 0].unique().tolist() == [SetUp.begin]
    assert record.spent.tolist() == [SetUp.begin] * len(SEEDS)  # one call has spent the four units that there were


ONE_EACH = tt.Periodic(1.0)


def test_stepwise_is_a_whole_projection_in_every_unit():
    counted, whole = run(tt.Stepwise(), unit="iteration"), run(tt.Stepwise(), unit="projection")
    assert torch.equal(counted.final, whole.final)
    assert torch.equal(counted.projected, whole.projected)


def test_a_group_pays_for_its_most_expensive_row():
    class ByRow(Halving):
        def improve(self, x, state, **context):
            return super().improve(x, state)._replace(cost=torch.arange(1, len(x) + 1))

    pairs = Groups(torch.zeros(len(SEEDS), dtype=torch.int64))
    record = run(ONE_EACH, ByRow(), unit="iteration", measure_defects=True, closing="none", groups=pairs)
    assert record.iterations[0].tolist() == list(range(1, len(SEEDS) + 1))
    assert int((record.iterations > 0).any(dim=1).sum()) == -(-T // len(SEEDS))
    assert record.grouped().iterations[0].tolist() == [len(SEEDS)]
    assert torch.equal(replay(ONE_EACH, record), record.iterations.long())


@pytest.mark.parametrize("cost", [torch.zeros(7, dtype=torch.int64), torch.ones(7), torch.ones(3).long(), 2])
def test_a_cost_that_is_none_is_refused(cost):
    class Wrong(Halving):
        def improve(self, x, state, **context):
            return super().improve(x, state)._replace(cost=cost)

    with pytest.raises(RuntimeError, match="report its cost as"):
        run(ONE_EACH, Wrong(), unit="iteration")


def test_going_on_may_have_prices_of_its_own():
    begin, onward = flat_prices(0.2, 1000).table, flat_prices(0.01, 1000).table
    schedule = Thresholds(begin, unit="iteration", onward=onward).at(1000)
    record = run(schedule, closing="none")
    touched = record.projected
    assert bool((record.defects[touched] >= 0.2).all())
    assert bool((record.residuals[touched] < 0.01).all())
    assert bool((record.residuals[~touched] < 0.2).all())
    assert torch.equal(replay(schedule, record), record.iterations.long())


def test_prices_of_going_on_come_back_from_their_file_and_must_fit(tmp_path):
    begin, onward = flat_prices(0.2, 9).table, flat_prices(0.01, 9).table
    Thresholds(begin, unit="iteration", onward=onward).save(tmp_path / "prices.safetensors")
    assert torch.equal(tt.load(tmp_path / "prices.safetensors").onward, onward)
    with pytest.raises(ValueError, match="requires unit="):
        Thresholds(begin, unit="iteration", onward=onward[:, :-1])
    with pytest.raises(ValueError, match="column 0"):
        Thresholds(begin, unit="iteration", onward=torch.zeros_like(onward))


@pytest.mark.parametrize("closing", ["paid", "free", "none"])
@pytest.mark.parametrize("constraint", [Halving(), SetUp()])
def test_a_group_is_bought_iterations_together(constraint, closing):
    pairs = Groups(torch.tensor([0, 0, 1, 1, 2, 2, 2]), defect="largest")
    schedule = flat_prices(0.1, 10_000).at(10_000)
    record = run(schedule, constraint, closing=closing, groups=pairs)
    if closing == "paid":  # each row of a group takes what it takes
        assert not torch.equal(record.iterations[-1], pairs.per_row(record.iterations[-1, pairs.first_row]))
    assert torch.equal(record.projected, pairs.per_row(record.projected[:, pairs.first_row]))
    assert torch.equal(replay(schedule, record), record.iterations.long())


def test_a_record_of_iterations_comes_back_from_its_file(tmp_path):
    schedule = flat_prices(0.1, 30, 2).at(30)
    record = run(schedule)
    record.save(tmp_path / "run.safetensors")
    again = tt.Rollout.load(tmp_path / "run.safetensors")
    assert again.unit == "iteration"
    assert torch.equal(again.spent, record.spent)
    assert torch.equal(replay(schedule, again), record.iterations.long())


def test_prices_of_iterations_come_back_from_their_file(tmp_path):
    prices = flat_prices(0.1, 40, 3)
    prices.save(tmp_path / "prices.safetensors")
    again = tt.load(tmp_path / "prices.safetensors")
    assert (again.unit, again.closing_reserve, again.budget) == ("iteration", 3, 40)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_goes_on_in_the_middle_of_a_run(copied):
    corrector = tt.Corrector(Halving(), flat_prices(0.1, 30).at(30), T)
    x = 1.5 * torch.nn.functional.normalize(torch.randn(5, 3, dtype=torch.float64, generator=torch.manual_seed(0)))
    for t in range(5):
        x = corrector(1.2 * x, t)
    other, y = copied(corrector), x.clone()
    for t in range(5, T):
        x, y = corrector(1.2 * x, t), other(1.2 * y, t)
    assert torch.equal(x, y)
    assert torch.equal(corrector.rollout.iterations, other.rollout.iterations)


def test_a_constraint_without_iterations_is_refused():
    sphere = tt.as_constraint(lambda x: x / x.norm(dim=1, keepdim=True), lambda x: (x.norm(dim=1) - 1).abs())
    with pytest.raises(ValueError, match="offers improve"):
        run(tt.Periodic(4), sphere, unit="iteration")


def test_prices_of_one_unit_are_not_spent_in_the_other():
    with pytest.raises(ValueError, match="made for unit='iteration'"):
        run(flat_prices(0.1, 5).at(5), unit="projection")
    with pytest.raises(ValueError, match="must be 'projection' or 'iteration'"):
        run(tt.Periodic(4), unit="newton")


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -1.0])
def test_an_iteration_that_returns_no_number_is_refused(bad):
    class Broken(Halving):
        def improve(self, x, state, **context):
            answer = super().improve(x, state)
            return answer._replace(defect=torch.full_like(answer.defect, bad))

    with pytest.raises(RuntimeError, match="improve returned"):
        run(flat_prices(0.1, 30).at(30), Broken())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": lambda answer: answer.x[:, :1]}, "improve must return states as it was given them"),
        (
            {"defect": lambda answer: answer.defect[:, None]},
            "improve must return, as the defect, one number per sample",
        ),
    ],
)
def test_an_iteration_of_another_shape_is_refused_by_its_name(changed, message):
    class Broken(Halving):
        def improve(self, x, state, **context):
            answer = super().improve(x, state)
            return answer._replace(**{name: change(answer) for name, change in changed.items()})

    with pytest.raises((RuntimeError, ValueError), match=message):
        run(flat_prices(0.1, 30).at(30), Broken())


def test_a_solver_that_never_ends_is_stopped():
    class Endless(Halving):
        def improve(self, x, state, **context):
            answer = super().improve(x, state)
            return answer._replace(done=torch.zeros_like(answer.done))

    with pytest.raises(RuntimeError, match="not done after"):
        run(lambda view: view.defect >= 0, Endless(), unit="iteration")


def test_a_budget_that_cannot_pay_for_the_closing_is_refused():
    with pytest.raises(ValueError, match="which takes 3"):
        run(flat_prices(0.1, 5, 3).at(2))


def test_a_budget_counts_iterations_up_to_what_the_books_hold():
    assert units(30_000_000, 100, "iteration") == 30_000_000
    assert units(2**31 - 1, 100, "iteration") == units(None, 100, "iteration")
    assert units(1e7, 100, "iteration") == 10**9
    for wrong in (2**31, 3e7, -1, -0.5, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"between 0 and 2\^31 - 1 in total \(T = 100 steps\)"):
            units(wrong, 100, "iteration")
