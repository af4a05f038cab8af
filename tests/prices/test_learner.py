"""A budget that is learned with: what is spent, what comes of it, and what stays true whatever happens."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import trimtab as tt
from cases import CONSTRAINTS, Sphere, Walk
from trimtab.core.budget import Cost, PerBatch, PerSample
from trimtab.core.constraint import Improvement
from trimtab.core.quality import Quality
from trimtab.loop.replay import replay
from trimtab.prices.fit import Model
from trimtab.prices.learner import Learner, drifting_ways
from trimtab.prices.table import _counts
from trimtab.prices.ways import solve_ways

pytestmark = pytest.mark.filterwarnings("ignore:.*is not a projection")


def runs(learner, batches, n=16, name="so3-impulse", n_steps=40, first=0):
    domain = tt.domain(name, n_steps=n_steps)
    return [domain.problem(range(first + n * k, first + n * k + n)).rollout(learner) for k in range(batches)]


def learned(budget, **options):
    """A learner that tries no twins, whose arm is the program."""
    return Learner(budget, twins=0, **options)


def of_projections(budget):
    """A learner that counts whole projections, as the paper does."""
    return learned(budget, unit="projection")


def norm(final):
    return final.flatten(1).norm(dim=1)


# ------------------------------------------------------------------ what is spent


def test_a_number_as_schedule_learns_and_spends_exactly():
    x, corrector = torch.zeros(8, 3), tt.Corrector(Sphere(), 0.25, n_steps=12)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        for t in range(12):
            x = corrector(x + 0.3 * torch.randn(8, 3, generator=generator), t)
        assert int(corrector.rollout.spent.sum()) == 8 * 3
    assert corrector.learned.samples == 40
    assert "40 samples in 5 runs" in repr(corrector.learned)


BUDGETS = [PerBatch(0.25), PerSample(0.25), PerBatch(10), PerBatch(10, rows="fixed")]


@pytest.mark.parametrize("budget", BUDGETS, ids=repr)
@pytest.mark.parametrize("n", [1, 3, 16])
def test_a_budget_of_projections_is_spent_exactly_and_replayed(budget, n):
    learner = of_projections(budget)
    for run in runs(learner, 13 if n == 1 else 5, n):
        assert int(run.spent.sum()) == 10 * n
        if isinstance(budget, PerSample):
            assert run.spent.tolist() == [10] * n
    schedule = learner.schedule(n)
    run = tt.domain("so3-impulse", n_steps=40).problem(range(900, 900 + n)).rollout(schedule)
    assert torch.equal(replay(schedule, run), run.projected)


@pytest.mark.parametrize("rows", ["any", "fixed"])
@pytest.mark.parametrize("closing", ["paid", "free", "none"])
def test_learning_fits_every_way_to_end(closing, rows):
    learner, domain = of_projections(PerBatch(0.25, rows=rows)), tt.domain("so3-impulse", n_steps=40)
    for k in range(3):
        run = domain.problem(range(16 * k, 16 * k + 16)).rollout(learner, closing=closing)
        assert int(run.spent.sum()) == 160
    with pytest.raises(ValueError, match="another problem: got closing="):
        domain.problem(range(16)).rollout(learner, closing="free" if closing == "none" else "none")


def test_twins_choose_nothing_that_costs_more_than_the_budget():
    learner = Learner(0.25, unit="projection")
    assert all(int(run.spent.sum()) <= 160 for run in runs(learner, 4))
    assert {"full projection", "program", "even", "last", "end"} <= set(learner.report().twins)


@pytest.mark.parametrize("name", CONSTRAINTS)
@pytest.mark.parametrize("n", [5, 16])
def test_the_number_of_rows_is_known_before_the_run(name, n):
    learner = learned(PerBatch(0.25, rows="fixed"))

    def counts(schedule, first):
        seeds = torch.arange(first, first + n)
        run = tt.rollout(Walk(24), CONSTRAINTS[name](seeds), schedule, seeds, on_failure="keep", measure_defects=True)
        assert int(run.projected.sum()) == 6 * n
        return run.projected.sum(dim=1).tolist()

    first = counts(learner, 0)
    assert max(first[:-1]) - min(first[:-1]) <= 1  # an even pace
    for k in range(3):
        counts(learner, 100 + n * k)
    schedule = learner.schedule(n)
    assert "program" in schedule.arms
    assert counts(schedule, 1000) == counts(schedule, 2000)


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=12), st.integers(1, 9), st.data())
def test_counts_of_rows_are_exact_and_fit(pace, n, data):
    spend = data.draw(st.integers(1, len(pace)))
    counts = _counts(torch.tensor(pace, dtype=torch.float64), n, spend)
    assert sum(counts) == n * spend
    assert min(counts) >= 0
    assert max(counts) <= n


def test_fixed_rows_need_a_learner():
    price = tt.prices.Thresholds(torch.tensor([[torch.inf, 0.1]]).expand(12, 2).clone())
    with pytest.raises(ValueError, match="learned"):
        tt.rollout(Walk(), Sphere(), price.at(PerBatch(1, rows="fixed")), range(4))
    with pytest.raises(ValueError, match="fixed"):
        PerBatch(0.25, rows="all")


def test_parts_of_a_batch_are_not_ignored():
    with pytest.raises(ValueError, match="parts"):
        Learner(PerBatch(0.25, parts=torch.tensor([0, 0, 1, 1])))


@pytest.mark.parametrize("budget", [PerSample(0.25), PerBatch(0.25, rows="fixed")], ids=repr)
def test_a_table_buys_whole_projections_only(budget):
    learner = learned(budget, quality=norm)
    assert {run.unit for run in runs(learner, 5, 16, "linkage", 24)} == {"projection"}
    with pytest.raises(ValueError, match="leave out PerSample"):
        Learner(budget, ways=("1 iteration", "whole"))


# ------------------------------------------------------------------ what comes of it


def test_one_batch_teaches_prices_that_beat_even_spacing():
    learner = learned(0.25)
    runs(learner, 2)
    problem = tt.domain("so3-impulse", n_steps=40).problem(range(5000, 5064))
    even, priced = problem.rollout(tt.Periodic(10), measure_defects=True), problem.rollout(learner.schedule(64))
    assert float(priced.residuals.sum()) < 0.75 * float(even.residuals.sum())


def test_control_samples_stay_on_even_spacing():
    learner = learned(0.25)
    runs(learner, 2)
    schedule = learner.schedule(32)
    control = schedule.rows_of("control")
    assert len(control) in (3, 4, 5)
    run = tt.domain("so3-impulse", n_steps=40).problem(range(700, 732)).rollout(schedule)
    gaps = run.projected[:, control].T.nonzero()[:, 1].reshape(len(control), -1).diff(dim=1)
    assert int(gaps[:, :-1].min()) >= 4
    assert int(gaps.max()) <= 5


@pytest.mark.parametrize("n", [1, 3, 16])
def test_one_sample_in_eight_is_control_and_never_always_the_same(n):
    learner = learned(0.25)
    runs(learner, max(2, 16 // n), n)
    rows = [learner.schedule(n).rows_of("control") for _ in range(64)]
    assert abs(sum(map(len, rows)) - 8 * n) <= 1
    assert set(torch.cat(rows).tolist()) == set(range(n))


class Noise(tt.Constraint):
    """A defect that says nothing: each state is as far off as a hash of it says, corrected or not."""

    def project(self, x):
        return x.clone()

    def defect(self, x):
        return (x[:, 0] * 1e4).frac().abs()


def test_a_defect_that_says_nothing_costs_at_most_the_tolerance():
    learner, total, even = learned(0.25), 0.0, 0.0
    for k in range(8):
        seeds = range(16 * k, 16 * k + 16)
        total += float(tt.rollout(Walk(24), Noise(), learner, seeds).residuals[:-1].sum())
        even += float(tt.rollout(Walk(24), Noise(), tt.Periodic(6), seeds, measure_defects=True).residuals[:-1].sum())
    assert total <= 1.05 * even


@dataclass(frozen=True)
class WalkWithCount(Walk):
    """A walk whose states carry a number that only corrections change."""

    def start(self, noise):
        return torch.nn.functional.pad(super().start(noise), (0, 1))

    def step(self, x, t, noise):
        return torch.cat([super().step(x[:, :-1], t, noise), x[:, -1:]], dim=1)


class Fragile(tt.Constraint):
    """A state is (defect now, steps since its correction, whether it is lost); who is lost stays far off forever.

    Samples that wait longer than five steps are lost. No defect warns of it: the largest ones, which prices correct,
    say nothing about it, and evenly spaced steps never wait that long.
    """

    def defect(self, x):
        return x[:, 0] + 5 * x[:, 2]

    def project(self, x):
        return torch.stack([0 * x[:, 0], 0 * x[:, 1], x[:, 2]], dim=1)


@dataclass(frozen=True)
class Waiting:
    """The sampler of `Fragile`."""

    n_steps: int = 24

    def start(self, noise):
        return torch.zeros(len(noise.seeds), 3, dtype=torch.float64)

    def step(self, x, t, noise):
        waited = x[:, 1] + 1
        lost = torch.maximum(x[:, 2], (waited > 5).to(x))
        return torch.stack([noise.normal(t, (1,))[:, 0].abs(), waited, lost], dim=1)


@pytest.mark.parametrize("budget", [PerBatch(0.25), PerSample(0.25)], ids=repr)
def test_the_guard_falls_back_where_prices_are_really_worse(budget):
    """What is lost before: four batches at six times even spacing's path error, then a sixth of that and less."""
    learner, in_use, lost = learned(budget), [], []
    for k in range(24):
        seeds = range(16 * k, 16 * k + 16)
        run = tt.rollout(Waiting(), Fragile(), learner, seeds)
        even = tt.rollout(Waiting(), Fragile(), tt.Periodic(6), seeds, measure_defects=True)
        lost.append(float(run.residuals.sum() / even.residuals.sum()))
        in_use.append(learner.report().in_use)
    assert max(lost[1:5]) > 2  # prices are worse here, indeed
    assert in_use.index("even spacing") <= 6
    assert set(in_use[6:]) == {"even spacing"}
    assert sum(lost[-8:]) / 8 < 1.35  # one sample in 32 goes on, to see when prices are good again


@pytest.mark.parametrize("n", [1, 5, 16])
def test_prices_that_got_good_again_are_used_again(n):
    learner = of_projections(0.25)
    runs(learner, max(2, 16 // n), n)
    for batch in range(5):
        learner.comparisons["path"].add(torch.full((14,), 2.0), torch.ones(2), f"bad {batch}")
    assert learner.report().in_use == "even spacing"
    schedules = [learner.schedule(n) for _ in range(64)]
    rows = torch.cat([one.rows_of("program") for one in schedules])
    assert 1 <= len(rows) <= 8 * n + 1
    assert sum(len(one.rows_of("control")) for one in schedules) == 64 * n - len(rows)
    for batch in range(40):
        learner.comparisons["path"].add(torch.full((14,), 0.5), torch.ones(2), f"good {batch}")
    assert learner.report().in_use == "what was learned"


def test_even_spacing_that_a_quality_or_twins_chose_is_still_judged():
    learner = Learner(0.25, quality=norm, twins=0, unit="projection")
    runs(learner, 2)
    learner.main = "even"
    runs(learner, 4, first=900)
    assert learner.report().in_use == "even spacing"
    assert "program" in learner.rivals
    schedule = learner.schedule(16)
    assert len(schedule.rows_of("even")) >= 12


# ------------------------------------------------------------------ solvers that iterate


@pytest.mark.parametrize("n", [4, 16, 33])
def test_the_work_of_solvers_that_iterate_keeps_to_the_budget(n):
    learner, domain = learned(0.25), tt.domain("linkage", n_steps=24)
    work, full = [], []
    for k in range(10):
        problem = domain.problem(range(n * k, n * k + n))
        work.append(float(problem.rollout(learner).all_iterations.double().mean()))
        full.append(float(problem.rollout(tt.Stepwise()).all_iterations.double().mean()))
    assert sum(work[2:]) <= 1.1 * 0.25 * sum(full[2:])
    assert sum(work[2:]) >= 0.75 * 0.25 * sum(full[2:])  # and it is used


@pytest.mark.parametrize("n", [1, 2, 3])
def test_batches_with_fewer_samples_than_pilots_learn_too(n):
    learner = learned(0.25)
    found = runs(learner, 12, n, "linkage", 24)
    assert math.isfinite(learner.full_work)
    assert learner.report().in_use == "what was learned"
    mean = sum(float(run.all_iterations.double().mean()) for run in found[4:]) / 8
    assert mean <= 1.25 * 0.25 * learner.full_work


@pytest.mark.parametrize("n", [1, 3])
def test_no_first_defect_near_zero_makes_another_problem(n):
    for first in range(12):
        learner = learned(0.25)
        for k in range(24):
            tt.rollout(Walk(6), Sphere(), learner, range(1000 * first + n * k, 1000 * first + n * k + n))
        assert learner.runs == 24


def test_whole_projections_by_the_program_are_at_least_as_good_as_even_spacing():
    learner = learned(0.25, ways=("whole",))
    runs(learner, 3)
    problem = tt.domain("so3-impulse", n_steps=40).problem(range(5000, 5064))
    priced, even = (
        problem.rollout(learner.schedule(64)),
        problem.rollout(tt.Periodic(10), measure_defects=True, unit="iteration"),
    )
    assert int(priced.all_iterations.sum()) <= 1.1 * int(even.all_iterations.sum())
    assert float(priced.residuals.sum()) <= float(even.residuals.sum())


class Leaning(tt.Constraint):
    """The plane where the first coordinate is 0; one iteration gets near, and always drags the others the same way."""

    improves = True

    def __init__(self, drag: float) -> None:
        self.drag = drag

    def defect(self, x):
        return x[:, 0].abs()

    def project(self, x):
        flat = x * torch.tensor([0.0, 1.0, 1.0], dtype=x.dtype)
        return tt.Projection(flat, None, torch.full((len(x),), 4), torch.zeros_like(x[:, 0]))

    def improve(self, x, state, **context):
        y = x * torch.tensor([0.1, 1.0, 1.0], dtype=x.dtype)
        y[:, 1] += self.drag
        return Improvement(y, self.defect(y), self.defect(y) < 1e-9, ())


@pytest.mark.parametrize(("drag", "left_out"), [(0.2, True), (0.0, False)])
def test_ways_whose_errors_add_up_are_left_out(drag, left_out):
    learner = learned(0.25)
    for k in range(5):
        run = tt.rollout(Walk(24), Leaning(drag), learner, range(16 * k, 16 * k + 16))
    assert learner.drifting() == (["1 iteration", "2 iterations", "3 iterations"] if left_out else [])
    program = learner.schedule(16).rows_of("program")
    assert (set(run.ways[:, program].flatten().tolist()) == {0, 4}) == left_out


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=6), st.data())
def test_staying_never_drifts_and_neither_does_what_is_like_it(lengths, data):
    sums = [data.draw(st.floats(0, 1)) * one for one in lengths]
    kinds = list(range(len(lengths)))
    assert 0 not in drifting_ways(kinds, sums, lengths)
    assert drifting_ways([0, 1], sums[:1] * 2, lengths[:1] * 2) == []


def test_what_is_nan_by_a_way_teaches_what_it_costs():
    class Spoilt(Leaning):
        def improve(self, x, state, **context):
            one = super().improve(x, state)
            return one._replace(x=torch.where(x[:, 1:2] > 0, torch.nan, one.x))

    learner = learned(0.25)
    for k in range(6):
        run = tt.rollout(Walk(24), Spoilt(0.0), learner, range(16 * k, 16 * k + 16))
    assert np.isfinite(learner.model.residual).all()
    assert 0.15 < float(run.all_iterations.double().mean()) / learner.full_work < 0.35


def test_a_budget_in_seconds_is_kept_roughly_and_replayed():
    learner = learned(0.5, unit="second")
    *_, run = runs(learner, 4, 16, "linkage", 24)
    assert run.unit == "second"
    assert float(run.spent.sum()) > 0
    schedule = learner.schedule(16)
    again = tt.domain("linkage", n_steps=24).problem(range(900, 916)).rollout(schedule)
    assert torch.equal(replay(schedule, again), again.ways)


# ------------------------------------------------------------------ the program over ways


def tiny(seed, steps=2, k=3, ways=2):
    """A model of two ways and three defects, with residuals at nodes, so that policies can be enumerated."""
    r = np.random.default_rng(seed)
    nodes = np.array([0.0, 1.0, 2.0])[:k]
    residual = np.stack([np.tile(nodes, (steps, 1))] + [r.choice(nodes, (steps, k)) for _ in range(ways)], axis=1)
    residual = np.minimum(residual, nodes)
    work = np.concatenate([np.zeros((steps, 1, k)), r.integers(1, 5, (steps, ways, k)).astype(float)], axis=1)
    following = r.dirichlet(np.ones(k), (steps, k))
    return Model(nodes, residual, work, following, r.integers(1, 5, k).astype(float), np.ones(ways + 1))


def outcome(model, policy, closing, first):
    """The expected path error and work of a policy, [t][node] to a way, from a node at the first step."""
    steps, k = len(policy), len(model.nodes)
    share, error, work = np.eye(k)[first], 0.0, 0.0
    for t in range(steps):
        after = np.zeros(k)
        for node in range(k):
            way = policy[t][node]
            left = model.residual[t, way, node]
            error += share[node] * left
            work += share[node] * model.work[t, way, node]
            after[int(left)] += share[node]
        share = after @ model.following[t]
    return (error + float(share @ model.nodes), work + float(share @ model.closing)) if closing else (error, work)


@pytest.mark.parametrize("closing", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_the_program_is_the_best_of_all_policies_at_every_price(seed, closing):
    model, k = tiny(seed), 3
    program = solve_ways(model, (1, 2), closing)
    one_step = list(itertools.product(range(3), repeat=k))
    found = np.array(
        [
            [outcome(model, policy, closing, first) for first in range(k)]
            for policy in itertools.product(one_step, repeat=2)
        ]
    )  # (policies, k, 2)
    for price, mu in enumerate(program.mu.tolist()):
        best = (found[..., 0] + mu * found[..., 1]).min(axis=0)
        assert np.allclose(program.q[0, :, price].amin(dim=0).numpy(), best, rtol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_what_the_program_expects_to_spend_is_what_its_policy_spends(seed):
    model = tiny(seed)
    program = solve_ways(model, (1, 2), True)
    for price in range(0, len(program.mu), 5):
        policy = program.q[:, :, price].argmin(dim=1).tolist()
        work = [outcome(model, policy, True, first)[1] for first in range(3)]
        assert np.allclose(program.to_go[0, price].numpy(), work)


def test_work_to_go_falls_as_its_price_rises():
    program = solve_ways(tiny(1, steps=6), (1, 2), True)
    assert float(program.to_go.diff(dim=1).max()) <= 1e-9


@pytest.mark.parametrize("seed", range(4))
def test_a_budget_for_all_corrects_all_that_gain_and_one_for_none_corrects_none(seed):
    program = solve_ways(tiny(seed, steps=4), (1, 2), True)
    defects = torch.tensor([0.0, 1.0, 2.0, 2.0])
    for t in range(4):
        rich = program.decide(t, defects, 1e9)
        gains = program.gain(t, defects)
        assert bool(((rich > 0) | (gains <= 1e-6)).all())
        assert program.decide(t, defects, 0.0).tolist() == [0] * 4


@pytest.mark.parametrize("left", [8.0, 12.0, 20.0, 40.0])
def test_no_decision_eats_the_share_of_the_closing_projection(left):
    program = solve_ways(tiny(2, steps=4), (1, 2), True)
    defects = torch.tensor([0.5, 1.0, 1.5, 2.0])
    ways = program.decide(0, defects, left)
    place, share = program._locate(defects)
    taken = program._at(program.taken[0], place, share).gather(0, ways[None]).sum()
    closing = program._at(program.to_go[0, -1], place, share).sum()
    assert float(taken) <= max(left - float(closing), 0.0) + 1e-9


def test_a_call_that_costs_something_is_made_less_often():
    defects = 2 * torch.rand(64, 8, generator=torch.Generator().manual_seed(0))
    calls = []
    for price in (0.0, 4.0, 64.0, 1e6):
        program = solve_ways(tiny(3, steps=4), (1, 2), True, Cost(price, 0.0, 1.0))
        ways = [program.decide(1, batch, 60.0 + 2 * price) for batch in defects]
        calls.append(sum(len(set(one.tolist()) - {0}) for one in ways))
    assert calls == sorted(calls, reverse=True)
    assert calls[0] > calls[-1]


def test_a_way_that_was_never_seen_is_never_taken():
    model = tiny(0)
    for part in (model.residual, model.work):
        part[:, 1] = np.inf
    program = solve_ways(model, (1, 2), True)
    for left in (0.0, 20.0, 1e9):
        assert 1 not in program.decide(0, torch.tensor([0.3, 1.2, 2.0]), left).tolist()


# ------------------------------------------------------------------ qualities


class Wearing(tt.Constraint):
    """Counts its projections in the last coordinate of a state."""

    def project(self, x):
        return torch.cat([Sphere().project(x[:, :-1]), x[:, -1:] + 1], dim=1)

    def defect(self, x):
        return Sphere().defect(x[:, :-1])


@pytest.mark.parametrize("twins", [0, 16])
def test_it_spends_less_if_the_quality_is_better_then(twins):
    learner = Learner(0.5, quality=lambda final: final[:, -1], twins=twins)
    for k in range(8 if twins else 100):
        run = tt.rollout(WalkWithCount(), Wearing(), learner, range(16 * k, 16 * k + 16))
    assert learner.report().in_use == "one projection at the end"
    assert int(run.spent.min()) == 1
    assert int(run.spent.sum()) <= 16 + 5 * 2 + 5 * 2  # two control samples and two of a rival at most spend six
    assert "Only a quality" not in repr(learner.report())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_sample_without_a_quality_is_left_out_and_counted(bad):
    def spoilt(final):
        values = norm(final)
        values[0] = bad
        return values

    learner = learned(0.25, quality=spoilt)
    runs(learner, 8, 16)
    report = learner.report()
    assert report.missing == 8
    assert math.isfinite(report.quality[0])
    assert "8 samples had a quality that is NaN or infinite" in repr(report)


def test_a_quality_that_is_always_nan_changes_nothing():
    nothing = learned(0.25, quality=lambda final: torch.full((len(final),), math.nan))
    runs(nothing, 6, 16)
    report = nothing.report()
    assert report.missing == 6 * 16
    assert report.in_use == "what was learned"
    assert nothing.rivals == {} or all(one.verdict == "undecided" for one in nothing.rivals.values())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("twins", [0, 16])
def test_a_quality_that_raises_leaves_the_samples_in_hand(twins):
    def broken(final):
        raise KeyError("no such model")

    learner = Learner(0.25, quality=broken, twins=twins)
    for run in runs(learner, 5, 16):
        assert bool(run.feasible.all())
    assert learner.report().missing == 5 * 16


def test_a_quality_that_raises_is_said():
    with pytest.warns(UserWarning, match=r"counts as missing for this batch.*IndexError"):
        runs(learned(0.25, quality=lambda final: torch.zeros(3)[len(final)]), 1)


@pytest.mark.filterwarnings("ignore")
def test_twins_that_raise_leave_the_samples_in_hand_and_the_learner_whole(tmp_path):
    def broken(a, b):
        raise KeyError("no such metric")

    learner, domain = Learner(0.25), tt.domain("so3-impulse", n_steps=40)
    for k in range(4):
        run = replace(domain.problem(range(16 * k, 16 * k + 16)), distance=broken).rollout(learner)
        assert bool(run.feasible.all())
    assert learner.report().runs == 4
    learner.save(tmp_path / "learner")
    assert repr(Learner.load(tmp_path / "learner").report()) == repr(learner.report())


def test_negative_costs_have_wins_but_no_ratio():
    learner = learned(0.25, quality=Quality(norm, higher_is_better=True))
    runs(learner, 6, 16)
    assert math.isfinite(learner.report().quality[0])
    assert not learner.comparisons["quality"].nonnegative


# ------------------------------------------------------------------ files and workers


@pytest.mark.parametrize("name", ["so3-impulse", "linkage"])
@pytest.mark.parametrize("twins", [0, 8])
def test_it_can_be_saved_loaded_and_continued(tmp_path, name, twins):
    learner = Learner(0.25, seed=3, twins=twins)
    runs(learner, 3, name=name, n_steps=24)
    learner.save(tmp_path / "learner.safetensors")
    again = Learner.load(tmp_path / "learner.safetensors")
    assert repr(again.report()) == repr(learner.report())
    [mine], [theirs] = (runs(one, 1, name=name, n_steps=24, first=400) for one in (copy.deepcopy(learner), again))
    assert torch.equal(mine.projected, theirs.projected)
    with pytest.raises(ValueError, match=r"Learner\.load"):
        tt.load(tmp_path / "learner.safetensors")
    (tmp_path / "other").write_bytes(b"none")
    with pytest.raises(ValueError, match="other"):
        Learner.load(tmp_path / "other")


def test_a_quality_given_later_is_used(tmp_path):
    learner = of_projections(0.25)
    runs(learner, 3, 16)
    learner.save(tmp_path / "learner.safetensors")
    again = Learner.load(tmp_path / "learner.safetensors", Quality(norm))
    runs(again, 4, 16, first=9000)
    assert again.comparisons["quality"].batches == 4
    assert {"last", "end", "even"} & set(again.rivals)


def test_workers_learn_as_one_whatever_the_order():
    workers = [learned(0.25, seed=k) for k in range(4)]
    for k, worker in enumerate(workers):
        runs(worker, 2, first=100 * k)
    there, back = workers[0].merge(workers[1:]), workers[3].merge(workers[2::-1])
    assert (there.samples, there.runs) == (back.samples, back.runs) == (128, 8)
    for name, one in there.comparisons.items():
        assert one == back.comparisons[name]
        assert one.ratio == pytest.approx(back.comparisons[name].ratio, nan_ok=True)
    assert there.full_work == back.full_work
    assert "what was learned" in repr(there.report())
    with pytest.raises(ValueError, match="the same budget and problem"):
        there.merge([Learner(0.5)])


def test_what_workers_share_is_counted_once():
    learner = learned(0.25)
    runs(learner, 2)
    for round_ in range(3):
        workers = [pickle.loads(pickle.dumps(learner.worker(seed))) for seed in range(4)]
        for k, worker in enumerate(workers):
            runs(worker, 1, first=10_000 * (round_ + 1) + 100 * k)
        learner = workers[0].merge([*workers[1:], copy.deepcopy(workers[2]), workers[0]])
        assert learner.report().samples == learner.samples == 32 + 64 * (round_ + 1)
    total = learner.comparisons["path"].samples
    assert learner.merge([learner, copy.deepcopy(learner)]).comparisons["path"].samples == total


def test_workers_and_merged_learners_draw_control_samples_of_their_own():
    learner = learned(0.25)
    runs(learner, 2)
    drawn = []
    for round_ in range(4):
        workers = [learner.worker(seed) for seed in range(3)]
        drawn += [tuple(one.schedule(64).rows_of("control").tolist()) for one in [learner, *workers]]
        for k, worker in enumerate(workers):
            runs(worker, 1, 8, first=10_000 * (round_ + 1) + 100 * k)
        learner = workers[0].merge(workers[1:])
    assert len(set(drawn)) == len(drawn)


def test_workers_in_rounds_need_few_samples_more_than_one():
    """Four learn from 96 samples in rounds of 32; one learns from 80, a fifth more were allowed."""
    learner, alone = learned(0.25), learned(0.25)
    for round_ in range(3):
        workers = [learner.worker(seed) for seed in range(4)]
        for k, worker in enumerate(workers):
            runs(worker, 1, 8, first=32 * round_ + 8 * k)
        learner = workers[0].merge(workers[1:])
    runs(alone, 10, 8)
    assert (learner.samples, alone.samples) == (96, 80)
    problem = tt.domain("so3-impulse", n_steps=40).problem(range(5000, 5256))
    merged, single = (problem.rollout(each.schedule(256)).residuals.sum() for each in (learner, alone))
    assert float(merged) < 1.05 * float(single)


# ------------------------------------------------------------------ another problem


def test_another_constraint_number_of_steps_or_closing_is_noticed():
    learner = learned(0.25)
    runs(learner, 1)
    with pytest.raises(ValueError, match=r"another problem: got constraint='Sphere'"):
        tt.rollout(Walk(40), Sphere(), learner, range(4))
    with pytest.raises(ValueError, match=r"another problem: got n_steps=12"):
        runs(learner, 1, n_steps=12)


def test_other_ways_of_a_constraint_are_noticed():
    class Changing(Leaning):
        pass

    learner = learned(0.25)
    for k in range(2):
        tt.rollout(Walk(24), Changing(0.0), learner, range(16 * k, 16 * k + 16))
    Changing.improves = False
    with pytest.raises(ValueError, match="learned the ways"):
        tt.rollout(Walk(24), Changing(0.0), learner, range(40, 56))


def test_another_shape_is_noticed_at_the_first_step():
    learner = learned(0.25)
    for k in range(3):
        tt.rollout(Walk(), Sphere(), learner, range(16 * k, 16 * k + 16))
    with pytest.raises(ValueError, match=r"learned on states of shape \(3,\): got \(5,\)"):
        tt.rollout(Walk(event=(5,)), Sphere(), learner, range(16))


@pytest.mark.parametrize("factor", [1e3, 1e-3])
def test_another_scale_of_defects_is_noticed_at_the_first_step(factor):
    class Scaled(Sphere):
        def defect(self, x):
            return super().defect(x) * scale

    learner, scale = learned(0.25), 1.0
    for k in range(3):
        tt.rollout(Walk(), Scaled(), learner, range(16 * k, 16 * k + 16))
    scale = factor
    with pytest.raises(ValueError, match="learned on defects of about"):
        tt.rollout(Walk(), Scaled(), learner, range(100, 116))
    assert learner.runs == 3


def test_a_change_of_the_comparison_is_reported():
    learner = learned(0.25)
    runs(learner, 1)
    for batch in range(40):
        ahead = 0.5 if batch < 20 else 2.0
        learner.comparisons["path"].add(torch.full((14,), ahead), torch.ones(2), f"batch {batch}")
    assert "has changed" in repr(learner.report())


def test_workers_of_one_sample_are_compared_when_they_are_merged():
    base = learned(0.25)
    runs(base, 2)
    workers = [base.worker(seed) for seed in range(16)]
    for k, worker in enumerate(workers):
        runs(worker, 1, 1, first=5000 + k)
    merged = workers[0].merge(workers[1:])
    seen = merged.comparisons["path"].samples
    assert sum(seen) == sum(base.comparisons["path"].samples) + 16
    again = merged.merge(workers)
    assert again.comparisons["path"].samples == seen
