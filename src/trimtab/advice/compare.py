"""Compare schedules on the same seeds: what each costs, and what its final samples are worth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from trimtab.advice.figure import comparison_figure
from trimtab.advice.recommend import Source, check_price
from trimtab.advice.trials import FAR, projections_of
from trimtab.calibration.collect import check_schedule_is_used, rollout_marks
from trimtab.core.budget import PerBatch, PerSample, corrections
from trimtab.core.checks import check_bool, check_type
from trimtab.core.metrics import Distance, distinct_seeds, endpoint_distance, euclidean, nepe, path_error
from trimtab.core.progress import progress_of
from trimtab.core.quality import Quality, as_quality
from trimtab.core.record import Closing, Rollout
from trimtab.core.repeatable import as_record, check_repeatable
from trimtab.core.schedule import Schedule, as_schedule
from trimtab.core.statistics import Summary, summarize
from trimtab.core.view import StepView
from trimtab.loop.rollout import Problem
from trimtab.loop.runner import Engine, open_runner, prefetch
from trimtab.prices import Price
from trimtab.schedules import Periodic, Stepwise, Terminal, Window
from trimtab.schedules.measured import measured

__all__ = ["Compared", "Comparison", "compare"]

_ALWAYS = ("terminal", "stepwise", "periodic", "window")  # schedules that are always run
_SAME = 0.1  # share of the rollouts that may look like rollouts that calibrated
_MEASURES = ("endpoint", "nepe")  # measured whatever the quality


@dataclass(frozen=True, eq=False)
class Compared:
    """One schedule at one budget.

    Attributes:
        name: Of the schedule.
        budget: The corrections it was given; None for a schedule with a budget of its own.
        projections: Paid for per sample, the closing one included.
        iterations: Solver iterations per sample; 0 if they are not counted.
        values: By name, a measure of every sample, (n,): the quality, "endpoint", "nepe".
        landing: The defect of the last proposal of every sample, (n,).
        clusters: The seed of every sample, (n,), if known: repeated seeds count once.
    """

    name: str
    budget: int | None
    projections: float
    iterations: float
    values: Mapping[str, Tensor]
    landing: Tensor
    clusters: Tensor | None = None

    def mean(self, measure: str) -> Summary:
        """Return the mean of a measure with its interval; samples that are NaN are left out."""
        return summarize(self.values[measure], self.clusters)

    @property
    def far(self) -> Tensor:
        """Return the rows that land ten times farther from feasible than usual, (k,)."""
        usual = self.landing.median()
        return ((self.landing > FAR * usual) & (usual > 0)).nonzero().squeeze(1)


@dataclass(frozen=True, eq=False)
class Comparison:
    """What `compare` found; `print` it, `plot` it, or read `rows`.

    Attributes:
        rows: One for each schedule at each budget.
        measures: Names of what was measured.
        n_steps: T.
        n: Number of distinct seeds.
        repeated: Number of samples whose seed was there already.
    """

    rows: tuple[Compared, ...]
    measures: tuple[str, ...]
    n_steps: int
    n: int
    repeated: int = 0

    def __getitem__(self, key: tuple[str, int | None]) -> Compared:
        """Return the row of the key (name, budget)."""
        for row in self.rows:
            if (row.name, row.budget) == key:
                return row
        raise KeyError(f"{key!r}; there are {[(row.name, row.budget) for row in self.rows]}")

    @property
    def iterates(self) -> bool:
        """Return whether the solver iterates: then iterations are the cost, not projections."""
        return any(row.iterations > 1.001 * row.projections for row in self.rows)

    def plot(self, path: str | Path | None = None, *, measure: str | None = None) -> Any:
        """Draw a measure of every schedule against its cost; needs matplotlib.

        Args:
            path: A .png, .svg or .pdf file to write as well.
            measure: One of `measures`; the first one if not given.

        Returns:
            The matplotlib figure.
        """
        if measure is not None and measure not in self.measures:
            raise ValueError(f"measure must be one of {', '.join(self.measures)}: got {measure!r}")
        return comparison_figure(self, measure or self.measures[0], None if path is None else Path(path))

    def _head(self) -> tuple[str, ...]:
        iterations = ("iterations",) if self.iterates else ()
        return ("schedule", "projections", *iterations, *self.measures, "landing")

    def _cells(self) -> list[tuple[str, ...]]:
        cells = []
        for row in self.rows:
            iterations = (f"{row.iterations:.1f}",) if self.iterates else ()
            values = [_shown(row.mean(measure)) for measure in self.measures]
            far = f" ({len(row.far)} far)" if len(row.far) else ""
            landing = f"{float(row.landing.median()):.3g}{far}"
            cells.append((row.name, f"{row.projections:.1f}", *iterations, *values, landing))
        return cells

    def _note(self) -> str:
        note = f"{self.n} sample{'s' * (self.n > 1)}, T = {self.n_steps}, paired by seed; 95% intervals in brackets."
        note += f" {self.repeated} samples with repeated seeds count once." if self.repeated else ""
        means = [row.mean(measure) for row in self.rows for measure in self.measures]
        if any(mean.n > 1 and not mean.reliable for mean in means):
            note += " [?]: too few samples, or a few of them hold most of the spread."
        if any(len(row.far) for row in self.rows):
            note += f" far: samples that land {FAR:.0f} times farther from feasible than usual."
        for name in self.measures:
            if any(bool(row.values[name].isinf().any()) for row in self.rows):
                note += f" {name} is infinite for some samples, which decide its mean: give a large number instead."
        return note

    def __str__(self) -> str:
        """Return a table in plain text."""
        cells = [self._head(), *self._cells()]
        widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
        ]
        return "\n".join([*lines, "", self._note()])

    def __repr__(self) -> str:
        """Return a one-line summary."""
        return f"Comparison({len(self.rows)} schedules, {', '.join(self.measures)}; print it)"


def compare(
    source: Source,
    schedules: Mapping[str, Price | Schedule | Callable[[StepView], Tensor]],
    budgets: Iterable[int | float] = (0.25,),
    *,
    quality: Quality | Callable[..., Any] | None = None,
    distance: Distance | None = None,
    closing: Closing = "paid",
    check: bool = True,
    engine: Engine = None,
    progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Run schedules on the same seeds, and measure their cost and their final samples.

    Terminal and stepwise correction, even spacing ("periodic") and the last steps ("window") are always among them.

    Args:
        source: A `Problem` with seeds that calibrated nothing, or a function `run(schedule)` as in `calibrate`.
        schedules: By name: prices, which are run at every budget, and schedules or functions of a `StepView`, which
            have a budget of their own.
        budgets: Counts or fractions of T, the closing projection included.
        quality: A measure of final samples besides the distance to full projection ("endpoint") and the normalised
            path error ("nepe").
        distance: Between states; that of the problem, or Euclidean, if not given.
        closing: How rollouts of a problem end; see `Corrector`. A loop has that of its corrector.
        check: Whether to run the first batch twice and check that both are the same.
        engine: Where to run batches, as in `calibrate`.
        progress: Called with a line about what is being done.

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
    apart = distance or (euclidean if problem is None else problem.distance)
    check_bool(check, "check")
    _check_names(schedules, budgets)
    options: dict[str, Any] = {"closing": closing, "measure_defects": True}
    with tell, open_runner(engine) as runner:
        run = runner.runs(source, "compare", **(options if problem is not None else {}))
        prefetch(run, [measured(Stepwise())])
        tell("terminal")
        terminal = check_repeatable(run, measured(Terminal())) if check else as_record(run(measured(Terminal())))
        T = terminal.n_steps
        _check_unused(schedules, terminal)
        if judge is not None:
            _named(judge.values(terminal.final, problem))  # an evaluator that fails should fail now
        wanted = _wanted(schedules, budgets, T)
        tell.batch(2 if check else 1)
        tell.expect(len(wanted) + 1)
        prefetch(run, [measured(schedule) for _, _, schedule in wanted])
        tell("stepwise")
        full = as_record(run(measured(Stepwise())))
        check_schedule_is_used(terminal, full)
        tell.batch()
        ends = path_error(full).double(), path_error(terminal).double()
        clusters = None if terminal.seeds is None else terminal.seeds.cpu()

        def judged(name: str, budget: int | None, schedule: Schedule, record: Rollout) -> Compared:
            values = {} if judge is None else _named(judge.values(record.final, problem))
            values["endpoint"] = endpoint_distance(record, full, apart).double().cpu()
            values["nepe"] = nepe(path_error(record).double(), *ends).cpu()
            paid, iterations = projections_of(record, schedule), record.all_iterations.double().mean().item()
            return Compared(name, budget, paid, iterations, values, record.landing.cpu(), clusters)

        rows = [judged("terminal", None, Terminal(), terminal), judged("stepwise", None, Stepwise(), full)]
        for name, budget, schedule in wanted:
            tell(f"{name} {budget or ''}".strip())
            rows.append(judged(name, budget, schedule, as_record(run(measured(schedule)))))
            tell.batch()
    n = terminal.projected.shape[1]
    distinct = n if clusters is None else len(distinct_seeds(clusters))
    return Comparison(tuple(rows), tuple(rows[0].values), T, distinct, n - distinct)


def _check_unused(schedules: Mapping[str, Any], terminal: Rollout) -> None:
    """Raise if a price was calibrated on these rollouts, recognised by their defects since a loop may have no seeds."""
    ours = set(rollout_marks(terminal.defects))
    for name, schedule in schedules.items():
        made_for = getattr(getattr(schedule, "price", schedule), "made_for", {})
        same = len(ours.intersection(made_for.get("rollouts", ())))
        if same > max(1, _SAME * len(ours)):
            raise ValueError(
                f"{same} of these rollouts were used to calibrate {name!r}: their first defects are the same; compare "
                "on other noise"
            )


def _shown(value: Summary) -> str:
    """Return a mean with its interval for the table, as far as they are known."""
    if value.mean != value.mean:
        return "n/a"
    if value.n < 2 or value.mean in (float("inf"), float("-inf")):
        return f"{value.mean:.4g}"
    return f"{value.mean:.4g} " + (f"[{value.low:.3g}, {value.high:.3g}]" if value.reliable else "[?]")


def _named(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the numbers of a quality; raise if a built-in measure has the same name."""
    for name in values:
        if name in _MEASURES:
            raise ValueError(
                f"{' and '.join(_MEASURES)} are always measured: give your quality another name than {name!r}, as in "
                f"Quality(measure, name='my {name}')"
            )
    return values


def _check_names(schedules: object, budgets: object) -> None:
    if not isinstance(schedules, Mapping):
        raise TypeError(f"schedules must be given by name, as in {{'dp': price}}: got {schedules!r:.60}")
    for name in schedules:
        if check_type(name, str, "the name of a schedule") in _ALWAYS:
            raise ValueError(f"{', '.join(_ALWAYS)} are always compared: give your schedule another name than {name!r}")
    if not isinstance(budgets, Iterable):
        raise TypeError(f"budgets must be a list of counts or fractions of T: got {budgets!r:.60}")


def _wanted(
    schedules: Mapping[str, Price | Schedule | Callable[[StepView], Tensor]],
    budgets: Iterable[int | float],
    n_steps: int,
) -> list[tuple[str, int | None, Schedule]]:
    """Return the rows besides terminal and stepwise: name, budget, and a schedule that measures defects."""
    counts = list(dict.fromkeys(int(corrections(budget, n_steps)) for budget in budgets))
    wanted: list[tuple[str, int | None, Schedule]] = []
    for b in counts:
        wanted += [("periodic", b, Periodic(b)), ("window", b, Window(n_steps - b))]
    for name, one in schedules.items():
        if isinstance(one, Price):
            check_price(one, n_steps, f"the price {name!r}")
            wanted += [(name, b, one.at(b)) for b in counts]
        else:
            if isinstance(one, int | float | PerBatch | PerSample):
                raise TypeError(
                    f"compare takes prices and schedules, and {name!r} is a budget; learn first, with "
                    "learner = trimtab.prices.Learner(budget) as the schedule of some rollouts, and pass learner.freeze(n)"
                )
            wanted.append((name, None, as_schedule(one)))
    return wanted
