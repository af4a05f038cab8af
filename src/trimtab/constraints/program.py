"""General nonlinear programs, by CasADi's IPOPT: built once, solved sample by sample, in this process or several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trimtab.constraints.partial import FewIterations
from trimtab.constraints.processes import WorkerDiedError, Workers
from trimtab.constraints.states import check_states, host_array, no_improvement, no_projection, with_settings
from trimtab.core.checks import check_callable, check_floats, check_integer, check_positive, missing_extra
from trimtab.core.constraint import Constraint, Improvement, Projection

__all__ = ["NonlinearProgram", "casadi", "ipopt_options"]

Array = NDArray[np.float64]
Bounds = tuple[Array, Array]
Inequalities = Callable[..., Any]

_AT_A_TIME = 10  # iterations of IPOPT in one improvement


def casadi(purpose: str) -> Any:
    """Import CasADi, which includes IPOPT; if it is missing, raise an error that says what needs it."""
    try:
        import casadi as found
    except ImportError as error:
        raise missing_extra("casadi", "ipopt", purpose) from error
    return found


def ipopt_options(max_iterations: int, tolerance: float) -> dict[str, Any]:
    """Return options of CasADi's `nlpsol`: no output, and failures as outcomes instead of errors."""
    return {
        "ipopt.max_iter": max_iterations,
        "ipopt.tol": tolerance,
        "ipopt.print_level": 0,
        "ipopt.sb": "yes",
        "print_time": False,
        "error_on_fail": False,
        "show_eval_warnings": False,
    }


@dataclass(frozen=True, eq=False)
class NonlinearProgram(Constraint):
    r"""States with g(y, p) <= 0, h(y, p) = 0 and lower <= y <= upper: the nearest to x, locally, by IPOPT.

    Attributes:
        conditions: `conditions(y, p)` returns two lists of CasADi expressions, those that must be <= 0 and those that
            must be 0; y is a CasADi column of the state's d numbers, p of the sample's parameters. With `workers` other
            than 1 it must be a function of a module, since other processes import it.
        parameters: (n, k), one row per sample; None for no parameters.
        tolerance: Largest violation of a feasible state.
        max_iterations: Iterations of IPOPT at most.
        workers: Number of processes; 0 is one per core. They start when they are first needed and end with the
            constraint. A script that uses them must guard its entry with `if __name__ == "__main__":`.
        bounds: (lower, upper), each with the d numbers of one state, infinite for no bound; None for no bounds at all.
            IPOPT handles bounds in about half the time that it takes for the same ones among `conditions`.
    """

    improves = True

    conditions: Inequalities
    parameters: Tensor | None = field(default=None)
    tolerance: float = 1e-6
    max_iterations: int = 200
    workers: int = 1
    bounds: tuple[Tensor, Tensor] | None = None
    _pool: Workers = field(default_factory=Workers, repr=False)

    def __post_init__(self) -> None:
        """Check the settings, and that CasADi is installed."""
        casadi("NonlinearProgram")
        check_callable(self.conditions, "conditions", "conditions(y, p)")
        check_integer(self.workers, "workers (0 is one per core)", 0)
        check_positive(self.tolerance, "tolerance")
        check_integer(self.max_iterations, "max_iterations")
        if self.parameters is not None:
            check_floats(self.parameters, "parameters, one row per sample,", ("n", "k"))
        if self.bounds is not None:
            if not isinstance(self.bounds, tuple | list) or [type(bound) for bound in self.bounds] != [Tensor, Tensor]:
                raise TypeError(f"bounds must be two tensors, (lower, upper): got {self.bounds!r:.60}")
            lower, upper = self.bounds
            if lower.ndim != 1 or lower.shape != upper.shape:
                raise ValueError(
                    "bounds must be (lower, upper), each of the shape of one state: got shapes "
                    f"{tuple(lower.shape)} and {tuple(upper.shape)}"
                )
            if not bool((lower <= upper).all()):
                i = int((~(lower <= upper)).nonzero()[0])
                raise ValueError(
                    f"bounds need lower <= upper: got {float(lower[i]):g} and {float(upper[i]):g} for number {i}"
                )

    def project(self, x: Tensor) -> Projection:
        r"""Return feasible states near x, (n, \*event), with outcomes."""
        states, parameters = self._arrays(x)
        if not len(x):
            return no_projection(x)
        bounds = self._bounds(states.shape[1])
        tasks = [
            (self.conditions, self.tolerance, self.max_iterations, bounds, state, row)
            for state, row in zip(states, parameters, strict=True)
        ]
        answers = [
            answer_of(answer, (state, False, 0))
            for state, answer in zip(states, self._pool.run(_solve, tasks, self.workers, None), strict=True)
        ]
        y, solved, iterations = _stacked(answers, x)
        residual = self.defect(y)
        # float32 cannot hold all of IPOPT's digits
        allowed = self.tolerance + 16 * torch.finfo(x.dtype).eps * (1 + y.flatten(1).abs().amax(dim=1))
        return Projection(y, solved & (residual <= allowed), iterations, residual)

    def defect(self, x: Tensor) -> Tensor:
        r"""Return the largest violation of a condition, (n, \*event) to (n,)."""
        states, parameters = self._arrays(x)
        if not len(x):
            return x.new_zeros(0)
        shape = states.shape[1], parameters.shape[1]
        _, measure, _ = _program(self.conditions, *shape, self.tolerance, self.max_iterations)
        worst = np.asarray(measure(states.T, parameters.T)).reshape(-1)
        return torch.from_numpy(np.maximum(worst, _outside(states, self._bounds(states.shape[1])))).to(x)

    def improve(self, x: Tensor, state: tuple[Tensor, ...] | None = None, **context: Any) -> Improvement:
        """Make a few iterations of IPOPT from the present states, in this process; carries the first states."""
        states, parameters = self._arrays(x)
        if not len(x):
            return no_improvement(x)
        first = states if state is None else host_array(state[0])
        bounds = self._bounds(states.shape[1])
        answers = [
            _solve(self.conditions, self.tolerance, _AT_A_TIME, bounds, *sample)
            for sample in zip(states, parameters, first, strict=True)
        ]
        y, done, iterations = _stacked(answers, x)
        carried = (torch.from_numpy(first.copy()).to(x),)
        return Improvement(y, self.defect(y), done, carried, iterations.clamp(min=1))

    def cheaper(self) -> dict[str, Constraint]:
        """Return cheaper variants by name, in the order to try them."""
        looser = max(100 * self.tolerance, 1e-4)
        return {
            f"{_AT_A_TIME} iterations": FewIterations(self, 1),
            f"tolerance {looser:.0e}": with_settings(self, tolerance=looser),
        }

    def take(self, rows: Tensor) -> Self:
        """Return the same conditions for some samples, with the same processes."""
        return self if self.parameters is None else with_settings(self, parameters=self.parameters[rows])

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
        """Check the states and return them, (n, d), with their parameters, (n, k)."""
        check_states(x, "NonlinearProgram", samples=None if self.parameters is None else len(self.parameters))
        states = host_array(x.flatten(1))
        return states, np.zeros((len(states), 0)) if self.parameters is None else host_array(self.parameters)


def answer_of(answer: Any, failed: Any) -> Any:
    """Return a worker's answer, or `failed` if its process died; an error in the task itself is raised."""
    if isinstance(answer, Exception) and not isinstance(answer, WorkerDiedError):
        raise answer
    return failed if isinstance(answer, WorkerDiedError) else answer


def _stacked(answers: list[tuple[Array, bool, int]], x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the answers of all samples as tensors: states like x, success and iterations, (n,) each."""
    y, solved, iterations = zip(*answers, strict=True)
    states = torch.from_numpy(np.stack(y)).to(x).reshape(x.shape)
    return states, torch.tensor(solved, device=x.device), torch.tensor(iterations, device=x.device)


@lru_cache(maxsize=8)
def _program(conditions: Inequalities, d: int, k: int, tolerance: float, max_iterations: int) -> tuple[Any, Any, Array]:
    """Build the solver, the largest violation as a function, and the conditions' lower bounds, once per process."""
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
    first: Array | None = None,
) -> tuple[Array, bool, int]:
    """Solve for one sample, near `first` (by default the state): the state, whether IPOPT succeeded, its iterations."""
    if not np.isfinite(state).all():
        return state, False, 0
    solver, measure, lower = _program(conditions, len(state), len(parameters), tolerance, max_iterations)
    worst = max(float(measure(state, parameters)), float(_outside(state, bounds)))
    if worst <= tolerance and (first is None or np.array_equal(first, state)):
        return state, True, 0  # a feasible state is its own projection
    least, most = (-np.inf, np.inf) if bounds is None else bounds
    try:
        answer = solver(
            x0=np.clip(state, least, most),
            p=np.concatenate([state if first is None else first, parameters]),
            lbx=least,
            ubx=most,
            lbg=lower,
            ubg=0,
        )
    except RuntimeError:  # CasADi raises if a function is not finite; one bad sample must not end the batch
        return state, False, 0
    stats = solver.stats()
    y = np.asarray(answer["x"]).reshape(-1)
    if not np.isfinite(y).all():
        return state, False, int(stats["iter_count"])
    return y, bool(stats["success"]), int(stats["iter_count"])


def _outside(states: Array, bounds: Bounds | None) -> Array:
    """Return the largest violation of the bounds in each state, (…, d) to (…)."""
    if bounds is None:
        return np.zeros(states.shape[:-1])
    lower, upper = bounds
    with np.errstate(invalid="ignore"):  # inf minus inf
        outside: Array = np.maximum(lower - states, states - upper).clip(min=0).max(axis=-1, initial=0)
    return outside
