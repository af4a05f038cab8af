from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import trimtab as tt
from trimtab.core.progress import Progress
from trimtab.core.quality import Quality
from trimtab.core.replay import replay
from trimtab.prices.collect import Batches
from trimtab.prices.plan import Plan
from trimtab.prices.price import Raced
from trimtab.prices.race import AT_END, EVEN, Measure, builtin_candidate_names, fixed_plans, race
from trimtab.prices.schedule import Mixed
from trimtab.schedules import Window

KNOWN, FRESH = range(1000, 1032), range(32)
FIRST_ZERO = tt.as_constraint(lambda x: x * torch.tensor([0.0, 1.0], dtype=x.dtype), lambda x: x[:, 0].abs())


@dataclass(frozen=True)
class Carried:
    """A defect u that is kept at rate `keep` and grows, and a trace v of it that no projection takes away.

    The final state is v, the sum of what u was left at, weighted by step.
    """

    weights: tuple[float, ...]
    keep: float = 0.0
    noise: float = 1.0

    @property
    def n_steps(self) -> int:
        return len(self.weights)

    def start(self, noise):
        return torch.zeros(len(noise.seeds), 2, dtype=torch.float64)

    def step(self, x, t, noise):
        grown = 1 - self.noise + self.noise * noise.uniform(t, (1,))
        return torch.cat([self.keep * x[:, :1] + grown, x[:, 1:] + self.weights[t] * x[:, :1]], dim=1)


T = 16
LATE = Carried((0.0,) * 10 + (1.0,) * 6, noise=0.1)  # only what the last steps leave is seen in the end
STEADY = Carried((1.0,) * T, keep=1.0, noise=0.0)  # what a gap costs grows with its square: even gaps are best


def trace(final):
    return final[:, 1]


def batches_of(sampler, **options):
    problem = tt.Problem(sampler, FIRST_ZERO, KNOWN)
    return Batches(
        lambda schedule: problem.rollout(schedule, measure_defects=True),
        1.0,
        options.get("objective", "endpoint"),
        check=False,
        progress=Progress("race", lambda text: None),
    )


def plans_of(batches):
    """Even spacing and windows, as candidates."""
    plans = {}
    for name, masks in fixed_plans(batches.n_choices, batches.spendable).items():
        closed = torch.cat([masks, torch.ones(len(masks), 1, dtype=torch.bool)], dim=1)
        plans[name] = Plan(torch.cat([torch.zeros_like(closed[:1]), closed]), closing="paid", method=name)
    return plans


ENDS_AT = Measure("trace", lambda run: trace(run.final))


def mean_trace(sampler, schedule, seeds=FRESH):
    return float(trace(tt.rollout(sampler, FIRST_ZERO, schedule, seeds).final).mean())


@pytest.fixture(scope="module")
def late():
    return tt.calibrate(tt.Problem(LATE, FIRST_ZERO, KNOWN))


# ------------------------------------------------------------------ who wins


def test_last_steps_win_where_only_they_are_seen_in_the_end():
    batches = batches_of(LATE)
    found = race(batches, plans_of(batches), ENDS_AT)
    # beyond what the last steps can use, there is nothing to win by the end of the run alone
    ranges = [one for one in found.notes["ranges"] if one["from"] <= 6 and one["to"] > 1]
    assert {one["winner"] for one in ranges} == {"last steps"}
    assert all(one["ahead_of_even_spacing"][0] > 0 for one in ranges)


def test_the_default_is_as_good_as_last_steps_there_and_far_ahead_of_even_spacing(late):
    for b in (3, 5):
        ours, last, even = (mean_trace(LATE, s) for s in (late.at(b), Window(T - b), tt.Periodic(b)))
        assert ours <= 1.02 * last
        assert ours < 0.8 * even


def test_where_even_spacing_is_best_it_is_the_answer_and_is_said_to_be():
    found = tt.calibrate(tt.Problem(STEADY, FIRST_ZERO, KNOWN))
    assert {one["winner"] for one in found.notes["ranges"]} == {EVEN}
    assert {one["ahead_of_even_spacing"][0] for one in found.notes["ranges"]} == {0.0}
    assert repr(found).startswith(f"Raced(T={T}, budgets up to {T}, by 'endpoint': {EVEN}; ")
    for b in range(2, T):
        gaps = tt.rollout(STEADY, FIRST_ZERO, found.at(b), range(1)).projected[:, 0].nonzero().squeeze(1).diff()
        assert int(gaps.max() - gaps.min()) <= 1


@settings(max_examples=5)
@given(st.integers(6, 12), st.floats(0, 1), st.floats(0.1, 1), st.integers(0, 100))
def test_the_winner_is_even_spacing_or_ahead_of_it_and_nowhere_clearly_behind_it(n, keep, noise, seed):
    weights = torch.rand(n, generator=torch.Generator().manual_seed(seed)).tolist()
    found = tt.calibrate(tt.Problem(Carried(tuple(weights), keep, noise), FIRST_ZERO, range(1000, 1008)), check=False)
    ranges = found.notes["ranges"]
    for one in ranges:
        ahead, se = one["ahead_of_even_spacing"]
        assert ahead == 0 if one["winner"] == EVEN else ahead >= -2 * se
    # together they are all budgets, once each
    assert [b for one in ranges for b in range(one["from"], one["to"] + 1)] == list(range(n + 1))


@pytest.mark.parametrize("budget", [2, 3, 5])
def test_few_budgets_leave_no_range_without_any(budget):
    found = tt.calibrate(tt.Problem(LATE, FIRST_ZERO, KNOWN), budget, check=False)
    ranges = found.notes["ranges"]
    assert [b for one in ranges for b in range(one["from"], one["to"] + 1)] == list(range(budget + 1))
    assert all(one["from"] <= one["to"] for one in ranges)
    assert {part.method for part in found.parts} == {one["winner"] for one in ranges}


def outliers(run, high, low):
    """The trace, but of four samples `high` times as much, and of four turned round and `low` times as much."""
    cost = trace(run.final)
    return torch.cat([high * cost[:4], -low * cost[4:8], cost[8:]])


def serving(price, budget):
    return next(one["winner"] for one in price.notes["ranges"] if one["from"] <= budget <= one["to"])


def test_a_few_rollouts_that_hide_all_others_do_not_keep_a_winner_from_winning_unless_they_turn_the_mean():
    batches = batches_of(LATE)
    plans = {name: plan for name, plan in plans_of(batches).items() if name in (EVEN, "last steps")}
    found = race(batches, plans, Measure("trace", lambda run: outliers(run, 100, 50)))
    assert serving(found, 3) == "last steps"
    found = race(batches, plans, Measure("trace", lambda run: outliers(run, 50, 300)))
    assert serving(found, 3) == EVEN


@pytest.mark.parametrize("n", [8, 16, 64])
def test_a_measure_that_is_pure_noise_leaves_even_spacing(n):
    generator = torch.Generator().manual_seed(n)
    price = tt.calibrate(
        tt.Problem(LATE, FIRST_ZERO, range(1000, 1000 + n)),
        quality=lambda final: torch.rand(n, dtype=torch.float64, generator=generator).exp().pow(4),
    )
    assert sum(one["winner"] == EVEN for one in price.notes["ranges"]) >= len(price.notes["ranges"]) - 1


def test_where_corrections_on_the_way_do_harm_less_is_spent_than_the_budget(tmp_path):
    batches = batches_of(LATE)
    found = race(batches, plans_of(batches), Measure("own", lambda run: 1.0 + run.paid.double()))
    assert {one["winner"] for one in found.notes["ranges"] if one["from"] > 1} == {AT_END}
    found.save(tmp_path / "price")
    for price in (found, tt.load(tmp_path / "price"), found.resample(T)):
        assert tt.rollout(LATE, FIRST_ZERO, price.at(9), FRESH).paid.tolist() == [1] * len(FRESH)
        budgets = torch.full((len(FRESH),), 7)
        assert tt.rollout(LATE, FIRST_ZERO, price.at(budgets), FRESH).paid.tolist() == [1] * len(FRESH)


def test_a_schedule_of_the_race_shows_what_it_won_for(late):
    for budget in (3, 5, 12):
        assert late.at(budget).price.objective == late.objective == "endpoint"


def test_a_range_goes_to_another_winner_that_is_clearly_ahead_there():
    batches = batches_of(LATE)
    plans = plans_of(batches)
    last, choices = plans["last steps"].masks, T - 1
    first = torch.cat([last[:, :choices].flip(1), last[:, choices:]], dim=1)
    noise = torch.rand(len(KNOWN), generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def cost(run):
        """Even spacing costs far more; the first steps are better at small budgets, the last ones at large."""
        of_first, of_last = ((masks[run.paid] == run.projected.T).all(dim=1) for masks in (first, last))
        better = torch.where(run.paid < T / 3, 0.8, -0.8)
        alone = run.paid == 1  # one projection at the end
        return 1 + torch.where(of_first & ~alone, noise - better, torch.where(of_last & ~alone, noise.flip(0), 3.0))

    candidates = {EVEN: plans[EVEN], "last steps": plans["last steps"], "first steps": Plan(first)}
    found = race(batches, candidates, Measure("own", cost))
    winners = [one["winner"] for one in found.notes["ranges"]]
    assert (winners[1], winners[-1]) == ("first steps", "last steps")


def test_a_candidate_of_the_users_own_wins_where_it_is_best():
    masks = torch.zeros(T + 1, T, dtype=torch.bool)
    for b in range(1, T + 1):
        masks[b, T - b :] = True
    own = {"mine": Plan(masks, closing="paid")}
    batches = batches_of(LATE)
    plans = {EVEN: plans_of(batches)[EVEN]}
    found = race(batches, plans | own, ENDS_AT)
    assert "mine" in {one["winner"] for one in found.notes["ranges"]}
    handed_in = tt.calibrate(tt.Problem(LATE, FIRST_ZERO, KNOWN), candidates=own)
    assert "mine" in handed_in.notes["candidates"]


def test_the_seeds_of_a_candidate_are_refused_like_those_of_the_race():
    batches = batches_of(LATE)
    plans = plans_of(batches)
    found = race(batches, {EVEN: plans[EVEN], "mine": replace(plans["last steps"], seeds=(7, 1003, 5))}, ENDS_AT)
    assert "mine" in {part.method for part in found.parts}
    assert found.seeds == (*KNOWN, 7, 5)
    with pytest.raises(ValueError, match="used to calibrate"):
        tt.rollout(LATE, FIRST_ZERO, found.at(3), [5, 6])


def test_what_the_race_calls_its_own_candidates_is_known_before(late):
    assert set(late.notes["candidates"]) == builtin_candidate_names("projection")


def counting(problem):
    """A loop that runs a problem, and the schedules it was asked for."""
    asked = []

    def run(schedule):
        asked.append(schedule)
        return problem.rollout(schedule, measure_defects=True)

    return run, asked


MASKS = torch.arange(T) >= T - torch.arange(T + 1)[:, None]  # the last steps
WINNERS = Raced((Plan(MASKS),), torch.zeros(T + 1, dtype=torch.int64))
ITERATIONS = tt.prices.Thresholds(torch.full((T, 3), torch.inf), unit="iteration")
FOREIGN = {
    "again": (WINNERS, "'again' is the winner of another race, which cannot be raced"),
    "parts": (ITERATIONS, "'parts' counts iterations, and this race projections"),
    EVEN: (Plan(MASKS), "'even spacing' is a built-in candidate"),
    "dp for path": (Plan(MASKS), "'dp for path' is a built-in candidate"),
    "long": (Plan(MASKS[:9, -8:]), r"'long' is for T = 8 steps, and these runs have 16.*resample\(16\)"),
    "free": (Plan(MASKS, closing="free"), "'free' was made for closing='free', and these runs have closing='paid'"),
    "small": (Plan(MASKS[:5]), "'small' goes up to a budget of 4, and this race up to 16"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_candidate_that_does_not_belong_is_refused_by_name_before_anything_is_tried(name):
    one, message = FOREIGN[name]
    run, asked = counting(tt.Problem(LATE, FIRST_ZERO, KNOWN))
    with pytest.raises(ValueError, match=message):
        tt.calibrate(run, candidates={"mine": Plan(MASKS), name: one}, check=False)
    assert len(asked) <= 1  # which shows how many steps there are, and how they end


def test_a_candidate_that_keeps_more_back_is_refused_by_name():
    batches = batches_of(LATE)
    held = tt.prices.Thresholds(torch.full((T, T + 1), torch.inf), closing_reserve=2)
    with pytest.raises(ValueError, match="'held' keeps 2 of a budget for the closing projection, and this race 1"):
        race(batches, {EVEN: plans_of(batches)[EVEN], "held": held}, ENDS_AT)


# ------------------------------------------------------------------ what it goes by


def test_a_quality_decides_and_higher_is_better_turns_it_round():
    problem = tt.Problem(LATE, FIRST_ZERO, KNOWN)
    low = tt.calibrate(problem, quality=trace)
    with pytest.warns(UserWarning, match="worse than once at the end"):
        high = tt.calibrate(problem, quality=Quality(trace, higher_is_better=True, name="trace"))
    assert low.objective == high.objective == "trace"
    even = mean_trace(LATE, tt.Periodic(5))
    assert mean_trace(LATE, low.at(5)) < 0.8 * even < even < mean_trace(LATE, high.at(5))


def test_a_worse_reference_is_told_and_a_better_one_is_not():
    """By a quality that falls where corrections raise it, full projection is worse than one projection at the end."""
    problem = tt.Problem(LATE, FIRST_ZERO, KNOWN)
    with pytest.warns(UserWarning, match="by trace, projecting at every step is worse than once at the end") as told:
        tt.calibrate(problem, quality=Quality(trace, higher_is_better=True, name="trace"), check=False)
    assert [one.filename for one in told] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for options in ({"quality": trace}, {}, {"quality": trace, "objective": "path"}):
            tt.calibrate(problem, check=False, **options)


def test_one_of_several_numbers_by_name_decides():
    problem = tt.Problem(LATE, FIRST_ZERO, KNOWN)

    def both(final):
        return {"trace": trace(final), "minus": -trace(final)}

    one = tt.calibrate(problem, quality=Quality(both, name="trace"))
    with pytest.warns(UserWarning, match="by minus, projecting at every step is worse"):
        other = tt.calibrate(problem, quality=Quality(both, name="minus"))
    assert mean_trace(LATE, one.at(5)) < mean_trace(LATE, other.at(5))
    with pytest.raises(ValueError, match="choose the one that decides"):
        tt.calibrate(problem, quality=both)


def test_a_quality_is_handed_the_problem():
    problem, seen = tt.Problem(LATE, FIRST_ZERO, KNOWN), []

    def judged(final, about):
        seen.append(about)
        return trace(final)

    tt.calibrate(problem, quality=judged)
    assert seen
    assert all(about is problem for about in seen)


def test_path_error_alone_is_priced_by_the_dynamic_program_and_state_error_cannot_be_raced():
    problem = tt.Problem(LATE, FIRST_ZERO, KNOWN)
    assert tt.calibrate(problem, objective="path").method == "dp"
    assert tt.calibrate(problem, objective="path", method="race").objective == "path"
    run, asked = counting(problem)
    with pytest.raises(ValueError, match="a race compares 'endpoint', 'path' or a quality; for state error"):
        tt.calibrate(run, objective="state")
    with pytest.raises(TypeError, match=r"called as distance\(a, b\): got 3"):
        tt.calibrate(run, distance=3)
    with pytest.raises(TypeError, match="quality must be a function of the final states"):
        tt.calibrate(run, quality=3)
    assert not asked


def test_what_only_a_race_looks_at_is_raced_and_refused_elsewhere():
    problem = tt.Problem(LATE, FIRST_ZERO, KNOWN)
    raced = tt.calibrate(problem, objective="path", candidates={"mine": Plan(MASKS)}, check=False)
    assert (raced.method, raced.objective) == ("race", "path")
    assert "mine" in raced.notes["candidates"]
    for what in ({"quality": trace}, {"candidates": {"mine": Plan(MASKS)}}):
        with pytest.raises(ValueError, match="for the race, and method 'dp' uses neither"):
            tt.calibrate(problem, method="dp", **what)


# ------------------------------------------------------------------ what it costs, and what comes of it


def test_a_race_of_ten_takes_at_most_21_batches_and_counts_every_one():
    problem, batches = tt.Problem(LATE, FIRST_ZERO, KNOWN), []

    def run(schedule):
        batches.append(schedule)
        return problem.rollout(schedule, measure_defects=True)

    said = []
    price = tt.calibrate(run, progress=said.append)
    assert len(price.notes["candidates"]) == 10
    assert price.notes["batches"] == len(batches) <= 21
    assert set(price.notes["second_round"]) <= set(price.notes["candidates"])
    assert len(price.notes["second_round"]) <= 3
    assert any("race, round 1: last steps" in text for text in said)


@pytest.mark.parametrize("b", [1, 2, 5, 11, T])
def test_every_budget_is_paid_exactly_and_replays(late, b):
    record = tt.rollout(LATE, FIRST_ZERO, late.at(b), FRESH, measure_defects=True)
    assert record.paid.tolist() == [b] * len(FRESH)
    assert torch.equal(replay(late.at(b), record), record.projected)


def test_budgets_of_their_own_are_each_decided_by_the_winner_there():
    batches = batches_of(LATE)
    plans = plans_of(batches)
    winner = (torch.arange(T + 1) >= 8).long()
    price = Raced((plans["last steps"], plans[EVEN]), winner, closing="paid")
    budgets = torch.tensor([2, 5, 7, 8, 12, 16])
    schedule = price.at(budgets)
    assert isinstance(schedule, Mixed)
    together = tt.rollout(LATE, FIRST_ZERO, schedule, range(6))
    assert together.paid.tolist() == budgets.tolist()
    for i, b in enumerate(budgets.tolist()):
        alone = tt.rollout(LATE, FIRST_ZERO, price.at(b), [i])
        assert torch.equal(together.projected[:, i], alone.projected[:, 0])
    assert not isinstance(price.at(5), Mixed)


def test_saved_and_loaded_it_decides_as_before(late, tmp_path):
    late.save(tmp_path / "price.safetensors")
    again = tt.load(tmp_path / "price.safetensors")
    assert isinstance(again, Raced)
    assert (again.seeds, again.objective, again.closing, again.notes) == (
        late.seeds,
        late.objective,
        late.closing,
        late.notes,
    )
    assert torch.equal(again.winner, late.winner)
    budgets = torch.arange(32) % T + 1
    runs = [tt.rollout(LATE, FIRST_ZERO, price.at(budgets), FRESH) for price in (late, again)]
    assert torch.equal(runs[0].projected, runs[1].projected)
    (tmp_path / "cut").write_bytes((tmp_path / "price.safetensors").read_bytes()[:-9])
    with pytest.raises(ValueError, match="cut"):
        tt.load(tmp_path / "cut")


def test_it_refuses_its_own_seeds_other_accountings_and_larger_budgets(late):
    with pytest.raises(ValueError, match="used to calibrate"):
        tt.rollout(LATE, FIRST_ZERO, late.at(4), [5, 1003])
    with pytest.raises(ValueError, match="used to calibrate"):
        tt.rollout(LATE, FIRST_ZERO, late.at(torch.tensor([4, 9])), [5, 1003])
    with pytest.raises(ValueError, match="made for closing='paid'"):
        tt.rollout(LATE, FIRST_ZERO, late.at(4), FRESH, closing="free")
    small = tt.calibrate(tt.Problem(LATE, FIRST_ZERO, KNOWN), 6)
    with pytest.raises(ValueError, match="more than the 6 corrections that these prices go up to"):
        small.at(7)
    with pytest.raises(ValueError, match="one or more prices of the same number of steps"):
        Raced((), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="winner must name one of 1 parts"):
        Raced((plans_of(batches_of(LATE))[EVEN],), torch.ones(3, dtype=torch.int64))


# ------------------------------------------------------------------ looks that cost something


def test_prices_that_look_pay_for_it_out_of_the_budget_and_fixed_times_do_not(tmp_path):
    problem = tt.Problem(Carried((1.0,) * T, keep=0.9, noise=1.0), FIRST_ZERO, KNOWN)
    free, paid, dear = (tt.calibrate(problem, look=look) for look in (0.0, 0.1, 1.0))
    assert (free.looks, paid.looks, dear.looks) == (0, 2, T)
    assert not any(dear.at(b).uses_defects for b in range(1, T + 1))
    budgets = torch.arange(1, T + 1)
    together = tt.rollout(problem.sampler, FIRST_ZERO, paid.at(budgets), range(T), measure_defects=True)
    for b in budgets.tolist():
        schedule = paid.at(b)
        record = tt.rollout(problem.sampler, FIRST_ZERO, schedule, range(T), measure_defects=True)
        assert record.paid.tolist() == [b - 2 * schedule.uses_defects] * T
        assert torch.equal(together.projected[:, b - 1], record.projected[:, b - 1])
    paid.save(tmp_path / "price.safetensors")
    assert tt.load(tmp_path / "price.safetensors").looks == 2
    assert paid.resample(2 * T).looks == 4


@pytest.mark.parametrize("look", [0.1, 0.3])
def test_every_budget_goes_to_the_winner_of_its_range_or_to_even_spacing(look):
    """Fixed times that are best by a hair, which proves nothing, do not serve budgets that looking would use up."""
    batches = batches_of(LATE)
    plans, noise = plans_of(batches), torch.rand(len(KNOWN), generator=torch.Generator().manual_seed(0)).double()
    by_price = tt.prices.Thresholds(torch.full((T, T + 1), -1.0).index_fill(1, torch.tensor([0]), torch.inf))

    def cost(run):
        """A price that corrects at once is ahead; the last steps cost less than even spacing for a few samples."""
        at_once, last = run.projected[0], (plans["last steps"].masks[run.paid] == run.projected.T).all(dim=1)
        return 2 + noise - at_once.double() - 1e-3 * (last & (noise > 0.9)).double()

    candidates = {EVEN: plans[EVEN], "last steps": plans["last steps"], "by price": by_price}
    found = race(batches, candidates, Measure("own", cost), look)
    assert "by price" in {one["winner"] for one in found.notes["ranges"]}
    for price in (found, found.resample(2 * T)):
        served = {price.parts[i].method for i in price.winner[: price.looks + 2].tolist()}
        assert served == {EVEN}
        assert {part.method for part in price.parts} == {EVEN, "by price"}


def test_the_cost_of_a_look_is_a_number_and_for_the_race_alone():
    problem = tt.Problem(LATE, FIRST_ZERO, KNOWN)
    with pytest.raises(ValueError, match=r"look, what one .*from 0 to 1e\+06: got -0\.5"):
        tt.calibrate(problem, look=-0.5)
    with pytest.raises(ValueError, match="for the race; method 'dp'"):
        tt.calibrate(problem, method="dp", look=0.5)
