"""A diffusion planner whose samples are kept out of obstacles by IPOPT, on schedule.

The planner draws smooth paths from a start to a goal by DDIM, with the noise that a perfect model of such paths
predicts, so nothing has to be trained. Each projection solves a nonlinear program (CasADi's IPOPT, built once).

Run it: `python examples/planner_ipopt.py` (needs `pip install 'trimtab[ipopt]'`)
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

import trimtab as tt
from trimtab_lab.obstacles import AvoidObstacles, Obstacles

STEPS, WAYPOINTS = 20, 12
START, GOAL = torch.tensor([-0.8, -0.6]), torch.tensor([0.8, 0.6])
DISCS = Obstacles(torch.tensor([[-0.2, -0.2, 0.25], [0.35, 0.4, 0.2], [0.3, -0.3, 0.2]]))  # x, y, radius


@dataclass(frozen=True)
class Planner:
    """DDIM over paths, (n, 2, 12): a Gaussian process that bends around the straight line."""

    n_steps: int = STEPS
    dtype: torch.dtype = torch.float64
    signal: Tensor = field(default_factory=lambda: torch.linspace(0.02, 1.0, STEPS + 1, dtype=torch.float64))

    def start(self, noise: tt.core.noise.Noise) -> Tensor:
        """Draw noise."""
        return noise.start((2, WAYPOINTS))

    def step(self, x: Tensor, t: int, noise: tt.core.noise.Noise) -> Tensor:
        """Make one DDIM step towards the data."""
        now, after = self.signal[t], self.signal[t + 1]
        line, covariance = _paths()
        gain = now.sqrt() * covariance @ torch.linalg.inv(now * covariance + (1 - now) * torch.eye(WAYPOINTS).double())
        clean = line + (x - now.sqrt() * line) @ gain.T
        direction = (x - now.sqrt() * clean) / (1 - now).sqrt()
        return after.sqrt() * clean + (1 - after).sqrt() * direction


def _paths() -> tuple[Tensor, Tensor]:
    """Return mean and covariance of the paths: a straight line, and a bridge that is fixed at both ends."""
    s = torch.linspace(0, 1, WAYPOINTS, dtype=torch.float64)
    line = START[:, None] + (GOAL - START)[:, None] * s
    bridge = torch.minimum(s[:, None], s) - s[:, None] * s
    return line, 0.5 * bridge @ bridge * WAYPOINTS / 2 + 1e-6 * torch.eye(WAYPOINTS).double()


def main() -> None:
    """Calibrate on some seeds and compare schedules on others."""
    avoid = AvoidObstacles(DISCS, START, GOAL, backend="ipopt")
    held_out, fresh = (tt.Problem(Planner(), avoid, seeds) for seeds in (range(1000, 1016), range(8)))
    price = tt.calibrate(held_out, budget=0.25, objective="path")
    print(tt.compare(fresh, {"adaptive": price}, [0.25]))


if __name__ == "__main__":
    main()
