"""`trimtab train-grid`: make the model of the grid domain anew."""

from __future__ import annotations

import argparse
from pathlib import Path

from trimtab.cli.command import Command

__all__ = ["COMMAND"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--case", default="case14", help="the IEEE grid: case14 (the default) or case30")
    parser.add_argument("--folder", type=Path, default=Path("grid-training"), help="where everything is kept")
    parser.add_argument("--points", type=int, help="operating points to solve and learn from (default 2500)")
    parser.add_argument("--steps", type=int, help="optimiser steps (default 4000)")
    parser.add_argument("--batch", type=int, help="operating points per step (default 256)")
    parser.add_argument("--seed", type=int, help="of initial weights and batches (default 0)")
    parser.add_argument("--threads", type=int, default=1, help="processor threads (default 1)")


def run(arguments: argparse.Namespace) -> int:
    """Do it."""
    import torch

    from trimtab.evaluation.domains.grid.power import load_grid
    from trimtab.evaluation.domains.grid.model import TrainConfig, train

    if arguments.threads < 1:
        raise ValueError(f"--threads must be at least 1: got {arguments.threads}")
    given = {name: getattr(arguments, name) for name in ("points", "steps", "batch", "seed")}
    config = TrainConfig(**{name: value for name, value in given.items() if value is not None})
    threads = torch.get_num_threads()
    torch.set_num_threads(arguments.threads)
    try:
        train(load_grid(arguments.case), arguments.folder, config, lambda line: print(line, flush=True))
    finally:
        torch.set_num_threads(threads)
    return 0


COMMAND = Command(
    "make the model of the power grid anew: solve operating points, train",
    "Make the model of the grid domain that ships with trimtab: solve optimal power flows for random demand and train "
    "a flow on them. A run that was stopped goes on where it was.",
    "examples:\n"
    "  trimtab train-grid --folder run                  the shipped weights are run/case14.safetensors\n"
    "  trimtab train-grid --case case30 --folder run    run/case30.safetensors\n",
    add_arguments,
    run,
)
