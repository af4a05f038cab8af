"""One run of a corrector: its records, its costs, and what is done to the rows that were chosen."""

from __future__ import annotations

from contextlib import nullcontext
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trimtab.core.constraint import Constraint, Projection, checked_projection, recover
from trimtab.core.every_step import all_finite
from trimtab.core.ledger import ledger_for
from trimtab.core.record import Rollout

if TYPE_CHECKING:
    from trimtab.core.corrector import Corrector

__all__ = ["Run"]


class Meter:
    """Seconds, calls and rows of one kind of work."""

    __slots__ = ("calls", "rows", "seconds")

    def __init__(self) -> None:
        self.seconds, self.calls, self.rows = 0.0, 0, 0

    def book(self, begin: float, rows: int) -> None:
        """Book a call that began at `begin` and ends now."""
        self.seconds += perf_counter() - begin
        self.calls += 1
        self.rows += rows


class Metered:
    """A constraint whose calls are timed and counted."""

    def __init__(self, constraint: Constraint, projections: Meter, defects: Meter) -> None:
        self.constraint, self.projections, self.defects = constraint, projections, defects

    def project(self, x: Tensor) -> Tensor | Projection:
        begin = perf_counter()
        answer = self.constraint.project(x.clone())  # a projection may work in place
        self.projections.book(begin, x.shape[0])
        return answer

    def defect(self, x: Tensor) -> Tensor:
        begin = perf_counter()
        defect = self.constraint.defect(x)
        self.defects.book(begin, x.shape[0])
        return defect

    def take(self, rows: Tensor) -> Metered:
        return Metered(self.constraint.take(rows), self.projections, self.defects)


class Run:
    """One run of a corrector: its ledger, its records, its costs."""

    def __init__(self, owner: Corrector, x: Tensor, initial: Tensor | None) -> None:
        """Begin with states like `x`; `initial` are the states before step 0, where the loop shows them."""
        self.owner = owner
        if not isinstance(x, Tensor):
            raise ValueError(f"states must be a torch tensor, (n, *event): got {type(x).__name__}")
        self.shape = x.shape
        if x.ndim < 1 or len(x) == 0 or not x.is_floating_point():
            raise ValueError(
                f"states must be floats with one row a sample, at least one: got {tuple(x.shape)} of {x.dtype}"
            )
        if owner.seeds is not None and len(owner.seeds) != len(x):
            raise ValueError(f"{len(owner.seeds)} seeds were given for a batch of {len(x)}")
        self.t = 0
        self.broken = False  # whether a step failed when its decisions were booked already
        self.n = len(x)
        self.updates, self.defects, self.projections = Meter(), Meter(), Meter()
        # where the defect is the projection residual, looking at a state is projecting it
        self.looking_projects = getattr(owner.constraint, "defect_is_projection", False)
        looks = self.projections if self.looking_projects else self.defects
        self.constraint = Metered(owner.constraint, self.projections, looks)
        like = torch.empty(0, device=x.device, dtype=torch.promote_types(x.dtype, torch.float32))
        self.ledger = ledger_for(owner.schedule, owner.n_steps, self.n, like, owner.seeds, x.numel())
        if not owner.measure_defects:
            self.ledger.defects.fill_(torch.nan)
            self.ledger.residuals.fill_(torch.nan)
        self.failed = torch.zeros_like(self.ledger.projected)
        self.iterations = torch.zeros(owner.n_steps, self.n, dtype=torch.int32, device=x.device)
        self.closing_failed = torch.zeros(self.n, dtype=torch.bool, device=x.device)
        self.states = [] if not owner.keep_states else [(x if initial is None else initial).detach().clone()]
        if initial is None:  # a foreign loop that did not show its initial state: the path begins with step 0
            self.states = self.states[:0]
        self.final: Tensor | None = None
        autocast = torch.is_autocast_enabled(x.device.type)
        # the caller's autocast must not round a projection to half precision
        self.exact_arithmetic: Any = torch.autocast(x.device.type, enabled=False) if autocast else nullcontext()
        self.began_at = self.returned_at = perf_counter()

    @property
    def complete(self) -> bool:
        """Whether all steps were made."""
        return self.t == self.owner.n_steps

    def look(self, x: Tensor) -> Tensor:
        """The defects of the proposals, (n,), as booked; NaN where none are measured.

        Refuses proposals that cannot be states of this run, and defects that cannot be distances.
        """
        self.updates.book(self.returned_at, self.n)
        try:
            return self._look(x)
        except BaseException:
            self.returned_at = perf_counter()  # the step may be made again, and its update is counted from here
            raise

    def _look(self, x: Tensor) -> Tensor:
        if x.shape != self.shape:
            raise ValueError(
                f"the batch changed within a run: it began with states {tuple(self.shape)}, step {self.t} came with "
                f"{tuple(x.shape)}"
            )
        check = not self.owner.dense
        if not self.owner.measure_defects:
            if check and not all_finite(x):
                self.refuse(x)
            return self.ledger.seen[self.t]
        before = x.clone() if check and self.t == 0 else None
        try:
            defect = self.constraint.defect(x)
        except Exception:
            self.refuse(x)  # if there is something to refuse, it is the reason
            raise
        if not self.ledger.look(self.t, x, defect, check):
            self.refuse(x, self.ledger.seen[self.t])
        if before is not None and not torch.equal(before, x):
            raise ValueError("defect changed the states it was given; it must leave them as they are (copy them first)")
        return self.ledger.seen[self.t]

    def refuse(self, x: Tensor, defect: Tensor | None = None) -> None:
        """Say which states, or else which defects, are bad, if any are."""
        proposed = "proposed, or the last projection returned," if self.owner.dense else "proposed"
        self.refuse_rows(~x.flatten(1).isfinite().all(dim=1), f"the sampler {proposed} NaN or inf")
        if defect is not None:
            self.refuse_rows(~((defect >= 0) & defect.isfinite()), "the defect is negative, NaN or inf")

    def refuse_rows(self, bad: Tensor, what: str) -> None:
        """Say which samples are bad, if any are."""
        if bool(bad.any()):
            rows = bad.nonzero().squeeze(1)
            seeds = "" if self.owner.seeds is None else f", seed {int(self.owner.seeds[rows[0]])}"
            raise ValueError(
                f"{what} for {len(rows)} of {self.n} samples at step {self.t} of {self.owner.n_steps} (first: sample "
                f"{int(rows[0])}{seeds}); expected finite states and finite defects of at least 0"
            )

    def correct(self, x: Tensor, defect: Tensor, chosen: Tensor) -> Tensor:
        """Project the chosen rows and book their residuals: the states to go on with."""
        t, ledger = self.t, self.ledger
        if self.owner.dense:
            answer = self.project(self.constraint, x, check=False)
            self.book_outcome(answer, chosen, slice(None))
            ledger.keep(t, torch.where(chosen, self.residual(self.constraint, answer), defect), check=False)
            return torch.where(chosen.reshape(-1, *([1] * (x.ndim - 1))), answer.x, x)
        rows = ledger.rows(t)
        count = rows.shape[0]
        if count == 0:
            return x
        if count == self.n:
            answer = self.project(self.constraint, x)
            self.book_outcome(answer, chosen, slice(None))
            self.book_residual(self.residual(self.constraint, answer))
            return answer.x
        begin = perf_counter()
        some, chosen_x = self.constraint.take(rows), x.index_select(0, rows)
        gathering = perf_counter() - begin
        answer = self.project(some, chosen_x)
        self.book_outcome(answer, chosen, rows)
        self.book_residual(self.residual(some, answer), rows)
        begin = perf_counter()
        x = x.index_copy(0, rows, answer.x)
        self.projections.seconds += gathering + perf_counter() - begin  # what projecting some rows costs
        return x

    def project(self, constraint: Metered, x: Tensor, check: bool = True) -> Projection:
        """The projection of rows, failed ones dealt with as the policy says."""
        answer = checked_projection(constraint, x, finite=check)
        if answer.converged is not None and not bool(answer.converged.all()):
            answer = recover(constraint, x, answer, self.owner.tries, self.owner.then)
        return answer

    def residual(self, constraint: Metered, answer: Projection) -> Tensor:
        """The defect of projected states: what the solver reports, else measured.

        Where measuring is projecting, it is 0, as a projection of a projected state changes nothing.
        """
        if answer.residual is not None:
            return answer.residual
        if not self.owner.measure_defects:
            return torch.full((len(answer.x),), torch.nan, device=answer.x.device)
        if self.looking_projects:
            return torch.zeros(len(answer.x), device=answer.x.device)
        return constraint.defect(answer.x)

    def book_residual(self, residual: Tensor, rows: Tensor | None = None) -> None:
        """Record what projections left of the defect; refuse what cannot be a distance."""
        if not self.ledger.keep(self.t, residual, rows, check=self.owner.measure_defects):
            booked = self.ledger.residuals[self.t]
            self.refuse_rows(
                ~((booked >= 0) & booked.isfinite()), "the defect after projecting is negative, NaN or inf"
            )

    def book_outcome(self, answer: Projection, chosen: Tensor, rows: Any) -> None:
        """Record which projections failed and how many iterations they took."""
        if answer.converged is not None:
            self.failed[self.t, rows] = ~answer.converged
            self.failed[self.t] &= chosen
        if answer.iterations is not None:
            self.iterations[self.t, rows] = answer.iterations.to(torch.int32)

    def close(self, x: Tensor, open_rows: Tensor) -> Tensor:
        """The closing projection of the rows that the last step left unprojected; not part of the budget."""
        rows = open_rows.nonzero().squeeze(1)
        self.closing = open_rows
        if len(rows) == 0:
            return x
        answer = self.project(self.constraint.take(rows), x.index_select(0, rows))
        if answer.converged is not None:
            self.closing_failed[rows] = ~answer.converged
        return x.index_copy(0, rows, answer.x)

    def finish_step(self, x: Tensor) -> Tensor:
        """Close the step's books; the states come back as they are."""
        if self.owner.keep_states:
            self.states.append(x.detach().clone())
        if self.owner.dense and self.t == self.owner.n_steps - 1:
            # without synchronising at every step, bad numbers are found at the end
            bad = ~x.flatten(1).isfinite().all(dim=1)
            if self.owner.measure_defects:
                bad |= ~(self.ledger.defects + self.ledger.residuals).isfinite().all(dim=0)
            self.refuse_rows(bad, "the sampler proposed, or the projection returned, NaN or inf")
        self.t += 1
        self.broken = False
        if self.complete:
            self.final = x.detach().clone()
        if self.owner.on_step is not None:
            t = self.t - 1
            self.owner.on_step(
                t,
                {
                    "defect": float(self.ledger.defects[t].mean()),
                    "residual": float(self.ledger.residuals[t].mean()),
                    "projected": float(self.ledger.projected[t].float().mean()),
                },
            )
        self.returned_at = perf_counter()
        return x

    def record(self) -> Rollout:
        """The record of the whole run."""
        assert self.final is not None
        meters = {"update": self.updates, "defect": self.defects, "projection": self.projections}
        seconds = {kind: meter.seconds for kind, meter in meters.items()}
        seconds["scheduling"] = self.returned_at - self.began_at - sum(seconds.values())
        return Rollout(
            final=self.final,
            defects=self.ledger.defects,
            residuals=self.ledger.residuals,
            projected=self.ledger.projected,
            closing=self.closing,
            failed=self.failed,
            closing_failed=self.closing_failed,
            iterations=self.iterations,
            seeds=self.owner.seeds,
            states=torch.stack(self.states) if self.owner.keep_states else None,
            seconds=seconds,
            calls={kind: meter.calls for kind, meter in meters.items()},
            rows={kind: meter.rows for kind, meter in meters.items()},
        )
