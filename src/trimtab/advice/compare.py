"""Schedules side by side on one problem: what each costs, and what its final samples are worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trimtab.advice.validate import check_iterations
from trimtab.core import html
from trimtab.core.budget import corrections
from trimtab.core.checks import check_bool, check_type
from trimtab.core.distributions import Fidelity, compare_samples
from trimtab.core.groups import Groups
from trimtab.core.metrics import Distance, Summary, endpoint_distance, euclidean, nepe, path_error, summary
from trimtab.core.problem import Problem
from trimtab.core.progress import progress_of
from trimtab.core.quality import Quality, as_quality
from trimtab.core.record import Closing, Rollout
from trimtab.core.repeatable import as_record
from trimtab.core.runner import BatchRunner, Engine, RunBatch, ahead, checked, open_runner
from trimtab.core.schedule import Schedule, Watched, as_schedule, watched
from trimtab.core.view import StepView
from trimtab.prices.collect import Source, check_schedule_is_used
from trimtab.prices.price import Price
from trimtab.schedules import Periodic, Stepwise, Terminal, Window

__all__ = ["Compared", "Comparison", "compare"]

_ALWAYS = ("terminal", "stepwise", "periodic", "window")  # schedules that are run unasked
_MEASURES = ("endpoint", "nepe")  # of final samples and of the path, whatever the quality


@dataclass(frozen=True, eq=False)
class Compared:
    """One schedule at one budget.

    Attributes:
        name: Of the schedule.
        budget: Corrections it was given; None for one that has its own.
        projections: Paid for per sample, the closing one included.
        values: Each measure of every sample, (n,), by name: the quality's own, "endpoint", "nepe". Of samples that are
            decided on together, the mean of each group.
        fidelity: Of its final samples as a distribution, where there is something to compare with.
    """

    name: str
    budget: int | None
    projections: float
    values: Mapping[str, Tensor]
    fidelity: Fidelity | None

    def mean(self, measure: str) -> Summary:
        """The mean of a measure with its standard error; samples, or groups, that are NaN are left out."""
        values = self.values[measure]
        return summary(values[~values.isnan()])


@dataclass(frozen=True, eq=False)
class Comparison:
    """What `compare` found; `print` it, or read `rows`.

    Attributes:
        rows: One for each schedule at each budget.
        measures: Names of what was measured.
        n_steps: T.
        n: Number of samples; of groups, where samples are decided on together.
        units: What `n` counts: "samples" or "groups".
    """

    rows: tuple[Compared, ...]
    measures: tuple[str, ...]
    n_steps: int
    n: int
    units: str = "samples"

    def __getitem__(self, key: tuple[str, int | None]) -> Compared:
        """By name and budget."""
        for row in self.rows:
            if (row.name, row.budget) == key:
                return row
        raise KeyError(f"{key!r}; there are {[(row.name, row.budget) for row in self.rows]}")

    @property
    def _with_distributions(self) -> bool:
        return any(row.fidelity is not None for row in self.rows)

    def _head(self) -> tuple[str, ...]:
        return ("schedule", "projections", *self.measures, *(("distribution",) if self._with_distributions else ()))

    def _cells(self) -> list[tuple[str, ...]]:
        cells = []
        for row in self.rows:
            found = [row.mean(measure) for measure in self.measures]
            apart = "" if row.fidelity is None else f"p = {row.fidelity.p:.2g}"
            told = map(_told, found)
            cells.append((row.name, f"{row.projections:.1f}", *told, *((apart,) if self._with_distributions else ())))
        return cells

    def _note(self) -> str:
        counted = self.units if self.n > 1 else self.units.removesuffix("s")
        note = f"{self.n} {counted}, T = {self.n_steps}, paired by seed; ± is one standard error."
        infinite = [name for name in self.measures if any(bool(row.values[name].isinf().any()) for row in self.rows)]
        for name in infinite:
            note += f" {name} is infinite for some {self.units}, which decide its mean: give a large number instead."
        return note

    def __str__(self) -> str:
        """As a table in plain text."""
        cells = [self._head(), *self._cells()]
        widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
        ]
        chance = " p is the chance of final samples as far from the reference, if nothing differed."
        return "\n".join([*lines, "", self._note() + (chance if self._with_distributions else "")])

    def __repr__(self) -> str:
        """One line."""
        return f"Comparison({len(self.rows)} schedules, {', '.join(self.measures)}; print it)"

    def _repr_html_(self) -> str:
        """A table, in a notebook."""
        first = self.measures[0]
        lines: dict[str, list[tuple[float, float]]] = {}
        for row in sorted(self.rows, key=lambda row: row.projections):
            if row.budget is not None:
                lines.setdefault(row.name, []).append((row.projections, row.mean(first).mean))
        drawing = html.draw(lines, "projections per sample", first)
        return html.panel("Comparison", html.table(self._cells(), self._head()) + f"<p>{self._note()}</p>", drawing)


def compare(
    source: Source,
    schedules: Mapping[str, Price | Schedule | Callable[[StepView], Tensor]],
    budgets: Iterable[int | float] = (0.25,),
    *,
    quality: Quality | Callable[..., Any] | None = None,
    reference: Source | Any = None,
    distance: Distance | None = None,
    closing: Closing = "paid",
    check: bool = True,
    engine: Engine | BatchRunner | str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Run schedules side by side on the same seeds, and measure their final samples.

    Terminal and stepwise correction, even spacing ("periodic") and the last steps alone ("window") are always among
    them. Of samples that are decided on together it is groups that are measured, by the means of their samples.

    Args:
        source: What is sampled, for seeds that calibrated nothing: a `Problem`, or a function `run(schedule)` as in
            `calibrate`.
        schedules: By name: prices, which are run at every budget, and schedules or functions of a `StepView`, which have
            their own. The names of those that are always run are taken.
        budgets: Counts or fractions of T, the closing projection included; the same one twice is run once.
        quality: A measure of final samples beside the distance to full projection and the path error, whose names,
            "endpoint" and "nepe", are taken. A mean is infinite where it is so for a sample, and the table says so.
        reference: To compare final samples with as distributions: a problem or a `run` for other seeds, which is then
            fully projected, or samples of your own; none if not given. Rows of a group are no independent samples, so
            that groups have none.
        distance: Between states; the problem's own, or Euclidean, if not given.
        closing: How rollouts of a problem end; see `Corrector`. A loop of your own has its corrector's.
        check: Whether to run the first batch twice, to see that it repeats itself.
        engine: Where to run batches, as in `calibrate`.
        progress: Told what is being done; see `calibrate`.

    Example:
        >>> import trimtab as tt
        >>> domain = tt.domain("so3", n_steps=20)
        >>> price = tt.calibrate(domain.problem(range(1000, 1016)), method="dp", objective="path")
        >>> found = compare(domain.problem(range(8)), {"dp": price}, [0.25])
        >>> [(row.name, row.projections) for row in found.rows]
        [('terminal', 1.0), ('stepwise', 20.0), ('periodic', 5.0), ('window', 5.0), ('dp', 5.0)]
    """
    if not isinstance(source, Problem) and not callable(source):
        raise TypeError(f"compare takes a Problem or a function run(schedule): got {type(source).__name__}")
    judge, tell = as_quality(quality), progress_of("compare", progress)
    problem = source if isinstance(source, Problem) else None
    apart = distance
    if apart is None:
        apart = euclidean if problem is None else problem.distance
    check_bool(check, "check")
    if not isinstance(schedules, Mapping):
        raise TypeError(f"schedules are given by name, as in {{'dp': price}}: got {schedules!r:.60}")
    for name in schedules:
        if check_type(name, str, "the name of a schedule") in _ALWAYS:
            raise ValueError(f"{', '.join(_ALWAYS)} are always compared: give your schedule another name than {name!r}")
    if not isinstance(budgets, Iterable):
        raise TypeError(f"budgets are counts or fractions of T, in a list: got {budgets!r:.60}")
    options: dict[str, Any] = {"closing": closing, "measure_defects": True}

    def batches(of: Source, shop: BatchRunner | None) -> RunBatch:
        settings = options if isinstance(of, Problem) else {}
        if shop is not None:
            return shop.runs(of, **settings)
        return partial(of.rollout, **settings) if isinstance(of, Problem) else of

    with tell, open_runner(engine, tell, source) as shop:
        run = batches(source, shop)
        other = batches(reference, shop) if isinstance(reference, Problem) or callable(reference) else None
        ahead(run, [Watched(Stepwise())])
        if other is not None:
            ahead(other, [Stepwise()])
        tell("terminal")
        terminal = checked(run, Watched(Terminal())) if check else as_record(run(Watched(Terminal())))
        T, groups = terminal.n_steps, terminal.groups
        if groups is not None and reference is not None:
            raise ValueError(
                "the rows of a group are not independent samples, and a comparison of distributions would count them as"
                " such: leave out the reference where samples are decided on in groups"
            )
        wanted = _wanted(schedules, budgets, T)
        tell.batch(2 if check else 1)
        tell.expect(len(wanted) + 1 + int(other is not None))
        ahead(run, [schedule for _, _, schedule in wanted])
        tell("stepwise")
        full = as_record(run(Watched(Stepwise())))
        check_schedule_is_used(terminal, full)
        tell.batch()
        against = reference
        if other is not None:
            tell("full projection on other seeds")
            against = as_record(other(Stepwise()), "the reference must return the record of its run, corrector.rollout")
            tell.batch()
        ends = path_error(full).double(), path_error(terminal).double()
        shift: list[float] = []

        def judged(name: str, budget: int | None, record: Rollout) -> Compared:
            values = {} if judge is None else _named(judge.values(record.final, problem))
            values["endpoint"] = endpoint_distance(record, full, apart).double().cpu()
            values["nepe"] = nepe(path_error(record).double(), *ends).cpu()
            if groups is not None:
                values = {measure: _means(each, groups) for measure, each in values.items()}
            fidelity = None
            if against is not None:
                fidelity = compare_samples(record, against, shift=shift[0] if shift else None)
                shift[:] = [fidelity.shift]
            return Compared(name, budget, float(record.paid.double().mean()), values, fidelity)

        rows = [judged("terminal", None, terminal), judged("stepwise", None, full)]
        for name, budget, schedule in wanted:
            tell(f"{name} {budget or ''}".strip())
            rows.append(judged(name, budget, as_record(run(schedule))))
            tell.batch()
    n, units = (terminal.projected.shape[1], "samples") if groups is None else (groups.n, "groups")
    return Comparison(tuple(rows), tuple(rows[0].values), T, n, units)


def _told(value: Summary) -> str:
    """A mean and its standard error as a table shows them, as far as they are known."""
    if math.isnan(value.mean):
        return "n/a"
    return f"{value.mean:.4g}" + ("" if math.isnan(value.se) else f" ± {value.se:.1g}")


def _named(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """The numbers of a quality, unless one has the name of what is measured anyway."""
    for name in values:
        if name in _MEASURES:
            raise ValueError(
                f"{' and '.join(_MEASURES)} are always measured: give your quality another name than {name!r}, as in "
                f"Quality(measure, name='my {name}')"
            )
    return values


def _means(values: Tensor, groups: Groups) -> Tensor:
    """The mean over each group of the values that are not NaN, (n,) to (G,)."""
    known = ~values.isnan()
    return groups.means(torch.where(known, values, 0.0)) / groups.means(known.double())


def _wanted(
    schedules: Mapping[str, Price | Schedule | Callable[[StepView], Tensor]],
    budgets: Iterable[int | float],
    n_steps: int,
) -> list[tuple[str, int | None, Schedule]]:
    """What is run beside the two ends: name, budget, schedule; all of them have their defects measured."""
    counts = list(dict.fromkeys(int(corrections(budget, n_steps)) for budget in budgets))
    wanted: list[tuple[str, int | None, Schedule]] = []
    for b in counts:
        wanted += [("periodic", b, Periodic(b)), ("window", b, Window(n_steps - b))]
    for name, one in schedules.items():
        if isinstance(one, Price):
            check_iterations(one.unit, f"the price {name!r}")
            wanted += [(name, b, one.at(b)) for b in counts]
        else:
            schedule = as_schedule(one)
            check_iterations(schedule.unit, f"the schedule {name!r}")
            wanted.append((name, None, schedule))
    return [(name, b, watched(one)) for name, b, one in wanted]
