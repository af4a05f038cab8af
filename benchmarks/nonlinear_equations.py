"""Projecting onto nonlinear equations: 39 equations in 384 unknowns, an initial profile and a law of mass.

The field has 24 moments of 16 cells. 16 equations fix the profile at the first moment; 23 say that the mass at each
later moment is that of the profile, what flowed in, and what a reaction made in between, which is quadratic in the
field. The peer is Gauss-Newton with a dense Jacobian under `vmap`. "Ours" is without refinements, "nearest" is the
default, which checks how near the solution is, and "chord" has one Jacobian for all samples and iterations. All sides
stop at the same norm of the equations; times are processor times of one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from _compare import compare
from trimtab.constraints import NonlinearEquality

TIMES, CELLS, GROWTH = 24, 16, 2.0


def equations(u: Tensor, initial: Tensor, inflow: Tensor) -> Tensor:
    """The initial profile and the balance of mass at all later moments, (24, 16) to (39,)."""
    t = torch.linspace(0, 1, TIMES, dtype=u.dtype)
    rate = (u * (1 - u)).mean(dim=1)
    made = torch.cumsum((rate[1:] + rate[:-1]) / 2, dim=0) / (TIMES - 1)
    mass = u.mean(dim=1)
    return torch.cat([u[0] - initial, mass[1:] - initial.mean() - inflow * t[1:] - GROWTH * made])


def plain_step(u: Tensor, initial: Tensor, inflow: Tensor) -> tuple[Tensor, Tensor]:
    """One step of Gauss-Newton for one sample, and the norm of the equations before it."""
    g = equations(u, initial, inflow)
    jacobian = torch.func.jacrev(equations)(u, initial, inflow).flatten(1)
    step = jacobian.T @ torch.linalg.solve(jacobian @ jacobian.T, g)
    return u - step.reshape(u.shape), g.norm()


def vmapped(x: Tensor, initial: Tensor, inflow: Tensor, tolerance: float) -> Tensor:
    step, norm = torch.func.vmap(plain_step), torch.func.vmap(lambda *a: equations(*a).norm())
    for _ in range(30):
        if float(norm(x, initial, inflow).max()) <= tolerance:
            break
        x, _ = step(x, initial, inflow)
    return x


def sides(n: int, dtype: torch.dtype) -> dict[str, Callable[[], Any]]:
    generator = torch.Generator().manual_seed(0)
    initial = torch.rand(n, CELLS, generator=generator, dtype=torch.float64).to(dtype)
    inflow = 0.1 * torch.rand(n, generator=generator, dtype=torch.float64).to(dtype)
    x = (0.5 + 0.3 * torch.randn(n, TIMES, CELLS, generator=generator, dtype=torch.float64)).to(dtype)
    tolerance = 1e-8 if dtype == torch.float64 else 1e-5
    data = (initial, inflow)
    ours = NonlinearEquality(equations, data, refinements=0)
    nearest = NonlinearEquality(equations, data)
    # a typical solution, at which one Jacobian serves all samples
    typical = nearest.project(torch.full_like(x, 0.5)).x.mean(dim=0)
    chord = NonlinearEquality(
        equations,
        data,
        refinements=0,
        jacobian=torch.func.jacrev(equations)(typical, *(each.mean(dim=0) for each in data)).flatten(1),
    )
    found = {
        "ours": partial(ours.project, x),
        "ours, nearest": partial(nearest.project, x),
        "ours, chord": partial(chord.project, x),
        "vmapped": partial(vmapped, x, *data, tolerance),
    }
    peer = (found["vmapped"]() - x).flatten(1).norm(dim=1)
    for name in ("ours", "ours, nearest", "ours, chord"):
        answer = found[name]()
        assert bool(answer.converged.all()), name
        # a frozen Jacobian finds another solution, a little farther away
        farther = (answer.x - x).flatten(1).norm(dim=1) / peer
        assert float(farther.max()) <= (1.2 if "chord" in name else 1.01), name
    return found


def torus(y: Tensor) -> Tensor:
    """Two equations in three unknowns, for one sample."""
    return torch.stack([(y[0] ** 2 + y[1] ** 2).sqrt() - 2, y[2] - 0.3 * (y[0] * y[1]).sin()])


def small(repeats: int) -> dict[str, Any]:
    """Time a system whose Jacobian costs next to nothing: what is left is the cost of calls."""

    def step(y: Tensor) -> Tensor:
        g, jacobian = torus(y), torch.func.jacrev(torus)(y)
        return y - jacobian.T @ torch.linalg.solve(jacobian @ jacobian.T, g)

    def vmapped(y: Tensor) -> Tensor:
        move, norm = torch.func.vmap(step), torch.func.vmap(lambda y: torus(y).norm())
        for _ in range(30):
            if float(norm(y).max()) <= 1e-8:
                break
            y = move(y)
        return y

    x = 2 * torch.randn(64, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ours = NonlinearEquality(torus, refinements=0)
    timing = compare({"ours": partial(ours.project, x), "vmapped": partial(vmapped, x)}, repeats, one_thread=True)
    inputs = "64 samples, 2 equations, 3 unknowns, float64; ours searches along each step, the peer does not"
    return timing.row("projecting onto small equations: ours", of="vmapped", over="ours", inputs=inputs)


def run(quick: bool) -> list[dict[str, Any]]:
    rows = []
    for n, dtype in ((4, torch.float64),) if quick else ((32, torch.float64), (32, torch.float32), (1, torch.float64)):
        timing = compare(sides(n, dtype), 3 if quick else 15, one_thread=True)
        inputs = f"{n} samples, 39 equations, 384 unknowns, {str(dtype).removeprefix('torch.')}"
        for mine in ("ours", "ours, nearest", "ours, chord"):
            goal = ">= 2.5" if n == 32 and dtype == torch.float64 and mine == "ours" else ""
            claim = f"projecting onto nonlinear equations: {mine}"
            rows.append(timing.row(claim, of="vmapped", over=mine, target=goal, inputs=inputs))
    return [*rows, small(3 if quick else 15)]
