"""The books of one run: what was seen, what was decided, what was spent, and what it all cost."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.core.applied import Meter, Outcome
from trimtab.core.groups import Groups
from trimtab.core.record import Closing, Rollout
from trimtab.core.schedule import Moment, Schedule, corrections
from trimtab.core.states import Form, Leaves

__all__ = ["Ledger"]


class Ledger:
    """The running state of one run.

    Decisions are about *units*: samples, or groups of them. `defects`, `residuals` and `projected` have one column per
    sample; `seen`, `decided`, `left` and `last` one per unit. Without groups the two are the same tensors.

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
        self.broken = False  # whether a step failed when its decisions were made already

        self.defects = torch.empty(n_steps, n, dtype=form.dtype, device=device)
        self.residuals = torch.empty_like(self.defects)
        self.projected = torch.zeros(n_steps, n, dtype=torch.bool, device=device)
        self.failed = torch.zeros_like(self.projected)
        self.iterations = torch.zeros(n_steps, n, dtype=torch.int32, device=device)
        self.closed = torch.zeros(n, dtype=torch.bool, device=device)
        self.closing_failed = torch.zeros_like(self.closed)
        self.left = torch.empty(units, dtype=torch.int64, device=device)
        self.left[:] = torch.as_tensor(_budget(schedule, n_steps, units, closing), device=device)
        self.last, self.spent = torch.zeros_like(self.left), torch.zeros_like(self.left)
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
        self.began_at = self.returned_at = perf_counter()
        self._open()

    def _open(self) -> None:
        """Find the row of each step in the books, and the numpy views of what is written at every step."""
        self._seen, self._rows_seen, self._rows_kept = (
            self.seen.unbind(),
            self.defects.unbind(),
            self.residuals.unbind(),
        )
        self._chosen = self.decided.unbind()
        self._left, self._last, self._spent, self._decided = map(
            _array, (self.left, self.last, self.spent, self.decided)
        )

    def __getstate__(self) -> dict[str, Any]:
        """What a copy needs: nothing that points into the books of this ledger."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

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
        """Write down the defects of the proposals, (n,): the residuals of all that is not corrected.

        Returns:
            Whether all are finite and at least 0; True if not asked to check.
        """
        row = self._rows_seen[self.t]
        row.copy_(defect)
        self._rows_kept[self.t].copy_(row)
        if self.groups is not None:
            self._seen[self.t].copy_(self.groups.together(row))
        return not check or _sound(row)

    def moment(self, proposal: Any, context: Mapping[str, Any] | None = None, defect: Tensor | None = None) -> Moment:
        """What the schedule may see of this step."""
        return Moment(
            self.t,
            self.n_steps,
            self.seen,
            self.decided,
            self.left,
            self.last,
            spent=self.spent,
            seeds=self.unit_seeds,
            proposal=proposal,
            context=context,
            defect=defect,
            kept_back=self.kept_back,
            memo=self.memo,
        )

    def spend(self, wanted: Any) -> Tensor:
        """Spend one correction of each unit that is wanted and can pay, (units,) bool to (n,) bool.

        With a paid closing, the last correction of each is kept back for the last step, which corrects all.
        """
        if not isinstance(wanted, Tensor) or wanted.dtype != torch.bool or wanted.shape != self.left.shape:
            came = f"{tuple(wanted.shape)} of {wanted.dtype}" if isinstance(wanted, Tensor) else repr(wanted)
            raise ValueError(
                f"a schedule must decide with a ({len(self.left)},) bool tensor: got {came} at t = {self.t}"
            )
        chosen = _array(wanted) & (self._left > self.kept_back)
        self._decided[self.t] |= chosen
        self._left -= 1 * chosen
        self._spent += 1 * chosen
        self._last += (self.t + 1 - self._last) * chosen
        mask = self._chosen[self.t]
        if self.groups is not None:
            mask = self.projected[self.t] = self.groups.per_row(mask)
        return mask

    def keep(self, residual: Tensor, rows: Tensor | None, check: bool = True) -> bool:
        """Write down what corrections left of the defect: of all samples, (n,), or of some rows, (k,).

        Returns:
            Whether all are finite and at least 0; True if not asked to check.
        """
        kept = self._rows_kept[self.t]
        if rows is None:
            kept.copy_(residual)
        else:
            kept.index_copy_(0, rows, residual.to(kept.dtype))
        return not check or _sound(kept)

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
            residuals=self.residuals,
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


def _array(x: Tensor) -> Any:
    """The numbers where they lie: through numpy on the host, the tensor itself elsewhere."""
    return x.numpy() if x.is_cpu else x


def _sound(values: Tensor) -> bool:
    """Whether all are finite and at least 0. What was written down is looked at: a large number may have become inf."""
    found = _array(values)
    return bool(found.min() >= 0) and bool(found.max() < np.inf)  # NaN is neither
