"""What a schedule sees: a `StepView`, which shows what a run has written down so far and lets nobody change it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from trimtab.core.errors import check_integer

__all__ = ["StepView"]


class Budgeted(Protocol):
    """Whoever decides by a `StepView` and has a budget to do so: a schedule."""

    @property
    def budget(self) -> Any:
        """What each sample may spend."""
        ...


class Books(NamedTuple):
    """What a run has written down so far, as arrays (numpy on the host, tensors elsewhere), and what it is.

    Attributes:
        defects: Of all steps, (T, n), filled in up to now.
        projected: Decisions of all steps, (T, n) bool, filled in up to the step before.
        budget: What each sample began with, (n,) int64.
        left: What each has left of it, (n,) int64.
        seeds: (n,), if the loop knows them.
        n_steps: T.
        beyond: Whether more may be spent than a budget has, as by an iteration that costs more than is left of it.
        closing_reserve: How many corrections of each sample's budget belong to the closing projection.
        asked: The schedule of the run, whose budget it is.
        memo: Sums that go on from step to step, kept by the run.
    """

    defects: Any
    projected: Any
    budget: Any
    left: Any
    seeds: Any
    n_steps: int
    beyond: bool
    closing_reserve: int
    asked: Budgeted | None
    memo: dict[Hashable, Any]


class StepView:
    """What a schedule may look at when it decides.

    It is for reading only: its tensors are copies, and nothing that is done to them changes the run. The proposal and
    the context alone are the loop's own, and a schedule leaves them as they are.

    Attributes:
        t: The step, 0 to n_steps - 1.
        n_steps: T.
        proposal: The states before the decision, as the loop keeps them; None when decisions are replayed from a
            record.
        context: What the loop passed with this step by name, such as a noise level.
        again: How many iterations of this step were made already, where those are what is counted.
    """

    __slots__ = ("_books", "_defect", "again", "context", "n_steps", "proposal", "t")

    def __init__(
        self,
        t: int,
        books: Books,
        proposal: Any = None,
        context: Mapping[str, Any] = MappingProxyType({}),
        defect: Any = None,
        again: int = 0,
    ) -> None:
        """Made by the loop.

        Args:
            t: The step.
            books: What was written down so far.
            proposal: See the class.
            context: See the class.
            defect: Of the present states, (n,), where that is no longer the proposal's.
            again: See the class.
        """
        self.t, self.n_steps, self.proposal, self.context, self.again = t, books.n_steps, proposal, context, again
        self._books = books
        self._defect = books.defects[t] if defect is None else defect

    @classmethod
    def of_record(
        cls,
        t: int,
        defects: Tensor,
        projected: Tensor,
        budget: int | Tensor,
        *,
        n_steps: int | None = None,
        seeds: Tensor | None = None,
        spent: Tensor | None = None,
        defect: Tensor | None = None,
        closing_reserve: int = 0,
        memo: dict[Hashable, Any] | None = None,
        again: int = 0,
    ) -> StepView:
        """The moment of step t in a recorded run.

        Args:
            t: The step.
            defects: (T, n).
            projected: (T, n) bool, of which the first t rows are read.
            budget: A number, or one per sample, (n,).
            n_steps: T, where more steps were planned than are in the record.
            seeds: (n,), if known.
            spent: (n,), where that is not the number of decisions before.
            defect: See `StepView`.
            closing_reserve: See `Books`.
            memo: See `Books`.
            again: See `StepView`.
        """
        if not isinstance(defects, Tensor) or not isinstance(projected, Tensor) or defects.shape != projected.shape:
            raise ValueError("defects and projected of a record are tensors of one shape, (T, n)")
        if not defects.is_floating_point() or defects.ndim != 2:
            raise ValueError(f"defects are (T, n) floats: got {tuple(defects.shape)} of {defects.dtype}")
        check_integer(t, "t, a step of the record,", 0, len(defects) - 1)
        began = torch.as_tensor(budget, device=defects.device).expand(defects.shape[1])
        already = projected[:t].sum(dim=0) if spent is None else spent
        books = Books(
            defects=as_array(defects),
            projected=as_array(projected),
            budget=as_array(began),
            left=as_array(began - already),
            seeds=None if seeds is None else as_array(seeds),
            n_steps=n_steps or len(defects),
            beyond=True,
            closing_reserve=closing_reserve,
            asked=None,
            memo={} if memo is None else memo,
        )
        return cls(t, books, defect=None if defect is None else as_array(defect), again=again)

    def __repr__(self) -> str:
        """One line."""
        return f"StepView(t={self.t} of {self.n_steps}, n={len(self)}, {', '.join(self.context) or 'no'} context)"

    def __len__(self) -> int:
        """The number of samples."""
        return len(self._defect)

    @property
    def defect(self) -> Tensor:
        """Of the proposals, (n,)."""
        return _copied(self._defect)

    @property
    def budget_left(self) -> Tensor:
        """Corrections each sample may still spend, (n,) int64."""
        return _copied(self._left(0))

    @property
    def spendable(self) -> Tensor:
        """Corrections each sample may spend before the closing projection, (n,) int64."""
        return _copied(self._left(self._books.closing_reserve))

    @property
    def steps_to_go(self) -> int:
        """At how many steps, this one included, those can be spent."""
        return self.n_steps - self.t - int(self._books.closing_reserve > 0)

    @property
    def steps_measured(self) -> int:
        """How many steps the defects so far stand for: t + 1."""
        return self.t + 1

    @property
    def spent(self) -> Tensor:
        """Corrections each sample has spent so far, (n,) int64."""
        return _copied(self._books.budget - self._books.left)

    @property
    def last(self) -> Tensor:
        """1 + the step after which each sample was last corrected, 0 for never, (n,) int64."""
        return _copied(self._last())

    @property
    def since(self) -> Tensor:
        """Updates since each sample was last corrected (or began), (n,), at least 1."""
        return _copied(self.t + 1 - self._last())

    @property
    def seeds(self) -> Tensor | None:
        """Each sample's seed, (n,), where the loop knows it."""
        return None if self._books.seeds is None else _copied(self._books.seeds)

    @property
    def defects(self) -> Tensor:
        """All defects so far, the present one last, (t + 1, n)."""
        return _copied(self._books.defects[: self.t + 1])

    @property
    def projected(self) -> Tensor:
        """All decisions so far, (t, n) bool."""
        return _copied(self._books.projected[: self.t])

    def _left(self, closing_reserve: int) -> Any:
        left = self._books.left - closing_reserve
        return left.clip(min=0) if self._books.beyond else left

    def arrays(self, schedule: Budgeted) -> tuple[Any, Any]:
        """The defects s and what is left of a schedule's own budget b, (n,) each, to be read at no cost.

        They are numpy arrays on the host and tensors elsewhere, whose operators are the same. The budget is the
        schedule's own, which is not the run's if it was asked by another schedule.
        """
        books = self._books
        if schedule is books.asked:
            return self._defect, books.left.clip(min=0) if books.beyond else books.left
        budget = as_array(schedule.budget) if isinstance(schedule.budget, Tensor) else schedule.budget
        return self._defect, (budget - books.budget + books.left).clip(min=0)

    def take(self, rows: slice) -> StepView:
        """The same moment for some of the samples; the proposal is left out."""
        books = self._books
        some = books._replace(
            defects=books.defects[:, rows],
            projected=books.projected[:, rows],
            budget=books.budget[rows],
            left=books.left[rows],
            seeds=None if books.seeds is None else books.seeds[rows],
            asked=None,
            memo=books.memo.setdefault((rows.start, rows.stop), {}),
        )
        return StepView(self.t, some, context=self.context, defect=self._defect[rows], again=self.again)

    def _last(self) -> Any:
        """1 + the step after which each was last corrected, 0 for never, (n,) int64, an array as in `arrays`.

        Few schedules ask. It is worked out from the record when one does, and remembered by the run for the next step.
        """
        projected, t = self._books.projected, self.t
        done, last = self._books.memo.get("last", (None, None))
        if done == t:
            return last
        if done == t - 1:
            last = last + projected[done] * (t - last)  # a new one: what was remembered stays as it was
        else:
            last = as_array(last_corrections(_copied(projected[: t + 1]))[t])
        self._books.memo["last"] = (t, last)
        return last

    def running_sum(self, term: Callable[[int, Any, Any], Any]) -> Any:
        """The sum of `term(u, defect, last)` over all steps u up to now, (n,), an array as in `arrays`.

        It depends on the record alone. What was summed up to the step before is remembered by the run under the term
        itself, so that two schedules with different terms do not disturb each other.

        Args:
            term: `term(u, defect, last)` of step u, (n,), with the defects (n,) of that step and 1 + the step of the
                last correction before it (n,).
        """
        books, t = self._books, self.t
        done, total = self._books.memo.get(term, (-1, None))
        if done == t:
            return total
        if done != t - 1:  # nothing was summed before, or steps were left out
            last = as_array(last_corrections(_copied(books.projected[: t + 1])))
            total = None
            for u in range(t):
                earlier = term(u, books.defects[u], last[u])
                total = earlier if total is None else total + earlier
        now = term(t, books.defects[t], self._last())
        total = now if total is None else total + now  # a new one: what was remembered stays as it was
        self._books.memo[term] = (t, total)
        return total


def as_array(x: Tensor) -> Any:
    """The numbers where they lie: through numpy on the host, the tensor itself elsewhere."""
    try:
        return x.numpy() if x.is_cpu else x
    except AttributeError as error:  # asked for at every step: what is a tensor is not looked at first
        raise TypeError(f"a tensor is expected here: got {x!r:.60} of type {type(x).__name__}") from error


def _copied(x: Any) -> Tensor:
    return torch.from_numpy(x.copy()) if isinstance(x, np.ndarray) else x.clone()


def last_corrections(projected: Tensor) -> Tensor:
    """1 + the step after which each sample was last corrected before each step, 0 for never: (T, n) to (T, n)."""
    if not isinstance(projected, Tensor) or projected.dtype != torch.bool or projected.ndim != 2:
        got = f"{projected.dtype} {tuple(projected.shape)}" if isinstance(projected, Tensor) else f"{projected!r:.60}"
        raise ValueError(f"projected says where samples were corrected, (T, n) bool: got {got}")
    steps = torch.arange(1, len(projected) + 1, device=projected.device)
    at = torch.where(projected, steps[:, None], 0).cummax(dim=0).values
    return torch.cat([torch.zeros_like(at[:1]), at[:-1]])
