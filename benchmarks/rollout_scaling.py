"""How a rollout's time and memory grow with samples n, steps T, budget B and the size of a state."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

from torch import Tensor

import trimtab as tt
from _compare import Ratio, fitted_exponent, row, skipped


@dataclass(frozen=True)
class Walk:
    """A random walk of states with `size` numbers."""

    n_steps: int
    size: int

    def start(self, noise: tt.core.noise.Noise) -> Tensor:
        """Draw normal numbers."""
        return noise.start((self.size,))

    def step(self, x: Tensor, t: int, noise: tt.core.noise.Noise) -> Tensor:
        """Add a normal step."""
        return x + 0.1 * noise.normal(t, (self.size,))


SPHERE = tt.as_constraint(lambda x: x / x.norm(dim=1, keepdim=True), lambda x: (x.norm(dim=1) - 1).abs())


def seconds(n: int, steps: int, size: int, budget: float, repeats: int) -> float:
    """Return the best of several rollouts with an adaptive schedule: growth matters here, not noise."""
    sampler = Walk(steps, size)
    prices = tt.calibrate(tt.Problem(sampler, SPHERE, range(16)), budget=budget, method="paper", objective="path")
    schedule = tt.prices.Adaptive(prices, budget)
    best = float("inf")
    for _ in range(repeats):
        begin = perf_counter()
        tt.rollout(sampler, SPHERE, schedule, range(100, 100 + n))
        best = min(best, perf_counter() - begin)
    return best


PEAK = """
import re, sys
from pathlib import Path
sys.path.insert(0, {directory!r})
from rollout_scaling import SPHERE, Walk
import trimtab as tt
def run(n):
    tt.rollout(Walk(200, 3), SPHERE, tt.Periodic(0.25), range(n))
    # not ru_maxrss, which a new process inherits from the one that started it
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
before = run(1)
print((run({n}) - before) / 1024)
"""


def peak_mebibytes(n: int) -> float:
    """Return the memory of n samples minus that of one sample, measured in a new process."""
    code = PEAK.format(directory=str(Path(__file__).parent), n=n)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return float(done.stdout)


def run(quick: bool) -> list[dict[str, Any]]:
    ns = [16, 64, 256] if quick else [16, 64, 256, 1024, 4096, 16384]
    ts = [50, 100] if quick else [50, 100, 200, 500, 1000]
    sizes = [1, 16, 64] if quick else [1, 4, 16, 64, 256, 1024]
    budgets = [2, 10, 50] if quick else [2, 5, 10, 25, 50, 100]
    repeats = 1 if quick else 3
    by_n = [(n, seconds(n, 50, 3, 0.25, repeats)) for n in ns]
    by_t = [(t, seconds(64, t, 3, 0.25, repeats)) for t in ts]
    by_size = [(d, seconds(1024, 50, d, 0.25, repeats)) for d in sizes]
    by_budget = [(b, seconds(1024, 100, 3, b / 100, repeats)) for b in budgets]
    memory = [16384, 32768] if quick else [16384, 32768, 65536]
    claim = "peak memory grows with n to the power"
    if Path("/proc/self/status").is_file():
        peaks = [(n, peak_mebibytes(n)) for n in memory]
        last = _row(claim, peaks, "n", "T = 200, states of 3, periodic 25%", y="MiB")
    else:
        last = skipped(claim, "linear growth", "peak memory is read from /proc, which this system does not have")
    return [
        _row("time grows with n to the power", by_n, "n", "T = 50, states of 3, adaptive 25%"),
        _row("time grows with T to the power", by_t, "T", "n = 64, states of 3, adaptive 25%"),
        _row("time grows with state size to the power", by_size, "numbers per state", "n = 1024, T = 50, adaptive 25%"),
        _row("time grows with B to the power", by_budget, "B", "n = 1024, T = 100, states of 3, adaptive"),
        last,
    ]


def _row(claim: str, points: list[tuple[float, float]], x: str, inputs: str, y: str = "seconds") -> dict[str, Any]:
    power = fitted_exponent(points)
    # the slopes between neighbours are the spread; the first ones are flat, as fixed costs hide small sizes
    slopes = [fitted_exponent([a, b]) for a, b in pairwise(points)]
    (x0, y0), (x1, y1) = points[0], points[-1]
    return row(
        claim,
        "linear growth",
        Ratio(power, min(slopes), max(slopes)),
        "<= 1.1",
        f"{inputs}; {x} {x0} to {x1}: {y0:.3g} to {y1:.3g} {y}; interval: neighbouring sizes",
        series=[{"x": x, "y": y, "label": inputs, "points": [list(p) for p in points]}],
    )
