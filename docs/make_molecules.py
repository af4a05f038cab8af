"""Measure schedules on both molecules at equal work, and write the tables and the figure of docs/results/molecules.md.

    python docs/make_molecules.py

Everything that is fitted uses its own seeds: calibrated prices 16 seeds, learned prices 16 or 32 production samples,
and what is told the energy 256 seeds or 640 production samples.
The cost of a row is its solver iterations per sample, those of the closing projection included. Rows of iterations get
as many as even spacing takes at the same budget.
"""

from __future__ import annotations

import argparse
import warnings
from functools import partial
from time import process_time
from typing import Any

import torch
from _page import HERE, kept, renew

import trimtab as tt
from trimtab.core.budget import PerBatch
from trimtab.core.statistics import count_signs, paired, summarize
from trimtab.schedules import By
from trimtab_lab.domains.molecules.domain import MOLECULES
from trimtab_lab.report.style import figure_style

CALIBRATION, PRODUCTION, EVALUATION = 1_300_000, 1_400_000, 910_000
SAMPLES = 64
FITTED = 16  # calibration seeds, and samples of a production batch
BUDGETS = (0.25, 0.1)


def iterations(run: tt.Rollout) -> float:
    """Per sample."""
    return float(run.all_iterations.double().mean())


def learned(domain: Any, budget: float, batches: int, **options: Any) -> tt.prices.Learner:
    """A learner that has seen some production batches."""
    learner = tt.prices.Learner(budget, **options)
    for first in range(PRODUCTION, PRODUCTION + batches * FITTED, FITTED):
        domain.problem(range(first, first + FITTED)).rollout(learner)
    return learner


def told_the_energy(domain: Any) -> dict[str, Any]:
    """What trimtab does if it is told the energy: a learner after 40 production batches, and advice on 256 seeds.

    The learner gets the logarithm, because it compares means, which one strained sample can decide.
    """

    def energy(x: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = domain.quality(x, None)["energy"]
        return value

    learner = learned(domain, max(BUDGETS), 40, quality=lambda x: energy(x).clamp(min=0).log1p())
    advice = tt.advise(
        domain.problem(range(CALIBRATION, CALIBRATION + 16 * FITTED)), quality=energy, tolerance=0.2, cost="projections"
    )
    print(learner.report(), advice, sep="\n", flush=True)
    return {
        f"learned from {40 * FITTED} samples, told the energy": learner,
        f"advised, told the energy: {advice.trial.name}": advice.schedule,
    }


def rows_of(domain: Any) -> dict[float, dict[str, Any]]:
    """Every way to spend each budget, by name."""
    fitting = domain.problem(range(CALIBRATION, CALIBRATION + FITTED))
    paper = tt.calibrate(fitting, max(BUDGETS), "paper")
    dp = tt.calibrate(fitting, max(BUDGETS), "dp", objective="path")
    works = {budget: round(iterations(fitting.rollout(tt.Periodic(budget)))) for budget in BUDGETS}
    return {
        budget: {
            "even spacing": tt.Periodic(budget),
            "paper's rule": paper.at(budget),
            "dp, per sample": dp.at(budget),
            "dp, shared": dp.at(PerBatch(budget)),
            "learned from 16 samples": learned(domain, budget, 1),
            "learned from 32 samples": learned(domain, budget, 2),
            "single iterations, evenly": By("1 iteration", tt.Periodic(min(fitting.n_steps, work))),
        }
        for budget, work in works.items()
    }


def measure(molecule: str) -> dict[str, Any]:
    """Run all rows of a molecule on fresh seeds; return what is shown of them."""
    begin = process_time()
    domain = tt.domain("molecules", molecule=molecule)
    problem = domain.problem(range(EVALUATION, EVALUATION + SAMPLES))
    ends: dict[str, Any] = {
        "terminal": tt.Terminal(),
        "stepwise": tt.Stepwise(),
        "1 iteration at every step": By("1 iteration"),
        "2 iterations at every step": By("2 iterations"),
        "frozen Jacobian, 1 iteration at every step": By("frozen Jacobian, 1 iteration"),
        **told_the_energy(domain),
    }
    found: dict[str, Any] = {"samples": len(problem), "rows": {}}
    energy: dict[str, torch.Tensor] = {}
    for budget, rows in ({0.0: ends} | rows_of(domain)).items():
        for name, schedule in rows.items():
            key = f"{budget:g} {name}"
            run = problem.rollout(schedule, measure_defects=True)
            quality = domain.quality(run.final, problem.constraint)
            energy[key] = quality["energy"]
            rival = energy.get(f"{budget:g} even spacing", energy["0 terminal"])
            signs = count_signs(energy[key], rival)
            found["rows"][key] = {
                "iterations": iterations(run),
                "projections": float((run.projected.sum(dim=0) + run.closing).double().mean()),
                "energy": summarize(energy[key]).facts(),
                "less": paired(energy[key], rival).facts(),
                "signs": [signs.lower, signs.higher],
                "valid": float(quality["valid"].mean()),
                "landing": float(run.landing.median()),
            }
            print(f"{molecule}: {key}: {found['rows'][key]['energy']['mean']:.1f}", flush=True)
    found["minutes"] = (process_time() - begin) / 60
    return found


def _interval(facts: dict[str, Any]) -> str:
    if facts["low"] is None:
        return f"{facts['mean']:.1f} (not known)"
    return f"{facts['mean']:.1f} ({facts['low']:.1f} to {facts['high']:.1f})"


def table(found: dict[str, Any]) -> str:
    """The rows of a molecule as Markdown."""
    lines = [
        "| B/T | schedule | iterations | projections | energy, mean | median | less even spacing's | lower in | valid "
        "| landing |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for key, row in found["rows"].items():
        budget, _, name = key.partition(" ")
        own = budget == "0" or name == "even spacing"
        lines.append(
            f"| {'' if budget == '0' else budget} | {name} | {row['iterations']:.0f} | {row['projections']:.0f} | "
            f"{_interval(row['energy'])} | {row['energy']['median']:.1f} | {'' if own else _interval(row['less'])} | "
            f"{'' if own else '{} of {}'.format(row['signs'][0], sum(row['signs']))} | {row['valid']:.2f} | "
            f"{row['landing']:.2f} |"
        )
    note = f"{found['samples']} samples; {found['minutes']:.0f} processor minutes for the table."
    return "\n".join([*lines, "", note])


def draw(results: dict[str, Any]) -> None:
    """Median energy against iterations per sample, a panel per molecule, docs/images/molecules.png."""
    looks: dict[str, tuple[str, str]] = {
        "terminal": ("#000000", "v"),
        "stepwise": ("#000000", "^"),
        "frozen Jacobian, 1 iteration at every step": ("#CC79A7", "P"),
        "even spacing": ("#999999", "o"),
        "paper's rule": ("#E69F00", "D"),
        "dp, shared": ("#0072B2", "s"),
        "learned from 16 samples": ("#009E73", "*"),
        "single iterations, evenly": ("#56B4E9", "x"),
        "1 iteration at every step": ("#D55E00", "X"),
    }
    with figure_style() as plt:
        figure, panels = plt.subplots(1, len(results), figsize=(12, 3.6), layout="constrained")
        for axes, (molecule, found) in zip(panels, results.items(), strict=True):
            for name, (colour, marker) in looks.items():
                rows = [row for key, row in found["rows"].items() if key.partition(" ")[2] == name]
                axes.plot(
                    [row["iterations"] for row in rows],
                    [row["energy"]["median"] for row in rows],
                    color=colour,
                    marker=marker,
                    label=name,
                    ls=":" if len(rows) > 1 else "",
                )
            axes.set(xscale="log", yscale="log", title=molecule, xlabel="solver iterations per sample")
        panels[0].set_ylabel("median energy, kcal/mol above the lowest")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")
        figure.savefig(HERE / "images" / "molecules.png", dpi=110)


def main() -> None:
    """Measure, and write the page and its figure."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", tt.core.record.InfeasibleWarning)
    results = {molecule: kept("molecules", molecule, partial(measure, molecule)) for molecule in MOLECULES}
    for molecule, found in results.items():
        renew("results/molecules.md", molecule, table(found))
    draw(results)


if __name__ == "__main__":
    main()
