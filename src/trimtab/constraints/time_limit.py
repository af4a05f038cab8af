"""A time limit for projections that may never return: they run in worker processes, which are ended if necessary."""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from trimtab.constraints.processes import Workers
from trimtab.constraints.states import Wrapper, with_settings
from trimtab.core.arrays import Form, map_leaves
from trimtab.core.checks import check_integer, check_number, check_type
from trimtab.core.constraint import Constraint, Projection

__all__ = ["TimeLimit"]


@dataclass(frozen=True, eq=False)
class TimeLimit(Wrapper):
    """Another constraint, with a time limit for its projections.

    A projection runs in a worker process. If the call takes too long, raises or ends its process, then each of its
    samples is projected alone, with the same limit, and only samples that fail again are failed projections
    (`converged=False`); the corrector's policy decides about those. Defects are measured in this process, unless
    measuring one is projecting: then the limit applies to them, too, and a defect that takes longer is an error.

    The constraint is pickled, and states are sent there and back: this pays for projections of milliseconds and more.
    A script that uses it must guard its entry with `if __name__ == "__main__":`.

    Attributes:
        constraint: The constraint whose projections are limited; it must be possible to pickle it.
        seconds: Time limit of one call, and of one sample that is projected alone.
        workers: Processes for samples that are projected alone; 0 is one per core.

    Example:
        >>> from trimtab.constraints import Ball
        >>> limited = TimeLimit(Ball(2.0), seconds=5.0)
        >>> limited.seconds, limited.needs
        (5.0, ())
    """

    constraint: Constraint
    seconds: float
    workers: int = 2
    _workers: Workers = field(default_factory=Workers, repr=False)

    def __post_init__(self) -> None:
        """Check the limit, and that the constraint can be sent to another process."""
        check_type(self.constraint, Constraint, "the constraint of a TimeLimit")
        check_integer(self.workers, "the workers of a TimeLimit", 0)
        if not 0 < check_number(self.seconds, "the seconds of a TimeLimit") < math.inf:
            raise ValueError(f"the seconds of a TimeLimit must be a finite number above 0: got {self.seconds!r}")
        try:
            pickle.dumps(self.constraint)
        except Exception as error:
            raise TypeError(
                f"{type(self.constraint).__name__} cannot be sent to another process ({error}); use a class or "
                "functions that are defined at the top of a module"
            ) from error

    def _parts(self) -> tuple[Constraint, ...]:
        return (self.constraint,)

    def defect(self, x: Any, **context: Any) -> Tensor:
        """Return the defect of the constraint, measured in this process unless that is projecting."""
        if not self.defect_is_projection:
            measured: Tensor = self.constraint.defect(x, **context)
            return measured
        answer: Tensor | Exception = self._run("defect", [(self.constraint, x, context)])[0]
        if isinstance(answer, Exception):
            raise RuntimeError(
                f"a defect could not be measured within {self.seconds:g} s, or measuring it failed: without a defect "
                "function this constraint projects to measure one; use as_constraint(project, defect)"
            ) from answer
        return answer

    def project(self, x: Any, **context: Any) -> Projection:
        """Return the constraint's projection; samples that take too long, or fail otherwise, are returned as failed."""
        [answer] = self._run("project", [(self.constraint, x, context)])
        if isinstance(answer, Projection):
            return answer
        n = len(x) if isinstance(x, Tensor) else Form(x).n
        alone: list[Projection | Exception] = [answer]
        if n > 1:  # one sample must not fail the others
            alone = self._run("project", [self._one(x, context, i) for i in range(n)])
        return _gather(x, alone)

    def end(self) -> None:
        """End the processes; a later call starts new ones."""
        self._workers.close()

    def take(self, rows: Tensor) -> Self:
        """Return the same constraint for some samples, with the same processes."""
        return with_settings(self, constraint=self.constraint.take(rows))

    def _run(self, method: str, tasks: list[tuple[Constraint, Any, dict[str, Any]]]) -> list[Any]:
        ready = [(constraint, method, _detached(x), _detached(context)) for constraint, x, context in tasks]
        return self._workers.run(_call, ready, self.workers, self.seconds)

    def _one(self, x: Any, context: dict[str, Any], i: int) -> tuple[Constraint, Any, dict[str, Any]]:
        """Return the task of projecting sample i alone."""

        def row(value: Any) -> Any:
            if value is None or isinstance(value, bool | int | float | str) or getattr(value, "ndim", None) == 0:
                return value
            return map_leaves(lambda leaf: leaf[i : i + 1], value)

        constraint = self.constraint.take(torch.tensor([i]))
        return constraint, row(x), {name: row(value) for name, value in context.items()}


def _call(constraint: Constraint, method: str, x: Any, context: dict[str, Any]) -> Any:
    answer = getattr(constraint, method)(x, **context)
    return Projection(answer) if method == "project" and not isinstance(answer, Projection) else answer


def _gather(x: Any, alone: list[Projection | Exception]) -> Projection:
    """Combine the answers of samples that were projected alone; failed ones keep their states."""
    form = Form(x)
    leaves = [leaf.detach().clone() for leaf in form.leaves(x)]
    converged = torch.zeros(form.n, dtype=torch.bool, device=form.device)
    found = {i: answer for i, answer in enumerate(alone) if not isinstance(answer, Exception)}
    for i, answer in found.items():
        converged[i] = answer.converged is None or bool(answer.converged.all())
        for leaf, row in zip(leaves, form.leaves(answer.x, 1), strict=True):
            leaf[i] = row[0]
    counts = [0 if isinstance(answer, Exception) else answer.iterations for answer in alone]
    iterations = None
    if all(count is not None for count in counts):
        iterations = torch.tensor([int(count) for count in counts if count is not None], device=form.device)
    return Projection(form.state(tuple(leaves)) if found else x, converged, iterations)


def _detached(value: Any) -> Any:
    """Return states or a context without gradients, which cannot be sent."""
    if isinstance(value, dict):
        return {name: _detached(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return map_leaves(Tensor.detach, value)
    return value.detach() if isinstance(value, Tensor) else value
