"""Fisher's reaction–diffusion equation on a grid: its solver and its mass balance.

    u_t = nu u_xx + growth u (1 - u)   on 0 < x < 1, 0 < t < 1,
    -nu u_x = inflow at x = 0,   u_x = 0 at x = 1,   u = initial at t = 0.

Space is cut into `CELLS` finite volumes, time is kept at `TIMES` moments. The diffusive fluxes between cells cancel in
the sum over cells, so whatever nu is, the mass m (mean of the cells) obeys

    m(t) = m(0) + inflow t + growth * integral over (0, t) of mean(u (1 - u)),

which is exact for the finite volumes and nonlinear in u. On the kept moments the integral is a fourth-order rule.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor

from trimtab.core.noise import Noise

__all__ = [
    "CELLS",
    "GROWTH",
    "TIMES",
    "Conditions",
    "cumulative_rule",
    "draw_conditions",
    "mass_imbalance",
    "solve",
]

TIMES = 24
CELLS = 48
GROWTH = 4.0
DIFFUSIVITY = (0.005, 0.05)  # log-uniform
INFLOW = (0.0, 0.1)  # uniform
_PROFILE_MODES = 8
_SUBSTEPS = 10  # of RK4 between kept moments: stable for the largest diffusivity on this grid


@dataclass(frozen=True, eq=False)
class Conditions:
    """What is known of each solution beforehand.

    Attributes:
        initial: The profile at t = 0, (n, CELLS).
        inflow: Through the left end, (n,).
    """

    initial: Tensor = field(metadata={"per_sample": True})
    inflow: Tensor = field(metadata={"per_sample": True})

    def take(self, rows: Tensor) -> Conditions:
        """The conditions of the samples `rows`."""
        return Conditions(self.initial[rows], self.inflow[rows])


def draw_conditions(noise: Noise, stream: int = 0) -> tuple[Conditions, Tensor]:
    """Random conditions and diffusivities, a function of each sample's seed.

    Args:
        noise: Of n samples.
        stream: Tells these draws from others of the same seeds; streams `stream` to `stream + 2` are used.

    Returns:
        The conditions, and nu, (n,).
    """
    normal = noise.normal(-1, (_PROFILE_MODES,), stream)
    mode = torch.arange(_PROFILE_MODES, dtype=noise.dtype, device=normal.device)
    x = (torch.arange(CELLS, dtype=noise.dtype, device=normal.device) + 0.5) / CELLS
    waves = torch.cos(torch.pi * mode[:, None] * x) / (1 + mode[:, None] / 2)
    initial = torch.sigmoid(1.8 * (normal @ waves) - 1.5)
    inflow = INFLOW[0] + (INFLOW[1] - INFLOW[0]) * noise.uniform(-1, (), stream + 1)
    low, high = DIFFUSIVITY
    nu = low * (high / low) ** noise.uniform(-1, (), stream + 2)
    return Conditions(initial, inflow), nu


def solve(conditions: Conditions, nu: Tensor, *, refine: int = 1) -> Tensor:
    """Solve the equation by finite volumes and classical Runge–Kutta.

    Args:
        conditions: Of n samples.
        nu: Diffusivities, (n,).
        refine: Cut every cell into this many (the initial profile constant on them) and shorten the time steps to
            match; the answer is averaged back. For checking the grid.

    Returns:
        (n, TIMES, CELLS), the profile at t = 0 first.
    """
    u = conditions.initial.repeat_interleave(refine, dim=1)
    cells = CELLS * refine
    substeps = _SUBSTEPS * refine**2
    dt = 1 / (TIMES - 1) / substeps
    conduct = nu[:, None] * cells**2
    inflow = conditions.inflow * cells

    def rate(u: Tensor) -> Tensor:
        out = GROWTH * u * (1 - u)
        flux = conduct * u.diff(dim=1)
        out[:, :-1] += flux
        out[:, 1:] -= flux
        out[:, 0] += inflow
        return out

    kept = [conditions.initial]
    for _ in range(TIMES - 1):
        for _ in range(substeps):
            k1 = rate(u)
            k2 = rate(u + dt / 2 * k1)
            k3 = rate(u + dt / 2 * k2)
            k4 = rate(u + dt * k3)
            u = u + dt / 6 * (k1 + 2 * (k2 + k3) + k4)
        kept.append(u.reshape(-1, CELLS, refine).mean(dim=2))
    return torch.stack(kept, dim=1)


@cache
def cumulative_rule() -> Tensor:
    """Weights of the integral from 0 to each moment, (TIMES, TIMES) float64: cubic interpolation, row 0 is zero.

    Example:
        >>> t = torch.linspace(0, 1, TIMES, dtype=torch.float64)
        >>> bool((cumulative_rule() @ t**3 - t**4 / 4).abs().max() < 1e-14)
        True
    """
    interval = torch.zeros(TIMES - 1, TIMES, dtype=torch.float64)
    for k in range(1, TIMES - 2):
        interval[k, k - 1 : k + 3] = torch.tensor([-1.0, 13.0, 13.0, -1.0], dtype=torch.float64)
    interval[0, :4] = torch.tensor([9.0, 19.0, -5.0, 1.0], dtype=torch.float64)
    interval[-1, -4:] = interval[0, :4].flip(0)
    rule = torch.zeros(TIMES, TIMES, dtype=torch.float64)
    rule[1:] = interval.cumsum(dim=0) / 24 / (TIMES - 1)
    return rule


def mass_imbalance(u: Tensor, conditions: Conditions) -> Tensor:
    """How much mass each moment has too much, counted from the given profile: (n, TIMES, CELLS) to (n, TIMES - 1)."""
    rule = cumulative_rule().to(u)[1:]
    t = torch.linspace(0, 1, TIMES, dtype=u.dtype, device=u.device)[1:]
    reaction = (u * (1 - u)).mean(dim=2)
    expected = conditions.initial.mean(dim=1)[:, None] + conditions.inflow[:, None] * t + GROWTH * reaction @ rule.T
    return u[:, 1:].mean(dim=2) - expected
