"""Annealed Langevin: it follows its formula, is paired by seed, and eligibility only moves the counting."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cases import allowance
from trimtab.core.noise import Noise, as_seeds
from trimtab_lab.domains.pdm.domain import AnnealedLangevin, sample, trajectory_quality
from trimtab_lab.domains.pdm.model import Model, Settings, load_model
from trimtab_lab.domains.pdm.network import PDM_ARCHITECTURE, RefineNet
from trimtab_lab.domains.pdm.planner import shipped_map, shipped_maps, start_goal_pairs


def plain_model() -> Model:
    network = RefineNet(replace(PDM_ARCHITECTURE, features=2)).double().requires_grad_(False)
    return Model(network, Settings(sigma_max=1.0, sigma_min=0.01, eps=1e-4), {})


def plain_sampler(n: int = 3, **changes: object) -> AnnealedLangevin:
    ends = torch.linspace(-0.9, 0.9, 4 * n, dtype=torch.float64).reshape(n, 2, 2)
    options = {"inner_steps": 2, **changes}
    return AnnealedLangevin(plain_model(), ends[:, 0], ends[:, 1], **options)  # type: ignore[arg-type]


def test_one_update_is_the_formula() -> None:
    sampler, noise = plain_sampler(), Noise(as_seeds(range(3)))
    x = sampler.start(noise)
    t, level = 7, 3
    size = 1e-4 * (sampler.model.settings.sigmas[level] / 0.01) ** 2
    expected = x + 0.5 * size * sampler.model.score(x, level) + size**0.5 * noise.normal(t, (4, 64))
    got = sampler.step(x, t, noise)
    torch.testing.assert_close(got[..., 1:-1], expected[..., 1:-1], rtol=1e-12, atol=1e-12)


def test_noise_levels_fall_geometrically() -> None:
    sigmas = torch.tensor(Settings().sigmas, dtype=torch.float64)
    assert sigmas[0] == 10
    torch.testing.assert_close(sigmas[-1].item(), 0.005, rtol=1e-12, atol=0)
    ratios = sigmas[1:] / sigmas[:-1]
    torch.testing.assert_close(ratios, ratios[:1].expand(9), rtol=1e-12, atol=0)


def test_starts_and_goals_are_held_at_rest() -> None:
    sampler, noise = plain_sampler(), Noise(as_seeds(range(3)))
    x = sampler.start(noise)
    for t in range(sampler.n_steps):
        for end, point in ((0, sampler.starts), (-1, sampler.goals)):
            assert torch.equal(x[:, :2, end], point)
            assert (x[:, 2:, end] == 0).all()
        x = sampler.step(x, t, noise)
    assert x.shape == (3, 4, 64)


def test_initial_states_are_uniform() -> None:
    x = plain_sampler().start(Noise(as_seeds(range(3))))[..., 1:-1]
    assert 0 <= x.min() < 0.02
    assert 0.98 < x.max() < 1


def test_same_seed_same_sample_in_any_batch() -> None:
    sampler = plain_sampler()
    together = sample(sampler, range(3))
    assert torch.equal(together, sample(sampler, range(3)))
    alone = sample(sampler.take(torch.tensor([1])), [1])
    torch.testing.assert_close(alone[0], together[1], rtol=0, atol=1e-9)


@pytest.mark.parametrize("level", [1, 6, 9])
def test_eligibility_changes_the_counting_and_nothing_else(level: int) -> None:
    whole, late = plain_sampler(), plain_sampler(eligible_from=level)
    assert (whole.n_steps, late.n_steps) == (20, 20 - 2 * level)
    assert late.level(0) == level
    assert torch.equal(sample(whole, range(3)), sample(late, range(3)))


def test_defaults_come_from_the_model() -> None:
    sampler = plain_sampler(inner_steps=None)
    assert (sampler.inner_steps, sampler.eps, sampler.n_steps) == (25, 1e-4, 250)


def test_no_gradients_and_dtype_of_the_noise() -> None:
    sampler = plain_sampler()
    sampler.model.network.requires_grad_(True)
    noise = Noise(as_seeds(range(3)), torch.float32)
    x = sampler.step(sampler.start(noise), 0, noise)
    assert not x.requires_grad
    assert x.dtype == torch.float32


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"inner_steps": 0}, "inner_steps"),
        ({"eps": -1.0}, "eps"),
        ({"eligible_from": 10}, "0 to 9"),
        ({"circles": torch.zeros(2, 3)}, "leave them out"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        plain_sampler(**changes)


def test_bad_shapes_are_refused() -> None:
    sampler = plain_sampler()
    with pytest.raises(ValueError, match="one point for each sample"):
        replace(sampler, goals=torch.zeros(2, 2))
    with pytest.raises(ValueError, match="2 samples, and 3"):
        sampler.start(Noise(as_seeds(range(2))))
    with pytest.raises(ValueError, match="0 to 19"):
        sampler.step(torch.zeros(3, 4, 64), 20, Noise(as_seeds(range(3))))


def test_own_maps_follow_the_rows() -> None:
    maps, model = shipped_maps(), load_model()
    ends = torch.tensor([[-0.9, 0.0]]).expand(4, 2)
    sampler = AnnealedLangevin(model, ends, -ends, maps, inner_steps=1)
    rows = torch.tensor([2, 0])
    taken = sampler.take(rows)
    assert taken.circles is not None
    assert torch.equal(taken.circles, maps[rows])
    shared = AnnealedLangevin(model, ends, -ends, maps[0], inner_steps=1)
    allowed = allowance(sample(shared, range(4))[rows], sample(shared.take(rows), rows))
    together = sample(sampler, range(4))
    torch.testing.assert_close(sample(taken, rows), together[rows], rtol=0, atol=allowed)
    assert (together[0] - sample(shared, range(4))[1]).abs().max() > 10 * allowed


def test_shipped_model_samples_trajectories() -> None:
    """Far better than straight runs at keeping clear of obstacles never seen in training, and nearly as smooth."""
    circles = shipped_map()
    starts, goals = start_goal_pairs(range(16), circles)
    x = sample(AnnealedLangevin(load_model(), starts, goals, circles, inner_steps=12), range(16))
    share = torch.linspace(0, 1, 64, dtype=torch.float64)[:, None]
    straight = trajectory_quality(starts[:, None] + share * (goals - starts)[:, None], circles)
    quality = trajectory_quality(x, circles)
    assert quality.hit_share.mean() < 0.5 * straight.hit_share.mean()
    assert (quality.length / straight.length).mean() < 1.35
    assert quality.roughness.mean() < 0.2
    assert quality.jump.max() < 0.1
