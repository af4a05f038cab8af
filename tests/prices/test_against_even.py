"""How often a calibrated price is behind even spacing on fresh seeds, and how much calibrations differ.

`python tests/prices/test_against_even.py` measures all of it; the slow test a part.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import trimtab as tt
from trimtab.core.metrics import endpoint_distance
from trimtab_lab.metrics import summary

CHAINS = ("so3-impulse", "se3-lever", "terrain", "terrain-ridge")
FLOWS = ("so3-flow", "so3-impulse-flow", "se3-flow", "se3-lever-flow", "terrain-flow", "terrain-ridge-flow")
OTHERS = ("so3-impulse-ramp", "terrain-ridge-ramp", "se3-lever-replica", "terrain-replica")
FRESH, FIRST_SEED = range(4_800_000, 4_800_256), 4_900_000
BUDGETS, T = (0.05, 0.1, 0.25, 0.5), 40


class Outcome(NamedTuple):
    """A calibration at one budget: the distances of fresh samples to full projection, and even spacing's, (n,) each."""

    domain: str
    rollouts: int
    budget: float
    ours: Tensor
    even: Tensor

    @property
    def behind(self) -> bool:
        return _beyond(self.ours, self.even)

    @property
    def share(self) -> float:
        return float(self.ours.mean() / self.even.mean())


def _beyond(a: Tensor, b: Tensor) -> bool:
    """Whether a is above b in the mean, by 2 SE."""
    gap = summary(a - b)
    return gap.mean > 2 * gap.se


def measure(domain: str, rollouts: Sequence[int], calibrations: int) -> list[Outcome]:
    made, found = tt.domain(domain, n_steps=T), []
    problem = made.problem(FRESH)
    full = problem.rollout(tt.Stepwise())

    def distance(schedule):
        return endpoint_distance(problem.rollout(schedule), full, made.distance)

    even = {b: distance(tt.Periodic(b)) for b in BUDGETS}
    for n in rollouts:
        for c in range(calibrations):
            seeds = range(FIRST_SEED + 1000 * c, FIRST_SEED + 1000 * c + n)
            price = tt.calibrate(made.problem(seeds), max(BUDGETS), check=False, progress=lambda text: None)
            found += [Outcome(domain, n, b, distance(price.at(b)), even[b]) for b in BUDGETS]
    return found


def spread(outcomes: list[Outcome]) -> list[tuple[float, bool, str]]:
    """Worst over best of the calibrations of each domain and budget, whether beyond 2 SE, and where; largest first."""
    found = []
    for kind in dict.fromkeys((o.domain, o.budget) for o in outcomes):
        some = sorted((o.ours for o in outcomes if (o.domain, o.budget) == kind), key=lambda ours: float(ours.mean()))
        best, worst = some[0], some[-1]
        found.append(
            (float(worst.mean() / best.mean().clamp(min=1e-12)), _beyond(worst, best), f"{kind[0]} at {kind[1]}")
        )
    return sorted(found, reverse=True)


@pytest.mark.slow
def test_a_calibrated_price_is_hardly_ever_behind_even_spacing():
    outcomes = [one for domain in ("so3-impulse", "terrain") for one in measure(domain, (8, 32), 2)]
    assert sum(one.behind for one in outcomes) <= 1
    assert sum(one.share for one in outcomes) / len(outcomes) < 0.9


if __name__ == "__main__":
    torch.set_num_threads(1)
    every = []
    for name in sys.argv[1:] or (*CHAINS, *FLOWS, *OTHERS):
        every += measure(name, (8, 16, 64), 5)
        lost = [f"{o.share:.2f} at {o.budget} with {o.rollouts}" for o in every if o.domain == name and o.behind]
        print(name, lost, flush=True)
    for n in (8, 16, 64):
        some = [one for one in every if one.rollouts == n]
        ratios, shares = spread(some), sorted(one.share for one in some)
        print(
            f"{n} rollouts: behind in {sum(one.behind for one in some)} of {len(some)}; of even spacing's distance "
            f"{sum(shares) / len(shares):.3f} in the mean, {shares[len(shares) // 2]:.3f} in the median; worst over "
            f"best: median {ratios[len(ratios) // 2][0]:.2f}, above 1.5 in {sum(r > 1.5 for r, *_ in ratios)} of "
            f"{len(ratios)} (beyond 2 SE in {sum(r > 1.5 and sure for r, sure, _ in ratios)})"
        )
        print("   ", "; ".join(f"{r:.2f}{'' if sure else ' (within 2 SE)'} {where}" for r, sure, where in ratios[:6]))
