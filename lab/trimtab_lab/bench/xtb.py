"""Quantum chemistry in the loop: conformers of a flow, corrected by gradients of GFN2-xTB, one molecule at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.core.metrics import aligned
from trimtab.loop.rollout import Problem
from trimtab_lab.bench.descent import Descent, Meter
from trimtab_lab.bench.system import System
from trimtab_lab.domains.molecules.domain import Conformers, shipped_model

__all__ = ["Tight", "systems"]

_BOHR, _HARTREE = 0.529177210544, 627.509474  # ångström; kcal/mol
_MOLECULE = "alanine-dipeptide"
_LOWEST = -20690.87  # kcal/mol, of eight conformers of the flow after 200 gradient steps each
_STRANGE = 1e4  # kcal/mol, of a state whose electrons do not converge: noise, far from any molecule
_METER = Meter(1.0)  # tblite gives energy and gradient at once


@dataclass(frozen=True)
class Tight:
    """GFN2-xTB energies above a level, in kcal/mol, and their gradients, from the package `tblite`."""

    numbers: tuple[int, ...]  # atomic numbers
    lowest: float = 0.0  # kcal/mol

    def __call__(self, x: Tensor, gradient: bool) -> tuple[Tensor, Tensor | None]:
        """Map conformers (n, atoms, 3) in ångström to energies (n,) and gradients (n, atoms, 3)."""
        from tblite.interface import Calculator

        energies, slopes = [], []
        calculator = None
        for one in x.double().numpy() / _BOHR:
            try:
                if calculator is None:
                    calculator = Calculator("GFN2-xTB", np.array(self.numbers), one)
                    calculator.set("verbosity", 0)
                else:
                    calculator.update(positions=one)
                found = calculator.singlepoint()
                energies.append(found.get("energy") * _HARTREE - self.lowest)
                slopes.append(found.get("gradient") * _HARTREE / _BOHR)
            except Exception:  # tblite raises RuntimeError and its own kind where electrons do not converge
                energies.append(_STRANGE)
                slopes.append(np.zeros_like(one))
                calculator = None
        return torch.tensor(energies, dtype=torch.float64), torch.from_numpy(np.stack(slopes)) if gradient else None


@cache
def _tight() -> Tight:
    from rdkit import Chem

    table, symbols = Chem.GetPeriodicTable(), shipped_model(_MOLECULE).facts["symbols"]
    return Tight(tuple(table.GetAtomicNumber(symbol) for symbol in symbols), _LOWEST)


def _problem(seeds: Iterable[int], n_steps: int = 20, steps: int = 5) -> Problem:
    descent = Descent(_tight(), steps, 1e-3, adaptive=True, longest=0.1, meter=_METER)
    return Problem(Conformers(shipped_model(_MOLECULE), n_steps), descent, seeds, aligned)


def _energy(final: Any) -> Tensor:
    """Return the energies of final conformers, (n,)."""
    return _tight()(final, False)[0]


def systems() -> list[System]:
    """Return the one system of this module."""
    return [
        System(
            "xtb",
            _problem,
            _energy,
            "GFN2-xTB energy above the lowest relaxed, kcal/mol",
            f"conformers of {_MOLECULE} from a learned flow; a correction is five gradient steps on GFN2-xTB",
            samples=16,
            learning=8,
            batch=8,
            gradients=True,
            needs=("tblite", "rdkit"),
            meter=_METER,
        )
    ]
