"""`trimtab train MODEL`: train the model of a learned domain; `train-pdm` and `train-grid` are older names."""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

from trimtab.core.checks import check_integer
from trimtab_lab.cli.command import Command

__all__ = ["COMMAND", "GRID", "PDM"]

_say = partial(print, flush=True)


def _add_options(parser: argparse.ArgumentParser, threads: int, **options: str) -> None:
    """Add options with a whole number each, whose defaults are those of the function that trains."""
    parser.add_argument("--threads", type=int, default=threads, help=f"processor threads (default {threads})")
    for name, text in options.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=text)


def _given(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(arguments, name)) is not None}


def _add_pdm(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        choices=["data", "train", "validate", "all"],
        help="data: plan trajectories. train: learn them. validate: print the quality of samples and of planned "
        "trajectories. all: one after the other.",
    )
    parser.add_argument("--folder", type=Path, default=Path("pdm-training"), help="the folder of all files")
    parser.add_argument("--model", type=Path, help="validate this model instead of the folder's")
    parser.add_argument("--shipped", action="store_true", help="validate the model shipped with trimtab")
    parser.add_argument("--pairs", type=int, default=64, help="starts and goals per map in validation (default 64)")
    _add_options(
        parser,
        2,
        inner_steps="Langevin updates per level when sampling (default 25)",
        maps="training maps (default 64)",
        per_map="planning problems per map (default 256)",
        seed="seed of data and training (default 0)",
        steps="optimiser steps (default 3000)",
        batch="trajectories per step (default 96)",
    )
    parser.set_defaults(train=_train_pdm)


def _train_pdm(arguments: argparse.Namespace) -> None:
    from trimtab_lab.domains.pdm.model import load_model
    from trimtab_lab.domains.pdm.train import load_data, make_data, train, validate

    check_integer(arguments.pairs, "--pairs")
    wanted = ["data", "train", "validate"] if arguments.what == "all" else [arguments.what]
    folder: Path = arguments.folder
    data, path = folder / "data.safetensors", arguments.model or folder / "model.safetensors"
    if "data" in wanted:
        make_data(data, _say, **_given(arguments, "maps", "per_map", "seed"))
    if "train" in wanted:
        train(load_data(data), folder, _say, **_given(arguments, "steps", "batch", "seed"))
    if "validate" in wanted:
        model = load_model(None if arguments.shipped else path)
        _say(json.dumps(validate(model, arguments.pairs, arguments.inner_steps), indent=1))


def _add_grid(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--case", default="case14", help="the IEEE grid: case14 (the default) or case30")
    parser.add_argument("--folder", type=Path, default=Path("grid-training"), help="the folder of all files")
    _add_options(
        parser,
        1,
        points="operating points to solve and learn from (default 2500)",
        steps="optimiser steps (default 4000)",
        batch="operating points per step (default 256)",
        seed="seed of initial weights and batches (default 0)",
    )
    parser.set_defaults(train=_train_grid)


def _train_grid(arguments: argparse.Namespace) -> None:
    from trimtab_lab.domains.grid.model import train
    from trimtab_lab.domains.grid.power import load_grid

    given = _given(arguments, "points", "steps", "batch", "seed")
    train(load_grid(arguments.case), arguments.folder, progress=_say, **given)


def _add_reaction_flow(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=["train", "validate"], help="validate: compare samples and schedules")
    parser.add_argument("--out", type=Path, default=Path("reaction_flow.safetensors"), help="the file of the weights")
    _add_options(
        parser,
        1,
        steps="optimiser steps (default 6000)",
        batch="solutions per step (default 32)",
        data="solutions in the training set (default 8192)",
        seed="seed of initial weights and batches (default 0)",
        seeds="samples in validation (default 32)",
    )
    parser.set_defaults(train=_train_reaction_flow)


def _train_reaction_flow(arguments: argparse.Namespace) -> None:
    from trimtab_lab.domains.reaction_flow.train import train, validate

    if arguments.what == "validate":
        validate(progress=_say, **_given(arguments, "seeds"))
    else:
        train(arguments.out, progress=_say, **_given(arguments, "steps", "batch", "data", "seed"))


def _add_molecules(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--molecule", default="alanine-dipeptide", help="or testosterone-butyrate")
    parser.add_argument("--folder", type=Path, default=Path("molecules-training"), help="the folder of all files")
    _add_options(
        parser,
        1,
        embedded="conformers that RDKit embeds (default 128)",
        copies="displaced copies of each (default 24)",
        steps="optimiser steps (default 8000)",
        batch="conformers per step (default 128)",
        seed="seed of conformers, initial weights and batches (default 0)",
    )
    parser.set_defaults(train=_train_molecules)


def _train_molecules(arguments: argparse.Namespace) -> None:
    from trimtab_lab.domains.molecules.train import train

    given = _given(arguments, "embedded", "copies", "steps", "batch", "seed")
    train(arguments.molecule, arguments.folder, progress=_say, **given)


def _add_all(parser: argparse.ArgumentParser) -> None:
    models = parser.add_subparsers(metavar="MODEL", required=True)
    _add_pdm(models.add_parser("pdm", help="trajectories among obstacles"))
    _add_grid(models.add_parser("grid", help="operating points of a power grid"))
    _add_reaction_flow(models.add_parser("reaction-flow", help="fields of a reaction-diffusion equation"))
    _add_molecules(models.add_parser("molecules", help="conformers of a molecule"))


def _run(arguments: argparse.Namespace) -> int:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(check_integer(arguments.threads, "--threads"))
    try:
        arguments.train(arguments)
    finally:
        torch.set_num_threads(before)
    return 0


_EXAMPLES = (
    "examples:\n"
    "  trimtab train pdm all --folder run              the shipped weights are run/model.safetensors\n"
    "  trimtab train pdm validate --shipped            the quality of samples and of planned trajectories\n"
    "  trimtab train grid --case case30 --folder run   run/case30.safetensors\n"
    "  trimtab train reaction-flow train --out FILE\n"
    "  trimtab train molecules --molecule testosterone-butyrate --folder run\n"
)
_ABOUT = "Train the model of a learned domain: pdm, grid, reaction-flow or molecules. A run that was stopped continues."

COMMAND = Command("train the models of the learned domains", _ABOUT, _EXAMPLES, _add_all, _run)
PDM = Command("the same as `train pdm`", _ABOUT, _EXAMPLES, _add_pdm, _run)
GRID = Command("the same as `train grid`", _ABOUT, _EXAMPLES, _add_grid, _run)
