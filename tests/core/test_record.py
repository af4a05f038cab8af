"""The file of a record: whole, or refused."""

from __future__ import annotations

import pytest
import torch

import free
import trimtab as tt
from cases import Sphere, Walk
from trimtab.core.files import load_tensors, save_tensors, tensor_bytes

TENSORS = ("final", "defects", "residuals", "projected", "closing", "failed", "closing_failed", "iterations", "seeds")


@pytest.mark.parametrize("name", TENSORS)
def test_a_file_whose_parts_do_not_fit_is_refused(name, tmp_path):
    path = tmp_path / "run.safetensors"
    free.rollout(Walk(), Sphere(), tt.Periodic(0.5), range(4)).save(path)
    assert tt.Rollout.load(path).spent.tolist() == [6] * 4
    tensors, facts = load_tensors(path, "rollout")
    save_tensors(path, "rollout", tensors | {name: tensors[name][:-1]}, facts)
    with pytest.raises(ValueError, match=r"run\.safetensors: not a whole rollout"):
        tt.Rollout.load(path)
    del tensors[name]
    save_tensors(path, "rollout", tensors, facts)
    if name == "seeds":  # not every loop knows them
        assert tt.Rollout.load(path).seeds is None
        return
    with pytest.raises(ValueError, match=f"not a whole rollout, .*{name}.* missing"):
        tt.Rollout.load(path)


def test_states_along_the_path_survive_their_file(tmp_path):
    run = free.rollout(Walk(), Sphere(), tt.Periodic(0.5), range(4), keep_states=True)
    run.save(tmp_path / "run.safetensors")
    assert torch.equal(tt.Rollout.load(tmp_path / "run.safetensors").states, run.states)


def test_the_same_record_is_the_same_file_to_the_byte_and_an_edited_one_is_refused(tmp_path):
    tensors, facts = {"b": torch.rand(3), "a": torch.ones(2, 2).bool()}, {"x": 1, "a": [1.5]}
    written = {tensor_bytes("rollout", tensors, facts) for _ in range(20)}
    assert len(written) == 1
    [data] = written
    for i in (9, len(data) // 2, len(data) - 1):
        (tmp_path / "edited").write_bytes(data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :])
        with pytest.raises(ValueError, match=r"edited: "):
            load_tensors(tmp_path / "edited", "rollout")
    (tmp_path / "whole").write_bytes(data)
    assert load_tensors(tmp_path / "whole", "rollout")[1]["a"] == [1.5]


def test_tensors_that_share_memory_are_written_like_others(tmp_path):
    whole = torch.arange(4.0)
    save_tensors(tmp_path / "a.safetensors", "thresholds", {"all": whole, "again": whole, "half": whole[:2]}, {})
    tensors, _ = load_tensors(tmp_path / "a.safetensors", "thresholds")
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == {
        "all": [0, 1, 2, 3],
        "again": [0, 1, 2, 3],
        "half": [0, 1],
    }
