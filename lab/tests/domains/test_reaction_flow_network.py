from importlib.resources import files

import pytest
import torch

from trimtab.core.files import save_tensors
from trimtab.core.noise import Noise, as_seeds
from trimtab_lab.domains.learned import flow_pair, fresh
from trimtab_lab.domains.reaction_flow import train as training
from trimtab_lab.domains.reaction_flow.domain import (
    FlowNetwork,
    StateFlow,
    cosine_modes,
    gaussian_field,
    load_network,
    save_network,
    shipped_network,
)
from trimtab_lab.domains.reaction_flow.equation import CELLS, TIMES


def fields(seeds):
    return Noise(as_seeds(seeds), torch.float32).normal(0, (TIMES, CELLS))


def test_cosine_modes_are_orthonormal():
    for modes, size in ((10, 24), (48, 48)):
        waves = cosine_modes(modes, size)
        torch.testing.assert_close(waves @ waves.T, torch.eye(modes, dtype=torch.float64), rtol=0, atol=1e-12)


def test_noise_fields_are_smooth_with_unit_variance():
    field = gaussian_field(Noise(as_seeds(range(2000))).normal(0, (TIMES, CELLS)))
    # the standard error of the variance is about 1% for this many fields
    assert field.square().mean().item() == pytest.approx(1.0, abs=0.05)
    assert field.diff(dim=2).square().mean() < 0.2  # of white noise it is 2
    assert torch.equal(StateFlow().start(Noise(as_seeds([4, 9])))[1:], StateFlow().start(Noise(as_seeds([9]))))


def test_a_perfect_network_gives_the_straight_velocity(monkeypatch):
    network = fresh(FlowNetwork, 0)
    noise, data = fields(range(3)), fields(range(3, 6))
    tau = torch.tensor([0.0, 0.4, 1.0])
    x, target = flow_pair(noise, data, tau)
    monkeypatch.setattr(network, "raw", lambda x, tau: target)
    torch.testing.assert_close(network(x, tau), data - noise, rtol=0, atol=1e-5)


def test_weights_survive_their_file(tmp_path):
    network = fresh(FlowNetwork, 3)
    save_network(tmp_path / "w.safetensors", network, {"seed": 3})
    x, tau = fields(range(2)), torch.tensor([0.2, 0.9])
    assert torch.equal(load_network(tmp_path / "w.safetensors")(x, tau), network(x, tau).detach())


def test_weights_of_another_network_are_refused(tmp_path):
    save_tensors(tmp_path / "w.safetensors", "flow network", {"lift.weight": torch.zeros(2, 2)}, {})
    with pytest.raises(ValueError, match="not the weights"):
        load_network(tmp_path / "w.safetensors")


def test_fresh_weights_come_from_the_seed_and_leave_the_global_generator_alone():
    before = torch.random.get_rng_state()
    first, same, other = fresh(FlowNetwork, 1), fresh(FlowNetwork, 1), fresh(FlowNetwork, 2)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first.lift.weight, same.lift.weight)
    assert not torch.equal(first.lift.weight, other.lift.weight)


def test_the_shipped_network_beats_an_untrained_one_on_new_solutions():
    assert (files("trimtab_lab.domains.reaction_flow") / "weights" / "reaction_flow.safetensors").stat().st_size < 3e6
    data = (training.solutions(16, first=5 * 10**9) - training.MEAN) / training.SPREAD
    tau = (torch.arange(16) + 0.5) / 16
    x, target = flow_pair(gaussian_field(fields(range(16))), data, tau)
    loss = (shipped_network().raw(x, tau) - target).square().mean()
    assert loss < 0.7  # an untrained network is at 1


def test_a_stopped_training_continues_to_the_same_weights(tmp_path, capsys):
    recipe = {"steps": 4, "batch": 4, "data": 8, "checkpoint_every": 2}
    training.train(tmp_path / "whole.safetensors", **recipe)

    stopped = tmp_path / "stopped.safetensors"

    def stop(line):
        if line.startswith("step 2"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training.train(stopped, **recipe, progress=stop)
    with pytest.raises(ValueError, match="another training"):
        training.train(stopped, **recipe | {"batch": 5})
    training.train(stopped, **recipe)

    assert "continuing from" in capsys.readouterr().out
    whole, resumed = load_network(tmp_path / "whole.safetensors"), load_network(stopped)
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not stopped.with_name(stopped.name + ".training").exists()
