"""Fisher's reaction-diffusion equation on a grid: its solver, its mass balance, and the projection onto that balance.

    u_t = nu u_xx + growth u (1 - u)   on 0 < x < 1, 0 < t < 1,
    -nu u_x = inflow at x = 0,   u_x = 0 at x = 1,   u = initial at t = 0.

Space is cut into `CELLS` finite volumes, and the field is kept at `TIMES` times. The diffusive fluxes between cells
cancel in the sum over cells, so the mass m (the mean of the cells) obeys, for every nu,

    m(t) = m(0) + inflow t + growth * integral over (0, t) of mean(u (1 - u)).

This is exact for the finite volumes and nonlinear in u. The integral over the kept times is a rule of fourth order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import torch
from torch import Tensor

from trimtab.constraints.states import check_states, with_settings
from trimtab.core.checks import check_integer, check_positive
from trimtab.core.constraint import Constraint, Improvement, Projection
from trimtab.core.noise import Noise

__all__ = [
    "CELLS",
    "TIMES",
    "Conditions",
    "MassBalance",
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
_SUBSTEPS = 10  # of RK4 between kept times: stable for the largest diffusivity on this grid
_LEAST_CURVATURE = 0.05  # of the Lagrangian; less would let a step run away


@dataclass(frozen=True, eq=False)
class Conditions:
    """What is given of each solution."""

    initial: Tensor  # profile at t = 0, (n, CELLS)
    inflow: Tensor  # inflow through the left end, (n,)

    def take(self, rows: Tensor) -> Conditions:
        """Return the conditions of some samples, a (k,) index tensor."""
        return Conditions(self.initial[rows], self.inflow[rows])


def draw_conditions(noise: Noise, stream: int = 0) -> tuple[Conditions, Tensor]:
    """Draw conditions and diffusivities (n,), which depend on the seed of each sample only.

    The draws use the streams `stream` to `stream + 2` of the noise.
    """
    normal = noise.start((_PROFILE_MODES,), stream)
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
        conditions: The conditions of n samples.
        nu: Diffusivities, (n,).
        refine: Cuts every cell into this many, with shorter time steps, and averages the answer: a check of the grid.

    Returns:
        The fields, (n, TIMES, CELLS), with the profile at t = 0 first.
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
    """Return the weights of the integral from 0 to each time, (TIMES, TIMES) float64, exact for cubics.

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
    """Return the excess of mass at each later time, (n, TIMES, CELLS) to (n, TIMES - 1)."""
    rule = cumulative_rule().to(u)[1:]
    t = torch.linspace(0, 1, TIMES, dtype=u.dtype, device=u.device)[1:]
    reaction = (u * (1 - u)).mean(dim=2)
    expected = conditions.initial.mean(dim=1)[:, None] + conditions.inflow[:, None] * t + GROWTH * reaction @ rule.T
    return u[:, 1:].mean(dim=2) - expected


@dataclass(frozen=True, eq=False)
class MassBalance(Constraint):
    """Fields u, (n, TIMES, CELLS), with the given initial profile and the balance of mass at all later times.

    The projection is a batched Gauss-Newton iteration on the conditions for a nearest point. The balance is quadratic
    in the field and its Hessian is one number for each time, so the iteration can use the curvature as well. Each
    iteration solves one system of TIMES - 1 equations for each sample.
    """

    improves = True

    conditions: Conditions  # profile and the inflow of each sample
    # A projection has converged when the defect and the last change of the field (root mean square) are at most this
    tolerance: float = 1e-6
    max_iterations: int = 50  # number of iterations after which a projection has failed

    def __post_init__(self) -> None:
        """Check the settings."""
        check_positive(self.tolerance, "the tolerance of MassBalance")
        check_integer(self.max_iterations, "the max_iterations of MassBalance")

    def defect(self, u: Tensor) -> Tensor:
        """Return the root mean square of the violations over space and time, (n,).

        An error of the initial profile counts at its cells. A mass that is wrong by c counts as c at all cells of its
        time. Without growth this is exactly the root-mean-square distance to the set.
        """
        conditions = self._conditions(u)
        profile = (u[:, 0] - conditions.initial).square().mean(dim=1)
        mass = mass_imbalance(u, conditions).square().sum(dim=1)
        return ((profile + mass) / TIMES).sqrt()

    def project(self, u: Tensor) -> Projection:
        """Return a nearest field of the set (a stationary one), with the outcome for each sample."""
        conditions = self._conditions(u, torch.float64)
        x = torch.cat([conditions.initial[:, None], u[:, 1:].double()], dim=1)
        answer, rows = x.clone(), torch.arange(len(x), device=x.device)  # `rows` are still iterating
        converged, iterations = torch.zeros_like(rows, dtype=torch.bool), torch.zeros_like(rows)
        target, multiplier = x, x.new_zeros(len(x), TIMES - 1)
        for _ in range(self.max_iterations):
            x, multiplier, done = self._iterate(x, target, multiplier, conditions)
            iterations[rows] += 1
            converged[rows], answer[rows] = done, x
            left = (~done).nonzero().squeeze(1)
            rows, x, target, multiplier = rows[left], x[left], target[left], multiplier[left]
            conditions = conditions.take(left)
            if len(rows) == 0:
                break
        return Projection(answer.to(u.dtype), converged, iterations)

    def improve(self, x: Tensor, state: tuple[Tensor, ...] | None = None, **context: Any) -> Improvement:
        """Do one iteration; the state carries the field to be near to and the multipliers."""
        conditions = self._conditions(x, torch.float64)
        u = torch.cat([conditions.initial[:, None], x[:, 1:].double()], dim=1)
        target, multiplier = (u, u.new_zeros(len(u), TIMES - 1)) if state is None else (p.double() for p in state)
        new, multiplier, done = self._iterate(u, target, multiplier, conditions)
        y = new.to(x.dtype)
        return Improvement(y, self.defect(y), done, (target, multiplier))

    def cheaper(self) -> dict[str, Self]:  # type: ignore[override]  # read, never written
        """Return a variant with a looser tolerance."""
        looser = 100 * self.tolerance
        return {f"a tolerance of {looser:.0e}": with_settings(self, tolerance=looser)}

    def take(self, rows: Tensor) -> Self:
        """Return the constraint of some samples, a (k,) index tensor."""
        return with_settings(self, conditions=self.conditions.take(rows))

    def _conditions(self, u: Tensor, dtype: torch.dtype | None = None) -> Conditions:
        """Check the states, and return the conditions on their device and in their dtype."""
        check_states(u, "MassBalance", (TIMES, CELLS), samples=len(self.conditions.inflow))
        like = u.new_empty(0, dtype=dtype or u.dtype)
        return Conditions(self.conditions.initial.to(like), self.conditions.inflow.to(like))

    def _iterate(
        self, x: Tensor, target: Tensor, multiplier: Tensor, conditions: Conditions
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the next fields, the next multipliers (n, TIMES - 1), and the mask of converged rows, (n,) bool."""
        rule = GROWTH * cumulative_rule().to(x)[1:, 1:]
        u, back = x[:, 1:], (target - x)[:, 1:]
        slope = 1 - 2 * u  # of the reaction
        weight = 1 / (1 + 2 * multiplier @ rule).clamp(min=_LEAST_CURVATURE)  # the inverse Hessian at each time
        cross = rule * (weight * slope.mean(dim=2))[:, None]
        gram = (rule * (weight * slope.square().mean(dim=2))[:, None]) @ rule.T - cross - cross.mT
        gram = gram + torch.diag_embed(weight)
        right = mass_imbalance(x, conditions) + weight * back.mean(dim=2)
        right = right - (weight * (slope * back).mean(dim=2)) @ rule.T
        factor, singular = torch.linalg.cholesky_ex(gram)
        multiplier = torch.cholesky_solve(right[..., None], factor)[..., 0]
        change = weight[..., None] * (back - multiplier[..., None] + (multiplier @ rule)[..., None] * slope)
        moved = change.square().mean(dim=(1, 2))
        usable = (singular == 0) & moved.isfinite()  # other rows stay where they are, and fail in the end
        change = torch.where(usable[:, None, None], change, 0)
        new = torch.cat([x[:, :1], u + change], dim=1)
        left = mass_imbalance(new, conditions).square().sum(dim=1) / TIMES
        done = usable & (torch.maximum(left, moved) <= self.tolerance**2)
        return new, torch.where(usable[:, None], multiplier, 0), done
