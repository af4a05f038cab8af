"""How often a raced price is behind even spacing on fresh seeds, and how much calibrations differ.

`python tests/prices/test_race_against_even.py` measures all of it, in a few processor minutes; the slow test a part.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch

import trimtab as tt
from trimtab.core.metrics import endpoint_distance, summary

DOMAINS = ("so3-flow", "so3-impulse", "so3-impulse-flow", "se3-lever", "terrain", "terrain-ridge-flow")
FRESH, FIRST_SEED = range(50_000, 50_192), 700_000
BUDGETS, T = (3, 6, 12), 24


class Outcome(NamedTuple):
    """A calibration at one budget: its mean distance, even spacing's, and whether it is behind by 2 SE."""

    domain: str
    rollouts: int
    budget: int
    ours: float
    even: float
    behind: bool


def measure(domain: str, rollouts: Sequence[int], calibrations: int) -> list[Outcome]:
    made, found = tt.domain(domain, n_steps=T), []
    problem = made.problem(FRESH)
    full = problem.rollout(tt.Stepwise())

    def distance(schedule):
        return endpoint_distance(problem.rollout(schedule), full, made.distance)

    even = {b: distance(tt.Periodic(b)) for b in BUDGETS}
    for n in rollouts:
        for c in range(calibrations):
            first = FIRST_SEED + 1000 * c
            price = tt.calibrate(made.problem(range(first, first + n)), check=False, progress=lambda text: None)
            for b in BUDGETS:
                ours = distance(price.at(b))
                gap = summary(ours - even[b])
                worse = gap.mean > 2 * gap.se
                found.append(Outcome(domain, n, b, float(ours.mean()), float(even[b].mean()), worse))
    return found


def spread(outcomes: list[Outcome]) -> dict[tuple[str, int, int], float]:
    """Worst over best of the calibrations, by domain, number of rollouts and budget."""
    kinds = dict.fromkeys((o.domain, o.rollouts, o.budget) for o in outcomes)
    means = {kind: [o.ours for o in outcomes if (o.domain, o.rollouts, o.budget) == kind] for kind in kinds}
    return {kind: max(some) / max(min(some), 1e-12) for kind, some in means.items()}


@pytest.mark.slow
def test_a_raced_price_is_hardly_ever_behind_even_spacing():
    outcomes = [one for domain in ("so3-impulse", "terrain") for one in measure(domain, (8, 32), 2)]
    assert sum(one.behind for one in outcomes) <= 1
    assert sum(one.ours / one.even for one in outcomes) / len(outcomes) < 0.9


if __name__ == "__main__":
    torch.set_num_threads(1)
    every = []
    for name in sys.argv[1:] or DOMAINS:
        every += measure(name, (8, 16, 64), 5)
        print(name, [one for one in every if one.domain == name and one.behind], flush=True)
    for n in (8, 16, 64):
        some, worst = [one for one in every if one.rollouts == n], spread([one for one in every if one.rollouts == n])
        share = sum(one.ours / one.even for one in some) / len(some)
        print(
            f"{n} rollouts: behind in {sum(one.behind for one in some)} of {len(some)}, {share:.3f} of even spacing's "
            f"distance; worst over best above 1.5 in {sum(v > 1.5 for v in worst.values())} of {len(worst)}, "
            f"median {sorted(worst.values())[len(worst) // 2]:.2f}, largest {max(worst.values()):.2f}"
        )
