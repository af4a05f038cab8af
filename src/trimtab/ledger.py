"""The books of a run: what was decided, what is left, and the one place where decisions are made."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.record import Rollout
from trimtab.schedule import Moment, Schedule, as_schedule, corrections

__all__ = ["Ledger", "replay"]


class Ledger:
    """The running state of the decisions of one run, and the one place where they are made."""

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
        # On the host the books are kept through numpy views of the same memory: for so few numbers a call of torch
        # costs several times the work it does. Schedules that can count in either are shown the views as well; one
        # that is derived from such a schedule has to say so itself.
        self.host = _Views(self) if like.device.type == "cpu" else None
        self._shown: Any = self.host if self.host and vars(type(schedule)).get("takes_arrays") else self

    def look(self, t: int, defect: Tensor) -> None:
        """Book the defects of the proposals of step t, (n,)."""
        if self.host:
            self.host.defects[t] = defect.numpy()
        else:
            self.defects[t] = defect

    def sound(self, t: int) -> bool:
        """Whether all defects of step t are finite and at least 0."""
        seen = self.host.defects[t] if self.host else self.defects[t]
        good = (seen >= 0) & (seen < math.inf)  # NaN is neither
        return int(np.count_nonzero(good)) == len(good) if self.host else bool(good.all())

    def decide(self, t: int, defect: Tensor, proposal: Tensor | None) -> Tensor:
        """Ask the schedule which samples to project after step t, and book what that spends.

        Returns:
            (n,) bool; never a sample with no budget left.
        """
        books = self._shown
        seen = defect if books is self else books.defects[t]
        record = (books.defects, books.projected)
        now = Moment(t, self.n_steps, seen, books.left, proposal, record, self.seeds, books.last, self.memory)
        chosen = self.schedule.decide(now)
        if not isinstance(chosen, type(seen)) or chosen.dtype != record[1].dtype or chosen.shape != seen.shape:
            came = f"{tuple(chosen.shape)} of {chosen.dtype}" if isinstance(chosen, Tensor) else repr(chosen)
            raise ValueError(f"a schedule must decide with a ({len(seen)},) bool tensor: got {came} at t = {t}")
        if self.host:
            spent = self.host.projected[t]
            np.logical_and(chosen.numpy() if books is self else chosen, self.host.left, out=spent)
            self.host.left -= spent
            self.host.last[spent] = t + 1
            return torch.from_numpy(spent)
        self.projected[t] = chosen & (self.left > 0)
        self.left -= self.projected[t].long()
        self.last.masked_fill_(self.projected[t], t + 1)
        return self.projected[t]

    def keep(self, t: int, residual: Tensor | None, rows: Tensor | None = None) -> None:
        """Book the residuals of the states kept after step t: of all samples, (n,), of some rows, (k,), or of none.

        The states of the others are the proposals, and their residuals the defects.
        """
        if self.host:
            kept = self.host.residuals[t]
            kept[:] = self.host.defects[t]
            if residual is not None:
                kept[slice(None) if rows is None else rows.numpy()] = residual.numpy()
        else:
            self.residuals[t] = self.defects[t]
            if residual is not None:
                self.residuals[t, slice(None) if rows is None else rows] = residual.to(self.residuals.dtype)

    def rows(self, t: int) -> Tensor:
        """The samples chosen at step t, as indices (k,)."""
        if self.host:
            return torch.from_numpy(self.host.projected[t].nonzero()[0])
        return self.projected[t].nonzero().squeeze(1)


class _Views:
    """The tensors of a ledger as numpy arrays in the same memory."""

    def __init__(self, ledger: Ledger) -> None:
        self.left, self.last = ledger.left.numpy(), ledger.last.numpy()
        self.defects, self.residuals = ledger.defects.numpy(), ledger.residuals.numpy()
        self.projected = ledger.projected.numpy()


def replay(schedule: Schedule | Callable[[Moment], Tensor], record: Rollout) -> Tensor:
    """What the schedule decides on the defects of a recorded run, (T, n) bool.

    Equal to `record.projected` exactly if that schedule is the one that ran (for schedules that look at states, which
    a record does not hold, this cannot be told).
    """
    T, n = record.defects.shape
    ledger = Ledger(as_schedule(schedule), T, n, record.defects, record.seeds)
    for t in range(T):
        ledger.look(t, record.defects[t])
        ledger.decide(t, record.defects[t], None)
    return ledger.projected
