"""What a schedule sees: a read-only `StepView` of the run so far."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trimtab.core.checks import check_integer

__all__ = ["StepView"]


class History(NamedTuple):
    """What a run has recorded for its schedule, one column per sample.

    Attributes:
        defects: (T, n), filled in up to the present step.
        projected: Decisions, (T, n) bool, filled in up to the step before.
        budget: What each sample started with, (n,) int64.
        n_steps: T.
        reserve: Units of each budget that belong to the closing projection.
        seeds: (n,), if the loop knows them.
        memo: Running sums, kept from step to step.
    """

    defects: Tensor
    projected: Tensor
    budget: Tensor
    n_steps: int
    reserve: float
    seeds: Tensor | None
    memo: dict[Hashable, Any]


class StepView:
    """What a schedule may look at when it decides.

    The tensors are copies: changing them changes nothing in the run. The proposal and the context are the loop's own;
    a schedule must not modify them.

    Attributes:
        t: The step, 0 to n_steps - 1.
        n_steps: T.
        proposal: The states before the decision, as the loop keeps them; None when decisions are replayed.
        context: What the loop passed with this step by name, such as a noise level.
        shares: Whether samples share budgets; `budget_left` is then the mean of each pool, as floats.
    """

    def __init__(
        self,
        t: int,
        history: History,
        left: Tensor,
        proposal: Any = None,
        context: Mapping[str, Any] = MappingProxyType({}),
        shares: bool = False,
    ) -> None:
        """Make the view of step t; the loop does this.

        Args:
            t: The step.
            history: What was recorded so far.
            left: Units that each sample may still spend, (n,); the mean of its pool if it shares one.
            proposal: See the class.
            context: See the class.
            shares: See the class.
        """
        self.t, self.n_steps, self.proposal, self.context = t, history.n_steps, proposal, context
        self.shares = shares
        self._history, self._left = history, left
        self._defect = history.defects[t]

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
        reserve: float = 0,
        memo: dict[Hashable, Any] | None = None,
        left: Tensor | None = None,
        shares: bool = False,
    ) -> StepView:
        """Return the view of step t of a recorded run.

        Args:
            t: The step.
            defects: (T, n).
            projected: (T, n) bool, of which the first t rows are read.
            budget: A number, or one per sample, (n,).
            n_steps: T, if the record has fewer steps than were planned.
            seeds: (n,), if known.
            reserve: Units of each budget that belong to the closing projection.
            memo: Running sums of the steps before.
            left: Units left per sample, (n,), if that is not the budget less the decisions before step t.
            shares: As in `StepView`.
        """
        if not isinstance(defects, Tensor) or not isinstance(projected, Tensor) or defects.shape != projected.shape:
            raise ValueError("defects and projected of a record must be tensors of one shape, (T, n)")
        if not defects.is_floating_point() or defects.ndim != 2:
            raise ValueError(f"defects must be (T, n) floats: got {tuple(defects.shape)} of {defects.dtype}")
        check_integer(t, "t, a step of the record,", 0, len(defects) - 1)
        start = torch.as_tensor(budget, device=defects.device).expand(defects.shape[1])
        history = History(
            defects, projected, start, n_steps or len(defects), reserve, seeds, {} if memo is None else memo
        )
        known = start - projected[:t].sum(dim=0) if left is None else left
        return cls(t, history, known, shares=shares)

    def __repr__(self) -> str:
        """Return a one-line summary."""
        return f"StepView(t={self.t} of {self.n_steps}, n={len(self)}, {', '.join(self.context) or 'no'} context)"

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._defect)

    @property
    def defect(self) -> Tensor:
        """The defects of the proposals, (n,)."""
        return self._defect.clone()

    @property
    def budget_left(self) -> Tensor:
        """Units that each sample may still spend, (n,) int64; the mean of its pool, as floats, if it shares one."""
        return self._left.clamp(min=0)

    @property
    def spendable(self) -> Tensor:
        """Units that each sample may spend before the closing projection, (n,), as in `budget_left`."""
        return (self.budget_left - self._history.reserve).clamp(min=0)

    @property
    def steps_to_go(self) -> int:
        """The number of steps, this one included, at which units can be spent."""
        return self.n_steps - self.t - int(self._history.reserve > 0)

    @property
    def spent(self) -> Tensor:
        """Units that each sample has spent so far, (n,) int64."""
        return self.projected.sum(dim=0) if self.shares else self._history.budget - self._left

    @property
    def last(self) -> Tensor:
        """1 + the step of each sample's last correction, 0 for never, (n,) int64."""
        return self._last().clone()

    @property
    def since(self) -> Tensor:
        """Updates since each sample's last correction (or the start), (n,), at least 1."""
        return self.t + 1 - self._last()

    @property
    def seeds(self) -> Tensor | None:
        """Each sample's seed, (n,), if the loop knows it."""
        return None if self._history.seeds is None else self._history.seeds.clone()

    @property
    def defects(self) -> Tensor:
        """All defects so far, the present ones last, (t + 1, n)."""
        return self._history.defects[: self.t + 1].clone()

    @property
    def projected(self) -> Tensor:
        """All decisions so far, (t, n) bool."""
        return self._history.projected[: self.t].clone()

    def arrays(self, schedule: Any) -> tuple[Tensor, Tensor]:
        """Return the defects s, (n,), and what is left of the schedule's budget b, (n,); floats if it is shared.

        The budget is the schedule's own, which is not the run's if another schedule asks this one.
        """
        if self.shares:
            return self._defect, self.budget_left
        return self._defect, (self._left + (schedule.budget - self._history.budget)).clamp(min=0)

    def take(self, rows: slice) -> StepView:
        """Return the view of some of the samples, without the proposal."""
        history = self._history
        some = history._replace(
            defects=history.defects[:, rows],
            projected=history.projected[:, rows],
            budget=history.budget[rows],
            seeds=None if history.seeds is None else history.seeds[rows],
            memo=history.memo.setdefault((rows.start, rows.stop), {}),
        )
        return StepView(
            self.t,
            some,
            self._left[rows],
            context=self.context,
            shares=self.shares,
        )

    def _last(self) -> Tensor:
        """Return `last`, updated from the step before if the run has it."""
        projected, t, memo = self._history.projected, self.t, self._history.memo
        done, known = memo.get("last", (None, None))
        if done == t:
            last: Tensor = known
        elif done == t - 1:
            last = torch.where(projected[done], t, known)
        else:
            last = last_corrections(projected[: t + 1])[t]
        memo["last"] = (t, last)
        return last

    def running_sum(self, term: Callable[[int, Tensor, Tensor], Tensor]) -> Tensor:
        """Return the sum of `term(u, defect, last)` over all steps u up to now, (n,).

        The run keeps the sum of the steps before under the term itself, so a step adds one term.

        Args:
            term: A function of step u, its defects (n,) and 1 + the step of the last correction before it (n,).
        """
        history, t = self._history, self.t
        done, known = history.memo.get(term, (-1, torch.zeros_like(history.defects[t])))
        total: Tensor = known
        if done != t:
            if done != t - 1:
                last = last_corrections(history.projected[: t + 1])
                total = sum(
                    (term(u, history.defects[u], last[u]) for u in range(t)), torch.zeros_like(history.defects[t])
                )
            total = total + term(t, history.defects[t], self._last())
            history.memo[term] = (t, total)
        return total


def last_corrections(projected: Tensor) -> Tensor:
    """Return 1 + the step of each sample's last correction before each step, 0 for never: (T, n) bool to (T, n)."""
    if not isinstance(projected, Tensor) or projected.dtype != torch.bool or projected.ndim != 2:
        got = f"{projected.dtype} {tuple(projected.shape)}" if isinstance(projected, Tensor) else f"{projected!r:.60}"
        raise ValueError(f"projected must be a mask of corrections, (T, n) bool: got {got}")
    steps = torch.arange(1, len(projected) + 1, device=projected.device)
    at = torch.where(projected, steps[:, None], 0).cummax(dim=0).values
    return torch.cat([torch.zeros_like(at[:1]), at[:-1]])
