"""Projecting onto nonlinear equations: 39 equations in 384 unknowns, an initial profile and a law of mass.

The field has 24 moments of 16 cells. 16 equations fix the profile at the first moment; 23 say that the mass at each
later moment is that of the profile, what flowed in, and what a reaction made in between, which is quadratic in the
field. The peers are Gauss-Newton with a dense Jacobian as people write it, sample by sample and under `vmap`. "Ours" is
without refinements, "nearest" the default, which checks how near the solution is; "batched" is given the equations as a
function of the whole batch. All sides stop at the same norm of the equations; times are processor times of one thread.
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


def of_a_batch(u: Tensor, initial: Tensor, inflow: Tensor) -> Tensor:
    """The same for all samples at once, as one would write it by hand, (n, 24, 16) to (n, 39)."""
    t = torch.linspace(0, 1, TIMES, dtype=u.dtype)
    rate = (u * (1 - u)).mean(dim=2)
    made = torch.cumsum((rate[:, 1:] + rate[:, :-1]) / 2, dim=1) / (TIMES - 1)
    due = initial.mean(dim=1, keepdim=True) + inflow[:, None] * t[1:] + GROWTH * made
    return torch.cat([u[:, 0] - initial, u.mean(dim=2)[:, 1:] - due], dim=1)


def plain_step(u: Tensor, initial: Tensor, inflow: Tensor) -> tuple[Tensor, Tensor]:
    """One step of Gauss-Newton for one sample, and the norm of the equations before it."""
    g = equations(u, initial, inflow)
    jacobian = torch.func.jacrev(equations)(u, initial, inflow).flatten(1)
    step = jacobian.T @ torch.linalg.solve(jacobian @ jacobian.T, g)
    return u - step.reshape(u.shape), g.norm()


def looped(x: Tensor, initial: Tensor, inflow: Tensor, tolerance: float) -> Tensor:
    answers = []
    for u, *data in zip(x, initial, inflow, strict=True):
        for _ in range(30):
            if float(equations(u, *data).norm()) <= tolerance:
                break
            u, _ = plain_step(u, *data)
        answers.append(u)
    return torch.stack(answers)


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
    # a typical solution, where one Jacobian serves all samples best: nothing is known of the states but their middle
    typical = nearest.project(torch.full_like(x, 0.5)).x.mean(dim=0)
    frozen = partial(
        NonlinearEquality,
        data=data,
        refinements=0,
        jacobian=torch.func.jacrev(equations)(typical, *(each.mean(dim=0) for each in data)).flatten(1),
    )
    chord, batched = frozen(equations), frozen(of_a_batch, batched=True)
    found = {
        "ours": partial(ours.project, x),
        "ours, chord": partial(chord.project, x),
        "ours, chord, batched": partial(batched.project, x),
        "ours, nearest": partial(nearest.project, x),
        "one chord step": partial(chord.improve, x, None),
        "vmapped": partial(vmapped, x, *data, tolerance),
        "looped": partial(looped, x, *data, tolerance),
    }
    for name in ("ours", "ours, chord", "ours, chord, batched", "ours, nearest"):
        answer = found[name]()
        assert bool(answer.converged.all()), name
        distance = (answer.x - x).flatten(1).norm(dim=1)
        peer = (found["vmapped"]() - x).flatten(1).norm(dim=1)
        # a frozen Jacobian solves the equations somewhere else on the set, a little farther off
        assert bool((distance <= (1.2 if "chord" in name else 1.01) * peer).all()), (name, (distance / peer).max())
    return found


def run(quick: bool) -> list[dict[str, Any]]:
    rows = []
    for n, dtype in ((4, torch.float64),) if quick else ((32, torch.float64), (32, torch.float32), (1, torch.float64)):
        ways = sides(n, dtype)
        timing = compare(ways, 3 if quick else 15, one_thread=True)
        inputs = f"{n} samples, 39 equations, 384 unknowns, {str(dtype).removeprefix('torch.')}"
        at_full = n == 32 and dtype == torch.float64
        for mine, peer, target in (
            ("ours", "vmapped", ">= 2"),
            ("ours", "looped", ""),
            ("ours, nearest", "vmapped", ">= 2"),
            ("ours, chord", "vmapped", ">= 10"),
            ("ours, chord, batched", "vmapped", ">= 10"),
            ("one chord step", "vmapped", ""),
        ):
            claim = f"projecting onto nonlinear equations: {mine}"
            goal = target if at_full else ""
            rows.append(timing.row(claim, of=peer, over=mine, target=goal, inputs=inputs) | {"against": peer})
    return rows
