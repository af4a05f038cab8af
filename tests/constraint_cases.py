"""Every ready constraint with states to project, for the laws; those of the lab too, where its tests are."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

from constraint_case import Case, N, numbers
from trimtab.constraints import (
    SE3,
    SO3,
    AffineEquality,
    Ball,
    Box,
    HalfSpaces,
    NonlinearEquality,
    NonlinearInequality,
    NonlinearProgram,
    Part,
    Product,
    Simplex,
    Sphere,
    Stiefel,
    Surface,
    Together,
)


def torus(y: Tensor) -> Tensor:
    return torch.stack([(y[0] ** 2 + y[1] ** 2).sqrt() - 2, y[2] - 0.3 * (y[0] * y[1]).sin()])


def weighted_sum(y: Tensor, weight: Tensor, total: Tensor) -> Tensor:
    return ((weight * y**3).sum() - total)[None]


def beyond_disc(y: Tensor, p: Tensor) -> Tensor:
    return (1 - (y[0] - p[0]) ** 2 - (y[1] - p[1]) ** 2)[None]


def on_parabola(y: Tensor, p: Tensor) -> Tensor:
    return (y[2] - y[1] ** 2)[None]


def outside_disc(y, p):
    """CasADi conditions: outside a disc around p, on a parabola in the last two coordinates."""
    return [1 - (y[0] - p[0]) ** 2 - (y[1] - p[1]) ** 2], [y[2] - y[1] ** 2]


NEEDS_DAQP = ("half-spaces", "many half-spaces", "half-spaces, b of each sample", "product of solvers")
CASES: dict[str, Case] = {
    "affine": Case(lambda: AffineEquality(numbers(3, 7), numbers(3, seed=1)), (7,)),
    "affine, repeated rows": Case(lambda: AffineEquality(torch.ones(2, 7), torch.ones(2)), (7,)),
    "affine, dependent to rounding": Case(  # of float32, in which the rows are given
        lambda: AffineEquality(torch.tensor([[0.1, 0.2, 0.3], [0.7, 0.1, 0.4], [0.8, 0.3, 0.7]]), torch.arange(1.0, 4)),
        (3,),
        1e-6,
    ),
    "affine, b of each sample": Case(lambda: AffineEquality(numbers(2, 6), numbers(N, 2, seed=1)), (2, 3)),
    "box": Case(lambda: Box(-0.5, numbers(5).abs()), (5,), 0.0),
    "half a box": Case(lambda: Box(-torch.inf, 0.3), (2, 2), 0.0),
    "simplex": Case(lambda: Simplex(1.5), (8,)),
    "ball": Case(lambda: Ball(0.7, numbers(4)), (4,)),
    "sphere": Case(lambda: Sphere(2.0, numbers(2, 3)), (2, 3)),
    "half-spaces": Case(lambda: HalfSpaces(numbers(6, 4), 0.2 + numbers(6, seed=1).abs()), (4,), 1e-12),
    "many half-spaces": Case(lambda: HalfSpaces(numbers(30, 3), 0.2 + numbers(30, seed=1).abs()), (3,), 1e-12),
    "half-spaces, b of each sample": Case(
        lambda: HalfSpaces(numbers(5, 4), 0.2 + numbers(N, 5, seed=1).abs()), (2, 2), 1e-12
    ),
    "so3": Case(SO3, (3, 3)),
    "se3": Case(SE3, (3, 4)),
    "se3 in a workspace": Case(lambda: SE3(Ball(0.5), alpha=2.0), (3, 4)),
    "stiefel": Case(Stiefel, (5, 2)),
    "surface": Case(lambda: Surface(lambda u, v: u.sin() * v), (3,), nearest=False),
    "equations": Case(lambda: NonlinearEquality(torus, tolerance=1e-5), (3,), 1e-5, nearest=False),
    "equations, data of each sample": Case(
        lambda: NonlinearEquality(weighted_sum, (numbers(N, 6).abs() + 0.5, numbers(N, seed=2)), tolerance=1e-5),
        (6,),
        1e-5,
        nearest=False,
    ),
    "equations with one Jacobian": Case(
        lambda: NonlinearEquality(
            weighted_sum,
            (numbers(N, 6).abs() + 0.5, numbers(N, seed=2)),
            tolerance=1e-5,
            refinements=0,
            jacobian=torch.func.jacrev(weighted_sum)(torch.ones(6), torch.ones(6), torch.zeros(())),
        ),
        (6,),
        1e-5,
        nearest=False,
    ),
    "inequalities": Case(
        lambda: NonlinearInequality(beyond_disc, on_parabola, (numbers(N, 2, seed=3),), tolerance=1e-5),
        (3,),
        1e-5,
        nearest=False,
    ),
    "product": Case(
        lambda: Product((Part(0, 9, SO3(), (3, 3)), Part(10, 13, Sphere(), weight=0.5), Part(13, 15, Box(0.0, 1.0)))),
        (16,),
    ),
    "product of solvers": Case(
        lambda: Product((Part(4, 8, HalfSpaces(numbers(3, 4), numbers(N, 3, seed=1).abs())), Part(0, 3, Simplex()))),
        (8,),
        1e-12,
    ),
}
CASES |= {
    "boxes together": Case(lambda: Together(Box(-0.5, numbers(5).abs()), 3), (3, 5), 0.0),
    "se3 together": Case(lambda: Together(SE3(Ball(0.5), alpha=2.0), 2, "largest"), (2, 3, 4)),
    "equations together": Case(
        lambda: Together(
            NonlinearEquality(
                weighted_sum, (numbers(2 * N, 6).abs() + 0.5, numbers(2 * N, seed=2)), tolerance=1e-5, refinements=0
            ),
            2,
            "largest",
        ),
        (2, 6),
        1e-5,
        nearest=False,
    ),
    "inequalities together": Case(
        lambda: Together(
            NonlinearInequality(beyond_disc, on_parabola, (numbers(2 * N, 2, seed=4),), tolerance=1e-5), 2, "largest"
        ),
        (2, 3),
        1e-5,
        nearest=False,
    ),
}
if find_spec("daqp") is None:
    CASES = {name: case for name, case in CASES.items() if name not in NEEDS_DAQP}
if find_spec("casadi") is not None:
    CASES["program"] = Case(lambda: NonlinearProgram(outside_disc, numbers(N, 2, seed=3)), (3,), 1e-6, nearest=False)
    CASES["program within bounds"] = Case(
        lambda: NonlinearProgram(
            outside_disc,
            numbers(N, 2, seed=3),
            bounds=(torch.tensor([-2.0, -torch.inf, -1.0]), torch.tensor([2.0, torch.inf, 1.0])),
        ),
        (3,),
        1e-6,
        nearest=False,
    )


if find_spec("lab_cases") is not None:  # beside this folder in a checkout with the lab
    from lab_cases import CASES as CASES_OF_THE_LAB

    CASES |= CASES_OF_THE_LAB


def states(case: Case, dtype: torch.dtype = torch.float64, seed: int = 5, scale: float = 1.5) -> Tensor:
    drawn = scale * numbers(N, *case.event, seed=seed) if case.draw is None else case.draw(seed, scale)
    return drawn.to(dtype)
