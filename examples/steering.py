"""Steering potentials: gradient steps on bonds and clashes, at every denoising step or at a quarter of them.

Chains of ten beads are drawn by DDIM with the clean prediction of a perfect Gaussian model, which knows how chains
bend but not that bonds have a length and beads a size. A correction is ten gradient steps on an energy of the clean
prediction. The table shows the share of valid chains: all bonds within 20% of 1, and no clash.

These corrections end on no feasible set. Path error must not choose their steps, and a corrector or `calibrate` that is
asked for such prices warns. The step size is chosen on other seeds than those of the table. The last two rows have one
corrector and one schedule per potential, and lose: what one potential moves, the other does not see.

Run it: `python examples/steering.py`
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import trimtab as tt
from trimtab.constraints import EnergyDescent
from trimtab.core.noise import Noise
from trimtab.schedules import Window

STEPS, BEADS, BUDGET = 40, 10, 10
TUNING, FRESH = range(20_000, 20_256), range(30_000, 32_000)
SIGNAL = torch.linspace(0.01, 1.0, STEPS + 1) ** 2  # alpha squared at the start of each step, and at the end
Energy = Callable[[Tensor], Tensor]


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
    """DDIM over pairs of the noisy chain and the clean one that is predicted from it, (n, 2, 10, 2)."""

    n_steps: int = STEPS
    dtype: torch.dtype = torch.float32

    def start(self, noise: Any) -> Tensor:
        """Draw noise."""
        x = noise.start((BEADS, 2))
        return torch.stack([x, x], dim=1)

    def step(self, pair: Tensor, t: int, noise: Any = None) -> Tensor:
        """Move towards the clean chain that the corrector returned, and predict the next one."""
        x, clean = pair.unbind(dim=1)
        if t > 0:
            now, after = SIGNAL[t - 1], SIGNAL[t]
            direction = (x - now.sqrt() * clean) / (1 - now).sqrt()
            x = after.sqrt() * clean + (1 - after).sqrt() * direction
        return torch.stack([x, clean_prediction(x, t)], dim=1)


def distances(pair: Tensor) -> tuple[Tensor, Tensor]:
    """Return the clean chain's lengths of bonds, (n, 9), and the distances of all other pairs of beads, (n, 36)."""
    i, j = torch.triu_indices(BEADS, BEADS, 1)
    apart = (pair[:, 1, i] - pair[:, 1, j]).square().sum(dim=2).clamp(min=1e-9).sqrt()
    return apart[:, j - i == 1], apart[:, j - i > 1]


def bond_energy(pair: Tensor) -> Tensor:
    """Return the squares of how far bonds are from 1, summed, (n,)."""
    return (distances(pair)[0] - 1).square().sum(dim=1)


def clash_energy(pair: Tensor) -> Tensor:
    """Return the squares of how far other pairs are below 0.7, summed, (n,)."""
    return (0.7 - distances(pair)[1]).clamp(min=0).square().sum(dim=1)


def both_energies(pair: Tensor) -> Tensor:
    """Return the sum of the two, (n,)."""
    return bond_energy(pair) + clash_energy(pair)


def invalid(pair: Tensor) -> Tensor:
    """Return 1 for chains with a wrong bond or a clash, (n,)."""
    bonds, others = distances(pair)
    return (((bonds - 1).abs() > 0.2).any(dim=1) | (others < 0.5).any(dim=1)).float()


def steered(schedules: dict[Energy, tt.Schedule], seeds: range, step_size: float) -> tuple[float, float]:
    """Run one loop with a corrector per potential, each on its own schedule.

    Returns the share of valid chains, and the gradient steps per potential.
    """
    correctors = [
        tt.Corrector(EnergyDescent(energy, 10, step_size), schedule, STEPS, closing="none")
        for energy, schedule in schedules.items()
    ]
    pair = Diffusion().start(Noise(torch.tensor(seeds), torch.float32))
    for t in range(STEPS):
        pair = Diffusion().step(pair, t)
        for corrector in correctors:
            pair = corrector(pair, t)
    spent = sum(float(corrector.rollout.spent.double().mean()) for corrector in correctors)
    return 1 - float(invalid(pair).mean()), 10 * spent / len(correctors)


def main() -> None:
    """Choose on some seeds, and compare on others."""
    last = Window(STEPS - BUDGET, STEPS)
    size = max((0.1, 0.2), key=lambda size: steered({both_energies: tt.Stepwise()}, TUNING, size)[0])
    ways: dict[str, dict[Energy, tt.Schedule]] = {
        "never": {both_energies: tt.Terminal()},
        "every step": {both_energies: tt.Stepwise()},
        "even spacing": {both_energies: tt.Periodic(BUDGET)},
        "last quarter": {both_energies: last},
        "last quarter, apart": {clash_energy: last, bond_energy: last},
        "even clashes, last bonds": {clash_energy: tt.Periodic(BUDGET), bond_energy: last},
    }
    print(f"step size {size}\n{'schedule':<26}{'gradient steps':>15}{'valid':>8}")
    for name, schedules in ways.items():
        valid, spent = steered(schedules, FRESH, size)
        print(f"{name:<26}{spent:>15.0f}{valid:>8.3f}")


if __name__ == "__main__":
    main()
