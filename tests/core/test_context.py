"""What a constraint may ask for beside the state: the step, the state before, what the loop passes."""

from __future__ import annotations

import pytest
import torch

import trimtab as tt

N, T = 5, 6


def test_the_step_the_state_before_and_what_the_loop_passes_follow_the_rows():
    calls = []

    def defect(x, t, previous, sigma, weight):
        return (x - previous).abs()[:, 0] * weight + sigma

    def project(x, t, previous, sigma, weight):
        calls.append((t, x[:, 0].tolist(), previous[:, 0].tolist(), sigma, weight.tolist()))
        return previous

    filtered = tt.as_constraint(project, defect, needs=("t", "previous", "sigma", "weight"))
    weight = torch.arange(1.0, N + 1)
    corrector = tt.Corrector(filtered, tt.schedules.FixedThreshold(3.0, 1.0), T, closing="none")
    x = torch.zeros(N, 1)
    corrector.begin(x)
    for t in range(T):
        x = corrector(x + 1.0, t, sigma=0.5, weight=weight)
    assert corrector.rollout.projected[:, :2].sum() == 0  # weights 1 and 2 never reach 3
    assert corrector.rollout.projected[:, 3:].all()
    assert [call[0] for call in calls] == list(range(T))
    assert all(call[3] == 0.5 for call in calls)
    assert all(call[4] == [3.0, 4.0, 5.0] for call in calls)
    assert x[:, 0].tolist() == [T, T, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("needs", "context", "message"),
    [
        (("sigma",), {}, r"needs sigma at step 0: call corrector\(x, t, sigma=…\)"),
        (("previous",), {}, r"needs previous at step 0: call corrector.begin"),
        (("sigma",), {"sigma": torch.ones(3)}, "3 rows for 5 samples"),
        (("sigma",), {"sigma": object()}, "a number or hold one row per sample"),
    ],
)
def test_what_is_missing_or_does_not_fit_is_told(needs, context, message):
    constraint = tt.as_constraint(lambda x, **told: x, lambda x, **told: x[:, 0].abs(), needs=needs)
    with pytest.raises((ValueError, TypeError), match=message):
        tt.Corrector(constraint, tt.Stepwise(), T, measure_defects=True)(torch.ones(N, 1), **context)


def test_a_correction_that_is_no_projection_ends_as_it_is():
    """A step down an energy: nothing is promised of the end, and no closing correction is paid for."""
    energy = tt.as_constraint(lambda x: 0.5 * x, lambda x: x.square().sum(dim=1), is_projection=False)
    corrector = tt.Corrector(energy, tt.schedules.Fixed.at([1], T), T, closing="none")
    x = torch.ones(N, 2)
    for t in range(T):
        x = corrector(x, t)
    assert torch.equal(x, torch.full((N, 2), 0.5))
    assert corrector.rollout.rows["projection"] == N
