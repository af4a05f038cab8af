"""The books of a run: what was decided, what is left, and the one place where decisions are made."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from trimtab.core.every_step import Books, all_finite, compiled
from trimtab.core.record import Rollout
from trimtab.core.schedule import Moment, Schedule, as_schedule, corrections
from trimtab.prices.own_scale import OwnScale
from trimtab.prices.thresholds import Adaptive, Thresholds

__all__ = ["Ledger", "ledger_for", "replay"]


class Ledger:
    """The running state of the decisions of one run, and the one place where they are made."""

    _pointing: ClassVar[tuple[str, ...]] = ("seen", "masks")

    def __init__(self, schedule: Schedule, n_steps: int, n: int, like: Tensor, seeds: Tensor | None) -> None:
        """Start with the schedule's whole budget; `like` gives device and dtype of the defects."""
        budget = corrections(getattr(schedule, "budget", 1.0), n_steps)
        if isinstance(budget, Tensor) and len(budget) != n:
            raise ValueError(f"the schedule has budgets for {len(budget)} samples, but the batch has {n}")
        self.schedule = schedule.to(like.device) if hasattr(schedule, "to") else schedule
        self.n_steps = n_steps
        self.seeds = seeds
        self.left = torch.empty(n, dtype=torch.int64, device=like.device)
        self.left[:] = budget if isinstance(budget, Tensor) else int(budget)
        self.last = torch.zeros_like(self.left)
        self.defects = torch.empty(n_steps, n, dtype=like.dtype, device=like.device)
        self.residuals = torch.empty_like(self.defects)
        self.projected = torch.zeros(n_steps, n, dtype=torch.bool, device=like.device)
        self.memory: dict[str, Tensor] = {}
        self._open()

    def _open(self) -> None:
        """Find the books of each step in those of all."""
        self.seen, self.masks = self.defects.unbind(), self.projected.unbind()

    def __getstate__(self) -> dict[str, Any]:
        """What a copy needs: nothing that points into the books of this ledger."""
        return {name: value for name, value in vars(self).items() if name not in self._pointing}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Go on where the other one was."""
        vars(self).update(state)
        self._open()

    def look(self, t: int, x: Tensor, defect: Tensor, check: bool = True) -> bool:
        """Book the defects of the proposals `x` of step t, (n,): the residuals of all that is not projected.

        Returns:
            Whether all states are finite, and all defects finite and at least 0; True if not asked to check.
        """
        _check_shape(defect, self.left.shape[0])
        self.defects[t] = self.residuals[t] = defect
        return not check or (_sound(self.defects[t]) and all_finite(x))

    def decide(self, t: int, defect: Tensor, proposal: Tensor | None) -> Tensor:
        """Ask the schedule which samples to project after step t, and book what that spends.

        Args:
            t: The step.
            defect: As booked, `seen[t]`, (n,): what a replay of the record would see.
            proposal: The states before the decision, if there are any to show.

        Returns:
            (n,) bool; never a sample with no budget left.
        """
        record = (self.defects, self.projected)
        now = Moment(t, self.n_steps, defect, self.left, proposal, record, self.seeds, self.last, self.memory)
        chosen = self.schedule.decide(now)
        if not isinstance(chosen, Tensor) or chosen.dtype != torch.bool or chosen.shape != defect.shape:
            came = f"{tuple(chosen.shape)} of {chosen.dtype}" if isinstance(chosen, Tensor) else repr(chosen)
            raise ValueError(f"a schedule must decide with a ({len(defect)},) bool tensor: got {came} at t = {t}")
        return self.spend(t, chosen)

    def spend(self, t: int, chosen: Tensor) -> Tensor:
        """Spend a correction of each chosen sample that has one left, (n,) bool to (n,) bool."""
        mask = self.masks[t].copy_(chosen & (self.left > 0))
        self.left -= mask.long()
        self.last.masked_fill_(mask, t + 1)
        return mask

    def rows(self, t: int) -> Tensor:
        """The samples chosen at step t, as indices (k,)."""
        return self.masks[t].nonzero().squeeze(1)

    def keep(self, t: int, residual: Tensor, rows: Tensor | None = None, check: bool = True) -> bool:
        """Book the residuals of the states projected after step t: of all samples, (n,), or of some rows, (k,).

        Returns:
            Whether all are finite and at least 0; True if not asked to check.
        """
        _check_shape(residual, (self.left if rows is None else rows).shape[0])
        self.residuals[t, slice(None) if rows is None else rows] = residual.to(self.residuals)
        return not check or _sound(self.residuals[t])


def _check_shape(defect: Any, n: int) -> None:
    """Refuse what a constraint says of n states if it is not one float for each."""
    if not isinstance(defect, Tensor) or defect.shape != (n,) or not defect.is_floating_point():
        came = f"{tuple(defect.shape)} of {defect.dtype}" if isinstance(defect, Tensor) else repr(defect)
        raise ValueError(f"defect must return one number a sample, ({n},) floats: got {came}")


def _sound(booked: Tensor) -> bool:
    """Whether all are finite and at least 0. What is booked is looked at: a large number may have become inf."""
    return bool(((booked >= 0) & (booked < math.inf)).all())  # NaN is neither


class _CompiledLedger(Ledger):
    """The same books in host memory, kept by compiled functions: the same bits in a fraction of the time."""

    _pointing = (*Ledger._pointing, "marks", "books", "tables", "address", "_look", "_decide", "_spend", "_keep")

    def __init__(
        self, schedule: Schedule, n_steps: int, n: int, like: Tensor, seeds: Tensor | None, numbers: int
    ) -> None:
        """As a `Ledger`, for a batch whose states are so many numbers."""
        self.dtype, self.n, self.count, self.numbers = like.dtype, n, 0, numbers
        self.every, self.nobody = torch.arange(n), torch.arange(0)
        self.totals = torch.empty(n, dtype=torch.float64)
        super().__init__(schedule, n_steps, n, like, seeds)

    def _open(self) -> None:
        """Show the compiled functions where the books lie."""
        super()._open()
        self.marks = self.projected.numpy()
        self.books = Books(self.n, self.dtype == torch.float64, self.numbers)
        self.priced = type(self.schedule) is Adaptive and self._enter_prices(self.schedule)
        for name in ("defects", "residuals", "projected", "left", "last", "totals"):
            setattr(self.books, name, getattr(self, name).data_ptr())
        self.address = ctypes.addressof(self.books)
        self._look, self._decide, self._spend, self._keep = map(compiled, ("look", "decide", "spend", "keep"))

    def _enter_prices(self, schedule: Adaptive) -> bool:
        """Show the compiled functions the prices: whether they can be used."""
        schedule.check_steps(self.n_steps)
        prices, own = schedule.thresholds, schedule.thresholds.own_scale
        if type(prices) is not Thresholds or type(own) not in (OwnScale, type(None)):
            return False  # a derived one may price otherwise
        self.tables = [prices.table.contiguous()]
        if own is not None:
            self.tables.append(own.by_step)
            self.books.typical, self.books.kinds = own.by_step.data_ptr(), own.by_step.shape[1]
            self.books.prior = own.prior
        self.books.prices, self.books.columns = self.tables[0].data_ptr(), prices.budget + 1
        return all(table.dtype == torch.float64 for table in self.tables)

    def _can_read(self, x: Tensor) -> bool:
        """Whether the compiled functions can read these numbers where they lie."""
        return x.dtype is self.dtype and x.is_cpu and x.is_contiguous()

    def _can_read_row(self, x: Any, n: int) -> bool:
        """Whether they can, and the numbers are (n,)."""
        return type(x) is Tensor and x.ndim == 1 and x.numel() == n and self._can_read(x)

    def look(self, t: int, x: Tensor, defect: Tensor, check: bool = True) -> bool:
        """Checks in any case: it costs nothing here."""
        if self._can_read(x) and self._can_read_row(defect, self.n):
            return bool(self._look(self.address, t, x.data_ptr(), defect.data_ptr()))
        return super().look(t, x, defect)

    def decide(self, t: int, defect: Tensor, proposal: Tensor | None) -> Tensor:
        """Schedules that are a table of prices are not even asked."""
        if not self.priced:
            return super().decide(t, defect, proposal)
        self.count = self._decide(self.address, t)
        return self.masks[t]

    def spend(self, t: int, chosen: Tensor) -> Tensor:
        """As a `Ledger`."""
        mask = self.masks[t].copy_(chosen)
        self.count = self._spend(self.address, t)
        return mask

    def rows(self, t: int) -> Tensor:
        """Of the last step."""
        if self.count in (0, self.n):
            return self.every if self.count else self.nobody
        return torch.from_numpy(self.marks[t].nonzero()[0])

    def keep(self, t: int, residual: Tensor, rows: Tensor | None = None, check: bool = True) -> bool:
        """As a `Ledger`."""
        k = self.n if rows is None else rows.shape[0]
        if not self._can_read_row(residual, k):
            return super().keep(t, residual, rows, check)
        sound = self._keep(self.address, t, residual.data_ptr(), None if rows is None else rows.data_ptr(), k)
        return not check or bool(sound)


def ledger_for(schedule: Schedule, n_steps: int, n: int, like: Tensor, seeds: Tensor | None, numbers: int) -> Ledger:
    """The ledger of a run whose defects are like `like` and whose batch of states is so many numbers."""
    if like.is_cpu and like.dtype in (torch.float32, torch.float64) and compiled("look"):
        return _CompiledLedger(schedule, n_steps, n, like, seeds, numbers)
    return Ledger(schedule, n_steps, n, like, seeds)


def replay(schedule: Schedule | Callable[[Moment], Tensor], record: Rollout) -> Tensor:
    """What the schedule decides on the defects of a recorded run, (T, n) bool.

    Equal to `record.projected` exactly if that schedule is the one that ran (for schedules that look at states, which
    a record does not hold, this cannot be told).
    """
    T, n = record.defects.shape
    ledger = ledger_for(as_schedule(schedule), T, n, record.defects, record.seeds, numbers=n)
    for t in range(T):
        ledger.look(t, record.defects[t], record.defects[t])
        ledger.decide(t, ledger.seen[t], None)
    return ledger.projected
