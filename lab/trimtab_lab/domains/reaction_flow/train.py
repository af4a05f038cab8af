"""Train and validate the flow network: `trimtab train reaction-flow`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from trimtab.core.constraint import as_constraint
from trimtab.core.noise import Noise, as_seeds
from trimtab.loop.rollout import rollout
from trimtab.schedules import Terminal
from trimtab_lab.domains.learned import fit_flow

from .domain import (
    MEAN,
    SPREAD,
    FlowNetwork,
    clean_field,
    field_distance,
    gaussian_field,
    given_conditions,
    make,
    save_network,
)
from .equation import DIFFUSIVITY, INFLOW, Conditions, draw_conditions, solve

__all__ = ["solution_error", "solutions", "train", "validate"]

_FIRST_DATA_SEED = 10**9  # far from the seeds that samples are drawn with
_FIRST_CALIBRATION_SEED = 100_000
BUDGETS = (0.1, 0.25, 0.5)


def solutions(count: int, first: int = _FIRST_DATA_SEED) -> Tensor:
    """Return solutions for random conditions and diffusivities, (count, TIMES, CELLS) float32, from seed `first` on."""
    starts = range(first, first + count, 1024)
    batches = [Noise(as_seeds(range(start, min(start + 1024, first + count)))) for start in starts]
    return torch.cat([solve(*draw_conditions(noise)).float() for noise in batches])


def train(
    out: Path,  # file of the weights. The checkpoint adds `.training` to its name and is removed at the end
    *,
    steps: int = 6000,  # number of optimiser steps
    batch: int = 32,  # number of solutions in a step
    data: int = 8192,  # number of solutions in the training set
    rate: float = 2e-3,  # largest learning rate; it rises for 3% of the steps and falls along a cosine
    seed: int = 0,  # seed of initial weights and batches
    checkpoint_every: int = 100,  # number of steps between checkpoints
    progress: Callable[[str], None] = print,  # called with a line of text
) -> None:
    """Train from scratch, or continue from the checkpoint next to `out`, and write the averaged weights to `out`."""
    checkpoint = out.with_name(out.name + ".training")
    recipe = {"steps": steps, "batch": batch, "data": data, "rate": rate, "seed": seed}
    progress(f"solving the equation {data} times")
    averaged, _ = fit_flow(
        FlowNetwork,
        (solutions(data) - MEAN) / SPREAD,
        checkpoint,
        recipe,
        color=gaussian_field,
        average=0.999,
        weight_decay=1e-3,
        every=checkpoint_every,
        progress=progress,
    )
    save_network(out, averaged, dict(recipe))
    checkpoint.unlink(missing_ok=True)
    progress(f"wrote {out}")


def solution_error(fields: Tensor, conditions: Conditions, count: int = 24) -> Tensor:
    """Return the distance of fields (n, TIMES, CELLS) to the nearest solution with their conditions, (n,).

    The nearest is searched over `count` diffusivities, evenly spaced on the logarithmic scale.
    """
    low, high = DIFFUSIVITY
    tried = low * (high / low) ** torch.linspace(0, 1, count, dtype=torch.float64)
    errors = [field_distance(fields.double(), solve(conditions, nu.expand(len(fields)))) for nu in tried]
    return torch.stack(errors).amin(dim=0)


def validate(seeds: int = 32, progress: Callable[[str], None] = print) -> None:
    """Compare the shipped network with solutions, and schedules with each other."""
    from trimtab.advice.compare import compare
    from trimtab.calibration.calibrate import calibrate

    nothing = as_constraint(lambda x: x, lambda x: x.new_zeros(len(x)))
    free = rollout(make(target="state").problem([0]).sampler, nothing, Terminal(), range(seeds)).final
    data = solutions(seeds, first=2 * 10**9)
    for name, fields in (("solutions", data.double()), ("samples", free.double())):
        in_time, in_space = (fields.diff(dim=d).square().mean().sqrt() for d in (1, 2))
        progress(
            f"{name:<9}  mean {fields.mean():.3f}  spread {fields.std():.3f}  range {fields.min():.2f} to "
            f"{fields.max():.2f}  change a step in t {in_time:.4f}, in x {in_space:.4f}"
        )
    initial = free[:, 0].double().clamp(min=0)  # negative values would run away
    inflows = INFLOW[0] + (INFLOW[1] - INFLOW[0]) * torch.linspace(0, 1, 6, dtype=torch.float64)
    errors = [solution_error(free, Conditions(initial, g.expand(seeds)), 12) for g in inflows]
    error = torch.stack(errors).amin(dim=0)
    progress(f"distance of a free sample to a solution that starts like it: median {error.median():.4f}")
    conditions = given_conditions(range(seeds))[0]
    for target in ("clean", "state"):
        domain = make(target=target)
        held_out = domain.problem(range(_FIRST_CALIBRATION_SEED, _FIRST_CALIBRATION_SEED + seeds))
        prices = {key: calibrate(held_out, max(BUDGETS), key, objective="path") for key in ("paper", "dp")}
        found = compare(
            domain.problem(range(seeds)),
            prices,
            BUDGETS,
            quality=lambda x: solution_error(clean_field(x), conditions),
        )
        progress(f"\ntarget: {target}\n{found}")
