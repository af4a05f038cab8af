"""torchdiffeq's `odeint` with corrections at step ends, never at stages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from trimtab.core.arrays import Form
from trimtab.core.constraint import Constraint
from trimtab.core.corrector import Corrector
from trimtab.core.checks import check_callable, check_number, check_type, missing_extra, unknown
from trimtab.core.record import Rollout
from trimtab.core.schedule import Schedule
from trimtab.core.view import StepView
from trimtab.integrations.options import check_options

try:
    import torchdiffeq
except ImportError as error:
    raise missing_extra("torchdiffeq", "flows", "trimtab.integrations.torchdiffeq") from error

__all__ = ["FIXED", "odeint"]

FIXED = ("euler", "midpoint", "heun2", "heun3", "rk4", "explicit_adams", "implicit_adams", "fixed_adams")
"""Methods with steps known beforehand: T is their number. For the others, T is the number of intervals of `t`."""

ADAPTIVE = ("dopri8", "dopri5", "bosh3", "fehlberg2", "adaptive_heun")
"""Methods that choose their steps as they go."""

KNOWN = (*FIXED, *ADAPTIVE, "scipy_solver")
"""All methods of torchdiffeq."""


def odeint(
    func: Callable[[Tensor, Tensor], Tensor],
    y0: Tensor,
    t: Tensor,
    constraint: Constraint,
    schedule: Schedule | Callable[[StepView], Tensor],
    *,
    rtol: float = 1e-7,
    atol: float = 1e-9,
    method: str = "dopri5",
    options: dict[str, Any] | None = None,
    **corrector: Any,
) -> tuple[Tensor, Rollout]:
    """Integrate as `torchdiffeq.odeint`, with projections on schedule at step ends. One solve is one run.

    A method with fixed steps is called once and corrected at the ends of its own steps (`step_size`,
    `grid_constructor`, or the points of `t`); multistep methods keep their history. An adaptive method chooses its
    steps as it goes, so that their number, T, is not known: it is corrected at the points of `t`, where it begins anew
    with the step size it had. Give it as many points as there shall be occasions to project. No gradient flows through.

    Args:
        func: The velocity, `func(t, y)`.
        y0: Initial states, (n, *event).
        t: Times to report states at, in one direction, (k,).
        constraint: On the states. It may need "time", that of the states, and "previous".
        schedule: When to project.
        rtol: As in torchdiffeq.
        atol: As in torchdiffeq.
        method: Any of torchdiffeq's.
        options: As in torchdiffeq.
        **corrector: Options of `Corrector`: seeds, on_failure, keep_states, dense, on_step, ….

    Returns:
        The states at the times `t`, (k, n, *event), as corrected; between step ends they are interpolated from a
        corrected state to the next proposal. And the record.

    Example:
        >>> import torch, trimtab as tt
        >>> sphere = tt.as_constraint(lambda x: x / x.norm(dim=1, keepdim=True), lambda x: (x.norm(dim=1) - 1).abs())
        >>> x = sphere.project(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        >>> path, record = odeint(lambda t, x: x.flip(1), x, torch.tensor([0.0, 1.0]), sphere, tt.Periodic(2),
        ...                       method="rk4", options={"step_size": 0.1})
        >>> record.n_steps, record.spent.tolist(), bool((path[-1].norm(dim=1) - 1).abs().max() < 1e-6)
        (10, [2, 2], True)
    """
    _check_solve(func, y0, t, method, rtol, atol)
    if options is not None:
        check_type(options, Mapping, "the options of odeint", "as in options={'step_size': 0.1}")  # type: ignore[type-abstract]
    check_options(corrector, "odeint")
    given = dict(options or {})
    func = _Checked(func, y0)
    with torch.no_grad():
        if method in FIXED:
            grid = _grid(func, y0, t, given)
            correct = Corrector(constraint, schedule, len(grid) - 1, **corrector)
            with correct:
                path = _whole(func, y0, t, grid, correct, rtol=rtol, atol=atol, method=method, options=given)
        else:
            correct = Corrector(constraint, schedule, len(t) - 1, **corrector)
            with correct:
                path = _segments(func, y0, t, correct, rtol=rtol, atol=atol, method=method, options=given)
    return path, correct.rollout


def _check_solve(func: Any, y0: Any, t: Any, method: Any, rtol: Any, atol: Any) -> None:
    """Refuse what torchdiffeq could not use, in words of its own or in none."""
    check_callable(func, "func", "func(t, y)")
    if isinstance(y0, tuple | list | dict):
        raise TypeError(
            f"y0 is one tensor, (n, *event): got a {type(y0).__name__}; stack its parts along an event dimension, or "
            "write the loop yourself, with a trimtab.Corrector, which takes trees"
        )
    Form(y0)  # refuses what can be no states
    check_times(t, "t")
    check_solver(method, rtol, atol)


def check_times(t: Any, what: str) -> None:
    """Refuse what are no times of a solve."""
    if not isinstance(t, Tensor) or t.ndim != 1 or len(t) < 2 or not t.is_floating_point():
        got = f"{tuple(t.shape)} of {t.dtype}" if isinstance(t, Tensor) else type(t).__name__
        raise ValueError(f"{what} must be a tensor of at least two floats, (k,): got {got}")
    steps = t.diff()
    if not bool(t.isfinite().all() & ((steps > 0).all() | (steps < 0).all())):
        raise ValueError(f"{what} must be finite and go in one direction: got {t.tolist()[:8]}")


def check_solver(method: Any, rtol: Any, atol: Any) -> None:
    """Refuse methods that are none of torchdiffeq's, and tolerances that are none."""
    if not isinstance(method, str) or method not in KNOWN:
        raise unknown("method of torchdiffeq", method, KNOWN)
    for name, value in (("rtol", rtol), ("atol", atol)):
        if not isinstance(value, Tensor) and check_number(value, name, 0) == math.inf:
            raise ValueError(f"{name} is a finite number of at least 0: got {value!r}")


class _Checked:
    """A velocity whose answers are checked: one for each number of the states, finite or not."""

    def __init__(self, func: Callable[[Tensor, Tensor], Tensor], y0: Tensor) -> None:
        self.func, self.y0 = func, y0

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        v, y0 = self.func(t, y), self.y0
        if not isinstance(v, Tensor) or v.shape != y0.shape or v.dtype != y0.dtype or v.device != y0.device:
            got = f"{tuple(v.shape)} of {v.dtype} on {v.device}" if isinstance(v, Tensor) else type(v).__name__
            raise ValueError(
                f"func(t, y) must return a tensor as the states are, {tuple(y0.shape)} of {y0.dtype} on {y0.device}: "
                f"got {got}"
            )
        return v


def _grid(func: Any, y0: Tensor, t: Tensor, options: dict[str, Any]) -> Tensor:
    """The step ends of a fixed-step method as torchdiffeq would choose them; takes them out of the options."""
    step_size, construct = options.pop("step_size", None), options.pop("grid_constructor", None)
    if step_size is not None and construct is not None:
        raise ValueError("give step_size or grid_constructor, not both")
    if construct is not None:
        check_callable(construct, "grid_constructor", "grid_constructor(func, y0, t)")
        built: Tensor = construct(func, y0, t)
        check_times(built, "what grid_constructor returns")
        if built[0] != t[0] or built[-1] != t[-1]:
            raise ValueError(
                f"what grid_constructor returns must begin and end as t does, at {float(t[0]):g} and {float(t[-1]):g}: "
                f"got {float(built[0]):g} and {float(built[-1]):g}"
            )
        return built
    if step_size is None:
        return t
    if not 0 < (step_size := check_number(step_size, "step_size")) < math.inf:
        raise ValueError(f"step_size is a finite number above 0: got {step_size!r}")
    count = math.ceil(float((t[-1] - t[0]).abs() / step_size + 1))
    grid: Tensor = t[0] + torch.sign(t[-1] - t[0]) * (torch.arange(count, dtype=t.dtype, device=t.device) * step_size)
    grid[-1] = t[-1]
    return grid


class _Field:
    """A velocity whose solver tells when a step begins, and with which state: the end of the step before."""

    def __init__(self, func: Callable[[Tensor, Tensor], Tensor], correct: Corrector) -> None:
        self.func, self.correct = func, correct
        self.began = 0  # steps begun
        self.ends: list[Tensor] = []

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        return self.func(t, y)

    def callback_step(self, t0: Tensor, y0: Tensor, dt: Tensor) -> None:
        """Called by torchdiffeq at the beginning of each step, with the tensor it goes on with."""
        if self.began > 0:  # the first is the caller's own initial state
            y0.copy_(self.correct(y0, self.began - 1, time=t0))
            self.ends.append(y0.clone())
        self.began += 1


def _whole(func: Any, y0: Tensor, t: Tensor, grid: Tensor, correct: Corrector, **solver: Any) -> Tensor:
    field = _Field(func, correct)
    correct.begin(y0)
    solver["options"] = solver["options"] | {"grid_constructor": lambda func, y0, t: grid}
    path: Tensor = torchdiffeq.odeint(field, y0, t, **solver)
    field.ends.append(correct(path[-1].clone(), field.began - 1, time=t[-1]))
    for k, end in enumerate(field.ends, 1):  # torchdiffeq has reported proposals: it is told of corrections later
        path[t == grid[k]] = end
    return path


class _Pacing:
    """A velocity that remembers the step size its solver had come to."""

    def __init__(self, func: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.func = func
        self.dt: Tensor | None = None

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        return self.func(t, y)

    def callback_step(self, t0: Tensor, y0: Tensor, dt: Tensor) -> None:
        """The step size before it is cut short at the end of the segment."""
        self.dt = dt.clone()


def _segments(func: Any, y0: Tensor, t: Tensor, correct: Corrector, **solver: Any) -> Tensor:
    paced = solver["method"] in ADAPTIVE
    given, field = solver.pop("options"), _Pacing(func) if paced else func
    y, path = y0, [y0]
    correct.begin(y0)
    for k in range(len(t) - 1):
        options = dict(given)
        if isinstance(field, _Pacing):
            if field.dt is not None:
                options["first_step"] = field.dt
            options.setdefault("step_t", t[k + 1 : k + 2])  # end the segment with a step, not by interpolation
        proposal = torchdiffeq.odeint(field, y, t[k : k + 2], options=options, **solver)[-1]
        y = correct(proposal, k, time=t[k + 1])
        path.append(y)
    return torch.stack(path)
