"""General nonlinear programs, by CasADi's IPOPT: built once, one sample at a time, over a pool of processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trimtab.constraints.derived import changed
from trimtab.constraints.ipopt import Workers, casadi, ipopt_options
from trimtab.constraints.states import check_states, host_array, no_improvement, no_projection
from trimtab.core.checks import check_floats, check_positive
from trimtab.core.constraint import Constraint, Improvement, Projection
from trimtab.core.errors import check_callable, check_integer

__all__ = ["NonlinearProgram"]

Array = NDArray[np.float64]
Bounds = tuple[Array, Array]
Inequalities = Callable[..., Any]

_AT_A_TIME = 10  # iterations of IPOPT in one improvement


@dataclass(frozen=True, eq=False)
class NonlinearProgram(Constraint):
    r"""States with g(y, p) <= 0, h(y, p) = 0 and lower <= y <= upper: the nearest to x, locally, by IPOPT.

    Attributes:
        conditions: `conditions(y, p)` returns two lists of CasADi expressions, those that must be <= 0 and those that
            must be 0; y is a CasADi column of the state's d numbers, p of the sample's parameters. With `workers` other
            than 1 it must be a function of a module, as other processes import it.
        parameters: (n, k), one row a sample; None for none.
        bounds: (lower, upper), each with the d numbers of one state, infinite where there is none; None for no bounds
            at all. IPOPT keeps bounds by itself, in about half the time it takes for the same ones among `conditions`.
        tolerance: Largest violation of a state that counts as feasible.
        max_iterations: Of IPOPT.
        workers: Processes; 0 is one a core. They are started when first needed and end with the constraint. A script
            that uses them guards its entry with `if __name__ == "__main__":`.
    """

    improves = True

    conditions: Inequalities
    parameters: Tensor | None = field(default=None, metadata={"per_sample": True})
    tolerance: float = 1e-6
    max_iterations: int = 200
    workers: int = 1
    bounds: tuple[Tensor, Tensor] | None = None
    _pool: Workers = field(default_factory=Workers, repr=False)

    def __post_init__(self) -> None:
        """Refuse settings no solver could use; say so if CasADi is not there."""
        casadi("NonlinearProgram")
        check_callable(self.conditions, "conditions", "conditions(y, p)")
        check_integer(self.workers, "workers (0 is one a core)", 0)
        check_positive(self.tolerance, "tolerance")
        check_integer(self.max_iterations, "max_iterations")
        if self.parameters is not None:
            check_floats(self.parameters, "parameters, one row a sample,", ("n", "k"))
        if self.bounds is not None:
            if not isinstance(self.bounds, tuple | list) or [type(bound) for bound in self.bounds] != [Tensor, Tensor]:
                raise TypeError(f"bounds are two tensors, (lower, upper): got {self.bounds!r:.60}")
            lower, upper = self.bounds
            if lower.ndim != 1 or lower.shape != upper.shape:
                raise ValueError(
                    "bounds are (lower, upper) with one number for each of a state: got shapes "
                    f"{tuple(lower.shape)} and {tuple(upper.shape)}"
                )
            if not bool((lower <= upper).all()):
                i = int((~(lower <= upper)).nonzero()[0])
                raise ValueError(
                    f"bounds need lower <= upper: got {float(lower[i]):g} and {float(upper[i]):g} for number {i}"
                )

    def project(self, x: Tensor) -> Projection:
        r"""Feasible states near x, (n, \*event), with outcomes; a sample that IPOPT fails on is reported as failed."""
        states, parameters = self._arrays(x)
        if not len(x):
            return no_projection(x)
        bounds = self._bounds(states.shape[1])
        tasks = [
            (self.conditions, self.tolerance, self.max_iterations, bounds, state, row)
            for state, row in zip(states, parameters, strict=True)
        ]
        found = self._pool.run(_solve, tasks, self.workers)
        answers = [(state, False, 0) if answer is None else answer for state, answer in zip(states, found, strict=True)]
        y = torch.from_numpy(np.stack([answer[0] for answer in answers])).to(x).reshape(x.shape)
        residual = self.defect(y)
        solved = torch.tensor([answer[1] for answer in answers], device=x.device)
        iterations = torch.tensor([answer[2] for answer in answers], device=x.device)
        # float32 cannot hold IPOPT's digits
        allowed = self.tolerance + 16 * torch.finfo(x.dtype).eps * (1 + y.flatten(1).abs().amax(dim=1))
        return Projection(y, solved & (residual <= allowed), iterations, residual)

    def defect(self, x: Tensor) -> Tensor:
        r"""The largest violation of a condition, (n, \*event) to (n,)."""
        states, parameters = self._arrays(x)
        if not len(x):
            return x.new_zeros(0)
        measure = _program(self.conditions, states.shape[1], parameters.shape[1], self.tolerance, self.max_iterations)[
            1
        ]
        worst = np.asarray(measure(states.T, parameters.T)).reshape(-1)
        return torch.from_numpy(np.maximum(worst, _outside(states, self._bounds(states.shape[1])))).to(x)

    def improve(self, x: Tensor, state: tuple[Tensor, ...] | None = None, **context: Any) -> Improvement:
        """A few iterations of IPOPT from the present states, in this process, which cost what they are.

        Carries where it began.
        """
        states, parameters = self._arrays(x)
        if not len(x):
            return no_improvement(x)
        begun = states if state is None else host_array(state[0])
        bounds = self._bounds(states.shape[1])
        answers = [
            _solve(self.conditions, self.tolerance, _AT_A_TIME, bounds, state_, row, first)
            for state_, row, first in zip(states, parameters, begun, strict=True)
        ]
        y = torch.from_numpy(np.stack([answer[0] for answer in answers])).to(x).reshape(x.shape)
        done = torch.tensor([answer[1] for answer in answers], device=x.device)
        cost = torch.tensor([max(1, answer[2]) for answer in answers], device=x.device)
        return Improvement(y, self.defect(y), done, (torch.from_numpy(begun.copy()).to(x),), cost)

    def cheaper(self) -> dict[str, Constraint]:
        """A looser tolerance, for which IPOPT needs fewer iterations."""
        looser = max(100 * self.tolerance, 1e-4)
        return {f"a tolerance of {looser:.0e}": changed(self, tolerance=looser)}

    def take(self, rows: Tensor) -> Self:
        """The same conditions for some samples, sharing the processes."""
        return self if self.parameters is None else changed(self, parameters=self.parameters[rows])

    def close(self) -> None:
        """End the processes; the next projection starts new ones."""
        self._pool.close()

    def _bounds(self, d: int) -> Bounds | None:
        if self.bounds is None:
            return None
        lower, upper = (bound.detach().cpu().double().numpy() for bound in self.bounds)
        if len(lower) != d:
            raise ValueError(f"there are bounds for {len(lower)} numbers, but a state has {d}")
        return lower, upper

    def _arrays(self, x: Tensor) -> tuple[Array, Array]:
        check_states(x, "NonlinearProgram", samples=None if self.parameters is None else len(self.parameters))
        states = host_array(x.flatten(1))
        return states, np.zeros((len(states), 0)) if self.parameters is None else host_array(self.parameters)


@lru_cache(maxsize=8)
def _program(conditions: Inequalities, d: int, k: int, tolerance: float, max_iterations: int) -> tuple[Any, Any, Array]:
    """The solver, the largest violation as a function, and the conditions' lower bounds; built once in a process."""
    ca = casadi("NonlinearProgram")
    y, x, p = ca.SX.sym("y", d), ca.SX.sym("x", d), ca.SX.sym("p", k)
    answer = conditions(y, p)
    try:
        at_most, equal = (list(part) for part in answer)
        g, h = ca.vertcat(*at_most), ca.vertcat(*equal)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise TypeError(
            "conditions(y, p) must return two lists of CasADi expressions, (at_most_zero, equal_to_zero): got "
            f"{answer!r:.60}"
        ) from error
    if not at_most and not equal:
        raise ValueError("conditions(y, p) returned no expression at all; return (at_most_zero, equal_to_zero)")
    lower = np.concatenate([np.full(g.numel(), -np.inf), np.zeros(h.numel())])
    problem = {"x": y, "p": ca.vertcat(x, p), "f": ca.sumsqr(y - x), "g": ca.vertcat(g, h)}
    options = ipopt_options(max_iterations, min(1e-8, tolerance))
    worst = ca.mmax(ca.vertcat(0, g, ca.fabs(h)))
    return ca.nlpsol("nearest", "ipopt", problem, options), ca.Function("worst", [y, p], [worst]), lower


def _solve(
    conditions: Inequalities,
    tolerance: float,
    max_iterations: int,
    bounds: Bounds | None,
    state: Array,
    parameters: Array,
    begun: Array | None = None,
) -> tuple[Array, bool, int]:
    """One sample: the state, whether IPOPT succeeded, and its iterations; near `begun` if that is not the state."""
    if not np.isfinite(state).all():
        return state, False, 0
    solver, measure, lower = _program(conditions, len(state), len(parameters), tolerance, max_iterations)
    worst = max(float(measure(state, parameters)), float(_outside(state, bounds)))
    on_the_way = begun is not None and not np.array_equal(begun, state)
    if worst <= tolerance and not on_the_way:  # a feasible state is its own projection, but not that of another one
        return state, True, 0
    least, most = (-np.inf, np.inf) if bounds is None else bounds
    try:
        answer = solver(
            x0=np.clip(state, least, most),
            p=np.concatenate([state if begun is None else begun, parameters]),
            lbx=least,
            ubx=most,
            lbg=lower,
            ubg=0,
        )
    except RuntimeError:  # CasADi raises where a function is not finite; one bad sample must not end the batch
        return state, False, 0
    stats = solver.stats()
    y = np.asarray(answer["x"]).reshape(-1)
    if not np.isfinite(y).all():
        return state, False, int(stats["iter_count"])
    return y, bool(stats["success"]), int(stats["iter_count"])


def _outside(states: Array, bounds: Bounds | None) -> Array:
    """By how much states leave their bounds at worst, (…, d) to (…)."""
    if bounds is None:
        return np.zeros(states.shape[:-1])
    lower, upper = bounds
    with np.errstate(invalid="ignore"):  # inf less inf
        outside: Array = np.maximum(lower - states, states - upper).clip(min=0).max(axis=-1, initial=0)
    return outside
