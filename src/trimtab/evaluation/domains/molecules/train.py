"""Make conformers and train a flow on them: `trimtab train molecules`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from trimtab.evaluation.domains.learned import FlowMLP, fit_flow

from .chemistry import bonds_and_symbols, conformers, distances, energies
from .domain import BLOCKS, WIDTH, Model, save_model, superpose

__all__ = ["train"]


_CHOICES = 256  # conformers whose far distances samples are given
_SMILES = "CC(=O)N[C@@H](C)C(=O)NC"  # alanine dipeptide
_FAR = ((2, 7), (0, 9))  # the two oxygens, and the two ends: given besides the bonds


def train(
    folder: Path,  # folder of all files
    *,
    embedded: int = 128,  # number of conformers from ETKDG
    copies: int = 24,  # number of displaced copies of each
    steps: int = 5000,  # number of optimiser steps
    batch: int = 128,  # number of conformers in a step
    rate: float = 2e-3,  # largest learning rate; it rises for 3% of the steps and falls along a cosine
    seed: int = 0,  # seed of conformers, initial weights and batches
    progress: Callable[[str], None] = print,  # called with a line of text
) -> Path:
    """Make conformers, train on them, and write `alanine-dipeptide.safetensors` into `folder`; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    out, checkpoint = (folder / f"alanine-dipeptide{end}.safetensors" for end in ("", ".training"))
    recipe = {"embedded": embedded, "copies": copies, "steps": steps, "batch": batch, "rate": rate, "seed": seed}
    progress(f"making {embedded * copies} conformers")
    x = conformers(_SMILES, embedded, copies, seed)
    found = energies(_SMILES, x)
    sound = found <= found.quantile(0.98)  # the rest was displaced too far to relax in time
    x, found = x[sound], found[sound]
    best = x[found.argmin()]
    x = superpose(x, superpose(x, best).mean(dim=0))
    bonds, symbols = bonds_and_symbols(_SMILES)
    scale = float(x.square().mean().sqrt())
    data = (x / scale).float().flatten(1)
    averaged, _ = fit_flow(
        lambda: FlowMLP(data.shape[1], WIDTH, BLOCKS),
        data,
        checkpoint,
        recipe,
        average=0.998,
        every=500,
        progress=progress,
    )
    pairs = torch.tensor(_FAR)
    picked = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:_CHOICES]
    facts = {"smiles": _SMILES, "symbols": symbols, "lowest": float(found.min())} | recipe
    model = Model(
        averaged, scale, bonds, distances(x, bonds.T).mean(dim=0), pairs, distances(x[picked], pairs.T), facts
    )
    save_model(out, model)
    checkpoint.unlink(missing_ok=True)
    progress(f"wrote {out}")
    return out
