"""The books of one run: what was seen, what was decided, what was spent, and what it all cost."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import nullcontext
from threading import get_ident
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.core.applied import Meter, Outcome
from trimtab.core.groups import Groups
from trimtab.core.record import Closing, Rollout
from trimtab.core.schedule import Books, Moment, Schedule, as_array, corrections
from trimtab.core.states import Form, Leaves

__all__ = ["Ledger"]


class Ledger:
    """The running state of one run.

    Decisions are about *units*: samples, or groups of them. `defects`, `residuals` and `projected` have one column per
    sample; `seen`, `decided`, `budget`, `spent` and `last` one per unit. Without groups the two are the same tensors.

    On the host the few numbers of a step are read and written through numpy views of the same memory, since a call of
    torch costs several times the work it does there. Whatever is written below works on both.
    """

    def __init__(
        self,
        form: Form,
        schedule: Schedule,
        n_steps: int,
        closing: Closing,
        seeds: Tensor | None = None,
        groups: Groups | None = None,
    ) -> None:
        """Begin with the schedule's whole budget."""
        n, device = form.n, form.device
        if seeds is not None and len(seeds) != n:
            raise ValueError(f"{len(seeds)} seeds were given for a batch of {n}")
        if groups is not None and len(groups.labels) != n:
            raise ValueError(f"{len(groups.labels)} group labels were given for a batch of {n}")
        self.form, self.n, self.n_steps, self.closing, self.seeds, self.groups = (
            form,
            n,
            n_steps,
            closing,
            seeds,
            groups,
        )
        units = n if groups is None else groups.n
        self.schedule = schedule.to(device)
        self.t = 0
        self.thread = get_ident()  # the run is its own; 0 for a copy that nobody has called yet
        self.planned_steps: int | None = None  # if the run was stopped before
        self.broken = False  # whether a step failed when its decisions were made already

        self.defects = torch.empty(n_steps, n, dtype=form.dtype, device=device)
        self.residuals = torch.empty_like(self.defects)
        self.projected = torch.zeros(n_steps, n, dtype=torch.bool, device=device)
        self.failed = torch.zeros_like(self.projected)
        self.iterations = torch.zeros(n_steps, n, dtype=torch.int32, device=device)
        self.closed = torch.zeros(n, dtype=torch.bool, device=device)
        self.closing_failed = torch.zeros_like(self.closed)
        self.budget = torch.empty(units, dtype=torch.int64, device=device)
        self.budget[:] = torch.as_tensor(_budget(schedule, n_steps, units, closing), device=device)
        self.spent, self.last = torch.zeros_like(self.budget), torch.zeros_like(self.budget)
        self.seen, self.decided = self.defects, self.projected
        self.unit_seeds = seeds
        if groups is not None:
            self.seen = torch.empty(n_steps, units, dtype=form.dtype, device=device)
            self.decided = torch.zeros(n_steps, units, dtype=torch.bool, device=device)
            self.unit_seeds = None if seeds is None else seeds[groups.first_row]
        self.memo: dict[Hashable, Any] = {}
        self.updates, self.looks, self.projections = Meter(), Meter(), Meter()
        self.states: list[Leaves] = []
        self.final: Leaves | None = None
        kind = device.type  # the caller's autocast must not round a projection to half precision
        autocast = torch.is_autocast_enabled(kind)
        self.exact_arithmetic: Any = torch.autocast(kind, enabled=False) if autocast else nullcontext()
        self.began_at = self.returned_at = perf_counter()
        self._open()

    def _open(self) -> None:
        """Find the row of each step in the books, and the numpy views of what is written at every step."""
        self._chosen = self.decided.unbind()
        self._spent, self._last, self._decided, self._kept, self._defects = map(
            as_array, (self.spent, self.last, self.decided, self.residuals, self.defects)
        )
        books = (self.seen, self.decided, self.budget, self.spent, self.last, self.unit_seeds)
        self._books = Books(*(None if part is None else _for_reading(part) for part in books))
        self._limit = as_array(self.budget - int(self.closing == "paid"))  # what may be spent before the last step

    def __getstate__(self) -> dict[str, Any]:
        """What a copy needs: nothing that points into the books of this ledger."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")} | {"thread": 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Go on where the other one was."""
        vars(self).update(state)
        if self.groups is None:
            self.seen, self.decided = self.defects, self.projected
        self._open()

    @property
    def complete(self) -> bool:
        """Whether all steps were made."""
        return self.t == self.n_steps

    @property
    def kept_back(self) -> int:
        """How many corrections are kept for the last step, which corrects every sample if its closing is paid."""
        return int(self.closing == "paid" and self.t < self.n_steps - 1)

    @property
    def ends_paid(self) -> bool:
        """Whether this is the last step, and the budget pays for correcting every sample."""
        return self.closing == "paid" and self.t == self.n_steps - 1

    # -------------------------------------------------------------- one step

    def look(self, defect: Tensor, check: bool = True) -> bool:
        """Write down the defects of the proposals, (n,).

        Returns:
            Whether all are finite and at least 0; True if not asked to check.
        """
        row = self._defects[self.t]
        row[:] = self._as_written(defect)
        if self.groups is not None:
            self.seen[self.t] = self.groups.together(self.defects[self.t])
        return not check or _sound(row)

    def moment(self, proposal: Any, context: Mapping[str, Any], defect: Tensor | None = None) -> Moment:
        """What the schedule may see of this step."""
        return Moment(
            self.t,
            self.n_steps,
            self._books,
            proposal=proposal,
            context=context,
            defect=defect,
            kept_back=self.kept_back,
            asked=self.schedule,
            memo=self.memo,
        )

    def spend(self, wanted: Any) -> Tensor:
        """Spend one correction of each unit that is wanted and can pay, (units,) bool to (n,) bool.

        With a paid closing, the last correction of each is kept back for the last step, which corrects all.
        """
        able = self._spent < (self._books.budget if self.t == self.n_steps - 1 else self._limit)  # b > 0
        if isinstance(wanted, Tensor) and isinstance(able, np.ndarray):
            wanted = wanted.cpu().numpy()
        if type(wanted) is not type(able) or wanted.dtype != able.dtype or wanted.shape != able.shape:
            came = f"{tuple(wanted.shape)} of {wanted.dtype}" if hasattr(wanted, "dtype") else repr(wanted)
            raise ValueError(f"a schedule must decide with a ({len(able)},) bool tensor: got {came} at t = {self.t}")
        chosen = wanted & able
        self._decided[self.t] = chosen
        self._spent += chosen
        self._last[chosen] = self.t + 1
        mask = self._chosen[self.t]
        if self.groups is not None:
            mask = self.projected[self.t] = self.groups.per_row(mask)
        return mask

    def keep(self, residual: Tensor, rows: Tensor | None, check: bool = True) -> bool:
        """Write down what corrections left of the defect: of all samples, (n,), or of some rows, (k,).

        Returns:
            Whether all are finite and at least 0; True if not asked to check.
        """
        written = self._as_written(residual)
        self._kept[self.t][slice(None) if rows is None else as_array(rows)] = written
        return not check or _sound(written)

    def _as_written(self, values: Tensor) -> Any:
        """Numbers as the books hold them, in whose dtype a large one may become inf."""
        if values.dtype is not self.defects.dtype or values.requires_grad:
            values = values.detach().to(self.defects.dtype)
        try:
            return as_array(values)
        except (RuntimeError, TypeError):  # no storage of its own
            return as_array(values.clone())

    def keep_outcome(self, answer: Outcome, rows: Tensor | None, chosen: Tensor) -> None:
        """Write down which corrections failed and how many iterations they took."""
        where: Any = slice(None) if rows is None else rows
        if answer.converged is not None:
            self.failed[self.t, where] = ~answer.converged
            self.failed[self.t] &= chosen
        if answer.iterations is not None:
            self.iterations[self.t, where] = answer.iterations.to(torch.int32)

    # -------------------------------------------------------------- the record

    def refuse_rows(self, bad: Tensor, what: str) -> None:
        """Say which samples are bad, if any are."""
        if bool(bad.any()):
            rows = bad.nonzero().squeeze(1)
            seed = "" if self.seeds is None else f", seed {int(self.seeds[rows[0]])}"
            raise ValueError(
                f"{what} for {len(rows)} of {self.n} samples at step {self.t} of {self.n_steps} (first: sample "
                f"{int(rows[0])}{seed}); expected finite states and finite defects of at least 0"
            )

    def stop(self, final: Leaves) -> None:
        """End the run after the steps made so far, with these states."""
        self.planned_steps, self.n_steps = self.n_steps, self.t
        for name in ("defects", "residuals", "projected", "failed", "iterations", "seen", "decided"):
            setattr(self, name, getattr(self, name)[: self.t].clone())
        self.final = tuple(leaf.detach().clone() for leaf in final)
        if self.states:
            self.states[-1] = self.final

    def record(self) -> Rollout:
        """The record of the whole run."""
        assert self.final is not None
        meters = {"update": self.updates, "defect": self.looks, "projection": self.projections}
        seconds = {kind: meter.seconds for kind, meter in meters.items()}
        seconds["scheduling"] = self.returned_at - self.began_at - sum(seconds.values())
        stacked = tuple(torch.stack(leaf) for leaf in zip(*self.states, strict=True))
        return Rollout(
            final=self.form.state(self.final),
            defects=self.defects,
            residuals=torch.where(self.projected, self.residuals, self.defects),  # what was left alone keeps its defect
            projected=self.projected,
            closing=self.closed,
            failed=self.failed,
            closing_failed=self.closing_failed,
            iterations=self.iterations,
            seeds=self.seeds,
            states=self.form.state(stacked) if stacked else None,
            seconds=seconds,
            calls={kind: meter.calls for kind, meter in meters.items()},
            rows={kind: meter.rows for kind, meter in meters.items()},
            closing_rule=self.closing,
            groups=self.groups,
            planned_steps=self.planned_steps,
        )


def _budget(schedule: Schedule, n_steps: int, units: int, closing: Closing) -> int | Tensor:
    """What each unit may spend, checked."""
    budget = corrections(schedule.budget, n_steps)
    if isinstance(budget, Tensor) and len(budget) != units:
        raise ValueError(f"the schedule has budgets for {len(budget)} samples, but the batch has {units}")
    if closing == "paid" and int(torch.as_tensor(budget).min()) < 1:
        raise ValueError(
            f"a budget of {schedule.budget} leaves nothing for the closing projection, which is one; give at least 1, "
            "or closing='free' to count as the paper does, or closing='none' to end as the sampler does"
        )
    return budget


def _for_reading(x: Tensor) -> Any:
    """The numbers where they lie, not to be written to where that can be had."""
    array = as_array(x)
    if isinstance(array, np.ndarray):
        array = array.view()
        array.flags.writeable = False
    return array


def _sound(values: Any) -> bool:
    """Whether all numbers of an array are finite and at least 0."""
    if isinstance(values, Tensor):
        return bool(((values >= 0) & (values < torch.inf)).all())
    return bool(_least(values) >= 0 and _most(values) < np.inf)  # NaN is neither


_least, _most = np.minimum.reduce, np.maximum.reduce
