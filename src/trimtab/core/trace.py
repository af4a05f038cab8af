"""The trace of a run: its state, and everything that is recorded while it runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from trimtab.core import state as accounts
from trimtab.core.arrays import Form, Leaves
from trimtab.core.bound_constraint import BoundConstraint, Meter, Outcome, ProjectionError
from trimtab.core.budget import Unit, units
from trimtab.core.constraint import Improvement
from trimtab.core.groups import Groups
from trimtab.core.record import Closing, Passes, Rollout
from trimtab.core.schedule import Schedule
from trimtab.core.state import Pools, RunState, Terms
from trimtab.core.view import History, StepView

__all__ = ["Trace", "run_terms"]


class Trace:
    """One run as it is recorded.

    Decisions are about samples, or about groups of them. `defects`, `residuals` and `projected` have one column per
    sample; `seen`, `decided` and the accounts in `state` one per decider. Without groups the two are the same.
    """

    def __init__(
        self,
        form: Form,
        schedule: Schedule,
        n_steps: int,
        closing: Closing,
        unit: Unit,
        seeds: Tensor | None = None,
        groups: Groups | None = None,
    ) -> None:
        """Start with the schedule's whole budget."""
        n, device = form.n, form.device
        labels = None if groups is None else groups.labels
        for name, given in (("seeds", seeds), ("group labels", labels)):
            if given is not None and len(given) != n:
                raise ValueError(f"{len(given)} {name} were given for a batch of {n}")
        self.form, self.n, self.device, self.n_steps = form, n, device, n_steps
        self.closing, self.unit = closing, unit
        self.schedule = schedule.to(device)
        self.seeds = None if seeds is None else seeds.to(device)
        self.groups = None if groups is None else groups.to(device)
        self.terms, self.budget = run_terms(
            self.schedule, n_steps, closing, unit, n if groups is None else groups.n, device
        )
        self.state: RunState = accounts.start(self.terms, self.budget)

        self.defects = torch.full((n_steps, n), torch.nan, dtype=form.dtype, device=device)
        self.residuals = self.defects.clone()
        self.projected = torch.zeros(n_steps, n, dtype=torch.bool, device=device)
        self.failed = torch.zeros_like(self.projected)
        self.iterations = torch.zeros(n_steps, n, dtype=torch.int32, device=device)
        self.closed, self.closing_failed, self.done = torch.zeros(3, n, dtype=torch.bool, device=device)
        self.closing_iterations, self.extra = torch.zeros(2, n, dtype=torch.int32, device=device)
        self.seen, self.decided, decider_seeds = self.defects, self.projected, self.seeds
        if self.groups is not None:
            self.seen = torch.full((n_steps, self.groups.n), torch.nan, dtype=form.dtype, device=device)
            self.decided = torch.zeros(n_steps, self.groups.n, dtype=torch.bool, device=device)
            decider_seeds = None if self.seeds is None else self.seeds[self.groups.first_row]
        self.history = History(self.seen, self.decided, self.budget, n_steps, self.terms.reserve, decider_seeds, {})

        self.passes: list[tuple[int, Tensor, Tensor, Tensor]] = []  # step, defects, who is asked, cost so far
        self.iteration = 0  # of this step
        self.planned_steps: int | None = None  # if the run was stopped before its last step
        self.broken = False  # whether a step failed after its decisions were made
        self.constraint: BoundConstraint  # set by the corrector that starts the run
        self.owner: tuple[int, int] | None = None
        self.updates, self.projection_meter, self.defect_meter = Meter(), Meter(), Meter()
        self.states: list[Leaves] = []
        self.rollout: Rollout | None = None
        self.started_at = self.returned_at = perf_counter()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy needs; it has no owner yet, and its clock starts when it is restored."""
        now = {"started_at": self.started_at - self.returned_at, "returned_at": 0.0, "owner": None}
        return vars(self) | now

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        """Continue as if the last call had returned now: another process has another clock."""
        now = perf_counter()
        vars(self).update(attributes)
        self.started_at, self.returned_at = self.started_at + now, now

    @property
    def t(self) -> int:
        """The step."""
        return int(self.state.t)

    @property
    def complete(self) -> bool:
        """Return whether all steps are done."""
        return self.t == self.n_steps

    @property
    def closes_now(self) -> bool:
        """Whether this is the last step and the budget pays for correcting every sample."""
        return self.closing == "paid" and self.t == self.n_steps - 1

    def belongs_to(self, caller: tuple[int, int]) -> bool:
        """Return whether a thread and task own this run; the first caller of a copy becomes its owner."""
        if self.owner is None:
            self.owner = caller
        return self.owner == caller

    # -------------------------------------------------------------- one step

    def observe(self, defect: Tensor) -> None:
        """Record the defects of the proposals, (n,); raise if one is negative, NaN or inf."""
        self.defects[self.t] = defect.detach()
        if not are_distances(self.defects[self.t]):
            self.check(_is_distance(self.defects[self.t]), "the defect is negative, NaN or inf")
        if self.groups is not None:
            self.seen[self.t] = self.groups.together(self.defects[self.t])

    def decide(self, proposal: Any, context: Mapping[str, Any], among: Tensor | None = None) -> Tensor:
        """Decide which samples are corrected now, and charge each of them one unit.

        Args:
            proposal: As the loop gave it, for schedules that look at it.
            context: What the loop passed with this step.
            among: The samples that may continue within the step, (n,) bool; all by default.

        Returns:
            The samples to correct, (n,) bool.
        """
        t = self.t
        present = self.passes[-1][1] if self.iteration else None
        shares, left = self.terms.pools is not None, accounts.left_per_sample(self.terms, self.state)
        view = StepView(t, self.history, left, proposal, context, present, self.iteration, shares)
        if self.closes_now:
            wanted, priority = torch.ones_like(self.decided[t]), None
        else:
            wanted = self._checked_decision(self.schedule.decide(view))
            priority = self.schedule.priority(view) if shares else None
        chosen: Tensor = accounts.decide(self.terms, self.state, wanted, priority)
        if among is None:
            self.decided[t] = chosen
            self.done.fill_(False)
        else:
            chosen = chosen & (among if self.groups is None else self.groups.any_row(among))
        self.state = accounts.spend(self.terms, self.state, chosen)
        if self.groups is None:
            return chosen
        rows = self.groups.per_row(chosen)
        if among is None:
            self.projected[t] = rows
        return rows

    def _checked_decision(self, wanted: Any) -> Tensor:
        """Return the schedule's answer, if it is a (n,) bool tensor."""
        expected = self.decided[self.t]
        if isinstance(wanted, Tensor) and wanted.dtype is torch.bool and wanted.shape == expected.shape:
            return wanted.to(self.device)
        known = hasattr(wanted, "dtype")
        got = f"{type(wanted).__name__} {tuple(wanted.shape)} of {wanted.dtype}" if known else repr(wanted)
        raise ValueError(f"a schedule must decide with a ({len(expected)},) bool tensor: got {got} at t = {self.t}")

    def record_projection(self, rows: Tensor, answer: Outcome, residual: Tensor | None) -> None:
        """Record whole projections of some rows, (k,): failures, iterations, and what is left of the defects."""
        t = self.t
        if answer.converged is not None:
            self.failed[t, rows] = ~answer.converged
        if answer.iterations is not None:
            self.iterations[t, rows] = answer.iterations.to(torch.int32)
        elif self.unit == "iteration":  # a solver that does not report iterations is paid for one
            self.iterations[t, rows] = 1
        if self.unit == "iteration":  # one was paid when it was decided
            self._pay_more(self.iterations[t] - self.projected[t].int())
        if residual is not None:
            residual = residual.detach().to(self.residuals.dtype)
            self.residuals[t, rows] = residual
            if not are_distances(residual):
                good = torch.ones_like(self.done).index_copy(0, rows, _is_distance(residual))
                self.check(good, "the defect after projecting is negative, NaN or inf")

    def record_iteration(self, rows: Tensor, answer: Improvement) -> None:
        """Record one iteration of some rows, (k,): its cost, what is left of the defects, which rows are done."""
        t = self.t
        cost = torch.zeros_like(self.iterations[t])
        cost[rows] = 1 if answer.cost is None else answer.cost.to(cost)
        self.iterations[t] += cost
        if answer.cost is not None:  # one was paid when it was decided
            self._pay_more(cost - 1)
        self.done[rows] = answer.done
        self.residuals[t, rows] = answer.defect.detach().to(self.residuals.dtype)
        if not are_distances(self.residuals[t, rows]):
            raise ProjectionError(f"improve returned a defect that is negative, NaN or inf at step {t}")
        if self.schedule.repeats:
            going = torch.zeros_like(self.done).index_fill_(0, rows, True) & ~self.done
            present = torch.where(self.projected[t], self.residuals[t], self.defects[t])
            if self.groups is not None:
                present, going = self.groups.together(present), self.groups.any_row(going)
                cost = self.groups.largest(cost)
            self.passes.append((t, present, going, cost))
            self.iteration += 1

    def record_closing(self, rows: Tensor, answer: Outcome) -> None:
        """Record a closing projection of some rows, (k,), outside those of the steps."""
        self.closed[rows] = True
        if answer.converged is not None:
            self.closing_failed[rows] = ~answer.converged
        if answer.iterations is not None:
            self.closing_iterations[rows] = answer.iterations.to(torch.int32)
        elif self.unit == "iteration":
            self.closing_iterations[rows] = 1

    def finished(self, t: int | None = None) -> Tensor:
        """Return which samples a step left with nothing to correct, (n,) bool."""
        whole = self.unit == "projection" or self.schedule.whole
        return self.projected[self.t if t is None else t] if whole else self.done

    def next_step(self) -> None:
        """Continue with the next step."""
        self.state, self.iteration, self.broken = accounts.next_step(self.state), 0, False

    def means(self, t: int) -> dict[str, float]:
        """Return the mean defect, residual and share of projected samples at step t, for logging."""
        numbers = {"defect": self.defects[t], "residual": self._kept()[t], "projected": self.projected[t]}
        return {name: float(values.double().mean()) for name, values in numbers.items()}

    def check(self, good: Tensor | None, what: str) -> None:
        """Raise if not all samples are good, (n,) bool, with the first bad one's row and seed."""
        if good is None or bool(good.all()):
            return
        rows = (~good).nonzero().squeeze(1)
        seed = "" if self.seeds is None else f", seed {int(self.seeds[rows[0]])}"
        raise ValueError(
            f"{what} for {len(rows)} of {self.n} samples at step {self.t} of {self.n_steps} (first: sample "
            f"{int(rows[0])}{seed}); expected finite states and finite defects of at least 0"
        )

    def _pay_more(self, iterations: Tensor) -> None:
        more = iterations.clamp(min=0).long()
        more = more if self.groups is None else self.groups.largest(more)
        self.state = accounts.spend(self.terms, self.state, more)

    # -------------------------------------------------------------- the record

    def stop(self) -> None:
        """End the run after the steps made so far."""
        self.planned_steps, self.n_steps = self.n_steps, self.t
        for name in ("defects", "residuals", "projected", "failed", "iterations", "seen", "decided"):
            setattr(self, name, getattr(self, name)[: self.t].clone())

    def _kept(self) -> Tensor:
        """Return the defects of the states after each step, (T, n); samples left alone keep the proposal's defect."""
        return torch.where(self.projected, self.residuals, self.defects)

    def record(self, final: Leaves) -> Rollout:
        """Return the record of the whole run."""
        meters = {"update": self.updates, "defect": self.defect_meter, "projection": self.projection_meter}
        if self.defect_meter is self.projection_meter:  # each defect is a projection
            meters["defect"] = Meter()
        seconds = {kind: meter.seconds for kind, meter in meters.items()}
        seconds["scheduling"] = self.returned_at - self.started_at - sum(seconds.values())
        extra = self.extra
        if self.defect_meter is self.projection_meter:
            extra = extra + (~self.defects.isnan()).sum(dim=0).to(extra)
        stacked = tuple(torch.stack(leaf) for leaf in zip(*self.states, strict=True))
        return Rollout(
            final=self.form.state(final),
            defects=self.defects,
            residuals=self._kept(),
            projected=self.projected,
            closing=self.closed,
            failed=self.failed,
            closing_failed=self.closing_failed,
            iterations=self.iterations,
            closing_iterations=self.closing_iterations,
            extra=extra,
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

    def _recorded_passes(self) -> Passes | None:
        if not self.passes:
            return None
        steps, defects, asked, costs = zip(*self.passes, strict=True)
        measured = torch.where(torch.stack(asked), torch.stack(defects), torch.nan)
        return Passes(torch.tensor(steps), measured, torch.stack(costs))


def are_distances(values: Tensor) -> bool:
    """Return whether all values are finite and at least 0."""
    least, largest = values.aminmax()  # NaN is both
    return float(least) >= 0 and float(largest) < math.inf


def _is_distance(values: Tensor) -> Tensor:
    return (values >= 0) & values.isfinite()


def run_terms(
    schedule: Schedule, n_steps: int, closing: Closing, unit: Unit, n: int, device: torch.device
) -> tuple[Terms, Tensor]:
    """Return the terms of a run for n deciders and the budget of each, (n,) int64, checked."""
    reserve = 0 if closing != "paid" else schedule.closing_reserve if unit == "iteration" else 1
    budget = units(None if schedule.whole and unit == "iteration" else schedule.budget, n_steps, unit)
    if isinstance(budget, Tensor) and len(budget) != n:
        raise ValueError(f"the schedule has budgets for {len(budget)} samples, but the batch has {n}")
    if (least := int(torch.as_tensor(budget).min())) < reserve:
        asked = f"{least} of some samples" if isinstance(budget, Tensor) else f"{schedule.budget} with T = {n_steps}"
        raise ValueError(
            f"a budget of {asked} leaves nothing for the closing projection, which takes {reserve}; give at least "
            f"{reserve}, or closing='free' to count as the paper does, or closing='none' to end as the sampler does"
        )
    labels, exact = schedule.pools(n), unit == "projection" and schedule.spends_all
    pools = None if labels is None else Pools.of_labels(labels.to(device), exact)
    each = torch.as_tensor(budget, dtype=torch.int64, device=device).expand(n).clone()
    return Terms(n_steps, reserve, pools), each
