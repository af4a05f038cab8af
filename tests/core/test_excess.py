from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.core.excess import energy_excess
from trimtab.core.set_distances import energy_distance


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


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
