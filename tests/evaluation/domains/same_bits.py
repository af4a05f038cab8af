"""A sample's rollout in batches of many sizes and orders: run in processes of their own by `test_same_bits`.

Prints, as JSON, the cases in which some bit of a sample depended on its batch, and a digest of all samples' rollouts.
"""

from __future__ import annotations

import hashlib
import json

import torch

import trimtab as tt
from trimtab.evaluation.domains import SYNTHETIC, domain

CASES = [*SYNTHETIC, *(f"{name}-flow" for name in SYNTHETIC), "so3-replica", "terrain-ridge-ramp"]
SIZES = (1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 64, 65)
LARGE = 9001  # enough numbers for torch to divide among its threads
STEPS = 5


def adaptive(defects: torch.Tensor) -> tt.prices.Adaptive:
    """Prices that about half of these defects, (T, n), reach."""
    table = defects.sort(dim=1).values[:, defects.shape[1] // 2, None].repeat(1, 4)
    table[:, 0] = torch.inf
    return tt.prices.Adaptive(tt.prices.Thresholds(table, method="by hand"))


def bits(made, schedule, seeds):
    """Everything a rollout is judged by, each (n, …)."""
    run = made.problem(seeds).rollout(schedule, closing="free", measure_defects=True, keep_states=True)
    apart = made.distance(run.states[STEPS // 2], run.final)
    return run.final, run.defects.T, run.residuals.T, run.projected.T, apart


def main() -> None:
    """Compare every batch with the rows of one of 65 samples, or of 9,001."""
    shuffled = torch.Generator().manual_seed(0)
    differing, digest = [], hashlib.sha256()
    for name in CASES:
        made = domain(name, n_steps=STEPS)
        uncorrected = made.problem(range(65)).rollout(tt.Terminal(), closing="free", measure_defects=True)
        schedules = {
            "random times": tt.schedules.RandomTimes(0.5, seed=3),
            "periodic": tt.Periodic(0.25),
            "adaptive": adaptive(uncorrected.defects),
        }
        for kind, schedule in schedules.items():
            torch.set_num_threads(1)
            whole = bits(made, schedule, range(65))
            for part in whole:
                digest.update(part.contiguous().numpy().tobytes())
            batches = [(n, torch.randperm(65, generator=shuffled)[:n]) for n in SIZES]
            for threads in (1, 2) if kind == "adaptive" else (1,):
                torch.set_num_threads(threads)
                for n, rows in batches:
                    alone = bits(made, schedule, rows)
                    if not all(map(torch.equal, alone, (part[rows] for part in whole))):
                        differing.append(f"{name}, {kind}, {n} samples, {threads} threads")
            if kind == "adaptive":
                large = bits(made, schedule, range(LARGE))
                if not all(map(torch.equal, (part[:65] for part in large), whole)):
                    differing.append(f"{name}, {kind}, {LARGE} samples, 2 threads")
    print(json.dumps({"differing": differing, "digest": digest.hexdigest()}))


if __name__ == "__main__":
    main()
