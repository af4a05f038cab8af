"""Measure what nearness to full projection does and does not mean: `python docs/make_fidelity.py`, about two minutes.

It writes docs/results/fidelity.md and docs/images/fidelity.png.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import trimtab as tt
from trimtab_lab.domains import domain
from trimtab_lab.report.style import figure_style

HERE = Path(__file__).parent
FLOWS = ("so3-flow", "so3-ramp", "terrain-flow", "terrain-ramp", "terrain-ridge-flow", "terrain-ridge-ramp")
CHAINS = ("so3", "se3", "terrain", "so3-impulse", "se3-lever", "terrain-ridge")
STEPS, FEWER, FINE = 100, 25, 1600
SEEDS, MANY = range(910_000, 910_064), range(920_000, 921_024)


def to_the_fine_flow(name: str) -> dict[str, float]:
    """Return the mean distance of final states to those of the same flow, without noise, at 1,600 projected steps."""
    coarse = domain(name, n_steps=STEPS, noise=0.0).problem(SEEDS)
    few = domain(name, n_steps=FEWER, noise=0.0).problem(SEEDS)
    fine = domain(name, n_steps=FINE, noise=0.0).problem(SEEDS).rollout(tt.Stepwise()).final
    finals = {
        "full projection": coarse.rollout(tt.Stepwise()).final,
        "a quarter, evenly": coarse.rollout(tt.Periodic(FEWER)).final,
        "once, at the end": coarse.rollout(tt.Terminal()).final,
        "a quarter of the steps, all projected": few.rollout(tt.Stepwise()).final,
    }
    return {label: float(coarse.distance(final, fine).mean()) for label, final in finals.items()}


def tail(name: str) -> float:
    """Return the share of the distance between terminal and full projection that 1% of the samples hold."""
    problem = domain(name).problem(MANY)
    distance = problem.distance(problem.rollout(tt.Terminal()).final, problem.rollout(tt.Stepwise()).final)
    return float(distance.sort(descending=True).values[: len(distance) // 100].sum() / distance.sum())


def figure(rows: dict[str, dict[str, float]], path: Path) -> None:
    """Draw the distances as bars, one group per flow."""
    labels = list(next(iter(rows.values())))
    with figure_style() as drawing:
        picture = drawing.figure(figsize=(6.4, 3.0))
        axes = picture.subplots()
        for k, label in enumerate(labels):
            places = [i + 0.2 * (k - 1.5) for i in range(len(rows))]
            axes.bar(places, [row[label] for row in rows.values()], width=0.18, label=label)
        axes.set_xticks(range(len(rows)), rows, fontsize="x-small")
        axes.set(ylabel="distance to the fine flow", yscale="log")
        axes.legend(fontsize="x-small")
        picture.savefig(path, dpi=160)


def main() -> None:
    """Measure, and write the page and the figure."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    torch.set_num_threads(1)
    rows = {name: to_the_fine_flow(name) for name in FLOWS}
    labels = list(rows[FLOWS[0]])
    page = [
        "# Fidelity to a discretisation",
        "",
        f"The mean distance of final states to those of the same flow, without noise, in {FINE:,} projected steps, for",
        f"{STEPS} steps under three schedules and for {FEWER} steps that are all projected ({len(SEEDS)} samples); and",
        "how much of the distance between terminal and full projection 1% of the samples hold. Printed by",
        "`python docs/make_fidelity.py`.",
        "",
        "| flow | " + " | ".join(labels) + " |",
        "|---" * (len(labels) + 1) + "|",
        *(f"| `{name}` | " + " | ".join(f"{row[label]:.4f}" for label in labels) + " |" for name, row in rows.items()),
        "",
        "![Distance to the fine flow](../images/fidelity.png)",
        "",
        f"| chain | share of the distance in 1% of {len(MANY):,} samples |",
        "|---|---|",
        *(f"| `{name}` | {tail(name):.0%} |" for name in CHAINS),
    ]
    (HERE / "results" / "fidelity.md").write_text("\n".join(page) + "\n", encoding="utf-8")
    print("\n".join(page))
    figure(rows, HERE / "images" / "fidelity.png")


if __name__ == "__main__":
    main()
