"""Make conformers and train a flow on them: `trimtab train molecules`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from trimtab.core.checks import unknown
from trimtab_lab.domains.learned import FlowMLP, fit_flow

from .chemistry import bonds_and_symbols, conformers, distances, energies, match_hydrogens
from .domain import BLOCKS, WIDTH, Model, flow_time, save_model, superpose

__all__ = ["RECIPES", "train"]

_CHOICES = 256  # conformers whose far distances samples are given
_STIFFEST = 0.01  # least standard deviation of a principal component in ångström
RECIPES = {  # SMILES, and the pairs of atoms whose distances are given besides the bonds
    # the two oxygens, and the two ends
    "alanine-dipeptide": ("CC(=O)N[C@@H](C)C(=O)NC", ((2, 7), (0, 9))),
    # the two carbonyl oxygens, and the end of the chain and the methyl group next to it
    "testosterone-butyrate": (
        "CCCC(=O)O[C@H]1CC[C@@H]2[C@@]1(CC[C@H]3[C@H]2CCC4=CC(=O)CC[C@]34C)C",
        ((4, 20), (0, 25)),
    ),
}


def train(
    molecule: str,  # key of RECIPES
    folder: Path,  # folder of all files
    *,
    embedded: int = 128,  # number of conformers from ETKDG
    copies: int = 24,  # number of displaced copies of each
    steps: int = 8000,  # number of optimiser steps
    batch: int = 128,  # number of conformers in a step
    rate: float = 2e-3,  # largest learning rate; it rises for 3% of the steps and falls along a cosine
    seed: int = 0,  # seed of conformers, initial weights and batches
    progress: Callable[[str], None] = print,  # called with a line of text
) -> Path:
    """Make conformers, train on them, and write `MOLECULE.safetensors` into `folder`; return its path."""
    if molecule not in RECIPES:
        raise unknown("molecule", molecule, RECIPES)
    smiles, far = RECIPES[molecule]
    folder.mkdir(parents=True, exist_ok=True)
    out, checkpoint = (folder / f"{molecule}{end}.safetensors" for end in ("", ".training"))
    recipe = {"embedded": embedded, "copies": copies, "steps": steps, "batch": batch, "rate": rate, "seed": seed}
    progress(f"making {embedded * copies} conformers of {molecule}")
    x = conformers(smiles, embedded, copies, seed)
    found = energies(smiles, x)
    sound = found <= found.quantile(0.85)  # the rest was displaced too far to relax in time
    x, found = x[sound], found[sound]
    best = x[found.argmin()]
    x = match_hydrogens(smiles, x, best)
    x = superpose(x, superpose(x, best).mean(dim=0))
    bonds, symbols = bonds_and_symbols(smiles)
    mean = x.mean(dim=0)
    _, sizes, rows = torch.linalg.svd((x - mean).flatten(1) / len(x) ** 0.5, full_matrices=False)
    free = 3 * len(symbols) - 6  # the last six components turn and move the molecule, which is superposed
    axes, scale = rows[:free].T.contiguous().float(), float(sizes[0])
    spread = (sizes[:free].clamp(min=_STIFFEST) / scale).float()
    averaged, _ = fit_flow(
        lambda: FlowMLP(len(spread), WIDTH, BLOCKS, spread),
        ((x - mean) / scale).float().flatten(1) @ axes,
        checkpoint,
        recipe,
        spread=spread,
        times=flow_time,
        average=0.998,
        every=500,
        progress=progress,
    )
    pairs = torch.tensor(far)
    picked = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:_CHOICES]
    facts = {"smiles": smiles, "symbols": symbols, "lowest": float(found.min())} | recipe
    model = Model(
        averaged,
        scale,
        mean,
        axes,
        spread,
        bonds,
        distances(x, bonds.T).mean(dim=0),
        pairs,
        distances(x[picked], pairs.T),
        facts,
    )
    save_model(out, model)
    checkpoint.unlink(missing_ok=True)
    progress(f"wrote {out}")
    return out
