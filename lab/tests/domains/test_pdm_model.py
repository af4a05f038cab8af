"""The score network and its checkpoints: strict loading, clear refusals, samples that stand alone."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from trimtab.core.files import save_tensors
from trimtab_lab.domains.pdm.model import (
    Model,
    Prior,
    Settings,
    conditioned_architecture,
    fit_prior,
    load_model,
    obstacle_field,
    save_model,
    straight_run,
)
from trimtab_lab.domains.pdm.network import (
    PDM_ARCHITECTURE,
    Architecture,
    RefineNet,
    _Kernels,
    _Norm,
    _PooledChain,
)
from trimtab_lab.domains.pdm.planner import shipped_map

SHARED = Path(__file__).parents[4] / "shared" / "pdm"
needs_checkpoint = pytest.mark.skipif(
    not (SHARED / "checkpoint.pt").is_file(), reason="the public PDM checkpoint is not beside the project"
)


def pdm_state_dict() -> dict[str, torch.Tensor]:
    return {f"conv_layer.{k}": v for k, v in RefineNet(PDM_ARCHITECTURE).state_dict().items()}


def random_states(n: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(n, 4, 64, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def conditioned_model(dtype: torch.dtype = torch.float64) -> Model:
    network = RefineNet(conditioned_architecture(4, 10, 64)).to(dtype).requires_grad_(False)
    return Model(network, Settings(sigma_max=1.0, sigma_min=0.001, eps=6e-7), {}, some_prior())


def some_prior() -> Prior:
    modes = torch.linalg.qr(torch.randn(128, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)).Q
    return Prior(modes, torch.tensor([1.0, 0.3, 0.1, 0.03, 0.01, 0.001], dtype=torch.float64))


# ------------------------------------------------------------------ the public checkpoint


@needs_checkpoint
def test_public_checkpoint_loads_key_by_key() -> None:
    content = torch.load(SHARED / "checkpoint.pt", map_location="cpu", weights_only=True)
    model = load_model(SHARED / "checkpoint.pt")
    own = model.network.state_dict()
    assert {f"conv_layer.{k}" for k in own} == set(content)
    assert all(torch.equal(own[k.removeprefix("conv_layer.")], v) for k, v in content.items())
    assert sum(p.numel() for p in model.network.parameters()) == 143_940
    assert not model.conditioned


@needs_checkpoint
def test_public_settings_are_the_published_ones() -> None:
    facts = json.loads((SHARED / "facts.json").read_text())["sampler"]
    own = load_model(SHARED / "checkpoint.pt").settings
    assert (own.levels, own.inner_steps, own.eps) == (facts["noise_levels"], facts["inner_steps"], facts["eps"])
    assert (own.sigma_max, own.sigma_min) == (facts["sigma_max"], facts["sigma_min"])


@needs_checkpoint
def test_public_checkpoint_denoises() -> None:
    """A wrong wiring of the same weights does not predict the noise that was added to a smooth trajectory."""
    model = load_model(SHARED / "checkpoint.pt")
    share = torch.linspace(0, 1, 64, dtype=torch.float64)
    angles = torch.linspace(0, 3, 32, dtype=torch.float64)[:, None]
    x = torch.zeros(32, 4, 64, dtype=torch.float64)
    x[:, 0] = -0.8 + 1.6 * share
    x[:, 1] = 0.5 * torch.sin(angles + 2 * share)
    noise = random_states(32)
    for level, sigma in enumerate(model.settings.sigmas[:5]):
        error = model.score(x + sigma * noise, level) * sigma + noise
        assert error[:, :2, 1:-1].square().mean() < 0.15, f"level {level}"


# ------------------------------------------------------------------ refusals


def test_plain_state_dict_of_the_right_shape_loads(tmp_path: Path) -> None:
    torch.save(pdm_state_dict(), tmp_path / "a.pt")
    assert load_model(tmp_path / "a.pt").settings == Settings()


def test_wrong_keys_and_shapes_are_listed(tmp_path: Path) -> None:
    weights = pdm_state_dict()
    weights["conv_layer.extra.weight"] = weights.pop("conv_layer.begin_conv.bias")
    weights["conv_layer.end_conv.bias"] = torch.zeros(7)
    torch.save(weights, tmp_path / "a.pt")
    with pytest.raises(ValueError, match="does not fit") as caught:
        load_model(tmp_path / "a.pt")
    for told in ("begin_conv.bias", "extra.weight", "size mismatch for end_conv.bias"):
        assert told in str(caught.value)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    other = RefineNet(replace(PDM_ARCHITECTURE, features=4)).state_dict()
    torch.save({f"conv_layer.{k}": v for k, v in other.items()}, tmp_path / "a.pt")
    with pytest.raises(ValueError, match="size mismatch"):
        load_model(tmp_path / "a.pt")


@pytest.mark.parametrize("content", [[1, 2], {"step": 3}, torch.zeros(3)])
def test_other_contents_are_refused(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(ValueError, match="expected a PDM state dict"):
        load_model(tmp_path / "a.pt")


def test_pickled_objects_are_never_run(tmp_path: Path) -> None:
    torch.save({"a": Path("x")}, tmp_path / "a.pt")
    with pytest.raises(ValueError, match="never unpickled"):
        load_model(tmp_path / "a.pt")


@pytest.mark.parametrize("keep", [0, 10, 0.5])
@pytest.mark.parametrize("name", ["a.pt", "a.safetensors"])
def test_truncated_files_are_refused(tmp_path: Path, name: str, keep: float) -> None:
    file = tmp_path / name
    if name.endswith(".pt"):
        torch.save(pdm_state_dict(), file)
    else:
        save_model(file, conditioned_model())
    whole = file.read_bytes()
    file.write_bytes(whole[: int(keep * len(whole) if keep < 1 else keep)])
    with pytest.raises(ValueError, match=name):
        load_model(file)


def test_text_and_missing_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_text("not a checkpoint\n")
    with pytest.raises(ValueError, match="not a PyTorch checkpoint"):
        load_model(tmp_path / "a.pt")
    with pytest.raises(FileNotFoundError):
        load_model(tmp_path / "b.pt")


def test_foreign_safetensors_are_refused(tmp_path: Path) -> None:
    save_tensors(tmp_path / "a.safetensors", "thresholds", {"x": torch.zeros(1)}, {})
    with pytest.raises(ValueError, match="thresholds"):
        load_model(tmp_path / "a.safetensors")
    save_tensors(tmp_path / "b.safetensors", "trajectory model", {"x": torch.zeros(1)}, {"settings": {}})
    with pytest.raises(ValueError, match="metadata is damaged"):
        load_model(tmp_path / "b.safetensors")


@pytest.mark.parametrize("change", [{"features": 0}, {"levels": True}, {"rows": 2.0}, {"activation": "tanh"}])
def test_impossible_architectures_are_refused(change: dict[str, object]) -> None:
    with pytest.raises((TypeError, ValueError), match=next(iter(change))):
        Architecture(**{**asdict(PDM_ARCHITECTURE), **change})  # type: ignore[arg-type]


def test_network_and_settings_must_belong_together() -> None:
    with pytest.raises(ValueError, match="do not belong together"):
        Model(RefineNet(PDM_ARCHITECTURE), Settings(levels=9), {})
    with pytest.raises(ValueError, match="the prior has modes"):
        replace(conditioned_model(), prior=Prior(torch.zeros(64, 6), torch.zeros(6)))
    with pytest.raises(ValueError, match="must fall"):
        Settings(sigma_max=0.001)


# ------------------------------------------------------------------ what the network is


@pytest.mark.parametrize("architecture", [PDM_ARCHITECTURE, conditioned_architecture(4, 10, 64)])
def test_a_sample_does_not_depend_on_its_batch_mates(architecture: Architecture) -> None:
    network = RefineNet(architecture).double()
    x = torch.randn(5, architecture.inputs, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    together = network(x, torch.tensor([0, 9, 3, 3, 5]))
    for i, level in enumerate((0, 9, 3, 3, 5)):
        torch.testing.assert_close(network(x[i : i + 1], level)[0], together[i], rtol=1e-9, atol=1e-10)
    wild = torch.cat([x[:1], 1e3 * x[1:]])
    torch.testing.assert_close(network(wild, 0)[0], network(x, 0)[0], rtol=1e-9, atol=1e-10)


def test_norm_is_an_instance_norm_with_the_means_given_back() -> None:
    norm = _Norm(3, 2).double()
    x = 5 + random_states(2)[:, :3].reshape(2, 3, 8, 8)
    scale, back, shift = norm.embed.weight[1].reshape(3, 3, 1, 1)
    means = x.mean(dim=(2, 3))
    standing = (means - means.mean(dim=1, keepdim=True)) / (means.var(dim=1, keepdim=True) + 1e-5).sqrt()
    expected = scale * (functional.instance_norm(x) + back * standing[:, :, None, None]) + shift
    torch.testing.assert_close(norm(x, torch.tensor([1])), expected, rtol=1e-10, atol=1e-10)


def test_pooling_matrix_is_the_five_wide_average() -> None:
    chain = _PooledChain(_Kernels(False, functional.elu), 2, 2, (8, 8))
    x = random_states(2, dtype=torch.float32)[:, :2].reshape(2, 2, 8, 8)
    by_matrix = (x.flatten(2) @ chain.average).reshape(x.shape)
    torch.testing.assert_close(by_matrix, functional.avg_pool2d(x, 5, stride=1, padding=2))


def test_initial_weights_come_from_the_seed_and_leave_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    same, again, other = RefineNet(PDM_ARCHITECTURE), RefineNet(PDM_ARCHITECTURE), RefineNet(PDM_ARCHITECTURE, 1)
    load_model()
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(same.begin_conv.weight, again.begin_conv.weight)
    assert not torch.equal(same.begin_conv.weight, other.begin_conv.weight)


def test_network_refuses_other_shapes() -> None:
    with pytest.raises(ValueError, match=r"\(4, 64\) trajectories"):
        RefineNet(PDM_ARCHITECTURE)(torch.zeros(2, 64, 4), 0)


# ------------------------------------------------------------------ our own model


def test_straight_run_of_a_straight_run_is_itself() -> None:
    x = random_states(4)
    run = straight_run(x)
    torch.testing.assert_close(straight_run(run), run, rtol=0, atol=1e-12)
    torch.testing.assert_close(run[:, :2, [0, -1]], x[:, :2, [0, -1]], rtol=0, atol=1e-12)
    assert (run[:, 2:, [0, -1]] == 0).all()


@settings(max_examples=20)
@given(st.integers(0, 2**31), st.sampled_from([(1, 1), (-1, 1), (1, -1), (-1, -1)]))
def test_obstacle_field_turns_with_the_map(seed: int, signs: tuple[int, int]) -> None:
    flip = torch.tensor(signs, dtype=torch.float64)
    points, circles = random_states(2, seed)[:, :2], shipped_map()
    mirrored = torch.cat([circles[:, :2] * flip, circles[:, 2:]], dim=1)
    field = obstacle_field(points, circles)
    turned = obstacle_field(points * flip[:, None], mirrored)
    torch.testing.assert_close(turned[:, [0, 3]], field[:, [0, 3]])
    torch.testing.assert_close(turned[:, [1, 2]], field[:, [1, 2]] * flip[:, None])
    torch.testing.assert_close(turned[:, [4, 5]], field[:, [4, 5]] * flip[:, None])


def test_prior_is_the_covariance_of_the_data() -> None:
    prior, draw = some_prior(), torch.randn(4000, 2, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    amplitudes = draw * prior.variances.sqrt()
    torch.testing.assert_close(prior.amplitudes(prior.offsets(amplitudes)), amplitudes, rtol=0, atol=1e-12)
    offset = prior.offsets(amplitudes)
    offset[..., [0, -1]] = 0  # as in data, where the straight run passes through both ends
    reversed_too = torch.cat([offset, offset.flip(2) * torch.tensor([1, 1, -1, -1])[:, None]])
    covariance = torch.einsum("naw,nbv->awbv", reversed_too[:, ::2], reversed_too[:, ::2]) / 8000
    covariance += torch.einsum("naw,nbv->awbv", reversed_too[:, 1::2], reversed_too[:, 1::2]) / 8000
    fitted = fit_prior(offset, least=1e-6)
    built = (fitted.modes * fitted.variances) @ fitted.modes.T
    torch.testing.assert_close(built, covariance.reshape(128, 128).float() / 2, rtol=0, atol=1e-5)


@pytest.mark.parametrize("level", [0, 4, 9])
def test_without_its_network_the_score_is_that_of_the_prior(level: int) -> None:
    """x = run + Gaussian of covariance C plus noise, so the score is -(C + sigma²)^-1 (x - run)."""
    model, x = conditioned_model(), random_states(3)
    for parameter in model.network.end_conv.parameters():
        parameter.zero_()
    x = straight_run(x) + 0.1 * random_states(3, 1) * torch.ones(64).index_fill(0, torch.tensor([0, 63]), 0)
    assert model.prior is not None
    covariance = (model.prior.modes * model.prior.variances) @ model.prior.modes.T
    covariance += model.settings.sigmas[level] ** 2 * torch.eye(128, dtype=torch.float64)
    offset = (x - straight_run(x)).reshape(3, 2, 2, 64).transpose(1, 2).reshape(3, 2, 128)
    expected = -torch.linalg.solve(covariance, offset.transpose(1, 2)).transpose(1, 2)
    got = model.score(x, level, shipped_map()).reshape(3, 2, 2, 64).transpose(1, 2).reshape(3, 2, 128)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


def test_score_of_a_sample_does_not_depend_on_its_batch_mates() -> None:
    model, x = conditioned_model(), random_states(4)
    circles = torch.stack([shipped_map(i) for i in range(4)])
    together = model.score(x, 4, circles)
    for i in range(4):
        torch.testing.assert_close(model.score(x[i : i + 1], 4, circles[i])[0], together[i], rtol=1e-8, atol=1e-8)


def test_maps_are_asked_for_and_checked() -> None:
    model = conditioned_model()
    with pytest.raises(ValueError, match="give circles"):
        model.check_circles(None, 2)
    with pytest.raises(ValueError, match="got \\(3, 4\\)"):
        model.check_circles(torch.zeros(3, 4), 2)
    with pytest.raises(ValueError, match=r"\(2, m, 3\) here"):
        model.check_circles(torch.zeros(3, 4, 3), 2)
    with pytest.raises(ValueError, match="leave them out"):
        Model(RefineNet(PDM_ARCHITECTURE), Settings(), {}).check_circles(torch.zeros(3, 3), 2)


def test_saved_model_comes_back_the_same(tmp_path: Path) -> None:
    model = replace(conditioned_model(), about={"made": "here"})
    save_model(tmp_path / "m.safetensors", model)
    again = load_model(tmp_path / "m.safetensors")
    assert (again.settings, again.about) == (model.settings, model.about)
    assert again.network.architecture == model.network.architecture
    assert again.prior is not None
    assert torch.equal(again.prior.modes, some_prior().modes)
    assert all(torch.equal(a, b.float()) for a, b in zip(
        again.network.state_dict().values(), model.network.state_dict().values(), strict=True))  # fmt: skip


def test_shipped_weights_are_small_and_give_finite_scores() -> None:
    model = load_model()
    assert model.conditioned
    shipped = files("trimtab_lab.domains.pdm") / "weights" / "trajectories.safetensors"
    assert len(shipped.read_bytes()) <= 5_000_000
    for level, sigma in enumerate(model.settings.sigmas):
        score = model.score(sigma * random_states(3, level), level, shipped_map())
        assert score.dtype == torch.float64
        assert bool(score.isfinite().all())
