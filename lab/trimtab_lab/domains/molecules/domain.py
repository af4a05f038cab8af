"""Conformers of a molecule from a learned flow, with bond lengths and a few far distances given.

The flow knows conformers of one molecule in general. What a sample is given enters through the constraint only: the
bond lengths, and a few distances across the molecule as in a pharmacophore, those of a conformer that its seed picks.
A state is the clean conformer that the network predicts, which has bonds at all times. Each step adds fresh noise to it
and removes the noise again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import as_file, files
from typing import Any, TypeVar

import torch
from torch import Tensor

from trimtab.constraints.equality import NonlinearEquality
from trimtab.core.checks import check_integer, check_positive, unknown
from trimtab.core.files import load_tensors, save_tensors
from trimtab.core.metrics import aligned
from trimtab.core.noise import Noise, as_seeds
from trimtab_lab.domains.base import Domain, Problem, View
from trimtab_lab.domains.learned import FlowMLP, fresh

from .chemistry import distances, energies, validity

__all__ = ["MOLECULES", "Conformers", "Distances", "Model", "judge", "load_model", "make", "save_model", "superpose"]

MOLECULES = ("alanine-dipeptide", "testosterone-butyrate")
WIDTH, BLOCKS = 192, 3
_KIND = "conformer flow"
_GIVEN = ("mean", "axes", "spread", "bonds", "lengths", "far", "choices")
_CHOICE_STREAM = 1  # the start uses stream 0


@dataclass(frozen=True, eq=False)
class Model:
    """A flow of conformers, and what is given of the molecule."""

    flow: FlowMLP  # velocity of the principal components of conformers, (n, components), in units of `scale`
    scale: float  # standard deviation of the largest component in ångström
    mean: Tensor  # mean conformer in ångström, (atoms, 3) float64
    axes: Tensor  # directions of the components, (3 atoms, components) float32
    spread: Tensor  # standard deviations of the components in units of `scale`, (components,) float32
    bonds: Tensor  # pairs of bonded atoms, (bonds, 2) int64
    lengths: Tensor  # lengths of the bonds in ångström, (bonds,) float64
    far: Tensor  # pairs of atoms across the molecule whose distance is given, (k, 2) int64
    choices: Tensor  # their distances in real conformers, of which each seed picks one, (choices, k) float64
    facts: dict[str, Any]  # smiles, elements, lowest energy, and how the flow was trained

    def clean(self, z: Tensor, tau: float) -> Tensor:
        """Return the clean conformers that the network sees in noisy ones at flow time tau, (n, atoms, 3) each.

        Both are less the mean conformer, in units of `scale`.
        """
        axes = self.axes.to(z)
        components = z.flatten(1) @ axes
        times = torch.full((len(z),), tau, dtype=torch.float32, device=z.device)
        with torch.no_grad():
            velocity: Tensor = self.flow(components.float(), times).to(z)
        return ((components + (1 - tau) * velocity) @ axes.T).view(z.shape)


def save_model(path: str | os.PathLike[str], model: Model) -> None:
    """Write the weights in half precision, with what is given of the molecule."""
    tensors = {f"flow.{name}": value.half() for name, value in model.flow.state_dict().items()}
    tensors |= {name: getattr(model, name) for name in _GIVEN}
    save_tensors(path, _KIND, tensors, {"scale": model.scale, **model.facts})


def load_model(path: str | os.PathLike[str]) -> Model:
    """Read the model that `save_model` wrote."""
    tensors, facts = load_tensors(path, _KIND)
    try:
        given, scale = {name: tensors.pop(name) for name in _GIVEN}, float(facts.pop("scale"))
        flow = fresh(lambda: FlowMLP(len(given["spread"]), WIDTH, BLOCKS, given["spread"]), 0)
        flow.load_state_dict({name.removeprefix("flow."): value.float() for name, value in tensors.items()})
    except (KeyError, RuntimeError) as error:
        raise ValueError(f"{path}: these are not the weights of a conformer flow: {error}") from error
    return Model(flow.eval().requires_grad_(False), scale, facts=facts, **given)


@cache
def shipped_model(molecule: str) -> Model:
    """Return the trained model of a molecule that comes with the package."""
    with as_file(files(__package__) / "weights" / f"{molecule}.safetensors") as path:
        return load_model(path)


# ------------------------------------------------------------------ sampler and constraint


Share = TypeVar("Share", float, Tensor)


def flow_time(share: Share) -> Share:
    """Return the flow time after a share of the steps, in training as in sampling: stiff bonds need little noise."""
    return 1 - (1 - share) ** 2


@dataclass(frozen=True, eq=False)
class Conformers:
    """Steps that add noise to clean conformers and remove it; a state is (n, atoms, 3) in ångström.

    Step t sees tau x + (1 - tau) noise at tau = flow_time(t / n_steps): noise alone at first, almost none in the end.
    """

    model: Model
    n_steps: int = 100
    dtype: torch.dtype = torch.float64  # the solver needs more digits than float32 has

    def start(self, noise: Noise) -> Tensor:
        """Draw atoms at random; the first step does not see them yet."""
        return self.model.mean + self.model.scale * noise.start(tuple(self.model.mean.shape))

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """Return the conformers that the network predicts after noise was added, (n, atoms, 3)."""
        tau = flow_time(t / self.n_steps)
        mean, scale = self.model.mean.to(x), self.model.scale
        noisy = tau * (x - mean) / scale + (1 - tau) * noise.normal(t, tuple(x.shape[1:]))
        return mean + scale * self.model.clean(noisy, tau)


@dataclass(frozen=True, eq=False)
class Distances:
    """The equations of the constraint: distances of pairs of atoms less those that are given."""

    pairs: Tensor  # bonds, then pairs across the molecule, (m, 2) int64
    lengths: Tensor  # lengths of the bonds, (bonds,)

    def __call__(self, x: Tensor, far: Tensor) -> Tensor:
        """Map conformers (n, atoms, 3) and the far distances given to them, (n, k), to errors in ångström, (n, m)."""
        given = torch.cat([self.lengths.to(x).expand(len(x), -1), far], dim=1)
        return distances(x, self.pairs.to(x.device).T) - given


def given_distances(model: Model, seeds: Iterable[int] | Tensor) -> Tensor:
    """Return the far distances that each seed is given, (n, k) float64, in ångström."""
    share = Noise(as_seeds(seeds)).uniform(-1, (), stream=_CHOICE_STREAM)
    return model.choices[(share * len(model.choices)).long()]


# ------------------------------------------------------------------ the domain


def superpose(x: Tensor, onto: Tensor) -> Tensor:
    """Return conformers (n, atoms, 3), centred and turned onto others, (n, atoms, 3) or (atoms, 3)."""
    x, onto = (a - a.mean(dim=-2, keepdim=True) for a in (x, onto))
    u, _, v = torch.linalg.svd(x.mT @ onto)
    signs = torch.ones(len(x), 1, 3, dtype=x.dtype, device=x.device)
    signs[:, 0, 2] = torch.linalg.det(u @ v).sign()  # a rotation, never a mirror image
    turned: Tensor = x @ ((u * signs) @ v)
    return turned


def judge(model: Model, x: Tensor, constraint: Any = None) -> dict[str, Tensor]:
    """Return MMFF94 energies above the lowest known, in kcal/mol, and validity of conformers (n, atoms, 3)."""
    smiles = model.facts["smiles"]
    return {
        "energy": energies(smiles, x) - model.facts["lowest"],
        "valid": validity(smiles, x, model.bonds, model.lengths),
    }


def _atoms(x: Tensor) -> Tensor:
    return x


def make(molecule: str = "alanine-dipeptide", n_steps: int = 100, tolerance: float = 1e-4) -> Domain:
    """Return the domain `molecules`.

    Args:
        molecule: "alanine-dipeptide" with 22 atoms, or "testosterone-butyrate" with 60.
        n_steps: The number of steps, T.
        tolerance: The norm in ångström of all errors of the given distances at which a projection has converged.
    """
    if molecule not in MOLECULES:
        raise unknown("molecule", str(molecule), MOLECULES)
    model = shipped_model(molecule)
    sampler = Conformers(model, check_integer(n_steps, "n_steps"))
    equations = Distances(torch.cat([model.bonds, model.far]), model.lengths)
    check_positive(tolerance, "tolerance")

    def problem(seeds: Iterable[int] | Tensor) -> Problem:
        far = given_distances(model, seeds)
        constraint = NonlinearEquality(equations, (far,), tolerance=tolerance, batched=True)
        return Problem(sampler, constraint, seeds, aligned)

    return Domain(
        "molecules",
        f"conformers of {molecule} from a learned flow, with bond lengths and a few far distances given",
        problem,
        aligned,
        {"molecule": molecule, "n_steps": n_steps, "tolerance": tolerance},
        quality=partial(judge, model),
        view=View("Molecules", "the atoms of the final conformer", ("x", "y", "z"), _atoms, final=True),
    )
