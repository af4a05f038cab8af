from __future__ import annotations

import itertools
import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import free
import trimtab as tt
from cases import Sphere, Walk
from trimtab_lab import distributions
from trimtab_lab.distributions import (
    compare_samples,
    energy_distance,
    energy_excess,
    minimum_detectable_shift,
    relabelled_distances,
)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dealt(n, m, *ways):
    """Labels of which n of n + m samples are of the first set, (P, n + m)."""
    labels = torch.zeros(len(ways), n + m, dtype=torch.bool)
    for label, way in zip(labels, ways, strict=True):
        label[list(way)] = True
    return labels


# ------------------------------------------------------------------ the distance


@settings(max_examples=20)
@given(st.integers(2, 7), st.integers(2, 6), st.integers(1, 4), st.integers(0, 100), st.sampled_from([0.0, 2.0]))
def test_the_energy_distance_is_what_its_definition_says(n, m, d, seed, shift):
    x, y = drawn(n, d, seed=seed) + shift, drawn(m, d, seed=seed + 1000)

    def mean(a, b):
        return float(torch.stack([(p - q).norm() for p in a for q in b]).mean())

    by_hand = math.sqrt(max(0.0, 2 * mean(x, y) - mean(x, x) - mean(y, y)))
    assert energy_distance(x, y) == pytest.approx(by_hand, abs=1e-7)


@pytest.mark.parametrize(("n", "m"), [(2, 2), (40, 300)])
def test_on_a_line_it_agrees_with_scipy(n, m):
    x, y = drawn(n), 1.5 * drawn(m, seed=1) + 0.3
    assert energy_distance(x, y) == pytest.approx(stats.energy_distance(x, y), abs=1e-7)


def test_distances_do_not_depend_on_order_place_or_shape():
    x, y = drawn(40, 2, 3), drawn(30, 2, 3, seed=1) + 0.5
    found = energy_distance(x, y)
    assert energy_distance(x.flip(0), y[drawn(30).argsort()]) == pytest.approx(found, rel=1e-9)
    assert energy_distance(y, x) == pytest.approx(found, rel=1e-9)
    assert energy_distance(x.flatten(1), y.flatten(1)) == found
    assert energy_distance(x + 1e4, y + 1e4) == pytest.approx(found, rel=1e-6)
    flat = [z[:, 0, :2].contiguous() for z in (x, y)]
    assert energy_distance(*map(torch.view_as_complex, flat)) == energy_distance(*flat)


def test_blocks_change_nothing_and_none_is_larger_than_its_limit(monkeypatch):
    x, y = drawn(70, 3), drawn(50, 3, seed=1) + 0.2
    pool, labels = torch.cat([x, y]), dealt(70, 50, range(70), drawn(120).argsort()[:70].tolist())
    whole = relabelled_distances(pool, labels)
    assert float(whole[0]) == pytest.approx(energy_distance(x, y), rel=1e-9)
    sizes = []

    def seen(a, b, cdist=torch.cdist):
        sizes.append(len(a) * len(b))
        return cdist(a, b)

    monkeypatch.setattr(distributions, "_PAIRS", 500)
    monkeypatch.setattr(torch, "cdist", seen)
    assert torch.allclose(relabelled_distances(pool, labels), whole, rtol=1e-9)
    assert max(sizes) <= 500
    assert sum(sizes) == 120**2


def test_arrays_and_trees_are_samples_too():
    x, y = drawn(20, 2), drawn(20, 2, seed=1)
    assert energy_distance(x.numpy(), y.numpy()) == energy_distance(x, y)
    assert compare_samples(x, y.numpy(), shift=0.0) == compare_samples(x, y, shift=0.0)
    trees = [{"position": z[:, :1], "charge": z[:, 1]} for z in (x, y)]
    assert energy_distance(*trees) == pytest.approx(energy_distance(x, y), rel=1e-12)
    assert compare_samples(*trees, embed=lambda tree: tree["position"], shift=0.0) == (
        compare_samples(x[:, 0], y[:, 0], shift=0.0)
    )


def test_sets_of_one_point():
    same = torch.ones(4, 2)
    assert energy_distance(same, same) == 0
    found = compare_samples(same, same)
    assert (found.p, found.shift, found.told_apart) == (1.0, 0.0, False)


# ------------------------------------------------------------------ the test


def test_where_nothing_differs_p_is_uniform():
    sets = drawn(200, 2, 24, 2, seed=7)
    p = [compare_samples(x, y, relabellings=40, seed=k, shift=0.0).p for k, (x, y) in enumerate(sets)]
    # p is uniform on 1/40 … 1: Kolmogorov's distance stays below 1.63 / sqrt(200) + 1/40 in 99 of 100 such trials
    assert stats.kstest(p, "uniform").statistic < 1.63 / 200**0.5 + 1 / 40
    assert sum(value <= 0.05 for value in p) <= 20  # expected 10, standard deviation 3.1


def test_larger_shifts_are_found_more_often_and_the_smallest_shift_says_when():
    sets = drawn(60, 2, 50, 2, seed=3)
    reference = drawn(2000, 2, seed=4)
    shift = minimum_detectable_shift(reference[:50], 50)
    spread = 2**0.5
    found = []
    for factor in (0.0, 0.5, 1.0, 2.0):
        way = torch.tensor([factor * shift * spread, 0.0], dtype=torch.float64)
        seen = [
            compare_samples(x + way, y, relabellings=60, seed=k, shift=0.0).told_apart for k, (x, y) in enumerate(sets)
        ]
        found.append(sum(seen) / len(seen))
    assert found == sorted(found)
    assert found[0] <= 0.15
    assert 0.6 <= found[2] <= 0.95  # 0.8 by definition, with a standard error of 0.05 and of the simulation's own
    assert found[3] >= 0.98


def test_more_samples_see_smaller_shifts():
    reference = drawn(800, 3)
    few, many = (minimum_detectable_shift(reference[:n], n) for n in (50, 800))
    assert few / many == pytest.approx(4.0, rel=0.25)
    assert minimum_detectable_shift(7 * reference[:50], 50) == pytest.approx(few, rel=1e-6)  # a ratio has no unit


@pytest.mark.parametrize(("n", "m"), [(2, 2), (3, 3), (2, 4), (4, 4), (3, 4), (2, 6), (3, 12)])
def test_a_shift_is_promised_only_where_some_relabelling_test_can_reach_the_level(n, m):
    pool = drawn(n + m, 2)
    far = pool[:n] + 1e6
    ways = list(itertools.combinations(range(n + m), n))
    both = torch.cat([far, pool[n:]])
    found = relabelled_distances(both, dealt(n, m, *ways))
    exact = float((found >= found[0] * (1 - 1e-9)).double().mean())  # of sets as far apart as can be
    assert math.isinf(minimum_detectable_shift(pool[n:], n)) == (exact > 0.05)
    assert math.isinf(minimum_detectable_shift(torch.zeros(m, 2), n)) == (exact > 0.05)


def test_too_few_samples_to_see_any_shift_are_said_to_be():
    x, y = drawn(3, 2), drawn(3, 2, seed=1)
    found = compare_samples(x, y)
    assert math.isinf(found.shift)
    assert "; 3 samples are too few to see any shift (energy distance" in found.words()
    assert found.facts()["shift"] is None
    assert compare_samples(x, y, shift=found.shift) == found
    assert "2 and 4 samples are too few" in compare_samples(drawn(2, 2), drawn(4, 2, seed=1)).words()


def test_a_change_of_spread_is_seen_too():
    x, y = drawn(300, 2), drawn(300, 2, seed=1)
    assert not compare_samples(x, y, shift=0.0).told_apart
    assert compare_samples(1.5 * x, y, shift=0.0).told_apart


def test_the_noise_floor_is_the_distance_of_sets_that_are_dealt_at_random():
    x, y = drawn(120, 2), drawn(120, 2, seed=1)
    alike, apart = compare_samples(x, y, shift=0.0), compare_samples(x + 3, y, shift=0.0)
    assert alike.floor <= alike.floor_high
    assert alike.value < 2 * alike.floor_high
    assert apart.floor_high < apart.value
    assert apart.p == 1 / 200


def test_the_result_says_itself_in_words_and_as_json():
    x, y = drawn(100, 2), drawn(100, 2, seed=1)
    same, other = compare_samples(x, y), compare_samples(x[:60] + 2, y, called="the data")
    assert "cannot be told from those of full projection, p = 0." in same.words()
    assert f"with 100 samples a shift of {same.shift:.2g} of their spread would have been seen" in same.words()
    assert other.words().startswith("differ from the data, p = 0.005: energy distance ")
    assert json.loads(json.dumps(other.facts()))["n"] == 60
    assert other.facts()["n_reference"] == 100
    assert len(repr(same)) < 100


def test_it_is_deterministic_and_leaves_the_global_generator_alone():
    x, y = drawn(40, 2), drawn(40, 2, seed=1)
    before = torch.get_rng_state()
    assert compare_samples(x, y, seed=5) == compare_samples(x, y, seed=5)
    assert compare_samples(x, y, seed=5).p != compare_samples(x, y, seed=6).p
    assert torch.equal(torch.get_rng_state(), before)


def test_rollouts_are_compared_on_different_seeds_only():
    def run(schedule, seeds):
        return free.rollout(Walk(), Sphere(), schedule, seeds)

    samples, full = run(tt.Periodic(3), range(30)), run(tt.Stepwise(), range(100, 140))
    found = compare_samples(samples, full)
    assert (found.n, found.n_reference) == (30, 40)
    assert found == compare_samples(samples.final, full.final)
    with pytest.raises(ValueError, match=r"30 seeds are in both sets \(first: \[0, 1, 2, 3, 4\]\)"):
        compare_samples(samples, run(tt.Stepwise(), range(30)))


def test_a_seed_that_is_repeated_is_one_sample():
    def run(schedule, seeds):
        return free.rollout(Walk(), Sphere(), schedule, seeds)

    full = run(tt.Stepwise(), range(100, 140))
    once, twice = run(tt.Periodic(3), range(20)), run(tt.Periodic(3), [*range(20), *range(20)])
    assert compare_samples(twice, full, shift=0.0).n == 20
    assert compare_samples(twice, full, shift=0.0).p == compare_samples(once, full, shift=0.0).p


def test_states_can_be_embedded():
    angles = drawn(200, 1), drawn(200, 1, seed=1) + 2 * math.pi

    def on_the_circle(x):
        return torch.cat([x.cos(), x.sin()], dim=1)

    assert compare_samples(*angles, shift=0.0).told_apart
    assert not compare_samples(*angles, embed=on_the_circle, shift=0.0).told_apart


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((torch.zeros(1, 2), torch.zeros(5, 2)), {}, "at least 2 samples along the first dimension: got 1"),
        ((torch.zeros(4, 2), torch.zeros(5, 3)), {}, "same shape: got 2 and 3 numbers"),
        ((torch.zeros(4, 2), torch.full((5, 2), torch.nan)), {}, "5 of 5 samples are not finite"),
        ((torch.zeros(4), torch.zeros(5)), {"relabellings": 5}, "at least 20"),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        compare_samples(*arguments, **options)


def test_what_is_no_set_of_samples_is_refused():
    with pytest.raises(TypeError, match="states must be a torch tensor, a numpy or JAX array"):
        compare_samples([1.0, 2.0], torch.zeros(5))


# ------------------------------------------------------------------ without the noise floor


def by_pairs(x, y):
    """The definition, pair by pair, no sample with itself."""

    def mean(a, b, same=False):
        return torch.stack([(p - q).norm() for i, p in enumerate(a) for j, q in enumerate(b) if not (same and i == j)])

    return float(2 * mean(x, y).mean() - mean(x, x, True).mean() - mean(y, y, True).mean())


@settings(deadline=None, max_examples=30)
@given(st.integers(3, 7), st.integers(3, 6), st.integers(1, 4), st.integers(0, 100))
def test_it_and_its_error_are_what_the_definitions_say(n, m, d, seed):
    x, y = drawn(n, d, seed=seed), drawn(m, d, seed=seed + 1000) + 1
    found = energy_excess(x, y)
    assert found.mean == pytest.approx(by_pairs(x, y), abs=1e-12)
    without_x = torch.tensor([by_pairs(torch.cat([x[:i], x[i + 1 :]]), y) for i in range(n)])
    without_y = torch.tensor([by_pairs(x, torch.cat([y[:i], y[i + 1 :]])) for i in range(m)])
    variance = sum((len(part) - 1) * part.var(correction=0) for part in (without_x, without_y))
    assert found.se == pytest.approx(float(variance.sqrt()), rel=1e-6)


def test_it_is_0_on_average_where_the_distance_is_all_noise_floor():
    sets = drawn(150, 2, 20, 10)
    found = torch.tensor([energy_excess(x, y).mean for x, y in sets])
    floor = torch.tensor([energy_distance(x, y) ** 2 for x, y in sets])
    error = float(found.std()) / len(found) ** 0.5
    assert abs(float(found.mean())) < 4 * error
    assert float(floor.mean()) > 20 * error


def test_its_error_covers_what_other_samples_would_have_given():
    sets = drawn(200, 2, 30, 3)
    found = [energy_excess(x + 1, y) for x, y in sets]
    scatter = float(torch.tensor([one.mean for one in found]).std())
    said = float(torch.tensor([one.se for one in found]).mean())
    assert said == pytest.approx(scatter, rel=0.25)


def test_paired_sets_are_compared_more_sharply():
    x, y = drawn(100, 4), drawn(300, 4, seed=1)
    beside = x + 0.2 * drawn(100, 4, seed=2)
    far, near = energy_excess(1.3 * x, y), energy_excess(1.3 * beside, y)
    difference = energy_excess(1.3 * x, y, less=1.3 * beside)
    assert difference.mean == pytest.approx(far.mean - near.mean, abs=1e-12)
    assert difference.se < 0.5 * far.se
    assert energy_excess(x, y, less=x).mean == energy_excess(x, y, less=x).se == 0


def test_sets_that_cannot_be_compared_are_refused():
    with pytest.raises(ValueError, match="at least 3 samples of each set: got 2 and 5"):
        energy_excess(drawn(2, 2), drawn(5, 2))
    with pytest.raises(ValueError, match=r"paired sets .* got \(5, 2\) and \(4, 2\)"):
        energy_excess(drawn(5, 2), drawn(6, 2), less=drawn(4, 2))
    with pytest.raises(ValueError, match="same shape"):
        energy_excess(drawn(5, 2), drawn(6, 3))
