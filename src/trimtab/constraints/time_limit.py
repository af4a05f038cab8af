"""A limit of time for projections that may never return: they run in another process, which is ended if it must be."""

from __future__ import annotations

import math
import multiprocessing
import pickle
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Self

import torch
from torch import Tensor

from trimtab.constraints.derived import changed
from trimtab.core.arrays import Form, map_leaves
from trimtab.core.constraint import Constraint, Projection
from trimtab.core.errors import check_number, check_type

__all__ = ["TimeLimit"]


_HAS_PROCESSES = "the constraint starts processes"


@dataclass(frozen=True, eq=False)
class TimeLimit(Constraint):
    """Another constraint, whose projections have a limit of time for each call.

    They run in a process of their own. A call that takes longer, raises, or ends its process is a failed projection of
    all its samples (`converged=False`), so that the corrector's policy decides what becomes of them; the next call has
    a new process. Defects are measured here, unless measuring one is projecting: then the limit holds for them, too,
    and one that takes longer is an error. The constraint is pickled, states are sent there and back: it pays for
    projections of milliseconds and more. A script that uses it guards its entry with `if __name__ == "__main__":`.

    Attributes:
        constraint: The one whose projections are limited; it must be one that can be pickled and that starts no
            processes itself.
        seconds: For one call.

    Example:
        >>> from trimtab.constraints import Ball
        >>> limited = TimeLimit(Ball(2.0), seconds=5.0)
        >>> limited.seconds, limited.needs
        (5.0, ())
    """

    constraint: Constraint
    seconds: float
    _workshop: _Workshop = field(default_factory=lambda: _Workshop(), repr=False, metadata={"per_sample": True})

    def __post_init__(self) -> None:
        """Refuse what cannot be sent to another process, or is no limit."""
        check_type(self.constraint, Constraint, "the constraint of a TimeLimit")
        if not 0 < check_number(self.seconds, "the seconds of a TimeLimit") < math.inf:
            raise ValueError(f"the seconds of a TimeLimit are a finite number above 0: got {self.seconds!r}")
        try:
            pickle.dumps(self.constraint)
        except Exception as error:
            raise TypeError(
                f"{type(self.constraint).__name__} cannot be sent to another process ({error}); make it of a class or "
                "of functions that are defined at the top of a module"
            ) from error

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        """What the constraint wants to know beside the states."""
        return self.constraint.needs

    @property
    def defect_is_projection(self) -> bool:  # type: ignore[override]
        """Whether measuring a defect of the constraint is projecting."""
        return self.constraint.defect_is_projection

    @property
    def is_projection(self) -> bool:  # type: ignore[override]
        """Whether the constraint leads onto its set."""
        return self.constraint.is_projection

    def defect(self, x: Any, **context: Any) -> Tensor:
        """As the constraint measures it, in this process; in the other one if that is projecting."""
        measured: Tensor | None
        if not self.defect_is_projection:
            measured = self.constraint.defect(x, **context)
        else:
            measured = self._workshop.ask((self.constraint, "defect", x, context), self.seconds)
        if measured is None:
            raise RuntimeError(
                f"a defect could not be measured within {self.seconds:g} s, or measuring it failed: without a defect "
                "of its own this constraint projects to measure one; give it one, as in as_constraint(project, defect)"
            )
        return measured

    def project(self, x: Any, **context: Any) -> Projection:
        """As the constraint projects, or a failure of all samples where it took too long."""
        answer = self._workshop.ask((self.constraint, "project", x, context), self.seconds)
        if answer is None:
            like = x if isinstance(x, Tensor) else Form(x)  # an array of another library, or a tree of such
            n = like.n if isinstance(like, Form) else len(like)
            return Projection(x, converged=torch.zeros(n, dtype=torch.bool, device=like.device))
        return answer if isinstance(answer, Projection) else Projection(answer)

    def end(self) -> None:
        """End the process now; a later call begins another. It is ended with this object, too."""
        self._workshop.end()

    def take(self, rows: Tensor) -> Self:
        """The same for some of the samples, in the same process."""
        return changed(self, constraint=self.constraint.take(rows))


class _Workshop:
    """A process that projects, begun when it is first needed and again after it was ended."""

    def __init__(self) -> None:
        self._process: Any = None
        self._there: Connection | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy elsewhere has a process of its own."""
        return {"_process": None, "_there": None}

    def ask(self, question: tuple[Constraint, str, Any, Mapping[str, Any]], seconds: float) -> Any:
        """What the process answers in time; None if it does not, or cannot."""
        constraint, asked, x, context = question
        question = constraint, asked, _detached(x), {name: _detached(value) for name, value in context.items()}
        if self._process is None or not self._process.is_alive():
            self._begin()
        assert self._there is not None
        try:
            self._there.send(question)
            if self._there.poll(seconds):
                answer = self._there.recv()
                if isinstance(answer, str) and answer == _HAS_PROCESSES:
                    raise TypeError(
                        f"{type(question[0]).__name__} starts processes of its own, which the process of a TimeLimit "
                        "must not: they would outlive it; set its workers to 1"
                    )
                return answer
        except (EOFError, OSError):  # the process has ended itself
            pass
        self.end()
        return None

    def _begin(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._there, here = context.Pipe()
        self._process = context.Process(target=_work, args=(here,), daemon=True)
        self._process.start()
        here.close()
        if not self._there.poll(60):  # ready once it says so, so that imports do not count as projecting
            self.end()
            raise RuntimeError(
                "the process that projections run in did not begin within 60 s; is the machine overloaded?"
            )
        try:
            self._there.recv()
        except (EOFError, OSError) as error:
            self.end()
            raise RuntimeError(
                "the process that projections run in ended as it began; a script that uses a TimeLimit needs its entry "
                'under `if __name__ == "__main__":`'
            ) from error

    def end(self) -> None:
        """End the process, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process.close()
        if self._there is not None:
            self._there.close()
        self._process = self._there = None

    def __del__(self) -> None:
        with suppress(Exception):
            self.end()


def _detached(value: Any) -> Any:
    """States and the like without their gradients, which cannot be sent."""
    if isinstance(value, Tensor):
        return value.detach()
    return map_leaves(Tensor.detach, value) if isinstance(value, dict | list | tuple) else value


def _work(there: Connection) -> None:
    torch.set_num_threads(1)
    there.send("ready")
    while True:
        try:
            constraint, asked, x, context = there.recv()
        except EOFError:
            return
        try:
            there.send(constraint.project(x, **context) if asked == "project" else constraint.defect(x, **context))
        except AssertionError as error:  # multiprocessing's, which has no class of its own
            there.send(_HAS_PROCESSES if "daemonic processes" in str(error) else None)
        except Exception:
            there.send(None)
