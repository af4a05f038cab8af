"""Measure what prices learned while sampling save, against even spacing and against calibrated prices.

Run it from the repository's root: `python docs/make_online.py`. It writes docs/results/online.md, its numbers and the
first figure of the README. Finished samplers are kept in docs/results/online.json; remove it to measure again.

Every sampler draws 256 samples in production batches of 16 (and of 1, 4 and 64 on a few), at a quarter of the
projections. Each batch is also run with full projection, one projection at the end and even spacing on the same noise.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

import trimtab as tt
from trimtab.core.budget import PerBatch, PerSample
from trimtab.evaluation.domains import domain
from trimtab.schedules.style import figure_style

HERE = Path(__file__).parent
CELLS = ("so3", "se3", "terrain", "so3-impulse", "se3-lever", "terrain-ridge")
SAMPLERS = (*CELLS, *(f"{name}-flow" for name in CELLS))
FEW = ("so3-flow", "so3-impulse", "terrain-ridge-flow")  # on which other batch sizes are tried
SHARE, DRAWN, BATCH = 0.25, 256, 16
FIRST_SEED, CALIBRATION_SEED, N_CALIBRATION = 700_000, 800_000, 64


def draw(name: str, schedule: object, batch: int = BATCH) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return endpoint distances, path errors and projections of DRAWN samples in batches, (DRAWN,) each."""
    made, distances, paths, paid = domain(name), [], [], []
    for first in range(FIRST_SEED, FIRST_SEED + DRAWN, batch):
        problem = made.problem(range(first, first + batch))
        run = problem.rollout(schedule, measure_defects=True)
        distances.append(problem.distance(run.final, FULL[name, batch, first]).double())
        paths.append(run.residuals[:-1].double().sum(dim=0))
        paid.append(run.spent.double())
    return torch.cat(distances), torch.cat(paths), torch.cat(paid)


FULL: dict[tuple[str, int, int], object] = {}  # final states of full projection, by sampler, batch and first seed


def full_projection(name: str, batch: int) -> torch.Tensor:
    """Run full projection in the same batches; return its path errors, (DRAWN,)."""
    made, paths = domain(name), []
    for first in range(FIRST_SEED, FIRST_SEED + DRAWN, batch):
        run = made.problem(range(first, first + batch)).rollout(tt.Stepwise(), measure_defects=True)
        FULL[name, batch, first] = run.final
        paths.append(run.residuals[:-1].double().sum(dim=0))
    return torch.cat(paths)


def measure(name: str) -> dict[str, object]:
    """Return everything about one sampler: shares of terminal's distance and of its path error, batch by batch."""
    floor = full_projection(name, BATCH)
    far, high, _ = draw(name, tt.Terminal())
    n_steps = domain(name).problem([0]).n_steps
    budget = max(2, round(SHARE * n_steps))
    calibrated = tt.calibrate(
        domain(name).problem(range(CALIBRATION_SEED, CALIBRATION_SEED + N_CALIBRATION)), budget, "dp", objective="path"
    )
    schedules = {
        "even": tt.Periodic(budget),
        "learned, shared": tt.prices.Learner(PerBatch(budget)),
        "learned, per sample": tt.prices.Learner(PerSample(budget)),
        "dp, per sample": calibrated.at(budget),
        "dp, shared": calibrated.at(PerBatch(budget)),
    }
    rows: dict[str, object] = {"steps": n_steps, "calibration": calibrated.notes["batches"] * N_CALIBRATION}
    for label, schedule in schedules.items():
        distance, path, paid = draw(name, schedule)
        assert int(paid.sum()) == budget * DRAWN, (name, label)
        rows[label] = {
            "endpoint": (distance.view(-1, BATCH).mean(dim=1) / far.mean()).tolist(),
            "path": ((path - floor).view(-1, BATCH).mean(dim=1) / (high - floor).mean()).tolist(),
            "standard error": float(distance.std() / DRAWN**0.5 / far.mean()),
        }
    if name in FEW:
        for batch in (1, 4, 64):
            full_projection(name, batch)
            distance, _, _ = draw(name, tt.prices.Learner(PerBatch(budget)), batch)
            rows[f"batches of {batch}"] = float(distance[DRAWN // 2 :].mean() / far[DRAWN // 2 :].mean())
    return rows


def later(row: dict[str, list[float]], measure: str) -> float:
    """Return the mean of all batches but the first, in which nothing has been learned yet."""
    values = row[measure][1:]
    return sum(values) / len(values)


def headline(results: dict[str, dict]) -> str:
    """Return the sentence that README quotes: medians over samplers, all batches but the first."""
    shares = {}
    for label in ("learned, shared", "even"):
        values = sorted(later(rows[label], "endpoint") for rows in results.values())
        shares[label] = (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2
    return (
        f"Median of {len(results)} samplers: learned and shared {shares['learned, shared']:.2f}, even spacing "
        f"{shares['even']:.2f}. The learned columns include the control samples, one in eight."
    )


def table(results: dict[str, dict]) -> str:
    """Return the page's table."""
    labels = ("even", "dp, per sample", "dp, shared", "learned, per sample", "learned, shared")
    lines = ["| sampler | " + " | ".join(labels) + " | ± | cumulative, at worst |", "|---" * (len(labels) + 3) + "|"]
    for name, rows in results.items():
        cells = [f"{later(rows[label], 'endpoint'):.3f} / {later(rows[label], 'path'):.3f}" for label in labels]
        worst = max(cumulative_ratio(rows))
        lines.append(f"| `{name}` | {' | '.join(cells)} | {rows['even']['standard error']:.3f} | {worst:.3f} |")
    return "\n".join(lines)


def cumulative_ratio(rows: dict) -> list[float]:
    """Return the total path error so far as a share of even spacing's on the same noise, batch by batch."""
    mine, even = rows["learned, shared"]["path"], rows["even"]["path"]
    return [sum(mine[: k + 1]) / sum(even[: k + 1]) for k in range(len(mine))]


def figure(results: dict[str, dict], path: Path) -> None:
    """Draw the distance to full projection against samples drawn, median over samplers."""
    with figure_style() as drawing:
        picture = drawing.figure(figsize=(6.4, 3.0), layout="constrained")
        axes = picture.subplots()
        drawn = [BATCH * (k + 1) for k in range(DRAWN // BATCH)]

        def median(label: str) -> list[float]:
            stacked = torch.tensor([rows[label]["endpoint"] for rows in results.values()])
            return stacked.median(dim=0).values.tolist()

        axes.plot(drawn, median("even"), color="#E69F00", marker="o", label="even spacing")
        axes.plot(drawn, median("learned, shared"), color="#0072B2", marker="s", label="learned while sampling, shared")
        late = median("dp, per sample")
        cost = sorted(rows["calibration"] for rows in results.values())[len(results) // 2]
        level = sum(late) / len(late)
        axes.axhline(level, color="#555555", dashes=(3, 2), label=f"calibrated first, with {cost} more samples")
        axes.set(xlabel="samples drawn", ylabel="distance to full projection,\nshare of one at the end", ylim=(0, None))
        axes.legend(loc="lower center", ncols=1)
        picture.savefig(path, dpi=180)


def main() -> None:
    """Measure what is missing, and write the page and the figure."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    torch.set_num_threads(1)
    kept = HERE / "results" / "online.json"
    kept.parent.mkdir(exist_ok=True)
    results: dict[str, dict] = json.loads(kept.read_text()) if kept.exists() else {}
    for name in SAMPLERS:
        if name not in results:
            print(f"{name} ({len(results) + 1} of {len(SAMPLERS)})", flush=True)
            results[name] = measure(name)
            FULL.clear()
            kept.write_text(json.dumps(results))
    others = {name: [f"{results[name][f'batches of {k}']:.3f}" for k in (1, 4, 64)] for name in FEW if name in results}
    page = [
        "# Prices learned while sampling",
        "",
        "At a quarter of the projections: the distance of final samples to those of full projection, then path error,",
        "each as a share of what one projection at the end leaves (mean over samples 17 to 256, in batches of 16). The",
        f"calibrated prices (dp) used {N_CALIBRATION} more seeds. The last column is the total path error so far as a",
        "share of even spacing's on the same noise, at its worst moment. Printed by `python docs/make_online.py`.",
        "",
        headline(results),
        "",
        table(results),
        "",
        "Learned and shared in batches of another size, endpoint share of samples 129 to 256:",
        "",
        "| sampler | batches of 1 | 4 | 64 |",
        "|---|---|---|---|",
        *(f"| `{name}` | {' | '.join(cells)} |" for name, cells in others.items()),
        "",
    ]
    (HERE / "results" / "online.md").write_text("\n".join(page))
    print("\n".join(page))
    figure(results, HERE / "images" / "online.png")


if __name__ == "__main__":
    main()
