"""flow_matching's `ODESolver` with corrections at the ends of steps, for all its methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trimtab.core.checks import check_callable, check_type, missing_extra
from trimtab.core.constraint import Constraint
from trimtab.core.record import Rollout
from trimtab.integrations.loops import corrector_maker
from trimtab.integrations.torchdiffeq import solve

try:
    from flow_matching.solver import ODESolver
except ImportError as error:
    raise missing_extra("flow_matching", "flows", "trimtab.integrations.flow_matching") from error

__all__ = ["ProjectedODESolver"]


class ProjectedODESolver(ODESolver):  # type: ignore[misc]
    """An `ODESolver` that projects on schedule: two more arguments, and the same `sample`.

    For fixed-step methods, T is the number of steps (`step_size`, or the intervals of `time_grid`). For adaptive ones
    T is the number of intervals of `time_grid`, whose points are corrected: pass more than two points.
    `compute_likelihood` is not corrected.

    Example:
        >>> import torch, trimtab as tt
        >>> box = tt.as_constraint(lambda x: x.clamp(-1, 1), lambda x: (x.abs() - 1).clamp(min=0).amax(dim=1))
        >>> solver = ProjectedODESolver(lambda x, t: 2 * x, box, tt.Periodic(0.3))
        >>> x = solver.sample(torch.ones(2, 3), step_size=0.1, method="midpoint")
        >>> solver.rollout.spent.tolist(), float(x.max())
        ([3, 3], 1.0)
    """

    def __init__(
        self, velocity_model: Callable[..., Tensor], constraint: Constraint, schedule: Any, **options: Any
    ) -> None:
        """Take the model of `ODESolver`, called as `velocity_model(x=x, t=t)`; options are those of `Corrector`."""
        check_callable(velocity_model, "velocity_model", "velocity_model(x=x, t=t)")
        self._make_corrector = corrector_maker("ProjectedODESolver", constraint, schedule, options)
        super().__init__(velocity_model)
        self._rollout: Rollout | None = None

    @property
    def rollout(self) -> Rollout:
        """Return the record of the last `sample`."""
        if self._rollout is None:
            raise RuntimeError("there is no record yet: call sample first")
        return self._rollout

    def sample(
        self,
        x_init: Tensor,
        step_size: float | None,
        method: str = "euler",
        atol: float = 1e-5,
        rtol: float = 1e-5,
        time_grid: Tensor | None = None,
        return_intermediates: bool = False,
        enable_grad: bool = False,
        **model_extras: Any,
    ) -> Tensor:
        """Take the arguments of `ODESolver.sample`; `enable_grad=True` is an error.

        Returns:
            The final states, (n, *event), or with `return_intermediates` those at all times, (k, n, *event).
        """
        if enable_grad:
            raise ValueError("enable_grad must be False: no gradient flows through a projection")
        check_type(x_init, Tensor, "x_init", "give the initial states, (n, *event)")
        times = torch.tensor([0.0, 1.0]) if time_grid is None else time_grid
        check_type(times, Tensor, "time_grid", "give times in one direction, (k,)")
        path, self._rollout = solve(
            self._make_corrector,
            lambda t, x: self.velocity_model(x=x, t=t, **model_extras),
            x_init,
            times.to(x_init.device),
            options={} if step_size is None else {"step_size": step_size},
            rtol=rtol,
            atol=atol,
            method=method,
        )
        return path if return_intermediates else path[-1]
