"""What RDKit knows of a molecule: conformers to learn from, MMFF94 energies, and whether a conformer is valid."""

from __future__ import annotations

from functools import cache
from itertools import permutations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.core.checks import missing_extra
from trimtab.core.metrics import aligned

__all__ = ["bonds_and_symbols", "conformers", "distances", "energies", "match_hydrogens", "validity"]

_CLASH = 0.6  # atoms more than three bonds apart may not be nearer than this share of their van der Waals radii
_STRETCH = 0.1  # largest share by which a bond of a valid conformer may differ from its length
_SHAKE = 0.1  # standard deviation in ångström by which an embedded conformer is displaced before it is relaxed
_RELAXATION = 40  # iterations of MMFF94: stiff bonds and angles relax, soft torsions stay different


def _rdkit() -> tuple[Any, Any]:
    try:
        from rdkit import Chem
        from rdkit.Chem import AllChem
    except ImportError as error:
        raise missing_extra("rdkit", "molecules", "the quality of conformers", "trimtab-lab") from error
    return Chem, AllChem


@cache
def _molecule(smiles: str) -> Any:
    """Return the molecule with hydrogens."""
    Chem, _ = _rdkit()
    return Chem.AddHs(Chem.MolFromSmiles(smiles))


@cache
def _force_field(smiles: str) -> Any:
    Chem, AllChem = _rdkit()
    molecule = Chem.Mol(_molecule(smiles))
    molecule.AddConformer(Chem.Conformer(molecule.GetNumAtoms()))
    return AllChem.MMFFGetMoleculeForceField(molecule, AllChem.MMFFGetMoleculeProperties(molecule))


@cache
def _stereocentres(smiles: str) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = _rdkit()[0].FindMolChiralCenters(_molecule(smiles), useLegacyImplementation=False)
    return found


@cache
def _apart(smiles: str) -> tuple[Tensor, Tensor]:
    """Return the pairs of atoms more than three bonds apart, (2, k), and how near they may be, (k,)."""
    Chem, _ = _rdkit()
    molecule, table = _molecule(smiles), Chem.GetPeriodicTable()
    pairs = torch.from_numpy(np.argwhere(np.triu(Chem.GetDistanceMatrix(molecule)) > 3).T)
    radii = torch.tensor([table.GetRvdw(atom.GetAtomicNum()) for atom in molecule.GetAtoms()], dtype=torch.float64)
    return pairs, _CLASH * radii[pairs].sum(dim=0)


def bonds_and_symbols(smiles: str) -> tuple[Tensor, list[str]]:
    """Return the pairs of bonded atoms, (bonds, 2) int64, and the element of each atom."""
    molecule = _molecule(smiles)
    bonds = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in molecule.GetBonds()]
    return torch.tensor(bonds), [atom.GetSymbol() for atom in molecule.GetAtoms()]


def conformers(smiles: str, embedded: int, copies: int, seed: int) -> Tensor:
    """Return conformers in ångström, (embedded copies, atoms, 3) float64.

    Each is one of `embedded` conformers from ETKDG, displaced at random and partly relaxed with MMFF94.
    """
    Chem, AllChem = _rdkit()
    molecule, parameters = Chem.Mol(_molecule(smiles)), AllChem.ETKDGv3()
    parameters.randomSeed = seed + 1  # with 0 all conformers are the same
    AllChem.EmbedMultipleConfs(molecule, embedded, parameters)
    places = np.stack([conformer.GetPositions() for conformer in molecule.GetConformers()])
    places = np.repeat(places, copies, axis=0)
    places += _SHAKE * np.random.default_rng(seed).standard_normal(places.shape)
    molecule.RemoveAllConformers()
    for one in places:
        conformer = Chem.Conformer(molecule.GetNumAtoms())
        conformer.SetPositions(one)
        molecule.AddConformer(conformer, assignId=True)
    AllChem.MMFFOptimizeMoleculeConfs(molecule, maxIters=_RELAXATION)
    return torch.from_numpy(np.stack([conformer.GetPositions() for conformer in molecule.GetConformers()]))


def match_hydrogens(smiles: str, x: Tensor, onto: Tensor) -> Tensor:
    """Return conformers (n, atoms, 3) whose hydrogens are numbered as in the conformer `onto`, (atoms, 3).

    RDKit numbers the hydrogens of one atom at random. Of all ways to number them, this takes the one that lies nearest
    to `onto` after the hydrogens and the three nearest heavy atoms were superposed.
    """
    Chem, _ = _rdkit()
    molecule, x = _molecule(smiles), x.clone()
    hops = Chem.GetDistanceMatrix(molecule)
    heavy = [atom.GetIdx() for atom in molecule.GetAtoms() if atom.GetAtomicNum() > 1]
    for i in heavy:
        hydrogens = [a.GetIdx() for a in molecule.GetAtomWithIdx(i).GetNeighbors() if a.GetAtomicNum() == 1]
        near = sorted(heavy, key=hops[i].__getitem__)[:3]
        numbered = torch.stack([x[:, [*order, *near]] for order in permutations(hydrogens)])
        expected = onto[[*hydrogens, *near]].expand_as(numbered[0])
        best = torch.stack([aligned(one, expected) for one in numbered]).argmin(dim=0)
        x[:, hydrogens] = numbered[best, torch.arange(len(x)), : len(hydrogens)]
    return x


def energies(smiles: str, x: Tensor) -> Tensor:
    """Return the MMFF94 energies of conformers (n, atoms, 3) in kcal/mol, (n,) float64."""
    field = _force_field(smiles)
    return torch.tensor([field.CalcEnergy(one) for one in x.double().flatten(1).tolist()], dtype=torch.float64)


def validity(smiles: str, x: Tensor, bonds: Tensor, lengths: Tensor) -> Tensor:
    """Return 1 for conformers (n, atoms, 3) with sound bonds, no clashes and the right chirality, else 0, (n,)."""
    Chem, _ = _rdkit()
    pairs, nearest = _apart(smiles)
    x = x.double()
    stretch = distances(x, bonds.T) / lengths - 1
    sound = (stretch.abs() <= _STRETCH).all(dim=1) & (distances(x, pairs) >= nearest).all(dim=1)
    molecule, expected = Chem.Mol(_molecule(smiles)), _stereocentres(smiles)
    for i in sound.nonzero().flatten().tolist():
        conformer = Chem.Conformer(molecule.GetNumAtoms())
        conformer.SetPositions(x[i].numpy())
        molecule.RemoveAllConformers()
        molecule.AddConformer(conformer)
        Chem.AssignStereochemistryFrom3D(molecule)
        sound[i] = Chem.FindMolChiralCenters(molecule, useLegacyImplementation=False) == expected
    return sound.double()


def distances(x: Tensor, pairs: Tensor) -> Tensor:
    """Return the distances of pairs (2, k) of atoms of (n, atoms, 3), (n, k)."""
    found: Tensor = (x[:, pairs[0]] - x[:, pairs[1]]).norm(dim=2)
    return found
