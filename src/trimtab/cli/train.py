"""`trimtab train-pdm`: make the trajectory model anew."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from trimtab.cli.command import Command

__all__ = ["COMMAND"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument(
        "what",
        choices=["data", "train", "validate", "figure", "all"],
        help="data: plan trajectories. train: learn them; goes on where it stopped. validate: print the quality of "
        "samples beside planned trajectories. figure: draw both. all: one after the other.",
    )
    parser.add_argument("--folder", type=Path, default=Path("pdm-training"), help="where everything is kept")
    parser.add_argument("--model", type=Path, help="validate or draw this model instead of the folder's")
    parser.add_argument("--shipped", action="store_true", help="validate or draw the model shipped with trimtab")
    parser.add_argument("--threads", type=int, default=2, help="processor threads (default 2)")
    parser.add_argument("--inner-steps", type=int, help="Langevin updates per level when sampling (default 25)")
    parser.add_argument("--pairs", type=int, default=64, help="starts and goals per map in validation (default 64)")
    parser.add_argument("--maps", type=int, help="training maps")
    parser.add_argument("--per-map", type=int, help="planning problems per map")
    parser.add_argument("--seed", type=int, default=0, help="of data and training (default 0)")
    parser.add_argument("--steps", type=int, help="optimiser steps")
    parser.add_argument("--batch", type=int, help="trajectories per step")


def run(arguments: argparse.Namespace) -> int:
    """Do it."""
    import torch

    for name in ("threads", "pairs"):
        if getattr(arguments, name) < 1:
            raise ValueError(f"--{name} must be at least 1: got {getattr(arguments, name)}")

    threads = torch.get_num_threads()
    torch.set_num_threads(arguments.threads)
    try:
        _stages(arguments)
    finally:
        torch.set_num_threads(threads)
    return 0


def _stages(arguments: argparse.Namespace) -> None:
    from trimtab.evaluation.domains.pdm.checkpoint import load_model
    from trimtab.evaluation.domains.pdm.data import DataConfig, load_data, make_data
    from trimtab.evaluation.domains.pdm.quality import figure, validate
    from trimtab.evaluation.domains.pdm.train import TrainConfig, train

    def tell(line: str) -> None:
        print(line, flush=True)

    def given(*names: str) -> dict[str, int]:
        return {name: value for name in names if (value := getattr(arguments, name)) is not None}

    wanted = ["data", "train", "validate", "figure"] if arguments.what == "all" else [arguments.what]
    folder: Path = arguments.folder
    if "data" in wanted:
        make_data(replace(DataConfig(), **given("maps", "per_map", "seed")), folder / "data.safetensors", tell)
    if "train" in wanted:
        config = replace(TrainConfig(), **given("steps", "batch", "seed"))
        train(load_data(folder / "data.safetensors"), folder, config, progress=tell)
    path = None if arguments.shipped else arguments.model or folder / "model.safetensors"
    if "validate" in wanted:
        tell(json.dumps(validate(load_model(path), arguments.pairs, arguments.inner_steps), indent=1))
    if "figure" in wanted:
        folder.mkdir(parents=True, exist_ok=True)
        figure(load_model(path), folder / "samples.png", min(24, arguments.pairs), arguments.inner_steps)
        tell(f"drew {folder / 'samples.png'}")


COMMAND = Command(
    "make the trajectory model anew: plan data, train, validate, draw",
    "Make the trajectory model that ships with trimtab. Training that was stopped goes on where it was.",
    "examples:\n"
    "  trimtab train-pdm all --folder run         the shipped weights are run/model.safetensors\n"
    "  trimtab train-pdm validate --shipped       samples beside planned trajectories\n",
    add_arguments,
    run,
)
