"""One run of Algorithm 1: everything it knows, and the four parts of a step.

`Run.step` is one pass of the paper's loop: measure, decide, correct, finish. The comparison `s >= lambda[t, b]` is the
schedule's (`trimtab.prices.schedule`); `b > 0` and the accounts are pure functions in `trimtab.core.state`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from trimtab.constraints.ways import way_of
from trimtab.core import state as accounts
from trimtab.core.arrays import Form, Leaves, all_finite, finite_rows, numbers_of, put_rows, take_leaves
from trimtab.core.bound_constraint import BoundConstraint, Context, Meter, Outcome, Then, recover
from trimtab.core.budget import COST, Unit, units
from trimtab.core.constraint import Constraint
from trimtab.core.record import Closing, Rollout, Trials, work_of
from trimtab.core.schedule import WHOLE, Schedule
from trimtab.core.state import Pools, RunState, Terms
from trimtab.core.view import History, StepView

__all__ = ["Run", "Settings", "limit_of", "run_terms"]

_TELLING = 8  # samples whose median says what scale defects have; a single defect may be near 0 by chance


@dataclass(frozen=True)
class Settings:
    """How runs are made, the same from run to run; see `trimtab.Corrector`."""

    n_steps: int
    closing: Closing = "paid"
    unit: Unit = "projection"
    tries: int = 0
    then: Then = "keep"
    keep_states: bool = False
    measure_defects: bool = True


class Run:
    """One run: its accounts, and everything that is recorded while it runs."""

    def __init__(
        self, form: Form, constraint: Constraint, schedule: Schedule, settings: Settings, seeds: Tensor | None = None
    ) -> None:
        """Start with the schedule's whole budget, for states of one form."""
        n, device, n_steps = form.n, form.device, settings.n_steps
        if seeds is not None and len(seeds) != n:
            raise ValueError(f"{len(seeds)} seeds were given for a batch of {n}")
        self.form, self.n, self.device, self.settings, self.n_steps = form, n, device, settings, n_steps
        self.constraint, self.schedule = constraint, schedule.to(device)
        self.seeds = None if seeds is None else seeds.to(device)
        self.terms, budget = run_terms(self.schedule, n_steps, settings.closing, settings.unit, n, device)
        self.cost = schedule.cost or COST["iteration" if settings.unit == "second" else settings.unit]
        self.state: RunState = accounts.start(self.terms, budget)
        self.t = 0

        self.defects = torch.full((n_steps, n), torch.nan, dtype=form.dtype, device=device)
        self.residuals = self.defects.clone()
        self.projected = torch.zeros(n_steps, n, dtype=torch.bool, device=device)
        self.failed = torch.zeros_like(self.projected)
        self.iterations = torch.zeros(n_steps, n, dtype=torch.int32, device=device)
        self.closed, self.closing_failed = torch.zeros(2, n, dtype=torch.bool, device=device)
        self.closing_iterations, self.extra = torch.zeros(2, n, dtype=torch.int32, device=device)
        self.history = History(self.defects, self.projected, budget, n_steps, self.terms.reserve, self.seeds, {})
        self.updates, self.projection_meter, self.defect_meter = Meter(), Meter(), Meter()
        if constraint.defect_is_projection:
            self.defect_meter = self.projection_meter

        names = self.schedule.ways
        self.way_names = names if WHOLE in names else (*names, WHOLE)
        self.ways = None if names == (WHOLE,) else torch.zeros(n_steps, n, dtype=torch.int8, device=device)
        self.bound = [self._bind(way_of(constraint, name)) for name in self.way_names]
        self.trials = None if (rows := self.schedule.trials(n)) is None else _Trials(rows.to(device))

        self.states: list[Leaves] = []
        self.previous: Leaves | None = None
        self.broken = False  # whether a step failed after its decisions were made
        self.planned_steps: int | None = None  # if the run was stopped before its last step
        self.rollout: Rollout | None = None
        self.owner: object = None
        self.started_at = self.returned_at = perf_counter()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy needs; it has no owner yet, and its clock starts when it is restored."""
        return vars(self) | {"started_at": self.started_at - self.returned_at, "returned_at": 0.0, "owner": None}

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        """Continue as if the last call had returned now: another process has another clock."""
        now = perf_counter()
        vars(self).update(attributes)
        self.started_at, self.returned_at = self.started_at + now, now

    @property
    def complete(self) -> bool:
        """Whether all steps are done."""
        return self.t == self.n_steps

    @property
    def _last_step(self) -> bool:
        return self.t == self.n_steps - 1

    # -------------------------------------------------------------- one step

    def step(self, proposal: Any, context: Mapping[str, Any]) -> Any:
        """Return the next state: the proposal, corrected where the schedule says so."""
        x = self.measure(proposal, context)
        self.broken = True  # until the step is whole: no decision may be paid for twice
        ways = self.decide(proposal, context)
        x = self.correct(x, ways)
        if self.settings.closing == "free" and self._last_step:
            x = self.close(x)
        return self.finish(x)

    def measure(self, proposal: Any, context: Mapping[str, Any]) -> Leaves:
        """Measure the defects of the proposals; raise if states or defects are not finite."""
        self.updates.count(self.returned_at, self.n)
        try:
            x = self.form.widened(self.form.leaves(proposal))
            if self.constraint.needs:
                self._use_context(context)
            if not all_finite(x):
                self.check(finite_rows(x), "the sampler proposed NaN or inf")
            if self.settings.measure_defects:
                self._observe(x)
            return x
        except BaseException as error:
            if isinstance(error, IndexError) and len(self.form.shapes[0]) == 1:
                error.add_note("states are (n,), one number per sample; functions of (n, d) states need x[:, None]")
            self.returned_at = perf_counter()  # the loop may repeat the step, and its update is timed from here
            raise

    def _observe(self, x: Leaves) -> None:
        """Record the defects of states; raise if one is negative, NaN or inf."""
        t, before = self.t, None if self.defect_meter.calls else tuple(leaf.clone() for leaf in x)
        self.defects[t] = self.bound[-1].defect(x).detach()
        if before is not None and not all(torch.equal(a, b) for a, b in zip(before, x, strict=True)):
            raise ValueError("defect changed the states it was given; it must copy them first")
        if not _are_distances(self.defects[t]):
            self.check(_is_distance(self.defects[t]), "the defect is negative, NaN or inf")
        if t == 0:  # prices of another problem
            event = tuple(self.form.shapes[0][1:]) if self.form.single else None
            median = float(self.defects[0].median()) if self.n >= _TELLING else 0.0
            self.schedule.check_fits(event, defect=median)

    def decide(self, proposal: Any, context: Mapping[str, Any]) -> Tensor:
        """Return which samples are corrected now, (n,) bool, or which way each takes, (n,) int8."""
        t = self.t
        if self.settings.closing == "paid" and self._last_step:
            return torch.ones_like(self.projected[t]) if self.ways is None else self._whole_for_all()
        shares = self.terms.pools is not None
        left = accounts.left_per_sample(self.terms, self.state)
        view = StepView(t, self.history, left, proposal, context, shares)
        wanted = self._checked(self.schedule.decide(view))
        priority = self.schedule.priority(view) if shares else None
        if self.ways is None:
            return accounts.decide(self.terms, self.state, wanted, priority)  # type: ignore[no-any-return]
        chosen = accounts.decide(self.terms, self.state, wanted > 0, priority)
        return torch.where(chosen, wanted.clamp(min=1), 0)

    def _whole_for_all(self) -> Tensor:
        return torch.full((self.n,), self.way_names.index(WHOLE) + 1, dtype=torch.int8, device=self.device)

    def _checked(self, wanted: Any) -> Tensor:
        """Return a schedule's answer as bool, or as the number of a way if there are several, (n,)."""
        most = len(self.schedule.ways)
        if isinstance(wanted, Tensor) and wanted.shape == (self.n,):
            if wanted.dtype is torch.bool:
                chosen: Tensor = wanted.to(self.device)
                return chosen if self.ways is None else most * chosen.to(torch.int8)
            if wanted.dtype is torch.int64 and self.ways is not None and wanted.min() >= 0 and wanted.max() <= most:
                return wanted.to(self.device, torch.int8)
        known = hasattr(wanted, "dtype")
        got = f"{type(wanted).__name__} {tuple(wanted.shape)} of {wanted.dtype}" if known else repr(wanted)
        numbers = "" if self.ways is None else f", or with (n,) int64 from 0 to {most}"
        raise ValueError(f"a schedule must decide with a ({self.n},) bool tensor{numbers}: got {got} at t = {self.t}")

    def correct(self, x: Leaves, ways: Tensor) -> Leaves:
        """Correct each sample by its way, pay for it, record what is left of the defects; return the states."""
        t, proposed = self.t, x
        if self.ways is None:
            self.projected[t] = ways
            if len(rows := ways.nonzero().squeeze(1)):
                x = self._project(x, rows, self.bound[0])
        else:
            self.ways[t], self.projected[t] = ways, ways > 0
            for i, bound in enumerate(self.bound, 1):
                if len(rows := (ways == i).nonzero().squeeze(1)):
                    x = self._project(x, rows, bound)
        paid = work_of(self.cost, self.projected[t], self.iterations[t], None if self.ways is None else self.ways[t])
        self.state = accounts.spend(self.terms, self.state, paid)
        if self.trials is not None and not self._last_step:
            self._try_beside(proposed, x)
        return x

    def _project(self, x: Leaves, rows: Tensor, bound: BoundConstraint) -> Leaves:
        """Correct some rows, (k,), in one way; rows that a cheaper way makes no better are projected whole."""
        t, whole = self.t, bound is self.bound[self.way_names.index(WHOLE)]
        some = bound.take(rows)
        answer = self._solve(some, x, rows) if whole else some.project(x, rows, lenient=True)
        residual = self._residual(some, answer, whole)
        if answer.converged is not None and whole:
            self.failed[t, rows] = ~answer.converged
        if answer.iterations is not None:
            self.iterations[t, rows] += answer.iterations.to(torch.int32)
        elif self.settings.unit != "projection":  # a solver that does not report iterations is paid for one
            self.iterations[t, rows] += 1
        x = put_rows(x, rows, answer.x) if whole else x
        if residual is not None:
            residual = residual.detach().to(self.residuals.dtype)
            self.residuals[t, rows] = residual
            if whole and not _are_distances(residual):
                good = torch.ones(self.n, dtype=torch.bool, device=self.device)
                good = good.index_copy(0, rows, _is_distance(residual))
                self.check(good, "the defect after projecting is negative, NaN or inf")
        if whole:
            return x
        usable = finite_rows(answer.x)
        if residual is not None:
            usable &= (residual >= 0) & ((residual <= self.defects[t, rows]) | self.defects[t, rows].isnan())
        kept = usable.nonzero().squeeze(1)
        x = put_rows(x, rows[kept], take_leaves(answer.x, kept))
        if len(kept) == len(rows):
            return x
        again = rows[~usable]
        self.ways[t, again] = self.way_names.index(WHOLE) + 1  # type: ignore[index]
        return self._project(x, again, self.bound[self.way_names.index(WHOLE)])

    def _solve(self, bound: BoundConstraint, x: Leaves, rows: Tensor) -> Outcome:
        """Project some rows with the constraint for exactly these, and handle failures by the policy."""
        answer = bound.project(x, rows)
        if answer.converged is None or bool(answer.converged.all()):
            return answer
        recovered, retries = recover(bound, take_leaves(x, rows), answer, self.settings.tries, self.settings.then)
        self.extra[rows] += retries
        return recovered

    def _residual(self, bound: BoundConstraint, answer: Outcome, whole: bool) -> Tensor | None:
        """Return the defect of corrected states, (k,): the solver's own report, else measured; None if not asked to.

        If measuring is projecting, it is 0 after a whole projection, since projecting twice changes nothing; what
        failed, or was corrected in another way, is measured.
        """
        if answer.residual is not None:
            return answer.residual
        if not self.settings.measure_defects:
            return None
        x = answer.x
        if not (whole and self.constraint.defect_is_projection and self.constraint.is_projection):
            return bound.defect(x)
        residual = torch.zeros(len(x[0]), dtype=self.form.dtype, device=self.device)
        if answer.converged is not None and not bool(answer.converged.all()):
            rows = (~answer.converged).nonzero().squeeze(1)
            residual[rows] = bound.take(rows).defect(take_leaves(x, rows)).to(residual)
        return residual

    def _try_beside(self, proposed: Leaves, kept: Leaves) -> None:
        """Try every way on the trial rows beside the one they took; the run goes on from what they took."""
        trials: Any = self.trials
        rows = trials.rows
        trials.add_displacement(0, self.form, take_leaves(proposed, rows), take_leaves(kept, rows))
        for i, (name, bound) in enumerate(zip(self.way_names, self.bound, strict=True), 1):
            if name == WHOLE:
                continue
            some = bound.take(rows)
            answer = some.project(proposed, rows, lenient=True)
            residual = self._residual(some, answer, False)
            work = torch.ones_like(self.extra[rows]) if answer.iterations is None else answer.iterations.to(self.extra)
            usable = finite_rows(answer.x)
            if residual is not None:  # what is no better would be projected whole after it, as these rows were
                usable &= (residual >= 0) & (residual <= self.defects[self.t, rows])
                residual = torch.where(usable, residual.to(self.residuals.dtype), self.residuals[self.t, rows])
                work = work + torch.where(usable, 0, self.iterations[self.t, rows])
                trials.add(self.t, i, self.defects[self.t, rows], residual, work)
            good, whole = usable.nonzero().squeeze(1), take_leaves(kept, rows)
            trials.add_displacement(i, self.form, put_rows(whole, good, take_leaves(answer.x, good)), whole)

    def close(self, x: Leaves, before: int | None = None, **context: Any) -> Leaves:
        """Run the closing projection of the samples that the last step did not project whole; return the states."""
        t = self.t if before is None else before
        done = self.projected[t] if self.ways is None else self.ways[t] == self.way_names.index(WHOLE) + 1
        rows = (~done).nonzero().squeeze(1)
        if len(rows) == 0:
            return x
        answer = self._solve(self.bound[self.way_names.index(WHOLE)].take(rows), x, rows)
        self.closed[rows] = True
        if answer.converged is not None:
            self.closing_failed[rows] = ~answer.converged
        if answer.iterations is not None:
            self.closing_iterations[rows] = answer.iterations.to(torch.int32)
        elif self.settings.unit != "projection":
            self.closing_iterations[rows] = 1
        return put_rows(x, rows, answer.x)

    def finish(self, x: Leaves) -> Any:
        """End the step; return the states as the loop keeps them."""
        x = self.form.narrowed(x)
        if self.settings.keep_states:
            self.states.append(_detached(x))
        if "previous" in self.constraint.needs:
            self.previous = _detached(x)
        if self._last_step:
            self._check_end(x)
        self.state, self.broken = accounts.next_step(self.state), False
        self.t += 1
        self.returned_at = perf_counter()
        if self.t == self.n_steps:
            self.rollout = self.record(_detached(x))
        return self.form.state(x)

    def _check_end(self, x: Leaves) -> None:
        """Raise if final states have NaN or inf, which no later defect would show."""
        if not all_finite(x):
            half = "" if self.form.exact else ", or what half precision cannot hold"
            self.check(finite_rows(x), f"the sampler proposed, or the projection returned, NaN or inf{half}")

    def stop(self, x: Any, context: Mapping[str, Any]) -> Any:
        """End the run after the steps made so far, closing it as at its last step; return the final states."""
        leaves = self.form.leaves(x)
        self.check(finite_rows(leaves), "the loop stopped with NaN or inf")
        if self.settings.closing != "none":
            if self.constraint.needs:
                self._use_context(context)
            leaves = self.form.narrowed(self.close(self.form.widened(leaves), before=self.t - 1))
        self._check_end(leaves)
        self.planned_steps, self.n_steps = self.n_steps, self.t
        for name in ("defects", "residuals", "projected", "failed", "iterations", "ways"):
            part = getattr(self, name)
            setattr(self, name, None if part is None else part[: self.t].clone())
        self.returned_at = perf_counter()  # the closing projection belongs to the time of the run
        if self.states:
            self.states[-1] = _detached(leaves)
        self.rollout = self.record(_detached(leaves))
        return self.form.state(leaves)

    # -------------------------------------------------------------- what the step needs

    def begin(self, x: Any) -> None:
        """Take the initial states, for constraints that look at the state before the update."""
        leaves = self.form.leaves(x)
        if not all_finite(leaves):
            raise ValueError("the initial states have NaN or inf; start with finite ones")
        self.previous = _detached(leaves)
        if self.settings.keep_states:
            self.states.append(self.previous)

    def _bind(self, constraint: Constraint, context: Context | None = None) -> BoundConstraint:
        return BoundConstraint(constraint, self.form, self.projection_meter, self.defect_meter, context)

    def _use_context(self, context: Mapping[str, Any]) -> None:
        """Bind the constraint to what it needs to know at this step."""
        known = {"t": self.t, **context}
        if self.previous is not None:
            known["previous"] = self.form.state(self.form.widened(self.previous))
        missing = [name for name in self.constraint.needs if name not in known]
        if missing:
            hint = (
                "call corrector.begin(x) with the initial state"
                if missing == ["previous"]
                else f"call corrector(x, t, {missing[0]}=…)"
            )
            raise ValueError(f"the constraint needs {', '.join(missing)} at step {self.t}: {hint}")
        passed = Context({name: known[name] for name in self.constraint.needs}, self.n)
        self.bound = [self._bind(bound.constraint, passed) for bound in self.bound]

    def check(self, good: Tensor, what: str) -> None:
        """Raise if not all samples are good, (n,) bool, with the first bad one's row and seed."""
        if bool(good.all()):
            return
        rows = (~good).nonzero().squeeze(1)
        seed = "" if self.seeds is None else f", seed {int(self.seeds[rows[0]])}"
        raise ValueError(
            f"{what} for {len(rows)} of {self.n} samples at step {self.t} of {self.n_steps} (first: sample "
            f"{int(rows[0])}{seed}); expected finite states and finite defects of at least 0"
        )

    # -------------------------------------------------------------- the record

    def means(self, t: int) -> dict[str, float]:
        """Return the mean defect, residual and share of projected samples at step t, for logging.

        What was not measured is left out.
        """
        numbers = {"defect": self.defects[t], "residual": self._kept()[t], "projected": self.projected[t]}
        means = {name: float(values.double().mean()) for name, values in numbers.items()}
        return {name: mean for name, mean in means.items() if not math.isnan(mean)}

    def _kept(self) -> Tensor:
        """Return the defects of the states after each step, (T, n); samples left alone keep the proposal's defect."""
        return torch.where(self.projected, self.residuals, self.defects)

    def record(self, final: Leaves) -> Rollout:
        """Return the record of the whole run."""
        meters = {"update": self.updates, "defect": self.defect_meter, "projection": self.projection_meter}
        extra = self.extra
        if self.defect_meter is self.projection_meter:  # each defect is a projection
            meters["defect"] = Meter()
            extra = extra + (~self.defects.isnan()).sum(dim=0).to(extra)
        seconds = {kind: meter.seconds for kind, meter in meters.items()}
        seconds["scheduling"] = self.returned_at - self.started_at - sum(seconds.values())
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
            unit=self.settings.unit,
            cost=self.cost,
            ways=self.ways,
            way_names=self.way_names,
            trials=None if self.trials is None else self.trials.found(),
            seeds=self.seeds,
            states=self.form.state(stacked) if stacked else None,
            seconds=seconds,
            calls={kind: meter.calls for kind, meter in meters.items()},
            rows={kind: meter.rows for kind, meter in meters.items()},
            call_log=self.projection_meter.log,
            closing_rule=self.settings.closing,
            planned_steps=self.planned_steps,
        )


class _Trials:
    """What was tried beside a run on some rows: what each way leaves, and the vectors from there to what was kept."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self.tried: list[Tensor] = []  # (5, k) each
        self.sums: dict[int, Tensor] = {}  # of vectors by way, (k, d)
        self.lengths: dict[int, Tensor] = {}  # of lengths by way, (k,)

    def add(self, t: int, way: int, defect: Tensor, residual: Tensor, work: Tensor) -> None:
        """Add the outcome of a way, (k,) each."""
        facts = (torch.full_like(defect, t), torch.full_like(defect, way), defect, residual, work)
        self.tried.append(torch.stack([fact.double() for fact in facts]))

    def add_displacement(self, way: int, form: Form, reached: Leaves, kept: Leaves) -> None:
        """Add the vectors from where a way leads to what was kept."""
        pair = (numbers_of(kept) - numbers_of(reached)).nan_to_num(0.0)
        self.sums[way] = self.sums.get(way, 0.0) + pair
        self.lengths[way] = self.lengths.get(way, 0.0) + pair.norm(dim=1)

    def found(self) -> Trials:
        """Return what was seen, (q,) each and (m + 1,) each."""
        tried = torch.cat(self.tried, dim=1) if self.tried else torch.zeros(5, 0, dtype=torch.float64)
        ways = sorted(self.sums)
        drift = torch.stack([self.sums[i].norm(dim=1).mean() for i in ways]) if ways else torch.zeros(0)
        length = torch.stack([self.lengths[i].mean() for i in ways]) if ways else torch.zeros(0)
        step, way, defect, residual, work = tried
        return Trials(step.long(), way.long(), defect, residual, work, torch.tensor(ways), drift, length, self.rows)


def _are_distances(values: Tensor) -> bool:
    """Return whether all values are finite and at least 0."""
    least, largest = values.aminmax()  # NaN is both
    return float(least) >= 0 and float(largest) < math.inf


def _is_distance(values: Tensor) -> Tensor:
    return (values >= 0) & values.isfinite()


def _detached(leaves: Leaves) -> Leaves:
    return tuple(leaf.detach().clone() for leaf in leaves)


def run_terms(
    schedule: Schedule, n_steps: int, closing: Closing, unit: Unit, n: int, device: torch.device
) -> tuple[Terms, Tensor]:
    """Return the terms of a run of n samples and the budget of each, (n,), checked."""
    reserve = 0 if closing != "paid" else 1 if unit == "projection" else schedule.closing_reserve
    budget = units(limit_of(schedule, unit), n_steps, unit)
    if isinstance(budget, Tensor) and len(budget) != n:
        raise ValueError(f"the schedule has budgets for {len(budget)} samples, but the batch has {n}")
    if (least := float(torch.as_tensor(budget).min())) < reserve:
        asked = f"{least:g} of some samples" if isinstance(budget, Tensor) else f"{schedule.budget} with T = {n_steps}"
        raise ValueError(
            f"a budget of {asked} leaves nothing for the closing projection, which takes {reserve:g}; give at least "
            f"{reserve:g}, or closing='free' to count as the paper does, or closing='none' to end as the sampler does"
        )
    labels, exact = schedule.pools(n), unit == "projection" and schedule.spends_all
    pools = None if labels is None else Pools.of_labels(labels.to(device), exact)
    kind = torch.float64 if unit == "second" else torch.int64
    each = torch.as_tensor(budget, dtype=kind, device=device).expand(n).clone()
    return Terms(n_steps, reserve, pools, unit == "projection"), each


def limit_of(schedule: Schedule, unit: Unit) -> Any:
    """Return the budget of a schedule in a run's unit; None, no limit, if it counts something else."""
    return schedule.budget if unit in ("projection", schedule.unit) else None
