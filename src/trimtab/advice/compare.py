"""Schedules side by side on one problem: what each costs, and what its final samples are worth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from trimtab.advice.asked import refuse_iterations
from trimtab.core import show
from trimtab.core.budget import corrections
from trimtab.core.checks import yes_or_no
from trimtab.core.distributions import Fidelity, compare_samples
from trimtab.core.engine import Engine, RunBatch, Workshop, ahead, checked, workshop
from trimtab.core.errors import of_type
from trimtab.core.metrics import Distance, Summary, endpoint_distance, euclidean, nepe, path_error, summary
from trimtab.core.moment import Moment
from trimtab.core.problem import Problem
from trimtab.core.progress import progress_of
from trimtab.core.quality import Quality, as_quality
from trimtab.core.record import Closing, Rollout
from trimtab.core.repeatable import as_record
from trimtab.core.schedule import Schedule, Watched, as_schedule, watched
from trimtab.prices.batches import Source
from trimtab.prices.calibration import Price
from trimtab.prices.plan import Plan
from trimtab.prices.raced import Raced
from trimtab.prices.thresholds import Thresholds
from trimtab.schedules import Periodic, Stepwise, Terminal, Window

__all__ = ["Compared", "Comparison", "compare"]


@dataclass(frozen=True, eq=False)
class Compared:
    """One schedule at one budget.

    Attributes:
        name: Of the schedule.
        budget: Corrections it was given; None for one that has its own.
        projections: Paid for per sample, the closing one included.
        values: Each measure of every sample, (n,), by name: the quality's own, "endpoint", "nepe".
        fidelity: Of its final samples as a distribution, where there is something to compare with.
    """

    name: str
    budget: int | None
    projections: float
    values: Mapping[str, Tensor]
    fidelity: Fidelity | None

    def mean(self, measure: str) -> Summary:
        """The mean of a measure with its standard error; samples that are NaN are left out."""
        values = self.values[measure]
        return summary(values[~values.isnan()])


@dataclass(frozen=True, eq=False)
class Comparison:
    """What `compare` found; `print` it, or read `rows`."""

    rows: tuple[Compared, ...]
    measures: tuple[str, ...]
    n_steps: int
    n: int

    def __getitem__(self, key: tuple[str, int | None]) -> Compared:
        """By name and budget."""
        for row in self.rows:
            if (row.name, row.budget) == key:
                return row
        raise KeyError(f"{key!r}; there are {[(row.name, row.budget) for row in self.rows]}")

    def _cells(self) -> list[tuple[str, ...]]:
        cells = []
        for row in self.rows:
            found = [row.mean(measure) for measure in self.measures]
            apart = "" if row.fidelity is None else f"p = {row.fidelity.p:.2g}"
            told = [f"{value.mean:.4g} ± {value.se:.1g}" for value in found]
            cells.append((row.name, f"{row.projections:.1f}", *told, apart))
        return cells

    def __str__(self) -> str:
        """As a table in plain text."""
        head = ("schedule", "projections", *self.measures, "distribution")
        cells = [head, *self._cells()]
        widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
        ]
        tail = (
            f"{self.n} samples, T = {self.n_steps}, paired by seed; ± is one standard error. p is the chance of final "
            "samples as far from those of full projection on other seeds, if nothing differed."
        )
        return "\n".join([*lines, "", tail])

    def __repr__(self) -> str:
        """One line."""
        return f"Comparison({len(self.rows)} schedules, {', '.join(self.measures)}; print it)"

    def _repr_html_(self) -> str:
        """A table, in a notebook."""
        compared = any(row.fidelity for row in self.rows)
        head = ("schedule", "projections", *self.measures, *(("distribution",) if compared else ()))
        cells = [row[: len(head)] for row in self._cells()]
        first = self.measures[0]
        lines: dict[str, list[tuple[float, float]]] = {}
        for row in sorted(self.rows, key=lambda row: row.projections):
            if row.budget is not None:
                lines.setdefault(row.name, []).append((row.projections, row.mean(first).mean))
        drawing = show.draw(lines, "projections per sample", first)
        note = f"<p>{self.n} samples, T = {self.n_steps}, paired by seed; ± is one standard error.</p>"
        return show.panel("Comparison", show.table(cells, head) + note, drawing)


def compare(
    source: Source,
    schedules: Mapping[str, Price | Schedule | Callable[[Moment], Tensor]],
    budgets: Iterable[int | float] = (0.25,),
    *,
    quality: Quality | Callable[..., Any] | None = None,
    reference: Source | Any = None,
    distance: Distance | None = None,
    closing: Closing = "paid",
    check: bool = True,
    engine: Engine | Workshop | str | None = None,
    say: Callable[[str], None] | None = None,
) -> Comparison:
    """Run schedules side by side on the same seeds, and measure their final samples.

    Terminal and full projection, even spacing and the last steps alone are always among them.

    Args:
        source: What is sampled, for seeds that calibrated nothing: a `Problem`, or a function `run(schedule)` as in
            `calibrate`.
        schedules: By name: prices, which are run at every budget, and schedules or functions of a `Moment`, which have
            their own.
        budgets: Counts or fractions of T, the closing projection included.
        quality: A measure of final samples beside the distance to full projection and the path error.
        reference: To compare final samples with as distributions: a problem or a `run` for other seeds, which is then
            fully projected, or samples of your own; none if not given.
        distance: Between states; the problem's own, or Euclidean, if not given.
        closing: How rollouts of a problem end; see `Corrector`. A loop of your own has its corrector's.
        check: Whether to run the first batch twice, to see that it repeats itself.
        engine: Where to run batches, as in `calibrate`.
        say: Told what is being done; see `calibrate`.

    Example:
        >>> import trimtab as tt
        >>> domain = tt.domain("so3", n_steps=20)
        >>> price = tt.calibrate(domain.problem(range(1000, 1016)), method="dp", objective="path")
        >>> found = compare(domain.problem(range(8)), {"dp": price}, [0.25])
        >>> [(row.name, row.projections) for row in found.rows]
        [('terminal', 1.0), ('full', 20.0), ('periodic', 5.0), ('last steps', 5.0), ('dp', 5.0)]
    """
    if not isinstance(source, Problem) and not callable(source):
        raise TypeError(f"compare takes a Problem or a function run(schedule): got {type(source).__name__}")
    judge, tell = as_quality(quality), progress_of("compare", say)
    problem = source if isinstance(source, Problem) else None
    apart = distance
    if apart is None:
        apart = euclidean if problem is None else problem.distance
    yes_or_no(check, "check")
    if not isinstance(schedules, Mapping):
        raise TypeError(f"schedules are given by name, as in {{'dp': price}}: got {schedules!r:.60}")
    for name in schedules:
        of_type(name, str, "the name of a schedule")
    if not isinstance(budgets, Iterable):
        raise TypeError(f"budgets are counts or fractions of T, in a list: got {budgets!r:.60}")
    options: dict[str, Any] = {"closing": closing, "measure_defects": True}

    def batches(of: Source, shop: Workshop | None) -> RunBatch:
        settings = options if isinstance(of, Problem) else {}
        if shop is not None:
            return shop.runs(of, **settings)
        return partial(of.rollout, **settings) if isinstance(of, Problem) else of

    with tell, workshop(engine, tell, source) as shop:
        run = batches(source, shop)
        other = batches(reference, shop) if isinstance(reference, Problem) or callable(reference) else None
        ahead(run, [Watched(Stepwise())])
        if other is not None:
            ahead(other, [Stepwise()])
        tell("terminal")
        terminal = checked(run, Watched(Terminal())) if check else as_record(run(Watched(Terminal())))
        T, n = terminal.projected.shape
        wanted = _wanted(schedules, budgets, T)
        tell.batch(2 if check else 1)
        tell.expect(len(wanted) + 1 + int(other is not None))
        ahead(run, [schedule for _, _, schedule in wanted])
        tell("full")
        full = run(Watched(Stepwise()))
        tell.batch()
        against = reference
        if other is not None:
            tell("full projection on other seeds")
            against = other(Stepwise())
            tell.batch()
        ends = path_error(full).double(), path_error(terminal).double()
        shift: list[float] = []

        def judged(name: str, budget: int | None, record: Rollout) -> Compared:
            values = {} if judge is None else judge.values(record.final, problem)
            values["endpoint"] = endpoint_distance(record, full, apart).double().cpu()
            values["nepe"] = nepe(path_error(record).double(), *ends).cpu()
            fidelity = None
            if against is not None:
                fidelity = compare_samples(record, against, shift=shift[0] if shift else None)
                shift[:] = [fidelity.shift]
            return Compared(name, budget, float(record.paid.double().mean()), values, fidelity)

        rows = [judged("terminal", None, terminal), judged("full", None, full)]
        for name, budget, schedule in wanted:
            tell(f"{name} {budget or ''}".strip())
            rows.append(judged(name, budget, run(schedule)))
            tell.batch()
    return Comparison(tuple(rows), tuple(rows[0].values), T, n)


def _wanted(
    schedules: Mapping[str, Price | Schedule | Callable[[Moment], Tensor]], budgets: Iterable[int | float], n_steps: int
) -> list[tuple[str, int | None, Schedule]]:
    """What is run beside the two ends: name, budget, schedule; all of them have their defects measured."""
    counts = [int(corrections(budget, n_steps)) for budget in budgets]
    wanted: list[tuple[str, int | None, Schedule]] = []
    for b in counts:
        wanted += [("periodic", b, Periodic(b)), ("last steps", b, Window(n_steps - b))]
    for name, one in schedules.items():
        if isinstance(one, Thresholds | Plan | Raced):
            refuse_iterations(one.unit, f"the price {name!r}")
            wanted += [(name, b, one.at(b)) for b in counts]
        else:
            schedule = as_schedule(one)
            refuse_iterations(schedule.unit, f"the schedule {name!r}")
            wanted.append((name, None, schedule))
    return [(name, b, watched(one)) for name, b, one in wanted]
