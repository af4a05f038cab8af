"""The molecules: sampler, constraint, quality by RDKit, and training from conformers to a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

import trimtab as tt
from trimtab.core.metrics import aligned
from trimtab.core.noise import Noise, as_seeds
from trimtab_lab import domains
from trimtab_lab.domains import domain
from trimtab_lab.domains.molecules.domain import (
    MOLECULES,
    given_distances,
    load_model,
    shipped_model,
    superpose,
)

every_molecule = pytest.mark.parametrize("molecule", MOLECULES)
SMALL = "alanine-dipeptide"


def chemistry():
    pytest.importorskip("rdkit", reason="the quality of conformers needs rdkit: pip install 'trimtab-lab[molecules]'")
    from trimtab_lab.domains.molecules import chemistry as found

    return found


def turned(x: torch.Tensor) -> torch.Tensor:
    """The same conformers, each turned and moved."""
    generator = torch.Generator().manual_seed(0)
    rotation = torch.linalg.qr(torch.randn(len(x), 3, 3, generator=generator, dtype=x.dtype)).Q
    rotation = rotation * torch.linalg.det(rotation)[:, None, None]
    return x @ rotation + torch.randn(len(x), 1, 3, generator=generator, dtype=x.dtype)


@every_molecule
def test_a_run_ends_with_the_given_distances(molecule: str) -> None:
    problem = domain("molecules", molecule=molecule, n_steps=6).problem(range(3))
    run = problem.rollout(tt.Periodic(3))
    model = shipped_model(molecule)
    assert run.final.shape == (3, len(model.facts["symbols"]), 3)
    assert run.feasible.all()
    for pairs, given in ((model.bonds, model.lengths.expand(3, -1)), (model.far, given_distances(model, range(3)))):
        found = (run.final[:, pairs[:, 0]] - run.final[:, pairs[:, 1]]).norm(dim=2)
        torch.testing.assert_close(found, given, rtol=0, atol=1e-4)


def test_a_sample_alone_equals_the_sample_in_a_batch() -> None:
    made = domain("molecules", n_steps=5)
    whole, part = (made.problem(seeds).rollout(tt.Periodic(2)).final for seeds in (range(4), [2, 0]))
    torch.testing.assert_close(part, whole[[2, 0]], rtol=0, atol=1e-3)  # the network is in float32


def test_the_first_step_does_not_see_the_start() -> None:
    sampler, noise = domain("molecules").problem([0, 1]).sampler, Noise(as_seeds([0, 1]))
    x = sampler.start(noise)
    assert torch.equal(sampler.step(x, 0, noise), sampler.step(x + 1, 0, noise))
    assert not torch.equal(sampler.step(x, 50, noise), sampler.step(x + 1, 50, noise))


def test_distances_forget_where_a_conformer_is_but_not_its_mirror_image() -> None:
    x = domain("molecules", n_steps=8).problem(range(4)).rollout(tt.Terminal()).final
    assert float(aligned(x, turned(x)).max()) < 1e-6
    assert float(aligned(x, -x).min()) > 0.1
    torch.testing.assert_close(superpose(turned(x), x), x - x.mean(dim=1, keepdim=True))


@pytest.mark.slow
@every_molecule
def test_corrections_on_the_way_lower_the_energy(molecule: str) -> None:
    chemistry()
    made = domain("molecules", molecule=molecule, n_steps=40)
    problem = made.problem(range(12))
    stepwise, terminal = (
        made.quality(problem.rollout(s).final, problem.constraint) for s in (tt.Stepwise(), tt.Terminal())
    )
    assert stepwise["energy"].median() < 0.7 * terminal["energy"].median()
    assert stepwise["valid"].mean() >= terminal["valid"].mean()


@every_molecule
def test_quality_knows_sound_conformers_from_spoilt_ones(molecule: str) -> None:
    rdkit, model, made = chemistry(), shipped_model(molecule), domain("molecules", molecule=molecule)
    smiles = model.facts["smiles"]
    x = rdkit.conformers(smiles, 2, 2, seed=7)
    judged = made.quality(x, None)
    assert judged["valid"].tolist() == [1.0] * 4
    torch.testing.assert_close(made.quality(turned(x), None)["energy"], judged["energy"], rtol=1e-6, atol=1e-6)
    assert made.quality(-x, None)["valid"].tolist() == [0.0] * 4, "mirror images"
    assert made.quality(1.2 * x, None)["valid"].tolist() == [0.0] * 4, "bonds that are too long"
    far = rdkit._apart(smiles)[0][:, 0]
    clash = x.clone()
    clash[:, far[0]] = clash[:, far[1]] + 0.3
    spoilt = made.quality(clash, None)
    assert spoilt["valid"].tolist() == [0.0] * 4, "atoms on top of each other"
    assert (spoilt["energy"] > judged["energy"] + 100).all()


@every_molecule
def test_hydrogens_are_numbered_alike_whatever_their_numbers_were(molecule: str) -> None:
    rdkit = chemistry()
    smiles = shipped_model(molecule).facts["smiles"]
    atoms = rdkit._molecule(smiles).GetAtoms()
    x = rdkit.conformers(smiles, 2, 1, seed=3)
    numbered = rdkit.match_hydrogens(smiles, x, x[0])
    assert torch.equal(numbered[0], x[0])
    torch.testing.assert_close(rdkit.energies(smiles, numbered), rdkit.energies(smiles, x), rtol=1e-9, atol=1e-9)
    exchanged = x.clone()
    for atom in atoms:
        hydrogens = [other.GetIdx() for other in atom.GetNeighbors() if other.GetAtomicNum() == 1]
        exchanged[:, hydrogens] = x[:, hydrogens[::-1]]
    assert not torch.equal(exchanged, x)
    assert torch.equal(rdkit.match_hydrogens(smiles, exchanged, x[0]), numbered)


def test_settings_make_the_same_domain_again_and_wrong_ones_raise() -> None:
    made = domain("molecules", molecule="testosterone-butyrate", n_steps=7, tolerance=1e-3)
    assert domain("molecules", **json.loads(json.dumps(dict(made.settings)))).settings == made.settings
    with pytest.raises(ValueError, match="unknown molecule 'alanine'"):
        domain("molecules", molecule="alanine")
    with pytest.raises(ValueError, match="n_steps must be a whole number"):
        domain("molecules", n_steps=0)


def test_sampling_needs_no_rdkit_and_quality_says_that_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    from trimtab_lab.domains.molecules import chemistry as found

    monkeypatch.setitem(sys.modules, "rdkit", None)
    for cached in (found._molecule, found._force_field):
        cached.cache_clear()
    made = domain("molecules", n_steps=2)
    final = made.problem([0]).rollout(tt.Terminal()).final
    with pytest.raises(ImportError, match=r"needs rdkit: pip install 'trimtab-lab\[molecules\]'"):
        made.quality(final, None)


def test_training_writes_a_model_that_samples(tmp_path: Path) -> None:
    chemistry()
    from trimtab_lab.domains.molecules.train import train

    lines: list[str] = []
    path = train(SMALL, tmp_path, embedded=3, copies=4, steps=3, batch=4, progress=lines.append)
    model, shipped = load_model(path), shipped_model(SMALL)
    assert torch.equal(model.bonds, shipped.bonds)
    assert torch.equal(model.far, shipped.far)
    torch.testing.assert_close(model.lengths, shipped.lengths, rtol=0.02, atol=0)
    assert model.facts["symbols"] == shipped.facts["symbols"]
    assert model.clean(torch.zeros(2, 22, 3, dtype=torch.float64), 0.5).isfinite().all()
    assert [*tmp_path.iterdir()] == [path]
    with pytest.raises(ValueError, match="conformer flow"):
        load_model(Path(domains.__file__).parent / "grid" / "weights" / "case14.safetensors")
