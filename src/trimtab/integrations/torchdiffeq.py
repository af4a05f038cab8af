"""torchdiffeq's `odeint` with corrections at the ends of steps, never at stages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from trimtab.core.arrays import Form
from trimtab.core.checks import check_callable, check_number, check_type, missing_extra, unknown
from trimtab.core.constraint import Constraint
from trimtab.core.record import Rollout
from trimtab.integrations.loops import check_options
from trimtab.loop.corrector import Corrector

try:
    import torchdiffeq
except ImportError as error:
    raise missing_extra("torchdiffeq", "flows", "trimtab.integrations.torchdiffeq") from error

__all__ = ["FIXED", "odeint"]

FIXED = ("euler", "midpoint", "heun2", "heun3", "rk4", "explicit_adams", "implicit_adams", "fixed_adams")
"""Methods with steps known in advance: T is their number. For the others, T is the number of intervals of `t`."""

ADAPTIVE = ("dopri8", "dopri5", "bosh3", "fehlberg2", "adaptive_heun")
"""Methods that choose their steps while they run."""


def odeint(
    func: Callable[[Tensor, Tensor], Tensor],
    y0: Tensor,
    t: Tensor,
    constraint: Constraint,
    schedule: Any,
    *,
    rtol: float = 1e-7,
    atol: float = 1e-9,
    method: str = "dopri5",
    options: dict[str, Any] | None = None,
    **corrector: Any,
) -> tuple[Tensor, Rollout]:
    """Integrate as `torchdiffeq.odeint` does, with projections on schedule at the ends of steps. One solve is one run.

    A fixed-step method is called once and corrected at the ends of its steps (`step_size`, `grid_constructor`, or the
    points of `t`); multistep methods keep their history. The number of steps of an adaptive method is not known in
    advance, so it is corrected at the points of `t`, and restarted there with the step size it had: pass as many points
    as there should be chances to project. No gradient flows through.

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
        **corrector: Options of `Corrector`, such as seeds, on_failure, keep_states and on_step.

    Returns:
        The corrected states at the times `t`, (k, n, *event), and the record. States between the ends of steps are
        interpolated from a corrected state to the next proposal.

    Example:
        >>> import torch, trimtab as tt
        >>> sphere = tt.as_constraint(lambda x: x / x.norm(dim=1, keepdim=True), lambda x: (x.norm(dim=1) - 1).abs())
        >>> x = sphere.project(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        >>> path, record = odeint(lambda t, x: x.flip(1), x, torch.tensor([0.0, 1.0]), sphere, tt.Periodic(2),
        ...                       method="rk4", options={"step_size": 0.1})
        >>> record.n_steps, record.spent.tolist(), bool((path[-1].norm(dim=1) - 1).abs().max() < 1e-6)
        (10, [2, 2], True)
    """
    check_options(corrector, "odeint")
    if options is not None:
        check_type(options, Mapping, "the options of odeint", "as in options={'step_size': 0.1}")  # type: ignore[type-abstract]
    return solve(
        lambda n_steps: Corrector(constraint, schedule, n_steps, **corrector),
        func,
        y0,
        t,
        options=dict(options or {}),
        rtol=rtol,
        atol=atol,
        method=method,
    )


def solve(
    make_corrector: Callable[[int], Corrector], func: Any, y0: Any, t: Any, *, options: dict[str, Any], **solver: Any
) -> tuple[Tensor, Rollout]:
    """Integrate with the corrector that `make_corrector(T)` returns; see `odeint`."""
    check_callable(func, "func", "func(t, y)")
    if isinstance(y0, tuple | list | dict):
        raise TypeError(
            f"y0 must be one tensor, (n, *event): got a {type(y0).__name__}; stack its parts along an event dimension, "
            "or write the loop yourself, with a trimtab.Corrector, which takes trees"
        )
    Form(y0)  # checks that y0 can be states
    _check_times(t, "t")
    check_solver(solver["method"], solver["rtol"], solver["atol"])
    field = _Field(func, y0)
    with torch.no_grad():
        fixed = solver["method"] in FIXED
        grid = _grid(field, y0, t, options) if fixed else t
        corrector = field.corrector = make_corrector(len(grid) - 1)
        with corrector:
            corrector.begin(y0)
            path = (_whole if fixed else _segments)(field, y0, t, grid, options, solver)
    return path, corrector.rollout


def check_solver(method: Any, rtol: Any, atol: Any) -> None:
    """Check that torchdiffeq has the method, and that the tolerances are finite and at least 0."""
    known = (*FIXED, *ADAPTIVE, "scipy_solver")
    if not isinstance(method, str) or method not in known:
        raise unknown("method of torchdiffeq", method, known)
    for name, value in (("rtol", rtol), ("atol", atol)):
        if not isinstance(value, Tensor) and check_number(value, name, 0) == math.inf:
            raise ValueError(f"{name} must be a finite number of at least 0: got {value!r}")


def _check_times(t: Any, what: str) -> None:
    if not isinstance(t, Tensor) or t.ndim != 1 or len(t) < 2 or not t.is_floating_point():
        got = f"{tuple(t.shape)} of {t.dtype}" if isinstance(t, Tensor) else type(t).__name__
        raise ValueError(f"{what} must be a tensor of at least two floats, (k,): got {got}")
    steps = t.diff()
    if not bool(t.isfinite().all() & ((steps > 0).all() | (steps < 0).all())):
        raise ValueError(f"{what} must be finite and go in one direction: got {t.tolist()[:8]}")


class _Field:
    """The velocity, with the callbacks by which torchdiffeq reports its steps."""

    corrector: Corrector

    def __init__(self, func: Callable[[Tensor, Tensor], Tensor], y0: Tensor) -> None:
        self.func, self.y0 = func, y0
        self.corrects = False  # whether the ends of the solver's steps are corrected
        self.started = 0  # steps
        self.ends: list[Tensor] = []
        self.dt: Tensor | None = None

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        v, y0 = self.func(t, y), self.y0
        if not isinstance(v, Tensor) or v.shape != y0.shape or v.dtype != y0.dtype or v.device != y0.device:
            got = f"{tuple(v.shape)} of {v.dtype} on {v.device}" if isinstance(v, Tensor) else type(v).__name__
            raise ValueError(
                f"func(t, y) must return a tensor like the states, {tuple(y0.shape)} of {y0.dtype} on {y0.device}: "
                f"got {got}"
            )
        return v

    def callback_step(self, t0: Tensor, y0: Tensor, dt: Tensor) -> None:
        """Receive the state in which a step starts: it is the end of the step before, and may be overwritten."""
        self.dt = dt.clone()
        if self.corrects and self.started > 0:  # the first one is the caller's initial state
            y0.copy_(self.corrector(y0, self.started - 1, time=t0))
            self.ends.append(y0.clone())
        self.started += 1


def _grid(func: Any, y0: Tensor, t: Tensor, options: dict[str, Any]) -> Tensor:
    """Return the ends of steps that torchdiffeq would choose; remove them from the options."""
    step_size, construct = options.pop("step_size", None), options.pop("grid_constructor", None)
    if step_size is not None and construct is not None:
        raise ValueError("give step_size or grid_constructor, not both")
    if construct is not None:
        check_callable(construct, "grid_constructor", "grid_constructor(func, y0, t)")
        built: Tensor = construct(func, y0, t)
        _check_times(built, "the answer of grid_constructor")
        if built[0] != t[0] or built[-1] != t[-1]:
            raise ValueError(
                f"the answer of grid_constructor must start and end as t does, at {float(t[0]):g} and "
                f"{float(t[-1]):g}: got {float(built[0]):g} and {float(built[-1]):g}"
            )
        return built
    if step_size is None:
        return t
    if not 0 < (step_size := check_number(step_size, "step_size")) < math.inf:
        raise ValueError(f"step_size must be a finite number above 0: got {step_size!r}")
    count = math.ceil(float((t[-1] - t[0]).abs() / step_size + 1))
    grid: Tensor = t[0] + torch.sign(t[-1] - t[0]) * (torch.arange(count, dtype=t.dtype, device=t.device) * step_size)
    grid[-1] = t[-1]
    return grid


def _whole(field: _Field, y0: Tensor, t: Tensor, grid: Tensor, options: Any, solver: dict[str, Any]) -> Tensor:
    """Solve once; the callback corrects the end of every step but the last."""
    field.corrects = True
    options = options | {"grid_constructor": lambda func, y0, t: grid}
    path: Tensor = torchdiffeq.odeint(field, y0, t, options=options, **solver)
    field.ends.append(field.corrector(path[-1].clone(), field.started - 1, time=t[-1]))
    for k, end in enumerate(field.ends, 1):  # torchdiffeq reported proposals
        path[t == grid[k]] = end
    return path


def _segments(field: _Field, y0: Tensor, t: Tensor, grid: Tensor, options: Any, solver: dict[str, Any]) -> Tensor:
    """Solve from point to point of `t`, with a correction at each."""
    paced = solver["method"] in ADAPTIVE
    func = field if paced else field.__call__  # scipy's solvers have no callbacks
    y, path = y0, [y0]
    for k in range(len(t) - 1):
        own = dict(options)
        if paced:
            if field.dt is not None:
                own["first_step"] = field.dt
            own.setdefault("step_t", t[k + 1 : k + 2])  # end the segment with a step, not by interpolation
        proposal = torchdiffeq.odeint(func, y, t[k : k + 2], options=own, **solver)[-1]
        y = field.corrector(proposal, k, time=t[k + 1])
        path.append(y)
    return torch.stack(path)
