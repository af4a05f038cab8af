"""Train and validate the flow network: `trimtab train reaction-flow`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trimtab.core.constraint import as_constraint
from trimtab.core.metrics import nepe, path_error, summary
from trimtab.core.noise import Noise, as_seeds
from trimtab.core.record import Rollout
from trimtab.core.rollout import rollout
from trimtab.evaluation.domains.learned import fit, flow_loss, fresh, warmup_cosine
from trimtab.evaluation.domains.reaction_flow.domain import (
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
from trimtab.evaluation.domains.reaction_flow.equation import (
    DIFFUSIVITY,
    INFLOW,
    Conditions,
    MassBalance,
    draw_conditions,
    solve,
)
from trimtab.schedules import Periodic, Stepwise, Terminal

__all__ = ["solution_error", "solutions", "train", "validate"]

_FIRST_DATA_SEED = 10**9  # far from the seeds that samples are drawn with
_FIRST_CALIBRATION_SEED = 100_000
BUDGETS = (0.1, 0.25, 0.5)

Runs = dict[tuple[str, float], Rollout]


def solutions(count: int, first: int = _FIRST_DATA_SEED) -> Tensor:
    """Return solutions for random conditions and diffusivities, (count, TIMES, CELLS) float32, from seed `first` on."""
    seeds = torch.arange(first, first + count)
    return torch.cat([solve(*draw_conditions(Noise(as_seeds(part)))).float() for part in seeds.split(1024)])


def train(
    out: Path,
    *,
    steps: int = 6000,
    batch: int = 32,
    data: int = 8192,
    rate: float = 2e-3,
    seed: int = 0,
    checkpoint_every: int = 100,
    progress: Callable[[str], None] = print,
) -> None:
    """Train from scratch, or continue from the checkpoint next to `out`, and write the averaged weights to `out`.

    Args:
        out: The file of the weights. The checkpoint adds `.training` to its name and is removed at the end.
        steps: The number of optimiser steps.
        batch: The number of solutions in a step.
        data: The number of solutions in the training set.
        rate: The largest learning rate; it rises for 3% of the steps and falls along a cosine.
        seed: The seed of initial weights and batches.
        checkpoint_every: The number of steps between checkpoints.
        progress: Called with a line of text.
    """
    checkpoint = out.with_name(out.name + ".training")
    recipe = {"steps": steps, "batch": batch, "data": data, "rate": rate, "seed": seed}
    network, averaged = fresh(FlowNetwork, seed), fresh(FlowNetwork, seed)
    progress(f"solving the equation {data} times")
    fields = (solutions(data) - MEAN) / SPREAD
    fit(
        network,
        averaged,
        lambda step: flow_loss(network, fields, batch, seed * 1_000_003 + step, gaussian_field),
        lambda step: rate * warmup_cosine(step, steps),
        checkpoint,
        recipe,
        steps=steps,
        average=0.999,
        weight_decay=1e-3,
        every=checkpoint_every,
        progress=progress,
    )
    save_network(out, averaged, dict(recipe))
    checkpoint.unlink(missing_ok=True)
    progress(f"wrote {out}")


# ------------------------------------------------------------------ validation


def solution_error(fields: Tensor, conditions: Conditions, count: int = 24) -> Tensor:
    """Return the distance of fields (n, TIMES, CELLS) to the nearest solution with their conditions, (n,).

    The nearest is searched over `count` diffusivities, evenly spaced on the logarithmic scale.
    """
    low, high = DIFFUSIVITY
    tried = low * (high / low) ** torch.linspace(0, 1, count, dtype=torch.float64)
    errors = [field_distance(fields.double(), solve(conditions, nu.expand(len(fields)))) for nu in tried]
    return torch.stack(errors).amin(dim=0)


def validate(seeds: int = 32, figure: Path | None = None, progress: Callable[[str], None] = print) -> None:
    """Compare the shipped network with solutions, and schedules with each other; draw the fields if asked.

    Args:
        seeds: The number of samples.
        figure: The file of the figure, if one is wanted.
        progress: Called with a line of text.
    """
    free, data = _free_samples(seeds), solutions(seeds, first=2 * 10**9)
    for name, fields in (("solutions", data.double()), ("samples", free.double())):
        in_time, in_space = (fields.diff(dim=d).square().mean().sqrt() for d in (1, 2))
        progress(
            f"{name:<9}  mean {fields.mean():.3f}  spread {fields.std():.3f}  range {fields.min():.2f} to "
            f"{fields.max():.2f}  change a step in t {in_time:.4f}, in x {in_space:.4f}"
        )
    error = _own_error(free)
    progress(
        "distance of a free sample to a solution that starts like it: "
        f"median {error.median():.4f}, 90% below {error.quantile(0.9):.4f}"
    )
    balance = MassBalance(given_conditions(range(seeds))[0])
    answer = balance.project(free)
    for name, values in (
        ("defect before", balance.defect(free)),
        ("defect after", balance.defect(answer.x)),
        ("iterations", answer.iterations),
    ):
        progress(f"projection of free samples, {name}: median {values.median():.2g}, largest {values.max():.2g}")
    progress(f"converged: {int(answer.converged.sum())} of {seeds}")  # type: ignore[union-attr]
    compared = {target: _compare_schedules(seeds, target, progress) for target in ("clean", "state")}
    if figure is not None:
        _draw(figure, free, data, compared)
        progress(f"wrote {figure}")


def _free_samples(count: int) -> Tensor:
    """Return fields of the flow without a constraint, (count, TIMES, CELLS)."""
    nothing = as_constraint(lambda x: x, lambda x: x.new_zeros(len(x)))
    fields: Tensor = rollout(make(target="state").problem([0]).sampler, nothing, Terminal(), range(count)).final
    return fields


def _own_error(fields: Tensor) -> Tensor:
    """Return the distance to the nearest solution that starts like a field, over diffusivities and inflows, (n,)."""
    inflows = INFLOW[0] + (INFLOW[1] - INFLOW[0]) * torch.linspace(0, 1, 6, dtype=torch.float64)
    initial = fields[:, 0].double().clamp(min=0)  # negative values would run away
    errors = [solution_error(fields, Conditions(initial, g.expand(len(fields))), 12) for g in inflows]
    return torch.stack(errors).amin(dim=0)


def _compare_schedules(seeds: int, target: Any, progress: Callable[[str], None]) -> Runs:
    """Run terminal, stepwise, periodic and priced schedules on the same seeds, and print a line for each."""
    from trimtab.prices.calibration import calibrate

    domain = make(target=target)
    problem = domain.problem(range(seeds))
    held_out = domain.problem(range(_FIRST_CALIBRATION_SEED, _FIRST_CALIBRATION_SEED + seeds))
    schedules: dict[tuple[str, float], Any] = {("terminal", 0.0): Terminal(), ("stepwise", 1.0): Stepwise()}
    schedules |= {("periodic", budget): Periodic(budget) for budget in BUDGETS}
    for method in ("paper", "dp"):
        price = calibrate(held_out, max(BUDGETS), method, objective="path", closing="free")
        schedules |= {(f"adaptive, {method}", budget): price.at(budget) for budget in BUDGETS}
    runs = {key: problem.rollout(schedule, closing="free", measure_defects=True) for key, schedule in schedules.items()}
    full, none = runs["stepwise", 1.0], runs["terminal", 0.0]
    conditions = given_conditions(range(seeds))[0]
    progress(f"\ntarget: {target}, {seeds} seeds, T = {full.n_steps}")
    progress("schedule         budget  NEPE              endpoint  solution error  failed  iterations")
    for (name, budget), run in runs.items():
        excess = summary(nepe(path_error(run), path_error(full), path_error(none)))
        wrong = solution_error(clean_field(run.final), conditions).median()
        failed = int(run.failed.sum() + run.closing_failed.sum())
        iterations = run.iterations.sum() / run.projected.sum().clamp(min=1)
        end = domain.distance(run.final, full.final).mean()
        progress(
            f"{name:<15}  {budget:>6.2f}  {excess!s:<16}  {end:>8.4f}  {wrong:>14.4f}  {failed:>6}  {iterations:>10.1f}"
        )
    return runs


def _draw(path: Path, free: Tensor, data: Tensor, compared: dict[str, Runs]) -> None:
    """Draw fields by rows, and the mean defect along the flow."""
    from trimtab.core.files import write_atomically
    from trimtab.schedules.style import figure_style, look_of

    columns, clean = 8, compared["clean"]
    rows = {
        "solutions": data,
        "free samples": free,
        "given conditions": solve(*given_conditions(range(columns))),
        "stepwise": clean_field(clean["stepwise", 1.0].final),
        "adaptive, 25%": clean_field(clean["adaptive, dp", 0.25].final),
        "terminal": clean_field(clean["terminal", 0.0].final),
    }
    drawn = {"terminal": 0.0, "stepwise": 1.0, "periodic": 0.25, "adaptive, dp": 0.25}
    with figure_style() as pyplot:
        figure = pyplot.figure(figsize=(10, 9.5))
        upper, lower = figure.subfigures(2, 1, height_ratios=(len(rows), 2.4))
        panels = upper.subplots(len(rows), columns, gridspec_kw={"hspace": 0.06, "wspace": 0.06})
        for line, (name, fields) in zip(panels, rows.items(), strict=True):
            for axes, field in zip(line, fields, strict=False):
                axes.imshow(field, origin="lower", aspect="auto", vmin=0, vmax=1.3)
                axes.set(xticks=[], yticks=[])
            line[0].set_ylabel(name)
        for axes, (target, runs) in zip(lower.subplots(1, 2), compared.items(), strict=True):
            for name, budget in drawn.items():
                look = look_of(name.replace(", ", ":"))
                axes.semilogy(runs[name, budget].defects.mean(dim=1), label=name, color=look.colour, ls=look.dashes)
            axes.set(title=f"target: {target}", xlabel="step", ylabel="mean defect of proposals")
        axes.legend(loc="upper center", bbox_to_anchor=(-0.12, 1.25), ncols=len(drawn))
        form = path.suffix[1:] or "png"
        write_atomically(path, lambda file: figure.savefig(file, format=form, dpi=110, bbox_inches="tight"))
