"""Algorithm 1 in one plain class: price table, budgets, closing, failures and records, in torch and nothing else.

`tests/core/test_reference.py` holds the library's loop to it, bit by bit; `benchmarks/step_overhead.py` times both.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trimtab.core.constraint import Constraint, Projection


class Record(NamedTuple):
    """What a run did: one entry per step and sample, (T, n), or per sample, (n,).

    Attributes:
        final: The states at the end.
        defects: Of the proposals, (T, n).
        residuals: Of the states that were kept, (T, n).
        projected: Which samples a step projected, (T, n).
        failed: Whose projection failed, (T, n).
        iterations: Of the solver, (T, n); 0 where it reports none.
        closing: Which samples were projected after the last step, outside their budgets, (n,).
        closing_failed: Whose closing projection failed, (n,).
        spent: Projections within the budget, (n,).
        paid: All projections, (n,).
        rows: Rows projected in all.
        calls: Calls of `project` in all.
        seconds: Spent in the constraint.
    """

    final: Tensor
    defects: Tensor
    residuals: Tensor
    projected: Tensor
    failed: Tensor
    iterations: Tensor
    closing: Tensor
    closing_failed: Tensor
    spent: Tensor
    paid: Tensor
    rows: int
    calls: int
    seconds: float


class Reference:
    """Corrects proposals where the defect reaches the price lambda[t, b]; one call per step.

    The last step corrects every sample if closing is "paid". With "free", samples that the last step left alone are
    projected outside their budgets; with "none" the run ends as it is. A sample whose projection failed keeps the
    solver's state if that is finite and no farther from feasible ("keep"), or its proposal ("revert").
    """

    def __init__(
        self, constraint: Constraint, table: Tensor, budget: int | Tensor, closing: str = "paid", then: str = "keep"
    ) -> None:
        """Take prices, (T, B + 1), and a budget for all samples or one each, (n,)."""
        self.constraint, self.table, self.budget, self.closing, self.then = constraint, table, budget, closing, then
        self.n_steps, self.t = len(table), 0

    def __call__(self, proposal: Tensor, t: int | None = None) -> Tensor:
        """Return the next state, (n, …): corrected where the price says so, else the proposal."""
        if self.t == 0:
            self._start(proposal)
        if t is not None and t != self.t:
            raise ValueError(f"expected step {self.t}: got {t}")
        if not bool(proposal.isfinite().all()):
            raise ValueError(f"the sampler proposed NaN or inf at step {self.t}")
        with torch.no_grad():
            return self._step(proposal)

    def _start(self, proposal: Tensor) -> None:
        T, n = self.n_steps, len(proposal)
        self.left = torch.as_tensor(self.budget).expand(n).clone()
        self.defects, self.residuals = (torch.full((T, n), torch.nan, dtype=proposal.dtype) for _ in range(2))
        self.projected, self.failed = (torch.zeros(T, n, dtype=torch.bool) for _ in range(2))
        self.iterations = torch.zeros(T, n, dtype=torch.int32)
        self.closed, self.closing_failed = (torch.zeros(n, dtype=torch.bool) for _ in range(2))
        self.rows, self.calls, self.seconds = 0, 0, 0.0

    def _step(self, x: Tensor) -> Tensor:
        t, last = self.t, self.t == self.n_steps - 1
        defect = self._measured(self.constraint, x)  # observe
        reserve = int(self.closing == "paid")
        chosen = (defect >= self.table[t, self.left]) & (self.left > reserve)  # decide
        if last and self.closing == "paid":
            chosen = torch.ones_like(chosen)
        self.left = self.left - chosen.long()
        self.defects[t], self.residuals[t], self.projected[t] = defect, defect, chosen
        rows = chosen.nonzero().squeeze(1)
        if len(rows):  # correct
            answer = self._project(x, rows)
            if answer.converged is not None:
                self.failed[t, rows] = ~answer.converged
            if answer.iterations is not None:
                self.iterations[t, rows] = answer.iterations.int()
            self.residuals[t, rows] = answer.residual
            x = x.index_copy(0, rows, answer.x)
        if last and self.closing == "free":
            x = self._close(x, (~chosen).nonzero().squeeze(1))
        self.t += 1
        if self.t == self.n_steps:
            self.record, self.t = self._record(x), 0
        return x

    def _close(self, x: Tensor, rows: Tensor) -> Tensor:
        if not len(rows):
            return x
        answer = self._project(x, rows)
        self.closed[rows] = True
        if answer.converged is not None:
            self.closing_failed[rows] = ~answer.converged
        return x.index_copy(0, rows, answer.x)

    def _project(self, x: Tensor, rows: Tensor) -> Projection:
        """Project some rows, (k,), apply the policy to those that failed, and measure what is left."""
        some, given = self.constraint.take(rows), x[rows]
        begin = perf_counter()
        answer = some.project(given.clone())
        self.seconds += perf_counter() - begin
        self.rows, self.calls = self.rows + len(rows), self.calls + 1
        answer = answer if isinstance(answer, Projection) else Projection(answer)
        if answer.converged is not None and not bool(answer.converged.all()):
            answer = self._recovered(some, given, answer)
        if not bool(answer.x.isfinite().all()):
            raise ValueError(f"project returned NaN or inf at step {self.t}")
        if answer.residual is None:
            answer = answer._replace(residual=self._measured(some, answer.x))
        return answer

    def _recovered(self, some: Constraint, given: Tensor, answer: Projection) -> Projection:
        assert answer.converged is not None
        back = ~answer.converged
        if self.then == "keep":
            finite = answer.x.flatten(1).isfinite().all(dim=1)
            usable = torch.where(_like(finite, given), answer.x, given)
            back &= ~(finite & (self._measured(some, usable) <= self._measured(some, given)))
        return answer._replace(x=torch.where(_like(back, given), given, answer.x), residual=None)

    def _measured(self, constraint: Constraint, x: Tensor) -> Tensor:
        begin = perf_counter()
        defect: Tensor = constraint.defect(x)
        self.seconds += perf_counter() - begin
        least, largest = defect.aminmax()
        if not (float(least) >= 0 and float(largest) < torch.inf):
            raise ValueError(f"a defect is negative, NaN or inf at step {self.t}")
        return defect

    def _record(self, final: Tensor) -> Record:
        spent = self.projected.sum(dim=0)
        made = (self.defects, self.residuals, self.projected, self.failed, self.iterations)
        ends = (self.closed, self.closing_failed, spent, spent + self.closed, self.rows, self.calls, self.seconds)
        return Record(final.clone(), *made, *ends)


def _like(rows: Tensor, x: Tensor) -> Tensor:
    return rows.reshape(-1, *[1] * (x.ndim - 1))


def run(reference: Reference, problem: Any, noise: Any) -> Record:
    """Run a problem of the lab and return its record."""
    x = problem.sampler.start(noise)
    for t in range(reference.n_steps):
        x = reference(problem.sampler.step(x, t, noise), t)
    return reference.record
