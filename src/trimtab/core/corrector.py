"""Algorithm 1: propose, look at the defect, decide, correct.

Read `Corrector.__call__`: it is one pass of the paper's loop. The decision `s >= lambda[t, b]` is the schedule's
(`trimtab.prices.schedule.PricedSchedule.decide`), `b > 0` is the ledger's (`RunState.decide`), and everything that steps a
sampler comes through here. When a run begins, whose it is and when it is over is in `trimtab.core.life`.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch
from torch import Tensor, is_autocast_enabled, is_grad_enabled

from trimtab.core.bound_constraint import BoundConstraint, Outcome, recover
from trimtab.core.effort import improve_while_it_pays
from trimtab.core.life import RunLife
from trimtab.core.looks import is_measured_step
from trimtab.core.state import RunState
from trimtab.core.states import Leaves, all_finite, finite_rows, put_rows, rowwise, take_leaves, true_rows

__all__ = ["Corrector"]


class Corrector(RunLife):
    """Corrects proposals on schedule, one call per step, in any loop.

    After `n_steps` calls a run is complete: the last call has made the result feasible, `rollout` holds the record,
    and the next call begins a new run. Used as a context manager, leaving the block early or calling once too often
    is an error; passing `t` checks every call. Samples must not influence each other and keep their rows.

    A run belongs to the thread that began it: a call from another one is refused. Give each thread a corrector.
    float16 and bfloat16 states are measured and projected in float32. No gradient flows through a correction.

    Example:
        >>> import torch, trimtab as tt
        >>> ball = tt.as_constraint(lambda x: x / x.norm(dim=1, keepdim=True).clamp(min=1),
        ...                         lambda x: (x.norm(dim=1) - 1).clamp(min=0))
        >>> corrector = tt.Corrector(ball, tt.Periodic(2), n_steps=10)
        >>> x = torch.zeros(3, 2)
        >>> for t in range(10):
        ...     x = corrector(x + 0.3, t)
        >>> corrector.rollout.projected.sum(dim=0).tolist()
        [2, 2, 2]
    """

    def __call__(self, proposal: Any, t: int | None = None, **context: Any) -> Any:
        """The state to go on with: corrected where the schedule says so, the proposal elsewhere.

        Args:
            proposal: The state after the loop's own update, (n, *event), or a tree of such arrays. Not modified.
            t: The step, if the loop wants the count checked; 0 begins a new run.
            **context: What the constraint needs to know beside the state, such as `sigma=0.3`; see `Constraint.needs`.
        """
        if is_grad_enabled():
            with torch.no_grad():
                return self(proposal, t, **context)
        ledger = self._at(proposal, t)
        if is_autocast_enabled(ledger.device_type):  # it would round a projection to half precision
            with torch.autocast(ledger.device_type, enabled=False):
                return self(proposal, t, **context)
        constraint = ledger.applied or self._applied(ledger, context)
        x = self._look(ledger, constraint, proposal)
        ledger.broken = True  # until the step is whole: nothing may be decided, and paid for, twice
        chosen = ledger.decide(proposal, context)  # b > 0 and s >= lambda[t, b]
        if self.dense:
            x = self._correct_all(ledger, constraint, x)
        elif (rows := true_rows(chosen)).numel():
            if self.unit == "iteration" and not ledger.ends_paid:
                x = improve_while_it_pays(ledger, constraint, x, rows, proposal, context)
            else:
                x = self._correct(ledger, constraint, x, rows)
        if self.closing == "free" and ledger.t == self.n_steps - 1:
            x = self._close(ledger, constraint, x, ~ledger.finished_at(ledger.t))
        return self._finish(ledger, x)

    def _look(self, ledger: RunState, constraint: BoundConstraint, proposal: Any) -> Leaves:
        """Measure the defects of the proposals; refuse what cannot be states of this run, or distances."""
        ledger.updates.count(ledger.returned_at, ledger.n)
        try:
            x = ledger.form.leaves(proposal)
            if not ledger.form.exact:
                x = ledger.form.widened(x)
            if not (self.measure_defects or (self.measure_every and is_measured_step(ledger.t, self.measure_every))):
                if not self.dense and not all_finite(x):
                    ledger.check_rows_ok(~finite_rows(x), "the sampler proposed NaN or inf")
                return x
            try:
                defect = constraint.defect(x) if constraint.looks.calls else self._first_look(constraint, x)
            except Exception:
                ledger.check_rows_ok(~finite_rows(x), "the sampler proposed NaN or inf")  # if so, it is the reason
                raise
            sound = ledger.look(defect, check=not self.dense)
            if not self.dense and not (sound and all_finite(x)):
                ledger.check_rows_ok(~finite_rows(x), "the sampler proposed NaN or inf")
                seen = ledger.defects[ledger.t]
                ledger.check_rows_ok(~((seen >= 0) & seen.isfinite()), "the defect is negative, NaN or inf")
            return x
        except BaseException:
            ledger.returned_at = perf_counter()  # the step may be made again, and its update is counted from here
            raise

    def _first_look(self, constraint: BoundConstraint, x: Leaves) -> Tensor:
        """The defects of the first proposals, (n,); refuse a defect that works in place."""
        before = () if self.dense else tuple(leaf.clone() for leaf in x)
        defect = constraint.defect(x)
        changed = not all(torch.equal(a, b) for a, b in zip(before, x, strict=False))
        if changed and all_finite(before):  # NaN differs from itself
            raise ValueError("defect changed the states it was given; it must leave them as they are (copy them first)")
        return defect

    def _correct(self, ledger: RunState, constraint: BoundConstraint, x: Leaves, rows: Tensor) -> Leaves:
        """Project the chosen rows and write down what is left of their defects: the states to go on with."""
        everyone = rows.numel() == ledger.n
        those, some = (None, constraint) if everyone else (rows, constraint.take(rows))
        answer = some.project(x, those)
        if answer[1:] == (None, None, None) and self.measures_residuals and self.unit == "projection":
            residual, told = some.defect(answer.x), True
        else:
            answer = self._accepted(ledger, some, x, answer, those)
            ledger.keep_outcome(answer, those)
            residual, told = self._residual(some, answer), self.measure_defects or answer.residual is not None
        if not ledger.keep(residual, check=told):
            some.check_answers(answer)
            kept = torch.where(ledger.projected[ledger.t], ledger.residuals[ledger.t], 0.0)
            ledger.check_rows_ok(
                ~((kept >= 0) & kept.isfinite()), "the defect after projecting is negative, NaN or inf"
            )
        if everyone:
            return answer.x
        begin = perf_counter()
        x = put_rows(x, rows, answer.x)
        ledger.projections.seconds += perf_counter() - begin  # what projecting some rows costs
        return x

    def _correct_all(self, ledger: RunState, constraint: BoundConstraint, x: Leaves) -> Leaves:
        """Project the whole batch and keep the chosen rows, with no wait for the device."""
        chosen = ledger.projected[ledger.t]
        answer = constraint.project(x)
        if answer.converged is not None:  # the failures of the others do not count
            answer = answer._replace(converged=answer.converged | ~chosen)
        answer = self._accepted(ledger, constraint, x, answer)
        ledger.keep_outcome(answer, None)
        left = torch.where(chosen, self._residual(constraint, answer), ledger.defects[ledger.t])
        ledger.keep(left, check=False)
        return tuple(torch.where(rowwise(chosen, a), a, b) for a, b in zip(answer.x, x, strict=True))

    def _close(self, ledger: RunState, constraint: BoundConstraint, x: Leaves, open_rows: Tensor) -> Leaves:
        """The closing projection of the rows, in whole groups, that the last step left alone."""
        if ledger.groups is not None:
            open_rows = ledger.groups.touched(open_rows)
        rows = open_rows.nonzero().squeeze(1)
        if len(rows) == 0:
            return x
        some = constraint.take(rows)
        answer = self._accepted(ledger, some, x, some.project(x, rows), rows)
        some.check_answers(answer)  # nothing is measured any more
        ledger.closed |= open_rows
        if answer.converged is not None:
            ledger.closing_failed[rows] = ~answer.converged
        if answer.iterations is not None:
            ledger.closing_iterations[rows] = answer.iterations.to(torch.int32)
        elif self.unit == "iteration":  # a solver that does not tell is paid for one
            ledger.closing_iterations[rows] = 1
        return put_rows(x, rows, answer.x)

    def _accepted(
        self, ledger: RunState, constraint: BoundConstraint, x: Leaves, answer: Outcome, rows: Tensor | None = None
    ) -> Outcome:
        """The answer of a projection of some rows (k,), or of all: bad numbers refused, failures dealt with."""
        if not self.dense and (answer.residual is not None or not self.measures_residuals):
            constraint.check_answers(answer)  # else the defect that is measured next tells
        if answer.converged is not None and not bool(answer.converged.all()):
            groups = ledger.groups
            if rows is not None:
                x, groups = take_leaves(x, rows), groups and groups.take(rows)
            answer = recover(constraint, x, answer, self.tries, self.then, groups)
        return answer

    def _residual(self, constraint: BoundConstraint, answer: Outcome) -> Tensor:
        """The defect of projected states: what the solver reports, else measured.

        Where measuring is projecting, it is 0, as a projection of a projected state changes nothing; what a failed one
        left is measured there too.
        """
        if answer.residual is not None:
            return answer.residual
        if not self.measure_defects:
            return torch.full((len(answer.x[0]),), torch.nan, device=answer.x[0].device)
        if not self.measures_residuals:
            left = torch.zeros(len(answer.x[0]), dtype=constraint.form.dtype, device=answer.x[0].device)
            if answer.converged is not None and not bool(answer.converged.all()):
                rows = (~answer.converged).nonzero().squeeze(1)
                left[rows] = constraint.take(rows).defect(take_leaves(answer.x, rows)).to(left)
            return left
        return constraint.defect(answer.x)

    def _finish(self, ledger: RunState, x: Leaves) -> Any:
        """Close the books of the step; the states as the loop keeps them."""
        if not ledger.form.exact:
            x = ledger.form.narrowed(x)
        if self.keep_states:
            ledger.states.append(tuple(leaf.detach().clone() for leaf in x))
        t = ledger.t
        if t == self.n_steps - 1:
            self._check_bad_end(ledger, x, self.n_steps)
            ledger.final = tuple(leaf.detach().clone() for leaf in x)
        ledger.t, ledger.again, ledger.broken = t + 1, 0, False
        if "previous" in self.constraint.needs:
            self._previous = tuple(leaf.detach().clone() for leaf in x)
        if self.on_step is not None:
            defect, chosen = ledger.defects[t], ledger.projected[t]
            residual = torch.where(chosen, ledger.residuals[t], defect)
            numbers = {"defect": defect, "residual": residual, "projected": chosen}
            self.on_step(t, {name: float(values.double().mean()) for name, values in numbers.items()})
        ledger.returned_at = perf_counter()
        return ledger.form.state(x)

    def _check_bad_end(self, ledger: RunState, x: Leaves, made: int) -> None:
        """Refuse final states with NaN or inf, of which no later look would tell, after so many steps."""
        if not self.dense and all_finite(x):
            return
        bad = ~finite_rows(x)
        if self.dense:  # without synchronising at every step, bad numbers are found at the end
            if self.measure_defects:
                bad |= ~(ledger.defects + ledger.residuals)[:made].isfinite().all(dim=0)
            elif self.measure_every:
                bad |= ~ledger.defects[self.measure_every - 1 : made : self.measure_every].isfinite().all(dim=0)
        half = "" if ledger.form.exact else ", or what half precision cannot hold"
        ledger.check_rows_ok(bad, f"the sampler proposed, or the projection returned, NaN or inf{half}")

    def stop(self, x: Any, **context: Any) -> Any:
        """End the run here, before its `n_steps` calls, as a loop does that has converged or given up.

        The run is closed as it would have been at its last step: what the last call left alone is projected, paid for
        by the correction that was kept back, or apart from the budget, or not at all. `rollout` is then the record of
        the steps made, and says that more were planned.

        Args:
            x: The state the loop ends with, usually what the last call returned.
            **context: What the constraint needs to know, as in a call.

        Returns:
            The final states.
        """
        ledger = self._own()
        if ledger is None or ledger.t == 0 or ledger.complete or ledger.broken:
            raise RuntimeError("there is no run to stop: stop ends one that has begun and is not complete")
        if is_autocast_enabled(ledger.device_type):
            with torch.autocast(ledger.device_type, enabled=False):
                return self.stop(x, **context)
        leaves = ledger.form.leaves(x)
        ledger.check_rows_ok(~finite_rows(leaves), "the loop stopped with NaN or inf")
        if self.closing != "none":
            with torch.no_grad():
                constraint = self._applied(ledger, context)
                wide = self._close(ledger, constraint, ledger.form.widened(leaves), ~ledger.finished_at(ledger.t - 1))
            leaves = ledger.form.narrowed(wide)
        self._check_bad_end(ledger, leaves, ledger.t)
        ledger.stop(leaves)
        ledger.returned_at = perf_counter()  # the closing projection belongs to the time of the run
        return ledger.form.state(leaves)
