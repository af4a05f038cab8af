"""Measure what prices learned while sampling save, against even spacing and against calibrated prices.

Run it from the repository's root: `python docs/make_online.py`. It writes docs/results/online.md, its numbers and the
first figure of the README. Finished samplers are kept in docs/results/online.json, and measured again by another
version.

Every sampler draws its samples in production batches of 16, at a quarter of the projections. The same seeds are also
run with full projection, one projection at the end, even spacing and calibrated prices.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from textwrap import fill
from typing import Any

import torch
from torch import Tensor

import trimtab as tt
from trimtab.core.budget import PerBatch, PerSample
from trimtab_lab.domains import domain
from trimtab_lab.report.style import figure_style

HERE = Path(__file__).parent
CELLS = ("so3", "se3", "terrain", "so3-impulse", "se3-lever", "terrain-ridge")
HEAVY = {"reaction-flow": {"n_steps": 50}, "grid": {}}  # 64 samples each
HOSTILE = ("noise", "drift")  # defects that say nothing; bursts that start when half of the samples are drawn
SAMPLERS = (*CELLS, *(f"{name}-flow" for name in CELLS), "linkage", *HEAVY, *HOSTILE)
OTHER_BATCHES = ("so3-flow", "so3-impulse", "terrain-ridge-flow", "se3-lever-flow")
REPEATED = ("drift", "noise", "se3", "so3-impulse-flow")
SHARE, BATCH, BLOCK, REPETITIONS = 0.25, 16, 64, 8
FIRST_SEED, CALIBRATION_SEED, REPETITION_SEED = 1_700_000, 1_800_000, 1_900_000
LABELS = ("even", "dp, per sample", "dp, shared", "learned, per sample", "learned, shared")


@dataclass(frozen=True, eq=False)
class NoDefect(tt.Constraint):
    """A constraint whose defect says nothing: it is a digit of the state far behind the point."""

    inner: tt.Constraint

    def project(self, x: Tensor) -> Any:
        """Return the projection, (n, *event)."""
        return self.inner.project(x)

    def defect(self, x: Tensor) -> Tensor:
        """Return numbers in [0, 1) that look random, (n,)."""
        return (x.flatten(1)[:, 0] * 1e4).frac().abs()

    def take(self, rows: Tensor) -> NoDefect:
        """Return the constraint of some rows, (k,)."""
        return NoDefect(self.inner.take(rows))


def problem(name: str, seeds: range, late: bool = False) -> tt.Problem:
    """Return a sampler by name; `late` is the second half of what it draws."""
    if name == "noise":
        made = domain("so3-flow").problem(seeds)
        return replace(made, constraint=NoDefect(made.constraint))
    if name == "drift":
        return domain("so3-impulse-flow" if late else "so3-flow").problem(seeds)
    return domain(name, **HEAVY.get(name, {})).problem(seeds)


class Drawn:
    """The samples that one sampler draws from one first seed on, under any schedule."""

    def __init__(self, name: str, first: int, samples: int, full: bool = True) -> None:
        """Run full projection, to compare final samples with."""
        self.name, self.first, self.samples = name, first, samples
        self.budget = max(2, round(SHARE * problem(name, range(1)).n_steps))
        self.full = [block.rollout(tt.Stepwise(), measure_defects=True) for block in self.blocks(BLOCK)] if full else []

    def blocks(self, size: int) -> list[tt.Problem]:
        """Return what is drawn in blocks of some size."""
        ends = range(0, self.samples, size)
        return [problem(self.name, range(self.first + k, self.first + k + size), 2 * k >= self.samples) for k in ends]

    def run(self, schedule: Any, size: int = BLOCK) -> tuple[Tensor, Tensor, Tensor]:
        """Return distances to full projection, path errors and who was control, (samples,) each."""
        distances, paths, controls = [], [], []
        learns = isinstance(schedule, tt.prices.Learner)
        for k, block in enumerate(self.blocks(size)):
            control = torch.full((size,), learns)
            if learns and schedule.runs > 0:
                arms = schedule.schedule(size).arms
                control = torch.zeros(size, dtype=torch.bool)
                control[arms["control"].rows if "control" in arms else []] = True
            controls.append(control)
            done = block.rollout(schedule, measure_defects=True)
            paths.append(done.residuals[:-1].double().sum(dim=0))
            if self.full:
                reference = self.full[k * size // BLOCK].final[k * size % BLOCK :][:size]
                distances.append(block.distance(done.final, reference).double())
        return torch.cat(distances or paths), torch.cat(paths), torch.cat(controls)


def measure(name: str) -> dict[str, Any]:
    """Return everything about one sampler: shares of terminal's distance and of its path error, batch by batch."""
    heavy = name in HEAVY
    drawn, n_calibration = Drawn(name, FIRST_SEED, 64 if heavy else 256), 16 if heavy else 64
    budget, seeds = drawn.budget, range(CALIBRATION_SEED, CALIBRATION_SEED + n_calibration)
    far, high, _ = drawn.run(tt.Terminal())
    floor = torch.cat([run.residuals[:-1].double().sum(dim=0) for run in drawn.full])
    dp = tt.calibrate(problem(name, seeds), budget, "dp", objective="path")
    parts = PerBatch(torch.full((BLOCK,), budget), torch.arange(BLOCK) // BATCH)
    found: dict[str, Any] = {"samples": drawn.samples, "dp rollouts": dp.notes["batches"] * n_calibration}
    runs = {
        "even": drawn.run(tt.Periodic(budget)),
        "dp, per sample": drawn.run(dp.at(budget)),
        "dp, shared": drawn.run(dp.at(parts)),
        "learned, per sample": drawn.run(tt.prices.Learner(PerSample(budget)), BATCH),
        "learned, shared": drawn.run(tt.prices.Learner(PerBatch(budget)), BATCH),
    }

    def against(label: str, rows: Tensor) -> list[float]:
        """Return how far learned prices are behind, paired, in units of terminal's distance, and a standard error."""
        behind = (runs["learned, shared"][0] - runs[label][0])[rows] / far.mean()
        return [float(behind.mean()), float(behind.std() / len(behind) ** 0.5)]

    for label, (distance, path, _) in runs.items():
        found[label] = {
            "endpoint": rounded(distance.view(-1, BATCH).mean(dim=1) / far.mean()),
            "path": rounded((path - floor).view(-1, BATCH).mean(dim=1) / (high - floor).mean()),
            "median": float(distance[BATCH:].median() / far.mean()),
        }
    pairs = [runs[label][0][BATCH:] for label in ("learned, shared", "even")]
    found["nearer"] = [float((pairs[0] < pairs[1]).double().mean()), float((pairs[0] > pairs[1]).double().mean())]
    later, priced = torch.arange(drawn.samples) >= BATCH, ~runs["learned, shared"][2]
    found["behind"] = {label: against(label, later) for label in ("even", "dp, per sample")}
    found["priced behind"] = {label: against(label, later & priced) for label in ("even", "dp, per sample")}
    if name in OTHER_BATCHES:
        some = Drawn(name, FIRST_SEED, 128)
        tried = {f"batches of {size}": (PerBatch(budget), size) for size in (1, 4, 16, 64)}
        tried["fixed rows"] = PerBatch(budget, rows="fixed"), BATCH
        for label, (shared, size) in tried.items():
            distance, _, _ = some.run(tt.prices.Learner(shared), size)
            found[label] = float(distance[64:].mean() / far[64:128].mean())
    return found


def rounded(values: Tensor) -> list[float]:
    """Return numbers for a file."""
    return [round(float(value), 5) for value in values]


def repeat(name: str) -> list[float]:
    """Return the largest share of even spacing's total path error so far, for each repetition, after each batch."""
    worst = []
    for k in range(REPETITIONS):
        drawn = Drawn(name, REPETITION_SEED + 1000 * k, 128, full=False)
        even = drawn.run(tt.Periodic(drawn.budget))[1]
        learner = tt.prices.Learner(PerBatch(drawn.budget), seed=k)
        mine = drawn.run(learner, BATCH)[1]
        ratios = mine.view(-1, BATCH).sum(dim=1).cumsum(0) / even.view(-1, BATCH).sum(dim=1).cumsum(0)
        worst.append(float(ratios.max()))
    return worst


# ------------------------------------------------------------------ the page


def later(found: dict[str, Any], label: str, measure: str = "endpoint") -> float:
    """Return the mean of all batches but the first, in which nothing has been learned yet; NaN if it was not run."""
    values = found[label][measure][1:] if label in found else []
    return sum(values) / len(values) if values else float("nan")


def table(titles: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in [titles, ["---"] * len(titles), *rows])


def number(value: float) -> str:
    """Return a number with three digits, or nothing."""
    return "" if math.isnan(value) else f"{value:.3f}"


def verdict(results: dict[str, dict[str, Any]]) -> str:
    """Return the sentences on top of the page."""
    usual = {name: found for name, found in results.items() if name not in HOSTILE}
    even, dp, learned = (
        median(later(found, label) for found in usual.values())
        for label in ("even", "dp, per sample", "learned, shared")
    )

    def behind(kind: str, label: str) -> str:
        names = [f"`{name}`" for name, found in usual.items() if found[kind][label][0] > 2 * found[kind][label][1]]
        return f"{len(names)} ({', '.join(names)})" if names else "none"

    def whole(kind: str) -> int:
        return sum(found[kind]["dp, per sample"][0] <= 0 for found in usual.values())

    ahead = sum(later(found, "learned, shared") < later(found, "even") for found in usual.values())
    return f"""Median of {len(usual)} samplers: even spacing {even:.2f}, learned and shared {learned:.2f}, calibrated dp
        per sample {dp:.2f}. Learned is ahead of even spacing on {ahead} of {len(usual)}, and behind it by more than 2
        standard errors on {behind("behind", "even")}. From the second batch on it has at least the whole of calibrated
        dp's gain on {whole("behind")} of {len(usual)} samplers, control samples included ({whole("priced behind")}
        without them). It is behind dp per sample by more than 2 standard errors on
        {behind("behind", "dp, per sample")}; without control samples on {behind("priced behind", "dp, per sample")}."""


def page(results: dict[str, dict[str, Any]], repeated: dict[str, list[float]]) -> str:
    """Return the page."""
    shown = ("even", "dp, per sample", "learned, shared")
    first, second = [], []
    for name, found in results.items():
        behind = "{:+.3f} ± {:.3f}".format(*found["behind"]["even"])
        first.append([f"`{name}`", *(number(later(found, label)) for label in LABELS), behind])
        path = ["" if name == "noise" else number(later(found, label, "path")) for label in shown]
        second.append([f"`{name}`", *path, *(number(found[label]["median"]) for label in shown)])
        second[-1].append("{:.0%} / {:.0%}".format(*found["nearer"]))
    sizes = [*(f"batches of {size}" for size in (1, 4, 16, 64)), "fixed rows"]
    third = [[f"`{name}`", *(number(results[name][size]) for size in sizes)] for name in OTHER_BATCHES]
    fourth = [
        [
            f"`{name}`",
            number(median(worst)),
            number(max(worst)),
            f"{sum(each > 1.05 for each in worst)} of {len(worst)}",
        ]
        for name, worst in repeated.items()
    ]
    parts = [
        "# Prices learned while sampling",
        "What learned prices save, and where they lose. Printed by `python docs/make_online.py`.",
        verdict(results),
        f"""At a quarter of the projections: the mean distance of final samples to those of full projection, as a share
        of what one projection at the end leaves, over all samples but the first 16. There are 256 samples in batches of
        16 ({", ".join(f"`{name}`" for name in results if name in HEAVY)}: 64). Calibrated prices used 64 more seeds (16
        for those). Learned columns include the control samples. The last column is learned and
        shared minus even spacing, paired by sample. In `noise` the defect says nothing. In `drift` bursts start after
        half of the samples, and calibrated prices have not seen them.""",
        table(["sampler", *LABELS, "learned minus even"], first),
        """**Why `se3` and `se3-lever` gain little.** Calibrated prices for path error have the same weakness, so it is
        not the learning. Path error counts every step alike, and these chains have their largest defects early. They
        forget early errors, and the final sample depends on late ones: path error falls, and the median sample ends no
        nearer to full projection (next table). The mean is decided by the few samples that end far away.
        A run cannot show this without a twin under full projection; a quality can. The same holds for `noise`:
        path error is made of the defect, so the guard cannot see that the defect says nothing.""",
        """Path error (mean), then the distance of the median sample, as shares of what one at the end leaves; and the
        shares of samples that learned prices bring nearer and farther than even spacing does (some samplers have two
        modes, of which neither a mean nor a median tells):""",
        table(["sampler", "path: even", "dp", "learned", "median: even", "dp", "learned", "nearer / farther"], second),
        """Learned and shared in batches of other sizes, and with the number of rows fixed before each run (batches of
        16); endpoint share of samples 65 to 128:""",
        table(["sampler", "1", "4", "16", "64", "fixed rows"], third),
        f"""Total path error so far as a share of even spacing's on the same noise, after the worst batch, in
        {REPETITIONS} repetitions of 128 samples:""",
        table(["sampler", "median", "largest", "above 1.05"], fourth),
        """The excess on `so3-impulse-flow` is that of the first batch, before anything is learned: it is even spacing
        as well, but at other steps, which samples take in turns, and other steps meet other bursts.""",
    ]
    return (
        "\n\n".join(
            each if each[0] in "#|" else fill(" ".join(each.split()), 120, break_on_hyphens=False) for each in parts
        )
        + "\n"
    )


def figure(results: dict[str, dict[str, Any]], path: Path) -> None:
    """Draw what is left against samples drawn, median over samplers, and every sampler's share beside it."""
    orange, blue, grey, red = "#E69F00", "#0072B2", "#555555", "#B2182B"
    long = [found for name, found in results.items() if name not in (*HEAVY, *HOSTILE)]

    def of_even(label: str, first: int, last: int) -> float:
        """Return the distance of some batches as a share of even spacing's on the same samples, median of samplers."""
        shares = [
            sum(found[label]["endpoint"][first:last]) / sum(found["even"]["endpoint"][first:last]) for found in long
        ]
        return float(median(shares))

    with figure_style() as drawing:
        picture = drawing.figure(figsize=(8.0, 4.0), layout="constrained")
        axes, rows = picture.subplots(1, 2, width_ratios=(1, 1))
        learned = [of_even("learned, shared", first, last) for first, last in pairwise([0, 1, 2, 4, 8, 16])]
        axes.axhline(1, color=orange)
        axes.text(4096, 1.02, "even spacing", color=orange, va="bottom", ha="right")
        axes.plot([16, 32, 64, 128, 256], learned, color=blue, marker="s")
        axes.text(18, 0.35, "trimtab, learned\nwhile sampling", color=blue, va="center")
        cost, level = median(found["dp rollouts"] for found in long), of_even("dp, per sample", 8, 16)
        axes.plot([cost, 4096], [level, level], color=grey, dashes=(3, 2))
        axes.plot(cost, level, "|", color=grey, markersize=9)
        axes.text(4096, level - 0.03, f"calibrated:\nstarts after {cost:,.0f}", color=grey, va="top", ha="right")
        axes.set_xscale("log", base=2)
        axes.set(xlabel="samples drawn", ylim=(0, None), xlim=(13, 4096))
        axes.set_xticks([16, 64, 256, 1024, 4096], ["16", "64", "256", "1,024", "4,096"])
        axes.set_title(
            f"distance to full projection, as a share of\neven spacing's (median of {len(long)} samplers)", fontsize=9
        )
        order = sorted(results, key=lambda name: later(results[name], "learned, shared") - later(results[name], "even"))
        for k, name in enumerate(reversed(order)):
            even, mine = later(results[name], "even"), later(results[name], "learned, shared")
            rows.plot([even, mine], [k, k], color=blue if mine < even else red, linewidth=1.5, zorder=1)
            rows.plot(even, k, "o", color=orange, markersize=5)
            rows.plot(mine, k, "s", color=blue, markersize=5)
        rows.set_yticks(range(len(order)), reversed(order), fontsize=7.5)
        rows.set(xlim=(0, None))
        rows.set_title(
            "the same as a share of one projection at the end:\nfrom even spacing (dot) to trimtab (square)", fontsize=9
        )
        rows.text(0.98, 0.02, "red: trimtab loses", color=red, ha="right", transform=rows.transAxes)
        picture.savefig(path, dpi=180)


def main() -> None:
    """Measure what is missing, and write the page and the figure."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    torch.set_num_threads(1)
    kept = HERE / "results" / "online.json"
    known: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    if known.get("version") != tt.__version__:
        known = {"version": tt.__version__, "measured": {}, "repeated": {}}
    jobs: list[tuple[str, tuple[str, ...], Callable[[str], Any]]] = [
        ("measured", SAMPLERS, measure),
        ("repeated", REPEATED, repeat),
    ]
    for kind, names, work in jobs:
        for name in names:
            if name not in known[kind]:
                print(f"{kind}: {name}", flush=True)
                known[kind][name] = work(name)
                kept.write_text(json.dumps(known))
    measured = {name: known["measured"][name] for name in SAMPLERS}
    text = page(measured, {name: known["repeated"][name] for name in REPEATED})
    (HERE / "results" / "online.md").write_text(text)
    print(text)
    figure(measured, HERE / "images" / "online.png")


if __name__ == "__main__":
    main()
