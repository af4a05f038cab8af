"""Advice by the quality of final samples, on samplers of which it is known what is right."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import torch

import trimtab as tt
from trimtab.core.metrics import aligned
from trimtab.core.quality import Quality

SEEDS = range(100, 164)
T = 16
FIRST_ZERO = tt.as_constraint(lambda x: x * torch.tensor([0.0, 1.0], dtype=x.dtype), lambda x: x[:, 0].abs())


@dataclass(frozen=True)
class Traced:
    """A defect u, new at every step, and a trace v of what was left of it and of how often it was corrected."""

    left: float = 1.0
    corrected: float = 0.0
    weights: tuple[float, ...] = (1.0,) * T

    n_steps: int = T

    def start(self, noise):
        return torch.ones(len(noise.seeds), 2, dtype=torch.float64)

    def step(self, x, t, noise):
        u, v = x[:, :1], x[:, 1:]
        v = v + self.weights[t] * (self.left * u + self.corrected * (u == 0))
        return torch.cat([0.5 + noise.uniform(t, (1,)), v], dim=1)


def trace(final):
    return final[:, 1]


def advised(sampler, constraint=FIRST_ZERO, **options):
    return tt.advise(tt.Problem(sampler, constraint, SEEDS), **{"cost": "projections"} | options)


@pytest.fixture(scope="module")
def useful():
    return advised(Traced(weights=(0.0,) * 10 + (1.0,) * 6), quality=trace)


def test_where_full_projection_is_worse_the_first_lines_say_so_and_terminal_is_recommended():
    advice = advised(Traced(left=0.1, corrected=1.0), quality=trace)
    assert advice.times == "terminal"
    assert advice.findings[0].name == "full-projection-no-better" == advice.failure_modes[0]
    assert "projecting at every step is worse than once, at the end" in advice.findings[0].text
    head = str(advice).splitlines()
    assert head[0].startswith("Use no correction on the way")
    assert "projecting at every step is worse than once" in head[1]
    assert advice.measured.gain.loss.high < 0
    assert advice.measured.batches <= 5
    assert not advice.measured.trials  # nothing is tried out that cannot be recommended


def test_where_full_projection_makes_no_difference_it_is_called_no_better():
    advice = advised(Traced(), quality=lambda final: torch.arange(len(final)))
    assert advice.times == "terminal"
    assert "no better within the tolerance than once" in advice.findings[0].text


def test_higher_is_better_turns_the_advice_round():
    worse = advised(Traced(), quality=Quality(trace, higher_is_better=True, name="trace"))
    assert worse.times == "terminal"
    assert "full-projection-no-better" in worse.failure_modes
    assert "full-projection-no-better" not in advised(Traced(), quality=trace).failure_modes


def test_a_schedule_within_tolerance_in_the_quality_is_recommended(useful):
    assert "full-projection-no-better" not in useful.failure_modes
    assert useful.loss.high <= 0.1
    assert useful.budget <= 10  # six steps count, and the closing projection
    assert useful.measured.goal.measure == "trace"
    assert useful.measured.gain.loss.low > 0
    assert "Loss, by trace" in str(useful)


def test_the_budget_at_which_samples_are_best_may_be_neither_end():
    advice = advised(Traced(), quality=lambda final: (trace(final) - 6).abs())  # about 2 corrected always, 17 never
    best = advice.measured.best
    assert best.times not in ("terminal", "stepwise")
    assert best.measured.mean() < min(
        advice.measured.stepwise.measured.mean(), advice.measured.terminal.measured.mean()
    )
    assert f"best with {best.name}" in advice.findings[0].text


def test_by_the_distance_to_full_projection_nothing_is_said_of_what_is_best():
    text = advised(Traced(weights=(0.0,) * 10 + (1.0,) * 6)).findings[0].text
    assert text.startswith("By endpoint, full projection is better than terminal projection by ")
    assert "best" not in text


@dataclass(frozen=True)
class Begun:
    """A sampler that notes how many samples each of its rollouts begins with."""

    sampler: object
    sizes: list

    @property
    def n_steps(self):
        return self.sampler.n_steps

    def start(self, noise):
        self.sizes.append(len(noise.seeds))
        return self.sampler.start(noise)

    def step(self, x, t, noise):
        return self.sampler.step(x, t, noise)


@pytest.mark.parametrize("options", [{}, {"objective": "path"}, {"cost": "seconds"}, {"tolerance": 0.01}])
def test_it_counts_every_batch_and_says_what_it_does(options):
    said, sizes = [], []
    problem = tt.Problem(Begun(Traced(), sizes), FIRST_ZERO, SEEDS)
    advice = tt.advise(problem, **{"cost": "projections"} | options, progress=said.append)
    batches = [size for size in sizes if size > 4]  # what a projection does is tried on four samples
    assert advice.measured.batches == len(batches) - 1 <= 30  # one start without a run, to measure the nudge
    assert f"{advice.measured.batches} batches in all" in str(advice)
    assert any("in the last steps" in text for text in said)


def test_the_batches_of_loops_are_counted_too():
    ran = []

    def counted(run):
        return lambda *asked: ran.append(asked) or run(*asked)

    runs = [counted(loop(Traced(), seeds)) for seeds in (range(16), range(50, 66))]
    advice = tt.advise(runs[0], held_out=runs[1], quality=trace)
    assert advice.measured.batches == len(ran) <= 30


def test_what_was_measured_is_json_by_its_own_name(useful):
    facts = json.loads(json.dumps(useful.facts()))
    assert facts["recommended"]["budget"] == useful.budget
    assert all(list(trial["measured"]) == ["trace"] for trial in facts["trials"])


def test_both_batches_are_counted_where_they_differ():
    def run_on(seeds):
        problem = tt.Problem(Traced(left=0.1, corrected=1.0), FIRST_ZERO, seeds)
        return lambda schedule: problem.rollout(schedule, measure_defects=True)

    advice = tt.advise(run_on(range(24)), held_out=run_on(range(50, 66)), cost="projections")
    assert advice.measured.held_out == 16


def test_loops_of_ones_own_are_judged_by_a_quality_too():
    def run_on(seeds):
        problem = tt.Problem(Traced(left=0.1, corrected=1.0), FIRST_ZERO, seeds)
        return lambda schedule: problem.rollout(schedule, measure_defects=schedule.uses_defects)

    advice = tt.advise(run_on(range(16)), held_out=run_on(range(50, 66)), quality=trace, cost="projections")
    assert advice.times == "terminal"
    assert advice.findings[0].name == "full-projection-no-better"


# ------------------------------------------------------------------ the projection, and the rollout


@dataclass(frozen=True)
class Chaotic(Traced):
    """The trace goes on by a map that doubles every difference, which nothing corrects."""

    def step(self, x, t, noise):
        u, v = x[:, :1], x[:, 1:]
        return torch.cat([0.5 + noise.uniform(t, (1,)), (2 * v + 0.37 + 0.1 * u) % 1.7], dim=1)


@dataclass(frozen=True)
class LongChaotic(Chaotic):
    n_steps: int = 24


def test_a_chaotic_rollout_is_found_and_endpoint_distances_are_not_to_be_relied_on():
    advice = advised(LongChaotic())
    assert "chaotic-rollout" in advice.failure_modes
    assert advice.measured.stability.divergence > 1e3
    text = next(finding.text for finding in advice.findings if finding.name == "chaotic-rollout")
    assert "compare distributions" in text
    assert "chaotic-rollout" not in advised(Traced()).failure_modes
    # the cheapest feasible choice, after few batches, with what is needed to decide; another measure may decide
    assert (advice.times, advice.reason.startswith("rollouts part")) == ("terminal", True)
    assert "give quality=" in advice.reason
    assert advice.measured.batches <= 5
    assert not advised(LongChaotic(), objective="path").reason.startswith("rollouts part")


def test_a_projection_that_moves_what_it_has_projected_is_found_and_no_schedule_of_it_recommended():
    drifting = tt.as_constraint(
        lambda x: torch.cat([torch.zeros_like(x[:, :1]), x[:, 1:] + 0.2], dim=1), lambda x: x[:, 0].abs()
    )
    advice = advised(Traced(), drifting)
    assert "unstable-projection" in advice.failure_modes
    assert advice.measured.stability.again > 0.05
    assert advice.times == "terminal"
    assert "not reliable" in advice.reason
    assert advice.measured.batches <= 5
    assert not advised(Traced(), drifting, quality=trace).reason.startswith("the projection is not reliable")
    text = next(finding.text for finding in advice.findings if finding.name == "unstable-projection")
    assert "projecting again moves it by" in text
    assert advised(Traced()).measured.stability.again == 0


# ------------------------------------------------------------------ loops of one's own, and their projection


def loop(sampler, seeds, constraint=FIRST_ZERO):
    return lambda schedule: tt.rollout(sampler, constraint, schedule, seeds, measure_defects=True)


def advised_loop(sampler, projecting=FIRST_ZERO, **options):
    runs = [loop(sampler, seeds, projecting) for seeds in (range(16), range(50, 66))]
    return tt.advise(runs[0], held_out=runs[1], cost="projections", **options)


def test_two_loops_that_are_feasible_by_themselves_are_told_apart_by_their_final_states():
    everywhere = tt.as_constraint(lambda x: x, lambda x: torch.zeros(len(x), dtype=x.dtype))
    halves = (tt.Problem(Traced(), everywhere, seeds).rollout for seeds in (SEEDS[:16], SEEDS[16:]))
    assert tt.advise(*halves, cost="projections").times == "terminal"


@pytest.mark.parametrize("worst", [torch.inf, -torch.inf])
def test_a_sample_of_infinite_quality_is_refused_as_no_mean_could_tell(worst):
    def unbounded(final):
        return torch.where(torch.arange(len(final)) == 3, worst, final[:, 1])

    said = "unbounded is infinite for 1 of .* samples.*give a large number instead"
    with pytest.raises(ValueError, match=said):
        advised(Traced(), quality=unbounded)


def test_so_is_an_infinite_distance():
    def infinite(a, b):
        return torch.full((len(a),), torch.inf)

    with pytest.raises(ValueError, match="endpoint is infinite for 24 of 24 samples"):
        advised(Traced(), distance=infinite)
    with pytest.raises(ValueError, match="the distance of the objective 'endpoint' is infinite"):
        tt.calibrate(tt.Problem(Traced(), FIRST_ZERO, SEEDS), distance=infinite)


def test_the_projection_of_a_loop_is_tried_out_if_its_constraint_is_given():
    found = advised_loop(Traced(), quality=trace, constraint=FIRST_ZERO).measured.stability
    assert found.amplification <= 1 + 1e-9
    assert found.again == pytest.approx(0, abs=1e-9)
    halfway = tt.as_constraint(lambda x: x * torch.tensor([0.5, 1.0], dtype=x.dtype), lambda x: x[:, 0].abs())
    advice = advised_loop(Traced(), halfway, quality=trace, constraint=halfway)
    assert "unstable-projection" in advice.failure_modes


# ------------------------------------------------------------------ tails


@dataclass(frozen=True)
class Rare(Traced):
    """Of every sixteenth sample what is left counts for a hundred times as much."""

    def step(self, x, t, noise):
        after = super().step(x, t, noise)
        often = torch.where((noise.seeds % 16 == 0).to(x.device), 100.0, 1.0).to(x)
        return torch.stack([after[:, 0], x[:, 1] + often * (after[:, 1] - x[:, 1])], dim=1)


def test_a_few_rollouts_that_keep_a_tolerance_from_being_met_are_named():
    (found,) = [f for f in advised(Rare(), quality=trace).findings if f.name == "tails"]
    assert "1 of 24 samples makes up" in found.text
    assert not found.warns
    assert not [f for f in advised(Traced(), quality=trace).findings if f.name == "tails"]


# ------------------------------------------------------------------ qualities that fail, tolerances, repeated seeds


def sometimes(fails, calls=()):
    """A quality that is NaN for one sample, or raises an error, but not on the first batch."""
    seen = list(calls)

    def measure(final):
        seen.append(1)
        if len(seen) == 8 and fails == "raise":
            raise RuntimeError("the evaluator is down")
        return torch.where((torch.arange(len(final)) == 3) & (len(seen) == 8), torch.nan, final[:, 1])

    return measure


@pytest.mark.parametrize("fails", ["nan", "raise"])
def test_a_quality_that_fails_later_loses_nothing_that_was_run(fails):
    advice = advised(Traced(weights=(0.0,) * 10 + (1.0,) * 6), quality=sometimes(fails))
    assert "quality-failed" in advice.failure_modes
    assert advice.times not in ("terminal", "stepwise")
    assert not advice.trial.missing
    assert ("the evaluator is down" in str(advice)) == (fails == "raise")


def test_a_quality_that_fails_at_once_fails_before_any_other_work():
    sizes = []
    problem = tt.Problem(Begun(Traced(), sizes), FIRST_ZERO, SEEDS)
    with pytest.raises(ValueError, match=r"NaN for 24 of 24 samples.*nan='drop'"):
        tt.advise(problem, quality=lambda final: torch.full((len(final),), torch.nan))
    assert len(sizes) == 2  # the terminal batch, twice


def test_nan_may_be_dropped_or_count_as_the_worst():
    final = torch.tensor([[1.0], [torch.nan], [3.0]])
    values = {nan: Quality(lambda x: x[:, 0], nan=nan).costs(final) for nan in ("drop", "worst")}
    assert values["drop"].isnan().tolist() == [False, True, False]
    assert values["worst"].tolist() == [1.0, 3.0, 3.0]
    assert Quality(lambda x: x[:, 0], True, nan="worst").costs(final).tolist() == [-1.0, -1.0, -3.0]
    with pytest.raises(ValueError, match="did you mean 'drop'"):
        Quality(trace, nan="dropp")


def test_a_tolerance_may_be_in_the_unit_of_the_quality():
    sampler = Traced(weights=(0.0,) * 10 + (1.0,) * 6)
    advice = advised(sampler, quality=trace, tolerance=1.5, tolerance_unit="absolute")
    assert advice.measured.confirmed.loss.high <= 1.5
    assert "1.5 in the unit of trace" in str(advice)
    strict = advised(sampler, quality=trace, tolerance=0.01, tolerance_unit="absolute")
    assert strict.trial.cost("projections") > advice.trial.cost("projections")
    with pytest.raises(ValueError, match="needs a tolerance"):
        advised(sampler, tolerance_unit="absolute")


def test_repeated_seeds_count_once():
    seeds = [*SEEDS, *SEEDS[:10]]
    advice = tt.advise(tt.Problem(Traced(), FIRST_ZERO, seeds), quality=trace, cost="projections")
    assert advice.measured.held_out == 24
    assert "10 samples with repeated seeds were left out" in " ".join(str(advice).split())
    with pytest.raises(ValueError, match="1 distinct rollouts are too few"):
        tt.advise(tt.Problem(Traced(), FIRST_ZERO, [5] * 64), quality=trace)


@dataclass(frozen=True)
class Landing(Traced):
    """The last proposal of three samples in sixty-four is far off."""

    def step(self, x, t, noise):
        after = super().step(x, t, noise)
        far = (noise.seeds % 8 == 3) & (t == T - 1)
        return torch.where(far[:, None].to(x.device), after * torch.tensor([50.0, 1.0], dtype=x.dtype), after)


def test_samples_that_land_far_out_are_named():
    (found,) = [f for f in advised(Landing(), quality=trace).findings if f.name == "landing"]
    assert found.text.startswith("3 of 24 samples land 10 times farther")
    assert not [f for f in advised(Traced(), quality=trace).findings if f.name == "landing"]


def test_a_distance_up_to_rotation_is_suggested_for_point_sets_and_used():
    class Turning:
        """Three points that are turned at random; only their radius is constrained."""

        n_steps, dtype = 6, torch.float64

        def start(self, noise):
            return noise.start((3, 3))

        def step(self, x, t, noise):
            return x + 0.3 * noise.normal(t, (3, 3))

    unit = tt.as_constraint(lambda x: x / x.norm(dim=2, keepdim=True), lambda x: (x.norm(dim=2) - 1).norm(dim=1))
    problem = tt.Problem(Turning(), unit, SEEDS)
    names = [finding.name for finding in tt.advise(problem, tolerance=0.5, cost="projections").findings]
    assert "symmetry" in names
    advice = tt.advise(problem, tolerance=0.5, cost="projections", distance=aligned)
    assert "symmetry" not in [finding.name for finding in advice.findings]
    assert advice.measured.gain.loss.mean > 0
