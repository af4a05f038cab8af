"""The learned value: what it learns from, that it helps where there is something to learn, and that it does no harm."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

import free
import trimtab as tt
from cases import Sphere, Walk
from trimtab.core.files import load_tensors, save_tensors
from trimtab.core.moment import Moment
from trimtab.core.noise import Noise
from trimtab.experimental.learn_value import Branch, Labels, calibrate_value, counterfactuals, fit, gather, learn
from trimtab.experimental.value import FEATURES, Value, close_decisions, observed
from trimtab.prices.explore import Explore

CALIBRATION, EVALUATION = range(1000, 1064), range(256)


@dataclass(frozen=True)
class OneBurst:
    """Small defects, and one burst of large ones at a time of each sample's own: once it is over, none will follow."""

    n_steps: int = 40

    def start(self, noise: Noise) -> torch.Tensor:
        return torch.zeros(len(noise.seeds), 1, dtype=torch.float64)

    def step(self, x: torch.Tensor, t: int, noise: Noise) -> torch.Tensor:
        begins = noise.uniform(-1, (1,)) * 34
        size = torch.where((t >= begins) & (t < begins + 6), 20.0, 1.0)
        return -size * noise.uniform(t, (1,)).log()


ZERO = tt.as_constraint(torch.zeros_like, lambda x: x[:, 0])


def run_for(sampler, constraint=ZERO, seeds=CALIBRATION):
    return lambda schedule: free.rollout(sampler, constraint, schedule, seeds)


def table_for(sampler, constraint=ZERO, seeds=CALIBRATION, budget=0.5) -> tt.prices.Thresholds:
    return free.calibrate(tt.Problem(sampler, constraint, seeds), budget, objective="path")


@pytest.fixture(scope="module")
def burst_table():
    return table_for(OneBurst())


def untrained(table: tt.prices.Thresholds) -> Value:
    return Value.untrained(table, torch.ones(table.n_steps + 1, table.n_steps, dtype=torch.float64))


def test_branches_part_at_their_step_and_nowhere_before(burst_table):
    run = run_for(OneBurst())
    at = torch.arange(64) % 40
    explore = Explore(torch.full((64,), 12), replace(burst_table, seeds=()), 0.3, seed=5)
    one, two = (run(Branch(explore, at, correct)) for correct in (False, True))
    steps = torch.arange(40)[:, None]
    assert torch.equal(one.defects[steps[:, 0] == 0], two.defects[steps[:, 0] == 0])
    assert torch.where(steps <= at, one.defects == two.defects, True).all()
    could = (one.projected & (steps < at)).sum(dim=0) < 12
    here = torch.arange(64)
    assert not one.projected[at, here].any()
    assert torch.equal(two.projected[at, here], could)
    whole = run(explore)
    assert torch.where(steps < at, whole.projected == one.projected, True).all()


def test_labels_are_differences_of_paired_rollouts(burst_table):
    table = replace(burst_table, seeds=())
    explore = Explore(torch.full((64,), 10), table, 0.3)
    base = run_for(OneBurst())(explore)
    labels = counterfactuals(run_for(OneBurst()), untrained(table), explore, base, seed=3)
    assert 32 <= len(labels.sample) <= 64
    assert len(labels.sample.unique()) == len(labels.sample)
    assert labels.features.shape == (len(labels.sample), len(FEATURES))
    assert (labels.margin.abs() < 1.1).all()  # within a factor of two of the price
    # one batch of labels is too few to show it
    more = [counterfactuals(run_for(OneBurst()), untrained(table), explore, base, seed=seed) for seed in range(4, 9)]
    both = torch.cat([torch.stack([some.margin, some.advantage]) for some in (labels, *more)], dim=1)
    assert float(torch.corrcoef(both)[0, 1]) > 0.1


def test_an_untrained_value_is_the_table(burst_table):
    value = untrained(burst_table)
    for caution in (0.0, 2.0):
        ours = free.rollout(OneBurst(), ZERO, value.at(0.25, caution), EVALUATION)
        table = free.rollout(OneBurst(), ZERO, burst_table.at(0.25), EVALUATION)
        assert torch.equal(ours.projected, table.projected)


def labels_with(effect: float, noise: float, m: int = 512) -> Labels:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(m, len(FEATURES), generator=generator, dtype=torch.float64)
    margin = torch.rand(m, generator=generator, dtype=torch.float64) - 0.5
    error = noise * torch.randn(m, generator=generator, dtype=torch.float64)
    return Labels(features, margin, margin + effect * features[:, 6] + error, torch.arange(m) % 64)


def test_the_ensemble_finds_an_effect_and_its_spread_tells_how_surely(burst_table):
    sure, unsure = (fit(untrained(burst_table), labels_with(0.5, noise)) for noise in (0.2, 1.0))
    for value in (sure, unsure):
        found = value.weights[:, 2 : 2 + len(FEATURES)].mean(dim=0) / value.spread
        assert float(found[6]) == pytest.approx(0.5, abs=0.15)
        assert found[torch.arange(len(FEATURES)) != 6].abs().max() < 0.15
    assert float(sure.weights.std(dim=0).mean()) < 0.5 * float(unsure.weights.std(dim=0).mean())


def test_without_an_effect_the_table_is_kept(burst_table):
    value = fit(untrained(burst_table), labels_with(0.0, 3.0))
    assert value.notes["penalty"] == "table"
    assert (value.weights[:, 1:] == 0).all()
    assert (value.weights[:, 0] > 0).all()


def test_what_is_learned_does_not_lose_to_the_table_where_there_is_something_to_learn():
    """How much it wins depends on the labels drawn; that it does not lose is what unbiased labels are for."""
    seeds = range(1000, 1256)
    table, run = table_for(OneBurst(), seeds=seeds), run_for(OneBurst(), seeds=seeds)
    value = fit(*gather(run, table, run(tt.Terminal()), batches=30))
    assert value.notes["penalty"] != "table"
    assert value.notes["explained"] > 0.01
    ours, theirs = (
        float(free.rollout(OneBurst(), ZERO, price.at(6), range(2000, 3024)).residuals.sum(dim=0).mean())
        for price in (value, table)
    )
    assert ours < 1.01 * theirs


def test_a_value_is_handed_out_only_where_it_measures_better(burst_table):
    run = run_for(OneBurst())
    value = learn(run, burst_table, run(tt.Terminal()), batches=5)  # too few labels to learn anything from
    assert value.notes["labels"] <= 64
    assert (value.weights[:, 1:] == 0).all()


def test_caution_departs_less_often(burst_table):
    value = fit(untrained(burst_table), labels_with(0.4, 1.0))
    table = free.rollout(OneBurst(), ZERO, burst_table.at(0.25), EVALUATION).projected
    changed = [
        int((free.rollout(OneBurst(), ZERO, value.at(0.25, caution), EVALUATION).projected != table).sum())
        for caution in (0.0, 3.0, 1e9)
    ]
    assert changed[0] > changed[1] > changed[2] == 0


def test_close_decisions_are_never_those_the_budget_makes():
    price = torch.tensor([torch.inf, -torch.inf, 1.0, 1.0, 1.0])
    defect = torch.tensor([1.0, 1.0, 0.6, 1.9, 2.5])
    assert close_decisions(defect, price).tolist() == [False, False, True, True, False]


def test_what_is_observed_does_not_depend_on_batch_mates_or_on_the_future(burst_table):
    generator = torch.Generator().manual_seed(0)
    defects = torch.rand(40, 5, generator=generator, dtype=torch.float64) + 0.1
    projected = torch.rand(40, 5, generator=generator) < 0.3
    value, left, price = untrained(burst_table), torch.full((5,), 4), torch.ones(5, dtype=torch.float64)
    for t in (0, 1, 17, 39):
        seen = observed(Moment.of_record(t, defects, projected, left + projected[:t].sum(dim=0)), price, value)
        assert seen.isfinite().all()
        later = defects.clone()
        later[t + 1 :] = 9.0
        again = observed(Moment.of_record(t, later, projected, left + projected[:t].sum(dim=0)), price, value)
        assert torch.equal(seen, again)
        one = Moment.of_record(t, defects[:, 2:3], projected[:, 2:3], left[2:3] + projected[:t, 2:3].sum(dim=0))
        alone = observed(one, price[2:3], value)
        assert torch.equal(alone[0], seen[2])


def test_values_that_cannot_be_are_refused(burst_table, tmp_path):
    value = untrained(burst_table)
    with pytest.raises(ValueError, match="weights of a value"):
        replace(value, weights=value.weights[:1])
    with pytest.raises(ValueError, match="expected of a value"):
        replace(value, expected=value.expected[:3])
    with pytest.raises(ValueError, match="caution"):
        value.at(0.25, caution=-1.0)
    with pytest.raises(ValueError, match="of at least 5: got"):
        learn(run_for(OneBurst()), burst_table, run_for(OneBurst())(tt.Terminal()), batches=4)
    burst_table.save(tmp_path / "table.safetensors")
    with pytest.raises(ValueError, match="holds 'thresholds', expected 'value'"):
        Value.load(tmp_path / "table.safetensors")


def test_next_to_no_close_decisions_leave_the_table():
    table = table_for(Walk(), Sphere(), range(100, 104))
    value = learn(
        run_for(Walk(), Sphere(), range(100, 104)), table, run_for(Walk(), Sphere(), range(100, 104))(tt.Terminal()), 5
    )
    assert value.notes["penalty"] == "table"


def test_a_value_is_learned_where_the_closing_is_paid_for():
    def run(schedule):
        return tt.rollout(OneBurst(), ZERO, schedule, CALIBRATION, measure_defects=True)

    value = calibrate_value(run, 0.2)
    spent = tt.rollout(OneBurst(), ZERO, value.at(8), range(32)).paid
    assert (spent <= 8).all()


def test_a_value_is_run_as_its_table_was_made_for_also_from_a_file(burst_table, tmp_path):
    value = replace(untrained(burst_table), seeds=burst_table.seeds)
    value.save(tmp_path / "value.safetensors")
    loaded = Value.load(tmp_path / "value.safetensors")
    for one in (value, loaded):
        assert one.at(5).closing == one.thresholds.closing == "free"
        with pytest.raises(ValueError, match="made for closing='free', this run has closing='paid'"):
            tt.rollout(OneBurst(), ZERO, one.at(5), range(4))
    before, after = (free.rollout(OneBurst(), ZERO, one.at(5), range(8)).projected for one in (value, loaded))
    assert torch.equal(before, after)
    tensors, facts = load_tensors(tmp_path / "value.safetensors", "value")
    for told_later in ("closing", "method", "version"):
        facts.pop(told_later)
    save_tensors(tmp_path / "earlier.safetensors", "value", tensors, facts)
    earlier = Value.load(tmp_path / "earlier.safetensors")
    assert (earlier.closing, earlier.thresholds.closing, earlier.method) == ("", "", "value")
    assert earlier.seeds == value.seeds
