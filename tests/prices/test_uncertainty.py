"""Intervals of prices from resampled rollouts."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import trimtab as tt

T = 12
LINE = tt.as_constraint(lambda x: x * torch.tensor([0.0, 1.0], dtype=x.dtype), lambda x: x[:, 0].abs())


@dataclass(frozen=True)
class Uniform:
    """Defects that are independent and uniform from 0 to 1; `same` makes all samples alike."""

    same: bool = False
    n_steps: int = T

    def start(self, noise):
        return torch.zeros(len(noise.seeds), 2, dtype=torch.float64)

    def step(self, x, t, noise):
        drawn = noise.uniform(t, (1,)).double()
        return torch.cat([drawn[:1].expand_as(drawn) if self.same else drawn, x[:, 1:]], dim=1)


def paper(n, same=False, **options):
    problem = tt.Problem(Uniform(same), LINE, range(1000, 1000 + n))
    return tt.calibrate(problem, method="paper", closing="free", uncertainty=True, **options)


def test_the_interval_holds_the_true_quantile_and_narrows_with_more_rollouts():
    widths = []
    for n in (16, 256):
        low, high = paper(n).interval[:, 0, 1:T]
        true = 1 - torch.arange(1, T) / T  # all defects have the same distribution
        assert ((low <= true) & (true <= high)).double().mean() > 0.7
        widths.append(float((high - low).mean()))
    assert 2.5 < widths[0] / widths[1] < 6  # 4 in theory


def test_rollouts_that_are_all_alike_leave_no_doubt():
    price = paper(8, same=True)
    assert torch.equal(*price.interval)
    assert torch.equal(price.interval[0], price.table)


def test_intervals_are_asked_for():
    plain = tt.calibrate(tt.Problem(Uniform(), LINE, range(1000, 1008)), method="paper")
    assert plain.interval is None
    with pytest.raises(ValueError, match="uncertainty= is for methods 'paper' and 'dp'"):
        tt.calibrate(tt.Problem(Uniform(), LINE, range(1000, 1008)), method="planned", uncertainty=True)
    assert paper(8).resample(6).interval.shape == (2, 6, 7)


@pytest.mark.parametrize("method", ["paper", "dp"])
def test_too_few_rollouts_to_resample_are_refused_before_any_work(method):
    said, problem = [], tt.Problem(Uniform(), LINE, range(1000, 1007))
    with pytest.raises(ValueError, match="resamples calibration rollouts, and needs at least 8 of them: got 7"):
        tt.calibrate(problem, method=method, objective="path", uncertainty=True, progress=said.append)
    assert not said
    with pytest.raises(ValueError, match="needs at least 8 of them: got 7"):
        tt.calibrate(lambda schedule: problem.rollout(schedule, measure_defects=True), 1.0, method, uncertainty=True)


@pytest.mark.parametrize("budget", [2, 3, 6, T])
@pytest.mark.parametrize("n", [8, 11])
def test_eight_rollouts_are_enough_for_every_budget(budget, n):
    """A resample may hold few corrections, or none around some step: neighbouring steps then say what is known."""
    price = tt.calibrate(
        tt.Problem(Uniform(), LINE, range(1000, 1000 + n)), budget, "dp", objective="path", uncertainty=True
    )
    low, high = price.interval
    assert (low <= high).all()
    assert (low < high).any()
