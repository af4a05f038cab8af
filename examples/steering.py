"""Steering potentials: gradient steps on clashes and bonds, at every denoising step or at a few of them.

Chains of ten beads are drawn by DDIM with the clean prediction of a perfect Gaussian model, which knows how chains
bend but not that bonds have a length and beads a size. The correction is ten gradient steps on an energy of the
clean prediction. The table shows the share of valid chains: all bonds within 20% and no clash.

Run it: `python examples/steering.py`
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import trimtab as tt

STEPS, BEADS, BUDGET = 40, 10, 10
SIGNAL = torch.linspace(0.01, 1.0, STEPS + 1) ** 2  # alpha squared at the start of each step, and at the end
State = dict[str, Tensor]


def covariance() -> Tensor:
    """Return that of one coordinate of a centred chain with correlated bonds of mean square 1/2, (10, 10)."""
    k = torch.arange(BEADS - 1)
    bonds = 0.5 * 0.7 ** (k[:, None] - k).abs()
    sums = torch.tril(torch.ones(BEADS, BEADS - 1), -1)
    centre = torch.eye(BEADS) - 1 / BEADS
    return centre @ sums @ bonds @ sums.T @ centre


CHAIN = covariance()


def clean_prediction(x: Tensor, t: int) -> Tensor:
    """Return E[clean | x] at step t, (n, 10, 2)."""
    signal = SIGNAL[t]
    gain = signal.sqrt() * CHAIN @ torch.linalg.inv(signal * CHAIN + (1 - signal + 1e-6) * torch.eye(BEADS))
    return gain @ x


@dataclass(frozen=True)
class Diffusion:
    """DDIM over pairs of the noisy chain and the clean one that is predicted from it."""

    n_steps: int = STEPS
    dtype: torch.dtype = torch.float32

    def start(self, noise: Any) -> State:
        """Draw noise, (n, 10, 2)."""
        x = noise.start((BEADS, 2))
        return {"x": x, "clean": x}

    def step(self, state: State, t: int, noise: Any) -> State:
        """Move towards the clean chain that the corrector returned, and predict the next one."""
        x, clean = state["x"], state["clean"]
        if t > 0:
            now, after = SIGNAL[t - 1], SIGNAL[t]
            direction = (x - now.sqrt() * clean) / (1 - now).sqrt()
            x = after.sqrt() * clean + (1 - after).sqrt() * direction
        return {"x": x, "clean": clean_prediction(x, t)}


def distances(chain: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lengths of bonds, (n, 9), and the distances of all other pairs, (n, 36)."""
    i, j = torch.triu_indices(BEADS, BEADS, 1)
    apart = (chain[:, i] - chain[:, j]).square().sum(dim=2).clamp(min=1e-9).sqrt()
    return apart[:, j - i == 1], apart[:, j - i > 1]


def energy(chain: Tensor) -> Tensor:
    """Return the squares of how far bonds are from 1 and of how far other pairs are below 0.7, summed, (n,)."""
    bonds, others = distances(chain)
    return (bonds - 1).square().sum(dim=1) + (0.7 - others).clamp(min=0).square().sum(dim=1)


def invalid(state: State) -> Tensor:
    """Return 1 for chains with a wrong bond or a clash, (n,)."""
    bonds, others = distances(state["clean"])
    return (((bonds - 1).abs() > 0.2).any(dim=1) | (others < 0.5).any(dim=1)).float()


def energy_descent(energy: Callable[[Tensor], Tensor], steps: int, step_size: float) -> tt.Constraint:
    """Make a correction of a few gradient steps on the clean chain; its defect is the energy."""

    def descend(state: State) -> State:
        clean = state["clean"].detach()
        for _ in range(steps):
            with torch.enable_grad():
                y = clean.clone().requires_grad_()
                clean = clean - step_size * torch.autograd.grad(energy(y).sum(), y)[0]
        return {"x": state["x"], "clean": clean}

    return tt.as_constraint(descend, lambda state: energy(state["clean"]), is_projection=False)


def main() -> None:
    """Compare four timings of the same correction, and none."""
    potentials = energy_descent(energy, steps=10, step_size=0.2)
    held_out, fresh = (tt.Problem(Diffusion(), potentials, seeds) for seeds in (range(5000, 5256), range(1000)))
    raced = tt.calibrate(held_out, BUDGET, quality=invalid, closing="none")
    schedules = {
        "never": tt.Terminal(),
        "every step": tt.Stepwise(),
        "last quarter": tt.schedules.Window(STEPS - BUDGET, STEPS),
        "even spacing": tt.Periodic(BUDGET),
        "race by quality": raced.at(BUDGET),
    }
    print(f"{'schedule':<17}{'corrections':>12}{'valid':>8}")
    for name, schedule in schedules.items():
        run = fresh.rollout(schedule, closing="none")
        print(f"{name:<17}{float(run.spent.double().mean()):>12.1f}{1 - float(invalid(run.final).mean()):>8.3f}")


if __name__ == "__main__":
    main()
