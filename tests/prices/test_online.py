"""Prices that are learned from the runs they serve."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import trimtab as tt
from cases import CONSTRAINTS, Sphere, Walk
from trimtab.core.budget import PerBatch, PerSample
from trimtab.core.quality import Quality
from trimtab.loop.replay import replay
from trimtab.prices.learner import Learner, Tally, _counts


def runs(learner, batches, n=16, name="so3-impulse", n_steps=40, first=0):
    domain = tt.domain(name, n_steps=n_steps)
    return [domain.problem(range(first + n * k, first + n * k + n)).rollout(learner) for k in range(batches)]


def test_a_number_as_schedule_learns_and_spends_exactly():
    x, corrector = torch.zeros(8, 3), tt.Corrector(Sphere(), 0.25, n_steps=12)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        for t in range(12):
            x = corrector(x + 0.3 * torch.randn(8, 3, generator=generator), t)
        assert int(corrector.rollout.spent.sum()) == 8 * 3
    assert corrector.learned.samples == 40
    assert "40 samples in 5 runs" in repr(corrector.learned)


@pytest.mark.parametrize("budget", [PerBatch(0.25), PerSample(0.25), PerBatch(10), PerBatch(10, rows="fixed")])
@pytest.mark.parametrize("n", [1, 3, 16])
def test_every_run_is_exact_and_is_replayed(budget, n):
    learner = Learner(budget)
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
    learner = Learner(PerBatch(0.25, rows=rows))
    domain = tt.domain("so3-impulse", n_steps=40)
    for k in range(3):
        run = domain.problem(range(16 * k, 16 * k + 16)).rollout(learner, closing=closing)
        assert int(run.spent.sum()) == 160


def test_one_batch_teaches_prices_that_beat_even_spacing():
    learner = Learner(0.25)
    runs(learner, 4)
    problem = tt.domain("so3-impulse", n_steps=40).problem(range(5000, 5064))
    even, priced = problem.rollout(tt.Periodic(10), measure_defects=True), problem.rollout(learner.schedule(64))
    assert float(priced.residuals.sum()) < 0.75 * float(even.residuals.sum())


@pytest.mark.parametrize("name", CONSTRAINTS)
@pytest.mark.parametrize("n", [5, 16])
def test_the_number_of_rows_is_known_before_the_run(name, n):
    learner = Learner(PerBatch(0.25, rows="fixed"))

    def counts(schedule, first):
        seeds = torch.arange(first, first + n)
        run = tt.rollout(Walk(24), CONSTRAINTS[name](seeds), schedule, seeds, on_failure="keep", measure_defects=True)
        assert int(run.projected.sum()) == 6 * n
        return run.projected.sum(dim=1).tolist()

    first = counts(learner, 0)
    assert max(first[:-1]) - min(first[:-1]) <= 1  # an even pace
    for k in range(3):
        counts(learner, 100 + n * k)
    learned = learner.schedule(n)
    assert learned.price is not None
    assert counts(learned, 1000) == counts(learned, 2000)


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


def test_fixed_rows_buy_no_single_iterations():
    learner = Learner(PerBatch(0.25, rows="fixed"), quality=lambda final: final.flatten(1).norm(dim=1))
    assert {run.unit for run in runs(learner, 8, 16, "linkage", 24)} == {"projection"}


def test_control_samples_stay_on_even_spacing():
    learner = Learner(0.25)
    runs(learner, 2)
    schedule = learner.schedule(32)
    assert int(schedule.control.sum()) == 4
    run = tt.domain("so3-impulse", n_steps=40).problem(range(700, 732)).rollout(schedule)
    gaps = run.projected[:, schedule.control].T.nonzero()[:, 1].reshape(4, -1).diff(dim=1)
    assert int(gaps[:, :-1].min()) >= 4
    assert int(gaps.max()) <= 5


class Noise(tt.Constraint):
    """A defect that says nothing: each state is as far off as a hash of it says, corrected or not."""

    def project(self, x):
        return x.clone()

    def defect(self, x):
        return (x[:, 0] * 1e4).frac().abs()


def test_a_defect_that_says_nothing_costs_at_most_the_tolerance():
    learner, total, even = Learner(0.25), 0.0, 0.0
    for k in range(8):
        seeds = range(16 * k, 16 * k + 16)
        total += float(tt.rollout(Walk(24), Noise(), learner, seeds).residuals[:-1].sum())
        even += float(tt.rollout(Walk(24), Noise(), tt.Periodic(6), seeds, measure_defects=True).residuals[:-1].sum())
        assert total <= 1.05 * even


def test_prices_that_do_harm_are_dropped():
    learner = Learner(0.25)
    runs(learner, 2)
    learner.tallies["prices path"] = Tally(64, 64 * 10 * learner.tallies["control path"].mean, 1e6, 10.0)
    assert learner.schedule(16).price is None
    assert learner.report().in_use == "even spacing"


def test_a_quality_decides_between_prices_and_last_steps():
    learner = Learner(0.25, quality=lambda final: final.flatten(1).norm(dim=1))
    arms = set()
    for _ in range(6):
        schedule = learner.schedule(16) if learner.made_for else None
        runs(learner, 1, first=1000 * learner.runs)
        arms |= {"first"} if schedule is None else {schedule.arm}
    assert {"prices", "last"} <= arms
    assert learner.report().quality is not None


class Wearing(tt.Constraint):
    """Counts its projections in the last coordinate of a state."""

    def project(self, x):
        return torch.cat([Sphere().project(x[:, :-1]), x[:, -1:] + 1], dim=1)

    def defect(self, x):
        return Sphere().defect(x[:, :-1])


@dataclass(frozen=True)
class WalkWithCount(Walk):
    def start(self, noise):
        return torch.nn.functional.pad(super().start(noise), (0, 1))

    def step(self, x, t, noise):
        return torch.cat([super().step(x[:, :-1], t, noise), x[:, -1:]], dim=1)


def test_it_spends_less_if_the_quality_is_better_then():
    learner = Learner(0.5, quality=lambda final: final[:, -1])
    for k in range(24):
        run = tt.rollout(WalkWithCount(), Wearing(), learner, range(16 * k, 16 * k + 16))
    assert learner.report().in_use == "one at the end"
    assert int(run.spent.min()) == 1
    assert int(run.spent.sum()) <= 16 + 5 * 2  # two control samples at most spend six
    assert "Only a quality" not in repr(learner.report())


@pytest.mark.parametrize("n", [1, 3, 16])
def test_one_sample_in_eight_is_control_until_prices_are_proven(n):
    learner = Learner(0.25)
    runs(learner, max(1, 16 // n), n)
    learner.samples = 0
    assert sum(int(control_of(learner, n)) for _ in range(32)) == 32 * n // 8
    learner.tallies["control path"] = Tally(64, 64.0, 64.1, 1.1)
    learner.tallies["prices path"] = Tally(64, 32.0, 16.1, 0.6)
    learner.samples = 0
    assert sum(int(control_of(learner, n)) for _ in range(32)) == n


def control_of(learner, n):
    """Return how many control samples the next run has, and count the run as drawn."""
    control = learner.schedule(n).control.sum()
    learner.samples += n
    return control


def test_it_can_be_saved_loaded_and_continued(tmp_path):
    learner = Learner(0.25, seed=3)
    runs(learner, 3)
    learner.save(tmp_path / "learner.safetensors")
    again = Learner.load(tmp_path / "learner.safetensors")
    assert repr(again.report()) == repr(learner.report())
    [mine], [theirs] = runs(copy.deepcopy(learner), 1, first=400), runs(again, 1, first=400)
    assert torch.equal(mine.projected, theirs.projected)
    with pytest.raises(ValueError, match=r"Learner\.load"):
        tt.load(tmp_path / "learner.safetensors")
    (tmp_path / "other").write_bytes(b"none")
    with pytest.raises(ValueError, match="other"):
        Learner.load(tmp_path / "other")


def test_workers_learn_as_one():
    workers = [Learner(0.25, seed=k) for k in range(4)]
    for k, worker in enumerate(workers):
        runs(worker, 1, first=100 * k)
    merged = workers[0].merge(workers[1:])
    assert (merged.samples, merged.runs) == (64, 4)
    assert "projection" in merged.prices
    with pytest.raises(ValueError, match="the same budget and problem"):
        merged.merge([Learner(0.5)])


def test_workers_in_other_processes_need_no_more_samples_than_one():
    """Four learn from 96 samples in rounds of 32; one learns from 80, a fifth more were allowed."""
    learner, alone = Learner(0.25), Learner(0.25)
    for round_ in range(3):
        workers = [pickle.loads(pickle.dumps(learner.worker(seed))) for seed in range(4)]
        for k, worker in enumerate(workers):
            runs(worker, 1, 8, first=32 * round_ + 8 * k)
        workers = [pickle.loads(pickle.dumps(worker)) for worker in workers]
        learner = workers[0].merge(workers[1:])
    runs(alone, 10, 8)
    assert (learner.samples, alone.samples) == (96, 80)
    problem = tt.domain("so3-impulse", n_steps=40).problem(range(5000, 5256))
    merged, single = (problem.rollout(each.price.at(PerBatch(0.25))).residuals.sum() for each in (learner, alone))
    assert float(merged) < 1.01 * float(single)


def test_what_workers_share_is_counted_once():
    learner = Learner(0.25)
    runs(learner, 2)
    for round_ in range(3):
        workers = [learner.worker(seed) for seed in range(4)]
        assert all("projection" in worker.prices for worker in workers)
        for k, worker in enumerate(workers):
            runs(worker, 1, first=10_000 * (round_ + 1) + 100 * k)
        learner = workers[0].merge(workers[1:])
        assert learner.report().samples == learner.samples == 32 + 64 * (round_ + 1)
        assert learner.tallies["work"].n == 10 * learner.samples
    with pytest.raises(ValueError, match="merge the workers"):
        learner.worker(0).save("nowhere")
    with pytest.raises(ValueError, match="different learners"):
        learner.worker(0).merge([Learner(0.25)])


def test_another_problem_is_noticed():
    learner = Learner(0.25)
    runs(learner, 1)
    with pytest.raises(ValueError, match=r"another problem: got constraint='Sphere' .*n_steps=12"):
        tt.rollout(Walk(12), Sphere(), learner, range(4))


def test_a_drifting_sampler_is_reported():
    learner = Learner(0.25)
    runs(learner, 1)
    learner._recent = [1.0, 1.1, 0.9] * 6 + [3.0] * 6
    assert "drifted" in repr(learner.report())


def test_a_confidence_sequence_holds_at_all_times_at_once():
    generator = torch.Generator().manual_seed(0)
    missed = 0
    for _ in range(200):
        tally = Tally()
        for _ in range(12):
            tally.add(torch.empty(16).exponential_(generator=generator))
            missed += abs(tally.mean - 1) > tally.radius
            if abs(tally.mean - 1) > tally.radius:
                break
    assert missed <= 12  # of 200, at a level of 2.5% each side
    assert Tally().ratio_to(Tally())[0] != 0
    assert math.isnan(Tally().ratio_to(Tally())[1])


def test_single_iterations_are_tried_at_equal_work_if_a_quality_decides():
    learner = Learner(0.25, quality=lambda final: final.flatten(1).norm(dim=1))
    units, work = set(), {"projection": [], "iteration": []}
    for run in runs(learner, 8, 16, "linkage", 24):
        units.add(run.unit)
        work[run.unit].append(float(run.all_iterations.double().mean()))
    assert units == {"projection", "iteration"}
    mean = {unit: sum(values) / len(values) for unit, values in work.items()}
    assert 0.5 * mean["projection"] <= mean["iteration"] <= 1.25 * mean["projection"]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_sample_without_a_quality_is_left_out_and_counted(bad):
    def spoilt(final):
        values = final.flatten(1).norm(dim=1)
        values[0] = bad
        return values

    learner = Learner(0.25, quality=spoilt)
    runs(learner, 8, 16)
    report = learner.report()
    assert report.missing == 8
    assert math.isfinite(report.quality[0])
    assert "8 samples had a quality that is NaN or infinite" in repr(report)


def test_a_quality_that_is_always_nan_leaves_even_spacing_in_use():
    learner = Learner(0.25, quality=lambda final: torch.full((len(final),), math.nan))
    runs(learner, 9, 16)
    assert learner.report().in_use == "even spacing"


def test_a_quality_given_later_is_tried_on_every_arm(tmp_path):
    learner = Learner(0.25)
    runs(learner, 4, 16)
    learner.save(tmp_path / "learner.safetensors")
    again = Learner.load(tmp_path / "learner.safetensors", Quality(lambda final: final.flatten(1).norm(dim=1)))
    runs(again, 8, 16, first=9000)
    assert all(again.tallies[f"{arm} quality"].n >= 14 for arm in ("prices", "last", "end"))
    assert again.report().missing == 0


def test_a_quality_must_give_one_number_per_sample():
    with pytest.raises(ValueError, match="one number per sample"):
        runs(Learner(0.25, quality=lambda final: 1.0), 1)


def test_negative_costs_are_reported_as_means():
    learner = Learner(0.25, quality=Quality(lambda final: final.flatten(1).norm(dim=1), higher_is_better=True))
    runs(learner, 4, 16)
    report = learner.report()
    assert math.isnan(report.quality[0])
    assert max(report.means) < 0
    assert "of the control (lower is better)" in repr(report)


def test_a_quality_of_groups_is_the_mean_of_their_rows():
    domain, learner = tt.domain("so3", n_steps=10), Learner(0.5, quality=lambda final: final[:, 0, 0].abs())
    for first in range(0, 64, 16):
        domain.problem(range(first, first + 16)).rollout(learner, groups=torch.arange(16) // 2)
    assert learner.tallies["control quality"].n + learner.tallies["prices quality"].n >= 16
