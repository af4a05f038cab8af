"""Training with the constraint as input: on a small problem, and on the shipped reaction flow."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import trimtab as tt
from trimtab.constraints import NonlinearEquality
from trimtab_lab.domains.reaction_flow.domain import (
    MEAN,
    SPREAD,
    gaussian_field,
    given_conditions,
    shipped_network,
)
from trimtab_lab.domains.reaction_flow.equation import CELLS, TIMES, MassBalance, solve
from trimtab_lab.training import defect_gradient, fit, scheduled_prediction

N = 40
RADII = torch.linspace(0.5, 2, N, dtype=torch.float64)
SPHERES = tt.as_constraint(
    lambda x, r: r[:, None] * x / x.norm(dim=1, keepdim=True), lambda x, r: (x.norm(dim=1) - r).abs(), (RADII,)
)


def random_states(seed: int = 0) -> torch.Tensor:
    return torch.randn(N, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_gradient_is_that_of_half_the_squared_defect():
    balance = MassBalance(given_conditions(range(3))[0])
    x, way = torch.randn(2, 3, TIMES, CELLS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    h = 1e-5
    ahead, behind = ((balance.defect(x + s * h * way) ** 2 / 2) for s in (1, -1))
    slope = (defect_gradient(x, balance) * way).sum(dim=(1, 2))
    torch.testing.assert_close(slope, (ahead - behind) / (2 * h), rtol=1e-6, atol=1e-9)


def test_the_gradient_is_zero_on_the_set_even_if_the_defect_is_a_root():
    origin = tt.as_constraint(lambda x: 0 * x, lambda x: x.square().sum(dim=1).sqrt())
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    torch.testing.assert_close(defect_gradient(x, origin), x)


def test_a_defect_without_gradient_is_a_clear_error():
    circle = NonlinearEquality(lambda y: (y * y).sum()[None] - 1)
    with pytest.raises(TypeError, match="has no gradient: give one"):
        defect_gradient(random_states(), circle)


@pytest.mark.parametrize("spacing", [1, 2, 5])
def test_every_sample_is_projected_once_in_each_spacing(spacing):
    """Predictions are 9 times what they were, so the norm says which samples were projected, and when last."""
    calls = []

    def predict(back, clean):
        calls.append((back, clean))
        return 9 * (random_states() if clean is None else clean)

    generator = torch.Generator().manual_seed(1)
    held = scheduled_prediction(predict, SPHERES, 1 / spacing, steps=spacing, generator=generator)
    assert [back for back, _ in calls] == list(range(spacing, 0, -1))
    since = torch.log(held.norm(dim=1) / RADII) / math.log(9)
    torch.testing.assert_close(since, since.round(), rtol=0, atol=1e-9)
    assert set(since.round().int().tolist()) == set(range(spacing))  # every phase is there among so many samples
    assert calls[0][1] is None
    for (_, held_then), (_, before) in zip(calls[2:], calls[1:], strict=False):
        projected = SPHERES.defect(held_then) < 1e-9
        assert torch.equal(held_then[~projected], 9 * before[~projected])


class Told(nn.Module):
    """Adds to the clean fields of the shipped network a multiple of each input, at first 0."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))

    def forward(self, x, tau, inputs):
        clean = MEAN + SPREAD * (x + (1 - tau)[:, None, None] * shipped_network()(x, tau))
        return clean if inputs is None else clean + (self.weight[:, None, None, None] * inputs).sum(dim=0)


def told_training(folder, steps, stop=None, recipe="one"):
    """Train `Told` on the shipped reaction flow; raise after the step `stop`, as if somebody had stopped it."""
    given, nu = given_conditions(range(10**9, 10**9 + 4))
    balance, data = MassBalance(given), ((solve(given, nu) - MEAN) / SPREAD).float()
    network = Told()
    averaged = copy.deepcopy(network)

    def inputs(clean):
        if clean is None:
            return None
        return torch.stack([clean - MEAN, TIMES * CELLS * defect_gradient(clean, balance)])

    def loss(step):
        if step == stop:
            raise KeyboardInterrupt
        generator = torch.Generator().manual_seed(step)
        noise = gaussian_field(torch.randn(4, TIMES, CELLS, generator=generator))
        tau = torch.rand(4, generator=generator)

        def predict(back, clean):
            then = (tau - back / 50).clamp(min=0)
            return network(torch.lerp(noise, data, then[:, None, None]), then, inputs(clean))

        held = scheduled_prediction(predict, balance, 0.5, steps=2, generator=generator)
        guess = network(torch.lerp(noise, data, tau[:, None, None]), tau, inputs(held))
        return (guess - MEAN - SPREAD * data).square().mean()

    lines = []
    fit(
        *(network, averaged, loss, lambda step: 0.02, folder / "state", {"name": recipe}),
        steps=steps,
        average=0.5,
        every=2,
        progress=lines.append,
    )
    return averaged.weight, lines


def test_a_stopped_training_ends_with_the_same_weights(tmp_path):
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole, _ = told_training(tmp_path / "whole", 6)
    with pytest.raises(KeyboardInterrupt):
        told_training(tmp_path / "parts", 6, stop=3)
    parts, lines = told_training(tmp_path / "parts", 6)
    assert "at step 2" in lines[0]
    torch.testing.assert_close(parts, whole, rtol=1e-6, atol=1e-9)
    assert whole[1] < 0  # it learned to go down the defect
    with pytest.raises(ValueError, match="belongs to another training"):
        told_training(tmp_path / "whole", 6, recipe="another")
