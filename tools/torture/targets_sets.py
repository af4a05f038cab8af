"""Bad arguments and states for constraints: rotations, poses, frames, surfaces, products, obstacles and programs."""

from __future__ import annotations

import math
import random
from importlib.util import find_spec
from typing import Any

import torch

from torture.spoil import Targets, spoil
from torture.values import (
    N,
    Thing,
    above_zero,
    but_none,
    function,
    level,
    no_tensor,
    not_a_number,
    one_of,
    whole,
    word,
)
from trimtab import constraints as sets

DISC = sets.Obstacles(torch.tensor([[0.0, 0.0, 0.3]]))
ENDS = {"start": torch.tensor([-0.9, 0.0]), "goal": torch.tensor([0.9, 0.0])}


def states(*event: int) -> Any:
    """What are no N states of this shape; numbers that are none are the corrector's to refuse."""
    return no_tensor((N, *event), numbers=False)


def avoid(**changes: Any) -> Any:
    """Trajectories around a disc."""
    return sets.AvoidObstacles(**{"obstacles": DISC, **ENDS} | changes).project(torch.rand(N, 2, 8) - 0.5)


def corners(r: random.Random) -> Any:
    """What are no circles."""
    wrong = [torch.tensor([[0.0, 0.0, -0.3]]), torch.zeros(1, 3), torch.rand(3), torch.ones(1, 3).long()]
    return r.choice([*wrong, torch.tensor([[0.0, math.nan, 0.3]]), torch.rand(2, 4), "x", None, 3, Thing(), [["a"]]])


def boxes(r: random.Random) -> Any:
    """What are no boxes."""
    wrong = [torch.tensor([[0.5, 0.5, 0.4, 0.6]]), torch.rand(4), torch.rand(2, 3), torch.ones(1, 4).long()]
    return r.choice([*wrong, torch.tensor([[0.0, 0.0, math.inf, 1.0]]), "x", None, 3, Thing(), [["a"]]])


def end(r: random.Random) -> Any:
    """What is no beginning of a trajectory."""
    wrong = [torch.zeros(2), torch.tensor([3.0, 0.0]), torch.rand(3), torch.rand(N, 3), torch.tensor([math.nan, 0.0])]
    return r.choice([*wrong, torch.tensor([1, 1]), torch.rand(N, 2) * 0, "x", None, 3, [0.5, 0.5], Thing()])


def parts(r: random.Random) -> Any:
    """What are no parts of a state."""
    ball = sets.Ball()
    overlap = (sets.Part(0, 2, ball), sets.Part(1, 3, ball))
    return r.choice([overlap, (ball,), (3,), "x", None, 3, Thing(), [None], {"a": 1}, ()])


def part(**changes: Any) -> Any:
    """A product of one part."""
    made = sets.Part(**{"start": 0, "stop": 2, "constraint": sets.Ball()} | changes)
    return sets.Product((made,)).project(torch.rand(N, 3))


def shape(r: random.Random) -> Any:
    """What is no shape of two numbers."""
    return r.choice([(3,), (2, 2), (-1,), (0,), "x", 3, (1.5,), ("a",), Thing(), (None,), {}])


def answer(r: random.Random) -> Any:
    """What is no answer of a function of N states with one number each."""
    return r.choice([torch.rand(N + 1), torch.rand(N, 3), "x", None, 3.0, [1.0], Thing(), torch.ones(N).long()])


def data(r: random.Random) -> Any:
    """What are no data of N samples."""
    return r.choice(["x", 3, None, (1,), ("a",), torch.rand(N), (torch.rand(N + 1),), (torch.rand(()),), Thing(), {}])


def values(r: random.Random) -> Any:
    """What no function of equations returns."""
    return r.choice(["x", None, 3.0, torch.rand(2, 2), [1.0], Thing(), torch.rand(())])


def positive_or_none(r: random.Random) -> Any:
    """Neither None nor a finite number above 0."""
    return but_none(above_zero(r))


def solved(kind: Any, **changes: Any) -> Any:
    """Onto a circle, or the disc in it."""
    given = {"function" if kind is sets.NonlinearEquality else "inequalities": lambda y, *own: (y * y).sum()[None] - 1}
    return kind(**given | changes).project(torch.rand(N, 3) + 1)


def _program(r: random.Random) -> Any:
    return r.choice([lambda y, p: 3, lambda y, p: ("x", "y"), lambda y, p: None, lambda y, p: ([], []), function(r)])


def program(**changes: Any) -> Any:
    """A disc, by IPOPT."""
    given: dict[str, Any] = {"conditions": lambda y, p: ([y[0] ** 2 + y[1] ** 2 - 1], [])}
    return sets.NonlinearProgram(**given | changes).project(torch.rand(N, 2))


def bounds(r: random.Random) -> Any:
    """What are no bounds of two numbers."""
    low, high = torch.zeros(2), torch.ones(2)
    wrong = [(high, low), (low,), (low, torch.ones(3)), (torch.zeros(3), torch.ones(3)), (low * math.nan, high)]
    return r.choice([*wrong, (0.0, 1.0), "x", 3, low, (None, None), Thing(), {}])


def centre(r: random.Random) -> Any:
    """What is no centre in R^3."""
    return r.choice([torch.rand(2), torch.rand(3, 3), torch.tensor([math.nan, 0.0, 0.0]), "x", 3, [0.0], Thing()])


POINTS = torch.rand(N, 3)

TARGETS: Targets = {
    **spoil("SO3", lambda x: sets.SO3().project(x), x=states(3, 3)),
    **spoil("SO3.defect", lambda x: sets.SO3().defect(x), x=states(3, 3)),
    **spoil("SO3.improve", lambda x: sets.SO3().improve(x), x=states(3, 3)),
    **spoil("SE3", lambda **c: sets.SE3(**c).defect(torch.rand(N, 3, 4)),
            alpha=lambda r: r.choice([math.inf, level(r)]), translation=lambda r: but_none(function(r))),
    **spoil("SE3.project", lambda x: sets.SE3(sets.Ball()).project(x), x=states(3, 4)),
    **spoil("SE3.defect", lambda x: sets.SE3(sets.Ball()).defect(x), x=states(3, 4)),
    **spoil("SE3.improve", lambda x: sets.SE3(sets.Ball()).improve(x), x=states(3, 4)),
    **spoil("Stiefel", lambda x: sets.Stiefel().project(x),
            x=lambda r: r.choice([torch.rand(N, 2, 3), torch.rand(N, 3), states(3, 2)(r)])),
    **spoil("Stiefel.defect", lambda x: sets.Stiefel().defect(x), x=lambda r: r.choice([torch.rand(N, 3), "x", None])),
    **spoil("Surface", lambda **c: sets.Surface(**c).project(POINTS), height=function),
    **spoil("Surface.project", lambda x: sets.Surface(lambda u, v: u * v).project(x), x=states(3)),
    **spoil("Surface.defect", lambda x: sets.Surface(lambda u, v: u * v).defect(x), x=states(3)),
    **spoil("Surface", lambda answer: sets.Surface(lambda u, v: answer).project(POINTS), answer=answer),
    **spoil("Product", lambda parts: sets.Product(parts).project(POINTS), parts=parts),
    **spoil("Product.project", lambda x: sets.Product((sets.Part(0, 3, sets.Ball()),)).project(x),
            x=lambda r: r.choice([torch.rand(N, 2), "x", None, 3, torch.rand(()), torch.ones(N, 3).long()])),
    **spoil("Part", part, start=one_of(-1, 2, 1.5, "x", None, True, Thing()), stop=one_of(0, -1, 4, 1.5, "x", None, Thing()),
            constraint=function, shape=shape, weight=lambda r: r.choice([math.inf, level(r)])),
    **spoil("Obstacles", lambda **c: sets.Obstacles(**{"circles": torch.zeros(0, 3)} | c), circles=corners, boxes=boxes),
    **spoil("AvoidObstacles", avoid, obstacles=function, start=end, goal=end, backend=word, tolerance=above_zero,
            effort=lambda r: function(r), workers=lambda r: r.choice([-1, 1.5, not_a_number(r)]),
            defect_counts_outside=one_of("x", 3, None, [], Thing())),
    **spoil("AvoidObstacles.project", lambda x: sets.AvoidObstacles(DISC, **ENDS).project(x),
            x=lambda r: r.choice([torch.rand(N, 1, 8), torch.rand(N, 2, 1), torch.rand(N, 2), "x", None, 3, torch.ones(N, 2, 8).long()])),
    **spoil("AvoidObstacles.defect", lambda x: sets.AvoidObstacles(DISC, **ENDS).defect(x),
            x=lambda r: r.choice([torch.rand(N, 1, 8), torch.rand(N, 2, 1), torch.rand(N, 2), "x", None, 3, torch.ones(N, 2, 8).long()])),
    **spoil("NonlinearEquality", lambda **c: solved(sets.NonlinearEquality, **c), function=function, data=data,
            tolerance=positive_or_none, max_iterations=whole, refinements=lambda r: whole(r) or -1, nearness=lambda r: r.choice([math.inf, level(r)]),
            jacobian=word, vectorised=one_of("x", 3, None, Thing()), batched=one_of("x", 3, None, Thing())),
    **spoil("NonlinearEquality's", lambda answer: solved(sets.NonlinearEquality, function=lambda y: answer), answer=values),
    **spoil("NonlinearEquality.project", lambda x: sets.NonlinearEquality(lambda y: y[:1]).project(x), x=lambda r: r.choice(["x", None, 3, torch.rand(3), torch.ones(N, 3).long()])),
    **spoil("NonlinearInequality", lambda **c: solved(sets.NonlinearInequality, **c), inequalities=function,
            equations=lambda r: but_none(function(r)), data=data, tolerance=positive_or_none, max_iterations=whole, nearness=lambda r: r.choice([math.inf, level(r)])),
    **spoil("NonlinearInequality's", lambda answer: solved(sets.NonlinearInequality, inequalities=lambda y: answer), answer=values),
    **spoil("Ball", lambda **c: sets.Ball(**c).project(POINTS), centre=centre),
    **spoil("Ball.project", lambda x: sets.Ball().project(x), x=lambda r: r.choice(["x", None, 3, torch.rand(3), torch.ones(N, 3).long()])),
    **spoil("Sphere", lambda **c: sets.Sphere(**c).project(POINTS), centre=centre),
    **spoil("Sphere.project", lambda x: sets.Sphere().project(x), x=lambda r: r.choice(["x", None, 3, torch.rand(3), torch.ones(N, 3).long()])),
    **spoil("Box", lambda **c: sets.Box(**{"low": 0.0, "high": 1.0} | c).project(POINTS),
            high=one_of(-1.0, math.nan, "x", Thing(), [], {}, torch.rand(2))),
    **spoil("Simplex", lambda **c: sets.Simplex(**c).project(POINTS), total=above_zero),
    **spoil("AffineEquality", lambda **c: sets.AffineEquality(**{"A": torch.rand(2, 3), "b": torch.rand(2)} | c).project(POINTS),
            b=one_of(torch.rand(3), torch.rand(2, 2, 2), "x", None, torch.tensor([math.nan, 1.0]), Thing())),
    **(spoil("NonlinearProgram", program, conditions=_program, parameters=one_of(torch.rand(2), torch.rand(N + 1, 2), "x", 3, [1.0], Thing()),
             tolerance=above_zero, max_iterations=whole, workers=lambda r: r.choice([-1, 1.5, not_a_number(r)]), bounds=bounds)
       if find_spec("casadi") else {}),
}  # fmt: skip
"""Every set of `trimtab.constraints`, its states among what is spoiled."""
