"""Steering by physical potentials: flat-bottomed energies of distances, chirality and double bonds.

They are those that structure predictors steer by: linear outside of bounds that RDKit knows of the molecule, each with
a weight. The bounds, weights and 20 gradient steps of a correction are the published ones of Boltz; the code is ours.
The judge is PoseBusters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from trimtab.core.metrics import aligned
from trimtab.loop.rollout import Problem
from trimtab_lab.bench.descent import Descent, Meter
from trimtab_lab.bench.system import System
from trimtab_lab.domains.learned import FlowMLP, fresh
from trimtab_lab.domains.molecules.domain import BLOCKS, MOLECULES, WIDTH, Conformers, Model, shipped_model

__all__ = ["Potentials", "checks_failed", "potentials_of", "systems"]

_BUFFER = {"bond": 0.125, "angle": 0.125, "clash": 0.1}  # shares by which distances may leave RDKit's bounds
_CHIRAL, _PLANAR = 0.5236, 0.2618  # radians
_WEIGHT = {"distance": 0.01, "chiral": 0.1, "planar": 0.05}  # ångström a gradient step for each violated bound
_BONDED = 0.35  # ångström above the mean of two van der Waals radii, where a bond ends and a clash begins
_STEPS = 20
_METER = Meter(0.45)  # an energy takes 45% of the time of a gradient


@dataclass(frozen=True, eq=False)
class Potentials:
    """Flat-bottomed potentials of one molecule: |value outside its bounds| times a weight, summed."""

    pairs: Tensor  # (2, p) int64
    low: Tensor  # (p,)
    high: Tensor  # (p,)
    chiral: Tensor  # dihedrals whose sign is given, (4, c) int64
    sign: Tensor  # (c,)
    planar: Tensor  # dihedrals that are nearly 0, (4, d) int64

    def __call__(self, x: Tensor, gradient: bool) -> tuple[Tensor, Tensor | None]:
        """Map conformers (n, atoms, 3) to energies (n,) and gradients like x."""
        energy, slope = torch.zeros(len(x), dtype=x.dtype), torch.zeros_like(x) if gradient else None
        apart = x[:, self.pairs[0]] - x[:, self.pairs[1]]
        long = apart.norm(dim=2).clamp(min=1e-9)
        out = (long - self.high).clamp(min=0) + (self.low - long).clamp(min=0)
        energy += _WEIGHT["distance"] * out.sum(dim=1)
        if slope is not None:
            push = (long > self.high).to(x) - (long < self.low).to(x)
            force = (_WEIGHT["distance"] * push / long)[..., None] * apart
            slope.index_add_(1, self.pairs[0], force).index_add_(1, self.pairs[1], -force)
        for quads, weight, bound in ((self.chiral, "chiral", _CHIRAL), (self.planar, "planar", _PLANAR)):
            if quads.shape[1] == 0:
                continue
            angle, parts = dihedral(x, quads, gradient)
            side = self.sign if weight == "chiral" else -angle.sign()  # the way in which the angle ought to go
            over = (bound - side * angle) if weight == "chiral" else (angle.abs() - bound)
            energy += _WEIGHT[weight] * over.clamp(min=0).sum(dim=1)
            if slope is not None and parts is not None:
                push = -_WEIGHT[weight] * side * (over > 0)
                for atom in range(4):
                    slope.index_add_(1, quads[atom], push[..., None] * parts[atom])
        return energy.double(), slope


def dihedral(x: Tensor, quads: Tensor, gradient: bool) -> tuple[Tensor, tuple[Tensor, ...] | None]:
    """Return dihedral angles (n, q) of atoms (4, q) and their gradients by the four atoms, (n, q, 3) each."""
    a, b, c, d = (x[:, quads[k]] for k in range(4))
    ab, cb, cd = a - b, c - b, c - d
    first, second = torch.linalg.cross(ab, cb), torch.linalg.cross(cb, cd)
    axis = cb.norm(dim=2).clamp(min=1e-9)
    sine = (cb * torch.linalg.cross(first, second)).sum(dim=2) / axis
    angle = torch.atan2(sine, (first * second).sum(dim=2))
    if not gradient:
        return angle, None
    at_a = first * (axis / first.square().sum(dim=2).clamp(min=1e-9))[..., None]
    at_d = -second * (axis / second.square().sum(dim=2).clamp(min=1e-9))[..., None]
    near = ((ab * cb).sum(dim=2) / axis**2)[..., None]
    far = ((cd * cb).sum(dim=2) / axis**2)[..., None]
    at_b, at_c = (near - 1) * at_a - far * at_d, (far - 1) * at_d - near * at_a
    return angle, (at_a, at_b, at_c, at_d)


@cache
def potentials_of(molecule: str) -> Potentials:
    """Return the potentials of a molecule from RDKit's bounds of its distances and its stereocentres."""
    from rdkit.Chem import rdDistGeom

    from trimtab_lab.domains.molecules.chemistry import _molecule, conformers

    Chem: Any = import_module("rdkit.Chem")
    smiles = shipped_model(molecule).facts["smiles"]
    mol, table = _molecule(smiles), Chem.GetPeriodicTable()
    bounds = torch.from_numpy(rdDistGeom.GetMoleculeBoundsMatrix(mol, True, True, True))
    hops = torch.from_numpy(Chem.GetDistanceMatrix(mol))
    radii = torch.tensor([table.GetRvdw(atom.GetAtomicNum()) for atom in mol.GetAtoms()], dtype=torch.float64)
    i, j = torch.triu_indices(len(hops), len(hops), 1)
    bond, angle = hops[i, j] == 1, hops[i, j] == 2
    near, far = bond | angle, torch.full((len(i),), torch.inf, dtype=torch.float64)
    share = torch.where(bond, _BUFFER["bond"], torch.where(angle, _BUFFER["angle"], _BUFFER["clash"]))
    touching = _BONDED + (radii[i] + radii[j]) / 2
    low, high = bounds[j, i] * (1 - share), torch.where(near, bounds[i, j] * (1 + share), far)
    low = torch.where(bond, low, torch.maximum(low, touching))
    high = torch.where(bond, torch.minimum(high, touching), high)
    real = conformers(smiles, 1, 1, 0)
    low = torch.minimum(low, (real[0, i] - real[0, j]).norm(dim=1))  # 1,3 neighbours of hydrogens are nearer than that
    chiral = []
    for centre, _ in Chem.FindMolChiralCenters(mol, useLegacyImplementation=False):
        around = [atom.GetIdx() for atom in mol.GetAtomWithIdx(centre).GetNeighbors()]
        chiral += [(*[a for a in around if a != left], centre) for left in around]
    planar = []
    for match in mol.GetSubstructMatches(Chem.MolFromSmarts("[CX3]=[CX3]")):
        for one, other in (match, match[::-1]):
            sides = [a.GetIdx() for a in mol.GetAtomWithIdx(one).GetNeighbors() if a.GetIdx() != other]
            planar.append((*sides, other, one))
    quads = [torch.tensor(found, dtype=torch.int64).reshape(-1, 4).T for found in (chiral, planar)]
    sign = dihedral(real, quads[0], False)[0][0].sign()
    return Potentials(torch.stack([i, j]), low, high, quads[0], sign, quads[1])


def checks_failed(molecule: str, final: Tensor) -> Tensor:
    """Return how many checks of PoseBusters each conformer fails, (n,); the slow one of energies is left out."""
    from posebusters import PoseBusters
    from rdkit import Chem

    from trimtab_lab.domains.molecules.chemistry import _molecule

    molecules = []
    for one in final.double():
        mol = Chem.Mol(_molecule(shipped_model(molecule).facts["smiles"]))
        conformer = Chem.Conformer(mol.GetNumAtoms())
        conformer.SetPositions(one.numpy())
        mol.AddConformer(conformer)
        molecules.append(mol)
    judge = _judge(PoseBusters)
    table = judge.bust(molecules, None, None, full_report=False)
    return torch.from_numpy((~table.to_numpy(dtype=bool)).sum(axis=1)).double()


@cache
def _judge(kind: Any) -> Any:
    judge = kind(config="mol")
    judge.config["modules"] = [part for part in judge.config["modules"] if part["function"] != "energy_ratio"]
    return judge


@cache
def _weak(molecule: str) -> Model:
    """Return a model that knows only the mean and the spread of conformers: the trained one needs no steering."""
    model = shipped_model(molecule)
    flow = fresh(lambda: FlowMLP(len(model.spread), WIDTH, BLOCKS, model.spread), 0)
    for value in flow.out[-1].parameters():
        torch.nn.init.zeros_(value)  # what is left is the flow of a normal distribution
    return replace(model, flow=flow.eval().requires_grad_(False))


def _problem(molecule: str, seeds: Iterable[int]) -> Problem:
    descent = Descent(potentials_of(molecule), _STEPS, 1.0, meter=_METER)
    return Problem(Conformers(_weak(molecule), 50), descent, seeds, aligned)


def systems() -> list[System]:
    """Return the steering of both molecules."""
    return [
        System(
            f"steering, {molecule}",
            partial(_problem, molecule),
            partial(checks_failed, molecule),
            "checks of PoseBusters that fail",
            f"conformers of {molecule} from a normal distribution of their principal components, weak on purpose; a "
            "correction is 20 gradient steps on physical potentials",
            samples=128,
            learning=32,
            batch=16,
            gradients=True,
            needs=("posebusters", "rdkit"),
            meter=_METER,
        )
        for molecule in MOLECULES
    ]
