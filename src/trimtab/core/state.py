"""The books of one run: what was seen, what was decided, what was spent, and what it all cost."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from math import inf
from threading import get_ident
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.core.bound_constraint import BoundConstraint, Meter, Outcome
from trimtab.core.budget import Unit, units
from trimtab.core.constraint import Improvement
from trimtab.core.groups import Groups
from trimtab.core.record import Closing, Passes, Rollout
from trimtab.core.schedule import Schedule
from trimtab.core.states import Form, Leaves
from trimtab.core.view import Books, StepView, as_array

__all__ = ["RunState"]


class RunState:
    """The running state of one run.

    Decisions are about *deciders*: samples, or groups of them. `defects`, `residuals` and `projected` have one column
    per sample; `seen`, `decided`, `budget` and `left` one per decider. Without groups the two are the same tensors.

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
        unit: Unit = "projection",
    ) -> None:
        """Begin with the schedule's whole budget."""
        n, device = form.n, form.device
        if seeds is not None and len(seeds) != n:
            raise ValueError(f"{len(seeds)} seeds were given for a batch of {n}")
        if groups is not None and len(groups.labels) != n:
            raise ValueError(f"{len(groups.labels)} group labels were given for a batch of {n}")
        self.form, self.n, self.n_steps, self.closing, self.unit = form, n, n_steps, closing, unit
        seeds, groups = None if seeds is None else seeds.to(device), None if groups is None else groups.to(device)
        self.seeds, self.groups = seeds, groups
        deciders = n if groups is None else groups.n
        self.schedule = schedule.to(device)
        self.applied: BoundConstraint | None = None  # the constraint, where it is the same at every step
        self.closing_reserve = int(closing == "paid") * (schedule.closing_reserve if unit == "iteration" else 1)
        self.t = 0
        self.thread = get_ident()  # the run is its own; 0 for a copy that nobody has called yet
        self.planned_steps: int | None = None  # if the run was stopped before
        self.broken = False  # whether a step failed when its decisions were made already

        self.defects = torch.empty(n_steps, n, dtype=form.dtype, device=device)
        self.residuals = torch.empty_like(self.defects)
        self.projected = torch.zeros(n_steps, n, dtype=torch.bool, device=device)
        self.failed = torch.zeros_like(self.projected)
        self.iterations = torch.zeros(n_steps, n, dtype=torch.int32, device=device)
        self.closed, self.closing_failed, self.done = torch.zeros(3, n, dtype=torch.bool, device=device)
        self.closing_iterations = torch.zeros(n, dtype=torch.int32, device=device)
        self.budget = torch.empty(deciders, dtype=torch.int64, device=device)
        self.budget[:] = torch.as_tensor(
            _budget(schedule, n_steps, deciders, unit, self.closing_reserve), device=device
        )
        self.left = self.budget.clone()  # b
        self.seen, self.decided = self.defects, self.projected
        self.decider_seeds = seeds
        if groups is not None:
            self.seen = torch.empty(n_steps, deciders, dtype=form.dtype, device=device)
            self.decided = torch.zeros(n_steps, deciders, dtype=torch.bool, device=device)
            self.decider_seeds = None if seeds is None else seeds[groups.first_row]
        self.memo: dict[Hashable, Any] = {}
        self.passes: list[tuple[int, Tensor, Tensor, Tensor]] = []  # within steps: which, defects, who is asked, costs
        self.again = 0  # passes of this step
        self.updates, self.looks, self.projections = Meter(), Meter(), Meter()
        self.states: list[Leaves] = []
        self.final: Leaves | None = None
        self.device_type = device.type
        self.began_at = self.returned_at = perf_counter()
        self._open()

    def _open(self) -> None:
        """Find the row of each step in the books, and the numpy views of what is written at every step."""
        self._left, self._decided, self._defects = map(as_array, (self.left, self.decided, self.defects))
        self._kept, self._projected = map(as_array, (self.residuals, self.projected))
        self._books = Books(
            defects=_for_reading(self.seen),
            projected=_for_reading(self.decided),
            budget=_for_reading(self.budget),
            left=_for_reading(self.left),
            seeds=None if self.decider_seeds is None else _for_reading(self.decider_seeds),
            n_steps=self.n_steps,
            beyond=self.unit == "iteration",
            closing_reserve=self.closing_reserve,
            asked=self.schedule,
            memo=self.memo,
        )
        self._kept_back = as_array(torch.full_like(self.left, self.closing_reserve))
        self._everyone = as_array(torch.ones_like(self.left, dtype=torch.bool))

    def __getstate__(self) -> dict[str, Any]:
        """What a copy needs: nothing that points into the books of this ledger, and no reading of this clock."""
        clock = {"began_at": self.began_at - self.returned_at, "returned_at": 0.0}
        kept = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return kept | {"thread": 0} | clock

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Go on where the other one was, as if its last call had returned now: another process has another clock."""
        vars(self).update(state)
        now = perf_counter()
        self.began_at, self.returned_at = self.began_at + now, self.returned_at + now
        if self.groups is None:
            self.seen, self.decided = self.defects, self.projected
        self._open()

    @property
    def complete(self) -> bool:
        """Whether all steps were made."""
        return self.t == self.n_steps

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
        self._defects[self.t], sound = self._written(defect, check)
        if self.groups is not None:
            self.seen[self.t] = self.groups.together(self.defects[self.t])
        return sound

    def decide(self, proposal: Any, context: Mapping[str, Any], among: Tensor | None = None) -> Any:
        """Decide who is corrected now, b > 0 and s >= lambda[t, b], and let each of those pay for one correction.

        What is kept back for the last step can be spent there alone, where everyone is corrected.

        Args:
            proposal: As the loop gave it, for schedules that look at it.
            context: What the loop passed with this step.
            among: The samples that it is about, (n,) bool, if not all; a group is one of them while any of its rows is.

        Returns:
            The samples to correct, (n,) bool, an array as in `Books`.
        """
        t = self.t
        if self.closing_reserve and t == self.n_steps - 1:
            chosen = self._everyone  # even if an iteration that cost more than one has used what was kept back
        else:
            present = as_array(self.passes[-1][1]) if self.again else None
            wanted = self.schedule.decide(StepView(t, self._books, proposal, context, present, self.again))
            able = self._left > self._kept_back  # b > 0
            if type(wanted) is not type(able) or wanted.dtype != able.dtype or wanted.shape != able.shape:
                wanted = self._as_decision(wanted, able)
            chosen = wanted & able
        if among is None:
            self._decided[t] = chosen
            if self.unit == "iteration":
                self.done.fill_(False)
        else:
            chosen = chosen & as_array(among if self.groups is None else self.groups.any_row(among))
        self._left -= chosen
        if self.groups is None:
            return chosen
        mask = self.groups.per_row(torch.as_tensor(chosen))
        if among is None:
            self.projected[t] = mask
        return as_array(mask)

    def _as_decision(self, wanted: Any, like: Any) -> Any:
        """A decision that is a tensor where the books are arrays, as an array like those; refuse what is none."""
        if isinstance(wanted, Tensor) and isinstance(like, np.ndarray):
            wanted = wanted.cpu().numpy()
        if type(wanted) is not type(like) or wanted.dtype != like.dtype or wanted.shape != like.shape:
            shown = hasattr(wanted, "dtype")
            got = f"{type(wanted).__name__} {tuple(wanted.shape)} of {wanted.dtype}" if shown else repr(wanted)
            raise ValueError(f"a schedule must decide with a ({len(like)},) bool tensor: got {got} at t = {self.t}")
        return wanted

    def improve(self, rows: Tensor, answer: Improvement) -> bool:
        """Write down what one iteration cost some rows, what it left of their defects, and which it has finished.

        Returns:
            Whether all defects are finite and at least 0.
        """
        t = self.t
        cost = torch.zeros_like(self.iterations[t])
        cost[rows] = 1 if answer.cost is None else answer.cost.to(cost)
        self.iterations[t] += cost
        if answer.cost is not None:  # one was spent when it was decided
            self._spend_more(cost - 1)
        self.done[rows] = answer.done
        self._kept[t][as_array(rows)], sound = self._written(answer.defect)
        if self.schedule.repeats:
            touched, going = self.projected[t], torch.zeros_like(self.done)
            going[rows] = ~answer.done
            present = torch.where(touched, self.residuals[t], self.defects[t])
            if self.groups is not None:
                present, going = self.groups.together(present), self.groups.any_row(going)
                cost = self.groups.largest(cost)
            self.passes.append((t, present, going, cost))
            self.again += 1
        return sound

    def finished_at(self, t: int) -> Tensor:
        """Which samples a step left with nothing more to correct, (n,) bool."""
        return self.projected[t] if self.unit == "projection" else self.done

    def keep(self, residual: Tensor, check: bool = True) -> bool:
        """Write down what corrections left of the defect: of all samples, (n,), or of those corrected, (k,).

        Returns:
            Whether all are finite and at least 0; True if not asked to check.
        """
        written, sound = self._written(residual, check)
        if len(written) == self.n:
            self._kept[self.t] = written
        else:
            self._kept[self.t][self._projected[self.t]] = written
        return sound

    def _written(self, values: Tensor, check: bool = True) -> tuple[Any, bool]:
        """Numbers as the books hold them, in whose dtype a large one may become inf, and whether they are distances.

        Distances are finite and at least 0; if not asked to check, True.
        """
        if values.dtype is not self.form.dtype or values.requires_grad:
            values = values.detach().to(self.form.dtype)
        if not values.is_cpu:
            return values, not check or bool(((values >= 0) & (values < inf)).all())
        try:
            array = values.numpy()
        except (RuntimeError, TypeError):  # no storage of its own
            array = values.clone().numpy()
        # NaN is the largest and the least of all
        return array, not check or (array.item(array.argmin()) >= 0 and array.item(array.argmax()) < inf)

    def keep_outcome(self, answer: Outcome, rows: Tensor | None) -> None:
        """Write down which corrections failed and how many iterations they took."""
        where: Any = slice(None) if rows is None else rows
        if answer.converged is not None:
            self.failed[self.t, where] = ~answer.converged
            self.failed[self.t] &= self.projected[self.t]
        if answer.iterations is not None:
            self.iterations[self.t, where] = answer.iterations.to(torch.int32)
            if rows is None:  # all were projected, not all were asked for
                self.iterations[self.t] *= self.projected[self.t]
            if self.unit == "iteration":  # a whole projection: one was spent when it was decided
                self._spend_more(self.iterations[self.t] - self.projected[self.t].int())
        elif self.unit == "iteration":  # a solver that does not tell is paid for one
            self.iterations[self.t] = self.projected[self.t].int()

    def _spend_more(self, iterations: Tensor) -> None:
        more = iterations.clamp(min=0).long()
        self.left -= more if self.groups is None else self.groups.largest(more)

    # -------------------------------------------------------------- the record

    def check_rows_ok(self, bad: Tensor, what: str) -> None:
        """Say which samples are bad, if any are."""
        if bool(bad.any()):
            rows = bad.nonzero().squeeze(1)
            seed = "" if self.seeds is None else f", seed {int(self.seeds[rows[0]])}"
            raise ValueError(
                f"{what} for {len(rows)} of {self.n} samples at step {self.t} of {self.n_steps} (first: sample "
                f"{int(rows[0])}{seed}); expected finite states and finite defects of at least 0"
            )

    def _recorded_passes(self) -> Passes | None:
        if not self.passes:
            return None
        steps, defects, asked, costs = zip(*self.passes, strict=True)
        is_measured_step = torch.where(torch.stack(asked), torch.stack(defects), torch.nan)
        return Passes(torch.tensor(steps), is_measured_step, torch.stack(costs))

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
            closing_iterations=self.closing_iterations,
            unit=self.unit,
            passes=self._recorded_passes(),
            seeds=self.seeds,
            states=self.form.state(stacked) if stacked else None,
            seconds=seconds,
            calls={kind: meter.calls for kind, meter in meters.items()},
            rows={kind: meter.rows for kind, meter in meters.items()},
            closing_rule=self.closing,
            groups=self.groups,
            planned_steps=self.planned_steps,
        )


def _budget(schedule: Schedule, n_steps: int, deciders: int, unit: Unit, closing_reserve: int) -> int | Tensor:
    """What each decider may spend, checked."""
    budget = units(schedule.budget, n_steps, unit)
    if isinstance(budget, Tensor) and len(budget) != deciders:
        raise ValueError(f"the schedule has budgets for {len(budget)} samples, but the batch has {deciders}")
    if (least := int(budget.min()) if isinstance(budget, Tensor) else budget) < closing_reserve:
        asked = f"{least} of some samples" if isinstance(budget, Tensor) else f"{schedule.budget} with T = {n_steps}"
        raise ValueError(
            f"a budget of {asked} leaves nothing for the closing projection, which takes {closing_reserve}; give at least "
            f"{closing_reserve}, or closing='free' to count as the paper does, or closing='none' to end as the sampler does"
        )
    return budget


def _for_reading(x: Tensor) -> Any:
    """The numbers where they lie, not to be written to where that can be had."""
    array = as_array(x)
    if isinstance(array, np.ndarray):
        array = array.view()
        array.flags.writeable = False
    return array
