from __future__ import annotations

import itertools
import json
from dataclasses import replace
from functools import partial

import pytest
import torch

import free
import trimtab as tt
from scalar_cases import LINE, Scalar, one
from trimtab.advice import recommend
from trimtab.advice.result import FAILURE_MODES, Advice
from trimtab.advice.trials import Evaluation
from trimtab.core.metrics import nepe, path_error
from trimtab.core.noise import Noise

SEEDS = range(100, 164)
advise = partial(recommend.advise, objective="path")


def gusts(t, noise):
    """Each sample is pushed hard now and then, at its own times."""
    return noise.uniform(t, (1,)) + 20.0 * (noise.uniform(t, (1,), stream=1) < 0.15)


def about_one(t, noise):
    return 1.0 + 0.02 * noise.uniform(t, (1,))


GUSTY = Scalar((0.9,) * 24, gusts)


@pytest.fixture(scope="module")
def gusty() -> Advice:
    return advise(tt.Problem(GUSTY, LINE, SEEDS), tolerance=0.1, cost="projections")


# ------------------------------------------------------------------ what is recommended


def test_where_defects_are_rare_and_high_it_recommends_adaptive_correction_and_keeps_its_word(gusty):
    assert gusty.times == "adaptive"
    assert gusty.loss.high <= 0.1
    level = gusty.measured.level  # at equal work
    assert level["adaptive"].loss.mean < min(level[times].loss.mean for times in ("periodic", "window", "first"))
    assert gusty.saving.mean == pytest.approx(1 - gusty.trial.projections / 24)
    fresh = range(1000, 1128)
    ends = (gusty.schedule, tt.Stepwise(), tt.Terminal())
    errors = [path_error(free.rollout(GUSTY, LINE, s, fresh, closing="paid")) for s in ends]
    assert float(nepe(*errors).mean()) < 0.12  # 0.1 was promised with 95%, from 24 rollouts
    with pytest.raises(ValueError, match="used to calibrate"):
        tt.rollout(GUSTY, LINE, gusty.schedule, SEEDS[:4])


def test_the_same_rollouts_give_the_same_advice(gusty):
    again = advise(tt.Problem(GUSTY, LINE, SEEDS), tolerance=0.1, cost="projections")
    assert (again.times, again.budget, again.loss) == (gusty.times, gusty.budget, gusty.loss)


def test_a_stricter_tolerance_needs_a_larger_budget(gusty):
    strict = advise(tt.Problem(GUSTY, LINE, range(200, 248)), tolerance=0.02, cost="projections", price=gusty.price)
    assert strict.budget > gusty.budget
    assert strict.loss.high <= 0.02


def test_a_tolerance_that_terminal_correction_meets_needs_no_projection():
    advice = advise(tt.Problem(GUSTY, LINE, SEEDS), tolerance=2.0, cost="projections")
    assert (advice.times, advice.budget) == ("terminal", 1)
    assert "optimistic" not in str(advice)


def test_where_every_state_is_feasible_timing_is_of_no_consequence():
    everything = tt.as_constraint(lambda x: x, lambda x: torch.zeros(len(x), dtype=x.dtype))
    advice = advise(tt.Problem(GUSTY, everything, SEEDS), cost="projections")
    assert advice.times == "terminal"
    assert "full-projection-no-better" in advice.failure_modes
    assert "Use no correction on the way" in str(advice)
    json.dumps(advice.facts(), allow_nan=False)


def test_an_even_defect_that_does_not_last_is_diffuse_and_periodic_is_recommended():
    advice = advise(tt.Problem(Scalar((0.0,) * 24, about_one), LINE, SEEDS), tolerance=0.4, cost="projections")
    assert advice.times not in ("terminal", "stepwise")
    assert "diffuse-defect" in advice.failure_modes
    assert advice.measured.concentration == pytest.approx(5 / 24, rel=0.05)  # the worst 5 of 24 steps


def test_a_constant_defect_decides_nothing_and_is_said_to():
    indicator = tt.as_constraint(lambda x: torch.zeros_like(x), lambda x: (x[:, 0] > 0).to(x.dtype))
    advice = advise(tt.Problem(Scalar((0.5,) * 16, about_one), indicator, SEEDS), tolerance=0.4, cost="projections")
    assert advice.times in ("periodic", "window", "planned")
    assert "constant-defect" in advice.failure_modes
    assert "adaptive" not in {trial.times for trial in advice.measured.trials}


def test_a_defect_that_is_a_projection_leaves_times_fixed_in_advance():
    costly = tt.as_constraint(lambda x: torch.zeros_like(x))
    advice = advise(tt.Problem(GUSTY, costly, SEEDS), tolerance=0.3, cost="projections")
    assert advice.times in ("periodic", "window", "planned")
    assert "defect-is-projection" in advice.failure_modes
    assert "saves nothing" in str(advice)


def test_a_chaotic_projection_is_called_unstable():
    chaotic = tt.as_constraint(
        lambda x: torch.sin(1e4 * x).sign() * 0.01, lambda x: (x[:, 0].abs() - 0.01).clamp(min=0)
    )
    assert "unstable-projection" in advise(tt.Problem(GUSTY, chaotic, SEEDS), cost="projections").failure_modes


def test_a_projection_that_only_amplifies_is_scheduled_all_the_same():
    """Full projection is still a reference if no projection fails and a second one moves nothing."""

    class Walk:
        n_steps = 16

        def start(self, noise):
            return noise.start((2,))

        def step(self, x, t, noise):
            return 0.9 * x + 0.1 * noise.normal(t, (2,))

    oblique = tt.as_constraint(
        lambda x: torch.stack([x[:, 0] + 20 * x[:, 1], torch.zeros_like(x[:, 1])], dim=1), lambda x: x[:, 1].abs()
    )
    advice = advise(tt.Problem(Walk(), oblique, SEEDS), cost="projections")
    assert advice.measured.stability.amplification > 10
    assert "unstable-projection" in advice.failure_modes
    assert "not reliable" not in advice.reason
    assert advice.measured.batches > 5


def test_a_projection_that_fails_is_called_unstable():
    def project(x):
        return tt.Projection(torch.zeros_like(x), converged=x[:, 0] < 20)

    often = tt.as_constraint(project, lambda x: x[:, 0].abs())
    advice = advise(tt.Problem(GUSTY, often, SEEDS), cost="projections")
    assert "unstable-projection" in advice.failure_modes
    assert advice.measured.stability.failed > 0.02


def test_a_defect_that_is_low_where_corrections_last_is_misaligned():
    # first high defects that are gone one step later, then low ones that add up to the end
    late = Scalar((0.0,) * 12 + (1.0,) * 12, lambda t, noise: (2.0 if t < 11 else 0.1) + 0.01 * noise.uniform(t, (1,)))
    advice = advise(tt.Problem(late, LINE, SEEDS), tolerance=0.3, cost="projections")
    effects = advice.measured.effects
    assert effects.alignment(effects.value).mean < 0.3
    assert "misaligned-defect" in advice.failure_modes
    assert advice.measured.effects.one_step[0] < 0.1 < 0.9 < advice.measured.effects.one_step[2]


def test_prices_that_spend_at_once_are_poorly_calibrated():
    table = torch.full((24, 25), -torch.inf, dtype=torch.float64)
    table[:, 0] = torch.inf
    advice = advise(
        tt.Problem(GUSTY, LINE, SEEDS), tolerance=0.3, cost="projections", price=tt.prices.Thresholds(table)
    )
    assert "poor-calibration" in advice.failure_modes
    assert advice.times != "adaptive"


# ------------------------------------------------------------------ prices made earlier


def price_for(constraint, method, budget=1.0):
    return tt.calibrate(tt.Problem(GUSTY, constraint, range(1000, 1032)), budget, method, objective="path")


@pytest.mark.parametrize(("method", "kind"), [("planned", "planned"), ("dp", "adaptive")])
def test_a_price_made_earlier_is_judged_for_what_it_is(method, kind):
    price = price_for(LINE, method)
    advice = advise(tt.Problem(GUSTY, LINE, SEEDS), tolerance=0.3, cost="projections", price=price)
    assert {trial.times for trial in advice.measured.trials} == {"periodic", "window", "first", kind}
    assert "Chosen on 32 samples, with a price made earlier, " in str(advice)
    assert "calibrated on" not in str(advice)
    assert advice.times != kind or advice.price is price


@pytest.mark.parametrize("defect", [None, lambda x: (x[:, 0] > 0).to(x.dtype)], ids=["projection", "constant"])
def test_prices_are_judged_too_where_the_defect_tells_nothing(defect):
    blind = tt.as_constraint(torch.zeros_like, *([] if defect is None else [defect]))
    price = price_for(LINE, "dp")
    advice = advise(tt.Problem(GUSTY, blind, SEEDS), tolerance=0.3, cost="projections", price=price)
    assert {trial.times for trial in advice.measured.trials} == {"periodic", "window", "first", "adaptive"}
    assert {"constant-defect", "defect-is-projection"} & set(advice.failure_modes)


def test_a_price_is_not_said_to_do_with_more_than_its_own_budget():
    few, more = (price_for(LINE, "dp", budget) for budget in (3, 20))
    problem = tt.Problem(GUSTY, LINE, SEEDS)
    short = advise(problem, tolerance=0.1, cost="projections", price=few)
    assert max(trial.budget for trial in short.measured.trials if trial.times == "adaptive") == 3
    enough = advise(problem, tolerance=0.1, cost="projections", price=more)
    assert max(trial.budget for trial in enough.measured.trials if trial.times == "adaptive") <= 20


# ------------------------------------------------------------------ loops that are not ours


def gusty_loop(seeds, constraint=LINE, closing="paid"):
    """The same chain as a loop with one added line."""

    def run(schedule):
        noise = Noise(torch.as_tensor(seeds), torch.float64)
        corrector = tt.Corrector(constraint, schedule, GUSTY.n_steps, seeds=seeds, closing=closing)
        x = GUSTY.start(noise)
        for t in range(GUSTY.n_steps):
            x = corrector(GUSTY.step(x, t, noise), t)
        return corrector.rollout

    return run


def test_a_loop_of_ones_own_gets_the_advice_that_the_sampler_gets(gusty):
    runs = [gusty_loop(list(part)) for part in (SEEDS[:16], SEEDS[16:40], SEEDS[40:])]
    advice = advise(*runs[:2], fresh=runs[2], tolerance=0.1, cost="projections")
    assert (advice.times, advice.budget, advice.loss) == (gusty.times, gusty.budget, gusty.loss)
    assert advice.failure_modes == gusty.failure_modes
    assert "a small change of a state" in str(gusty)
    assert "a small change of a state" not in str(advice)  # nothing could be nudged
    assert (advice.measured.calibrated, advice.measured.held_out, advice.measured.fresh) == (16, 24, 24)
    without = advise(*runs[:2], tolerance=0.1, cost="projections")
    assert without.measured.fresh == 0
    assert "optimistic" in str(without)


@pytest.mark.parametrize("closing", ["none", "free"])
def test_a_loop_that_is_not_projected_at_its_end_is_not_said_to_be(closing):
    halves = [gusty_loop(list(part), closing=closing) for part in (SEEDS[:16], SEEDS[16:40])]
    advice = advise(*halves, tolerance=2.0, cost="projections")
    assert (advice.times, advice.budget) == ("terminal", 0)  # the budget is for projections on the way
    head, text = str(advice).split("\n", 1)
    assert head.endswith("with closing='none', none at the end." if closing == "none" else "one at the end.")
    assert ("not at all" in text) == (closing == "none")
    assert ("once, at the end, by path" in text) == (closing == "free")


def test_a_loop_that_is_better_not_projected_at_all_is_said_to_be():
    halves = [gusty_loop(list(part), closing="none") for part in (SEEDS[:16], SEEDS[16:40])]
    text = str(recommend.advise(*halves, quality=lambda final: -final[:, 0].abs(), cost="projections"))
    assert "  Why: projecting at every step is worse than not at all, by" in text
    assert "projecting at every step is worse than not at all: it gains" in text


def test_a_loop_whose_defect_is_a_projection_is_recognised():
    halves = (gusty_loop(list(part), tt.as_constraint(torch.zeros_like)) for part in (SEEDS[:16], SEEDS[16:40]))
    advice = advise(*halves, tolerance=0.3, cost="projections")
    assert "defect-is-projection" in advice.failure_modes


def test_loops_that_cannot_be_compared_are_explained():
    first, second = gusty_loop(list(range(16))), gusty_loop(list(range(16, 32)))
    with pytest.raises(ValueError, match="the same rollouts; measuring needs other seeds"):
        advise(first, held_out=first, cost="projections")
    with pytest.raises(TypeError, match="two functions run"):
        advise(first, cost="projections")
    with pytest.raises(ValueError, match="8 distinct rollouts are too few"):
        advise(gusty_loop([1, 2, 3, 4]), held_out=second, cost="projections")
    other = tt.domain("so3", n_steps=12).problem(range(16))
    with pytest.raises(
        ValueError, match=r"run the same loop on different seeds: got \d+ steps .* and 12 of the one that meas"
    ):
        advise(first, held_out=other.rollout, cost="projections")
    seeds = itertools.count(1000)
    with pytest.raises(ValueError, match="not repeatable"):
        advise(first, held_out=lambda s: gusty_loop([next(seeds) for _ in range(16)])(s), cost="projections")


# ------------------------------------------------------------------ time, with a clock of our own


def clock(monkeypatch, update: float, projection: float) -> None:
    def seconds(self, run, schedule):
        return run.n_steps * update + float(run.paid.double().mean()) * projection

    monkeypatch.setattr(Evaluation, "seconds", seconds)


def test_expensive_projections_are_spared_and_the_saving_is_in_seconds(monkeypatch, gusty):
    clock(monkeypatch, update=0.001, projection=0.1)
    advice = advise(tt.Problem(GUSTY, LINE, SEEDS), tolerance=0.1)
    assert (advice.times, advice.budget) == (gusty.times, gusty.budget)
    assert advice.saving.mean == pytest.approx(1 - (0.024 + 0.1 * advice.trial.projections) / 2.424)
    assert "cheap-projection" not in advice.failure_modes


def test_cheap_projections_are_not_worth_sparing(monkeypatch):
    clock(monkeypatch, update=0.1, projection=0.001)
    advice = advise(tt.Problem(GUSTY, LINE, SEEDS), tolerance=0.1)
    assert advice.times == "stepwise"
    assert "cheap-projection" in advice.failure_modes
    assert "Use a whole projection after every step" in str(advice)


def test_within_a_time_limit_it_takes_what_loses_least(monkeypatch):
    clock(monkeypatch, update=0.01, projection=0.01)
    advice = advise(tt.Problem(GUSTY, LINE, SEEDS), seconds=0.34)  # 24 updates and 10 projections
    assert advice.times == "adaptive"
    fitting = [trial for trial in advice.measured.everything if trial.seconds <= 0.34]
    assert advice.trial in fitting
    assert all(advice.trial.loss.mean <= trial.loss.mean for trial in fitting)
    assert advise(tt.Problem(GUSTY, LINE, SEEDS), seconds=1.0).times == "stepwise"
    hopeless = advise(tt.Problem(GUSTY, LINE, SEEDS), seconds=0.1)
    assert hopeless.times == "terminal"
    assert "longer than the limit" in str(hopeless)


# ------------------------------------------------------------------ words, numbers, picture


def test_it_speaks_in_words_numbers_and_a_picture(gusty, tmp_path):
    text = str(gusty)
    assert text.startswith(f"Use a whole projection by price, {gusty.budget} of 24")
    assert str(gusty.loss) in text
    assert "measured once more on 24 that chose nothing" in text
    assert "Nearness to full projection is not quality" in text
    facts = json.loads(json.dumps(gusty.facts(), allow_nan=False))
    assert facts["recommended"]["budget"] == gusty.budget
    assert {trial["schedule"] for trial in facts["trials"]} >= {"terminal", "stepwise", "periodic", "adaptive"}
    pytest.importorskip("matplotlib")
    figure = gusty.plot(tmp_path / "advice.png")
    assert (tmp_path / "advice.png").read_bytes().startswith(b"\x89PNG")
    assert len(gusty.plot().axes) == len(figure.axes) > 1
    with pytest.raises(ValueError, match=r"\.png, \.svg or \.pdf"):
        gusty.plot(tmp_path / "advice.gif")


def test_every_failure_mode_that_is_named_is_explained(gusty):
    dear = replace(gusty, measured=replace(gusty.measured, unit="seconds"))
    for advice in (gusty, dear):
        for finding in advice.findings:
            assert not finding.warns or finding.name in FAILURE_MODES


# ------------------------------------------------------------------ wrong use


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"seeds": range(8)}, "8 distinct rollouts are too few .* at least 16"),
        ({"tolerance": 0.0}, "tolerance must be a finite number above 0"),
        ({"seconds": -1.0}, "seconds must be a finite number above 0"),
        ({"cost": "second"}, "did you mean 'seconds'"),
        ({"sampler": Scalar((0.5,) * 3, one)}, "3 steps leaves nothing to schedule"),
        ({"price": tt.prices.Thresholds(torch.full((9, 1), torch.inf))}, "for T = 9 steps, this sampler has 24"),
        ({"price": tt.prices.Thresholds(torch.full((24, 1), torch.inf))}, "budget of 0"),
    ],
)
def test_wrong_use_is_explained(change, complaint):
    sampler, seeds = change.pop("sampler", GUSTY), change.pop("seeds", SEEDS)
    with pytest.raises(ValueError, match=complaint):
        advise(tt.Problem(sampler, LINE, seeds), **change)
