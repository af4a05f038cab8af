"""A stationary price: what it is worth against other ways to spend the same rate."""

from __future__ import annotations

import pytest
import torch

import free
import trimtab as tt
from trimtab.core.stream import Stream
from trimtab.prices.rates import StationaryPrice, calibrate_rate

BOX = tt.as_constraint(lambda x: x.clamp(-1, 1), lambda x: (x.abs() - 1).clamp(min=0).amax(dim=1))
T = 200


def kicks(kind, seed, steps, n):
    """How the loop is pushed at each step, and how much of a state lasts."""
    generator = torch.Generator().manual_seed(seed)
    push = torch.randn(steps, n, 2, generator=generator)
    if kind == "bursts":
        return (0.05 + (torch.rand(steps, n, 1, generator=generator) < 0.05).float()) * push, 0.95
    return (push, 0.0) if kind == "noise" else (0.15 * push, 0.98)


def mean_residual(kind, correct, steps=600, seed=2, n=32):
    push, lasting = kicks(kind, seed, steps, n)
    x, total = torch.zeros(n, 2), 0.0
    for t in range(steps):
        x = correct(lasting * x + push[t])
        total += float(BOX.defect(x).mean())
    return total / steps


def price(kind, rate, burst):
    def run(schedule):
        corrector = free.Corrector(BOX, schedule, T, closing="free")
        mean_residual(kind, corrector, T, seed=1)
        return corrector.rollout

    return calibrate_rate(run, T, rate, burst)


@pytest.mark.parametrize("kind", ["bursts", "noise", "drift"])
@pytest.mark.parametrize("burst", [1, 4])
def test_it_serves_better_than_even_spacing_and_than_the_first_defect_that_comes(kind, burst):
    rate = 0.1
    found = price(kind, rate, burst)
    stream = Stream(BOX, found, rate, burst)
    ours = mean_residual(kind, stream)
    assert (stream.spent <= burst + rate * 600).all()
    even = Stream(BOX, lambda view: view.context["since"] >= 10, rate, burst)
    eager = Stream(BOX, lambda view: view.defect > 0, rate, burst)
    assert ours < mean_residual(kind, even)
    assert ours < mean_residual(kind, eager)


def test_tokens_are_cheaper_the_more_there_are():
    found = price("noise", 0.1, 4)
    pays = found.levels >= 1 - 1e-9
    assert (found.prices[~pays] == torch.inf).all()
    assert (found.prices[pays].diff() <= 1e-9).all()
    assert found.prices[pays][0] > 1.3 * found.prices[-1] > 0


def test_a_file_holds_it(tmp_path):
    found = price("noise", 0.25, 2)
    found.save(tmp_path / "price.safetensors")
    again = StationaryPrice.load(tmp_path / "price.safetensors")
    assert torch.equal(again.prices, found.prices)
    assert (again.rate, again.burst) == (0.25, 2.0)


def test_a_run_of_known_length_is_not_its_place():
    with pytest.raises(ValueError, match=r"for trimtab\.core\.stream\.Stream"):
        free.Corrector(BOX, price("noise", 0.25, 1), 5, closing="free")(torch.zeros(2, 2))


def test_runs_that_show_one_action_only_are_refused():
    def run(schedule):
        corrector = free.Corrector(BOX, tt.Terminal(), T, closing="free")
        mean_residual("noise", corrector, T, n=4)
        return corrector.rollout

    with pytest.raises(ValueError, match="only one of the two actions"):
        calibrate_rate(run, T, 0.1)
    with pytest.raises(ValueError, match="burst at least 1"):
        calibrate_rate(run, T, 0.1, 0.2)


@pytest.mark.parametrize(
    ("rate", "burst", "said"),
    [
        (1e-7, 1, r"in 1e\+07 steps, .* at most 10,000 prices .*: give a burst of at most 10,000 times the rate, or"),
        (0.5, 1e9, r"in 2e\+09 steps"),
        (5e-324, 1, r"in inf steps"),
    ],
)
def test_a_bucket_that_takes_too_long_to_fill_is_refused_before_anything_is_run(rate, burst, said):
    with pytest.raises(ValueError, match=said):
        calibrate_rate(lambda schedule: pytest.fail("it was run"), T, rate, burst)


def test_every_run_makes_the_steps_that_were_asked_for():
    lengths = iter([T, T - 1])

    def run(schedule):
        steps = next(lengths)
        corrector = free.Corrector(BOX, schedule, steps, closing="free")
        mean_residual("noise", corrector, steps, n=4)
        return corrector.rollout

    with pytest.raises(ValueError, match=f"run must make n_steps = {T} steps: the record it returned has {T - 1}"):
        calibrate_rate(run, T, 0.1)
