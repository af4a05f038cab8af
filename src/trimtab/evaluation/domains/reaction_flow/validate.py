"""Hold samples against solutions: `python -m trimtab.evaluation.domains.reaction_flow.validate --figure flow.png`.

Prints how the shipped network's fields compare with the data, how well the projection keeps the constraint, and what
each schedule costs and yields on the reaction-flow domain, for both things that can be projected.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from trimtab.core.constraint import as_constraint
from trimtab.core.files import write_atomically
from trimtab.core.metrics import nepe, path_error, summary
from trimtab.core.record import Rollout
from trimtab.core.rollout import rollout
from trimtab.core.schedule import Schedule
from trimtab.evaluation.domains.base import Domain
from trimtab.evaluation.domains.reaction_flow.domain import Target, field_distance, given_conditions, make
from trimtab.evaluation.domains.reaction_flow.equation import DIFFUSIVITY, INFLOW, Conditions, solve
from trimtab.evaluation.domains.reaction_flow.projection import MassBalance
from trimtab.evaluation.domains.reaction_flow.train import solutions
from trimtab.prices.calibration import calibrate
from trimtab.schedules import Periodic, Stepwise, Terminal

__all__ = ["compare_schedules", "solution_error"]

BUDGETS = (0.1, 0.25, 0.5)
METHODS = ("paper", "dp")
_FIRST_CALIBRATION_SEED = 100_000


def solution_error(fields: Tensor, conditions: Conditions, count: int = 24) -> Tensor:
    """Distance of each field to the nearest solution with its conditions, over all diffusivities, (n,).

    Args:
        fields: (n, TIMES, CELLS).
        conditions: Of the n samples.
        count: Diffusivities tried, evenly spread on the logarithmic scale.
    """
    low, high = DIFFUSIVITY
    tried = low * (high / low) ** torch.linspace(0, 1, count, dtype=torch.float64)
    errors = [field_distance(fields.double(), solve(conditions, nu.expand(len(fields)))) for nu in tried]
    return torch.stack(errors).amin(dim=0)


def compare_schedules(
    seeds: int = 64, target: Target = "clean", steps: int = 100
) -> tuple[Domain, dict[tuple[str, float], Rollout]]:
    """Terminal, stepwise, periodic and priced rollouts of the same seeds, by name and budget."""
    domain = make(steps, target)
    problem = domain.problem(range(seeds))
    held_out = range(_FIRST_CALIBRATION_SEED, _FIRST_CALIBRATION_SEED + seeds)
    apart = domain.problem(held_out)
    prices = {
        f"adaptive, {method}": calibrate(apart, max(BUDGETS), method, objective="path", closing="free")
        for method in METHODS
    }
    schedules: dict[tuple[str, float], Schedule] = {("terminal", 0.0): Terminal(), ("stepwise", 1.0): Stepwise()}
    for budget in BUDGETS:
        schedules["periodic", budget] = Periodic(budget)
        schedules |= {(name, budget): price.at(budget) for name, price in prices.items()}
    runs = {key: problem.rollout(schedule, closing="free", measure_defects=True) for key, schedule in schedules.items()}
    return domain, runs


def _clean(x: Tensor) -> Tensor:
    return x[:, 0] if x.ndim == 4 else x


def _print_schedules(domain: Domain, runs: dict[tuple[str, float], Rollout]) -> None:
    stepwise, terminal = runs["stepwise", 1.0], runs["terminal", 0.0]
    conditions = given_conditions(range(len(stepwise.final)))[0]
    print(f"\ntarget: {domain.settings['target']}, {len(stepwise.final)} seeds, T = {stepwise.n_steps}")
    print(
        "schedule         budget  spent  path error  NEPE              endpoint  solution error  failed  iterations"
        "  in first half"
    )
    for (name, budget), run in runs.items():
        excess = summary(nepe(path_error(run), path_error(stepwise), path_error(terminal)))
        end = domain.distance(run.final, stepwise.final).mean()
        wrong = solution_error(_clean(run.final), conditions).median()
        failed = int(run.failed.sum() + run.closing_failed.sum())
        spent = run.spent.double().mean() / run.n_steps
        corrections = run.projected.sum().clamp(min=1)
        iterations = run.iterations.sum() / corrections
        early = run.projected[: run.n_steps // 2].sum() / corrections
        print(
            f"{name:<15}  {budget:>6.2f}  {spent:>5.3f}  {path_error(run).mean():>10.3f}  {excess!s:<16}"
            f"  {end:>8.4f}  {wrong:>14.4f}  {failed:>6}  {iterations:>10.1f}  {early:>13.2f}"
        )


def free_samples(count: int) -> Tensor:
    """Fields of the flow with no constraint at all, (count, TIMES, CELLS)."""
    nothing = as_constraint(lambda x: x, lambda x: x.new_zeros(len(x)))
    sampler = make(target="state").problem(range(count)).sampler
    fields: Tensor = rollout(sampler, nothing, Terminal(), range(count)).final
    return fields


def own_error(fields: Tensor) -> Tensor:
    """Distance of free fields to the nearest solution that begins like them, over diffusivities and inflows, (n,)."""
    low, high = INFLOW
    inflows = low + (high - low) * torch.linspace(0, 1, 6, dtype=torch.float64)
    initial = fields[:, 0].double().clamp(min=0)  # the equation runs away from negative values
    errors = [solution_error(fields, Conditions(initial, g.expand(len(fields))), 12) for g in inflows]
    return torch.stack(errors).amin(dim=0)


def _print_samples(free: Tensor, data: Tensor) -> None:
    for name, fields in (("solutions", data.double()), ("samples", free.double())):
        in_time, in_space = (fields.diff(dim=d).square().mean().sqrt() for d in (1, 2))
        print(
            f"{name:<9}  mean {fields.mean():.3f}  spread {fields.std():.3f}  range {fields.min():.2f} to "
            f"{fields.max():.2f}  change a step in t {in_time:.4f}, in x {in_space:.4f}"
        )
    error = own_error(free)
    print(
        f"distance of a free sample to a solution that begins like it: median {error.median():.4f}, "
        f"nine in ten below {error.quantile(0.9):.4f}"
    )


def _print_projection(free: Tensor) -> None:
    balance = MassBalance(given_conditions(range(len(free)))[0])
    answer = balance.project(free)
    assert answer.converged is not None
    assert answer.iterations is not None
    before, after = balance.defect(free), balance.defect(answer.x)
    for name, values in (("before", before), ("after", after), ("iterations", answer.iterations.double())):
        low, middle, high = values.double().quantile(torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)).tolist()
        print(f"projection of free samples, {name:<10}  least {low:.2g}  median {middle:.2g}  most {high:.2g}")
    print(f"converged: {int(answer.converged.sum())} of {len(free)}")


def _draw(path: Path, free: Tensor, data: Tensor, compared: dict[str, dict[tuple[str, float], Rollout]]) -> None:
    """Fields by rows (data, free, given, schedules) and the mean defect along the flow."""
    from trimtab.schedules.style import figure_style, look_of

    clean = compared["clean"]
    columns = 8
    conditions, nu = given_conditions(range(columns))
    rows = {
        "solutions": data,
        "free samples": free,
        "as asked": solve(conditions, nu),
        "stepwise": _clean(clean["stepwise", 1.0].final),
        "adaptive, 25%": _clean(clean["adaptive, dp", 0.25].final),
        "terminal": _clean(clean["terminal", 0.0].final),
    }
    drawn = {"terminal": 0.0, "stepwise": 1.0, "periodic": 0.25, "adaptive, dp": 0.25}
    with figure_style() as pyplot:
        figure = pyplot.figure(figsize=(10, 9.5))
        fields_part, defects_part = figure.subfigures(2, 1, height_ratios=(len(rows), 2.4))
        panels = fields_part.subplots(len(rows), columns, gridspec_kw={"hspace": 0.06, "wspace": 0.06})
        for line, (name, fields) in zip(panels, rows.items(), strict=True):
            for axes, field in zip(line, fields, strict=False):
                axes.imshow(field, origin="lower", aspect="auto", vmin=0, vmax=1.3)
                axes.set(xticks=[], yticks=[])
            line[0].set_ylabel(name)
        for axes, (target, runs) in zip(defects_part.subplots(1, 2), compared.items(), strict=True):
            for name, budget in drawn.items():
                look = look_of(name.replace(", ", ":"))
                defects = runs[name, budget].defects.mean(dim=1)
                axes.semilogy(defects, label=name, color=look.colour, linestyle=look.dashes)
            axes.set(title=f"target: {target}", xlabel="step", ylabel="mean defect of proposals")
        axes.legend(loc="upper center", bbox_to_anchor=(-0.12, 1.25), ncols=len(drawn))
        write_atomically(
            path, lambda file: figure.savefig(file, format=path.suffix[1:] or "png", dpi=110, bbox_inches="tight")
        )
    print(f"wrote {path}")


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m trimtab.evaluation.domains.reaction_flow.validate", description=__doc__
    )
    parser.add_argument("--seeds", type=int, default=32)
    parser.add_argument("--figure", type=Path, help="draw fields and defects to this file")
    given = parser.parse_args(arguments)
    free, data = free_samples(given.seeds), solutions(given.seeds, first=2 * 10**9)
    _print_samples(free, data)
    _print_projection(free)
    compared: dict[str, dict[tuple[str, float], Rollout]] = {}
    targets: tuple[Target, ...] = ("clean", "state")
    for target in targets:
        domain, compared[target] = compare_schedules(given.seeds, target)
        _print_schedules(domain, compared[target])
    if given.figure is not None:
        _draw(given.figure, free, data, compared)


if __name__ == "__main__":
    main()
