"""A diffusion planner whose samples are kept out of obstacles by IPOPT, on schedule.

The planner draws smooth paths from a start to a goal: DDIM steps with the noise that a perfect model of such paths
predicts, so that nothing has to be trained. Each projection solves a nonlinear program (CasADi's IPOPT, built once),
which is what one wants to pay for rarely.

Run it: `python examples/planner_ipopt.py` (needs `pip install 'trimtab[ipopt]'`)
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

import trimtab as tt
from trimtab.constraints.obstacles import AvoidObstacles, Obstacles
from trimtab.core.metrics import path_error, summary

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
        """Noise."""
        return noise.normal(-1, (2, WAYPOINTS))

    def step(self, x: Tensor, t: int, noise: tt.core.noise.Noise) -> Tensor:
        """One DDIM step towards the data, no noise added."""
        now, after = self.signal[t], self.signal[t + 1]
        line, covariance = _paths()
        gain = now.sqrt() * covariance @ torch.linalg.inv(now * covariance + (1 - now) * torch.eye(WAYPOINTS).double())
        clean = line + (x - now.sqrt() * line) @ gain.T
        direction = (x - now.sqrt() * clean) / (1 - now).sqrt()
        return after.sqrt() * clean + (1 - after).sqrt() * direction


def _paths() -> tuple[Tensor, Tensor]:
    """Mean and covariance of the paths: a straight line, and a bridge that is fixed at both ends."""
    s = torch.linspace(0, 1, WAYPOINTS, dtype=torch.float64)
    line = START[:, None] + (GOAL - START)[:, None] * s
    bridge = torch.minimum(s[:, None], s) - s[:, None] * s
    return line, 0.5 * bridge @ bridge * WAYPOINTS / 2 + 1e-6 * torch.eye(WAYPOINTS).double()


def main() -> None:
    """Compare schedules by what they cost and what they leave."""
    avoid = AvoidObstacles(DISCS, START, GOAL, backend="ipopt")
    planner = Planner()
    price = tt.calibrate(tt.Problem(planner, avoid, range(1000, 1016)), budget=0.25, objective="path")
    schedules = {
        "terminal": tt.Terminal(),
        "periodic, 25% of steps": tt.Periodic(0.25),
        "adaptive, 25% of steps": price.at(0.25),
        "stepwise": tt.Stepwise(),
    }
    print(f"{'schedule':<24}{'programs solved':>16}{'seconds in IPOPT':>18}{'free':>7}{'path error':>18}")
    for name, schedule in schedules.items():
        run = tt.rollout(planner, avoid, schedule, range(8), measure_defects=True)
        free = float(avoid.free(run.final).double().mean())
        solved, seconds = run.rows["projection"], run.seconds["projection"]
        print(f"{name:<24}{solved:>16}{seconds:>18.2f}{free:>7.0%}{summary(path_error(run))!s:>18}")


if __name__ == "__main__":
    main()
