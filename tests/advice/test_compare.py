from __future__ import annotations

import pytest
import torch

import trimtab as tt
from cases import Sphere, Walk
from trimtab.advice.compare import compare
from trimtab.core.budget import PerBatch
from trimtab.core.metrics import endpoint_distance, nepe, path_error
from trimtab.core.quality import Quality
from trimtab.schedules import Window

T, SEEDS = 12, range(24)
PROBLEM = tt.Problem(Walk(), Sphere(), SEEDS)


def first(final):
    return final[:, 0]


@pytest.fixture(scope="module")
def price():
    return tt.calibrate(tt.Problem(Walk(), Sphere(), range(100, 116)), method="paper")


@pytest.fixture(scope="module")
def found(price):
    schedules = {"paper": price, "two": Window(3, 5)}
    return compare(PROBLEM, schedules, [0.25, 6], quality=Quality(first, True, "first"))


def test_prices_are_run_at_every_budget_and_schedules_at_their_own(found):
    named = [(row.name, row.budget) for row in found.rows]
    assert named == [
        ("terminal", None),
        ("stepwise", None),
        ("periodic", 3),
        ("window", 3),
        ("periodic", 6),
        ("window", 6),
        ("paper", 3),
        ("paper", 6),
        ("two", None),
    ]


def test_what_is_compared_at_a_budget_costs_the_same(found):
    assert all(row.projections == row.budget for row in found.rows if row.budget is not None)
    assert (found["terminal", None].projections, found["stepwise", None].projections) == (1, T)
    assert found["two", None].projections == 3  # two steps of the window, and the closing projection


def test_every_measure_is_what_a_rollout_of_that_schedule_gives(found, price):
    full, alone = (PROBLEM.rollout(s, measure_defects=True) for s in (tt.Stepwise(), tt.Terminal()))
    run = PROBLEM.rollout(price.at(6), measure_defects=True)
    row = found["paper", 6]
    assert set(row.values) == {"first", "endpoint", "nepe"} == set(found.measures)
    torch.testing.assert_close(row.values["first"], run.final[:, 0])
    torch.testing.assert_close(row.values["endpoint"], endpoint_distance(run, full))
    ends = [path_error(one).double() for one in (full, alone)]
    torch.testing.assert_close(row.values["nepe"], nepe(path_error(run).double(), *ends))
    assert row.mean("first").mean == pytest.approx(float(run.final[:, 0].mean()))
    assert not found["stepwise", None].values["endpoint"].any()
    assert found["terminal", None].mean("nepe").mean == pytest.approx(1.0)


def test_prices_are_refused_on_the_seeds_that_made_them(price):
    with pytest.raises(ValueError, match="used to calibrate"):
        compare(tt.Problem(Walk(), Sphere(), range(96, 104)), {"paper": price}, [3])


def noisy_loop(seed):
    """A loop whose corrector is not told any seeds."""

    def run(schedule):
        generator = torch.Generator().manual_seed(seed)
        corrector = tt.Corrector(BALL, schedule, 12)
        x = torch.zeros(24, 2, dtype=torch.float64)
        for t in range(12):
            x = corrector(x + torch.randn(24, 2, generator=generator, dtype=torch.float64), t)
        return corrector.rollout

    return run


BALL = tt.as_constraint(
    lambda x: x / x.norm(dim=1, keepdim=True).clamp(min=1), lambda x: (x.norm(dim=1) - 1).clamp(min=0)
)


def test_noise_that_calibrated_is_recognised_without_seeds(tmp_path):
    price = tt.calibrate(noisy_loop(1), method="paper")
    price.save(tmp_path / "price.safetensors")
    for made in (price, tt.load(tmp_path / "price.safetensors"), price.at(0.25)):
        with pytest.raises(ValueError, match="rollouts were used to calibrate 'mine'"):
            tt.compare(noisy_loop(1), {"mine": made}, [0.25])
    tt.compare(noisy_loop(2), {"mine": price}, [0.25])


def test_rows_are_found_by_name_and_budget_and_shown_in_words(found):
    with pytest.raises(KeyError, match="'paper', 6"):
        found["paper", 5]
    text = str(found)
    lines = text.splitlines()
    assert lines[0].split() == ["schedule", "projections", "first", "endpoint", "nepe", "landing"]
    assert len(lines) == 1 + len(found.rows) + 2
    assert "24 samples, T = 12, paired by seed" in text
    assert repr(found) == "Comparison(9 schedules, first, endpoint, nepe; print it)"


def test_of_an_infinite_quality_the_table_shows_what_is_known_and_says_what_to_do():
    def unbounded(final):
        return torch.where(torch.arange(len(final)) == 3, torch.inf, final[:, 0])

    found = compare(PROBLEM, {}, [3], quality=unbounded)
    said = "unbounded is infinite for some samples, which decide its mean: give a large number instead."
    assert said in str(found)
    assert "nan" not in str(found)
    terminal = str(found).splitlines()[1].split()
    assert terminal[:4] == ["terminal", "1.0", "inf", f"{found['terminal', None].mean('endpoint').mean:.4g}"]
    both_ways = compare(PROBLEM, {}, [3], quality=lambda final: unbounded(final) - unbounded(final).flip(0))
    assert str(both_ways).splitlines()[1].split()[2] == "n/a"
    assert "infinite" not in str(compare(PROBLEM, {}, [3], quality=first))


def test_a_single_sample_has_no_standard_error():
    single = compare(tt.Problem(Walk(), Sphere(), [0]), {}, [3], quality=first)
    assert "nan" not in str(single)
    assert "[" not in str(single).splitlines()[1]
    assert "1 sample, T =" in str(single)


def test_a_budget_that_is_named_twice_is_run_once(price):
    found = compare(PROBLEM, {"paper": price}, [0.25, 3])
    assert [row.name for row in found.rows] == ["terminal", "stepwise", "periodic", "window", "paper"]


@pytest.mark.parametrize("name", ["terminal", "stepwise", "periodic", "window"])
def test_names_of_schedules_that_are_always_compared_are_taken(name):
    with pytest.raises(ValueError, match=f"another name than '{name}'"):
        compare(PROBLEM, {name: Window(3)}, [3])


@pytest.mark.parametrize("name", ["endpoint", "nepe"])
def test_names_of_what_is_always_measured_are_taken(name):
    for quality in (Quality(first, name=name), Quality(lambda final: {name: first(final)})):
        with pytest.raises(ValueError, match=f"always measured: give your quality another name than '{name}'"):
            compare(PROBLEM, {}, [3], quality=quality)


def test_the_papers_accounting_is_had_by_name():
    found = compare(PROBLEM, {}, [3], closing="free")
    assert found["periodic", 3].projections == 3  # the last of them is at the last step
    assert found["terminal", None].projections == 1


def test_every_run_of_a_loop_is_a_record():
    answers = iter([PROBLEM.rollout(tt.Terminal()), None])
    with pytest.raises(TypeError, match=r"run\(schedule\) must return the record of its run.*got NoneType"):
        compare(lambda schedule: next(answers), {}, [3], check=False)


def test_what_counts_iterations_is_refused_among_budgets_of_projections():
    table = torch.zeros(T, 30, dtype=torch.float64)
    table[:, 0] = torch.inf
    iterations = tt.prices.Thresholds(table, unit="iteration")
    with pytest.raises(ValueError, match=r"'mine' counts iterations.*unit='projection'"):
        compare(PROBLEM, {"mine": iterations}, [0.25])
    with pytest.raises(ValueError, match="the price counts iterations"):
        tt.advise(PROBLEM, cost="projections", price=iterations)


def test_repeated_seeds_count_once_and_the_table_says_so():
    found = compare(tt.Problem(Walk(), Sphere(), [3, 4] * 8), {}, [3])
    assert (found.n, found.repeated) == (2, 14)
    assert found["periodic", 3].mean("endpoint").n == 2
    assert "14 samples with repeated seeds count once" in str(found)
    assert "[?]" in str(found)


def test_iterations_and_landings_stand_beside_projections():
    problem = tt.domain("linkage", n_steps=8).problem(range(12))
    found = compare(problem, {}, [3])
    run = problem.rollout(tt.Periodic(3), measure_defects=True)
    row = found["periodic", 3]
    assert row.iterations == pytest.approx(float(run.all_iterations.double().mean()))
    torch.testing.assert_close(row.landing, run.defects[-1])
    assert found.iterates
    assert "iterations" in str(found)
    assert not compare(PROBLEM, {}, [3]).iterates


def test_a_comparison_is_drawn_in_one_call(found, tmp_path):
    pytest.importorskip("matplotlib")
    figure = found.plot(tmp_path / "frontier.png")
    assert (tmp_path / "frontier.png").read_bytes().startswith(b"\x89PNG")
    assert figure.axes[0].get_ylabel() == "first"
    assert found.plot(measure="nepe").axes[0].get_ylabel() == "nepe"
    with pytest.raises(ValueError, match="must be one of first, endpoint, nepe: got 'npe'"):
        found.plot(measure="npe")
    with pytest.raises(ValueError, match=r"a plot must be a \.png, \.svg or \.pdf file"):
        found.plot("nepe")


@pytest.mark.parametrize("budget", [0.25, 5, PerBatch(0.25)])
def test_a_budget_is_told_to_be_learned_first(budget):
    problem = tt.domain("so3", n_steps=8).problem(range(4))
    with pytest.raises(TypeError, match=r"'mine' is a budget; learn first"):
        tt.compare(problem, {"mine": budget}, [0.25])
