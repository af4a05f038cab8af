"""Bad arguments for measures of records and of final samples, for budgets, schedules and engines, and for `compare`."""

from __future__ import annotations

import math
import random
from functools import cache
from typing import Any

import torch

import trimtab as tt
from torture.spoil import Targets, spoil
from torture.things import Walk, ball, of_problem, prices, run_of_walk, whole_run
from torture.values import (
    N,
    T,
    Thing,
    above_zero,
    budget,
    but_none,
    function,
    level,
    not_a_number,
    one_of,
    quantile,
    seeds,
    spoiled,
    steps,
    whole,
    word,
)
from trimtab.core import budget as budgets
from trimtab.core import distributions, metrics, moment, quality, repeatable, schedule
from trimtab.core.constraint import residual_norm
from trimtab.core.noise import as_seeds
from trimtab.core.runner import Engine

OTHER = "other"
"""How the second of two records is called below."""


@cache
def record(kind: str = "terminal", **options: Any) -> tt.Rollout:
    """A record of the walk: corrected at every step, on other seeds, with its states, or of fewer samples."""
    made = {"terminal": tt.Terminal(), "stepwise": tt.Stepwise()}
    return whole_run(made[kind], **options)  # type: ignore[no-any-return]


@cache
def on_other_seeds() -> tt.Rollout:
    """Not paired with the others."""
    return tt.rollout(Walk(), ball(), tt.Stepwise(), range(50, 50 + N), measure_defects=True)


@cache
def fewer() -> tt.Rollout:
    """Of other sizes."""
    return tt.rollout(Walk(), ball(), tt.Stepwise(), range(N - 1), measure_defects=True)


def no_record(r: random.Random) -> Any:
    """What is no record."""
    return r.choice([None, 3, "x", [], {}, Thing(), torch.rand(T, N), Walk(), len])


def unpaired(r: random.Random) -> Any:
    """What is no record of the same seeds."""
    return r.choice([no_record(r), no_record(r), fewer(), on_other_seeds()])


def each(r: random.Random) -> Any:
    """What is not one number for each of N samples; NaN has a meaning of its own."""
    wrong = [torch.rand(N + 1), torch.rand(N, 2), torch.ones(N, dtype=torch.complex64), torch.rand(N).numpy()]
    return r.choice([*wrong, "x", None, 3, [1.0], {}, Thing(), len])


def samples(r: random.Random) -> Any:
    """What is no set of at least two samples in R^3."""
    wrong = [spoiled((32, 3), r), torch.rand(1, 3), torch.rand(0, 3), torch.rand(())]
    return r.choice([*wrong, "x", None, 3, [], {}, Thing(), len, ["a"]])


def other_samples(r: random.Random) -> Any:
    """What is no set of samples like another of R^3."""
    return r.choice([torch.rand(32, 4), samples(r), samples(r)])


def drawn() -> dict[str, Any]:
    """Two sets of samples."""
    return {"samples": torch.rand(32, 3), "reference": torch.rand(32, 3)}


def seed(r: random.Random) -> Any:
    """What is no seed."""
    return r.choice([-1, 1.5, math.nan, True, 2**70, not_a_number(r), not_a_number(r)])


def compared(**changes: Any) -> Any:
    """The walk under two schedules, with something spoiled."""
    given: dict[str, Any] = {"schedules": {"own": prices()}, "budgets": [2], "seeds": range(8)}
    return of_problem(tt.compare, **given | changes)


def of_schedules(r: random.Random) -> Any:
    """What are no schedules by name."""
    wrong = [[tt.Terminal()], {"a": 3}, {"a": "x"}, {"a": None}, {3: tt.Terminal()}, {"a": tt.Terminal}]
    return r.choice([*wrong, "x", None, 3, tt.Terminal(), prices(), Thing()])


def of_budgets(r: random.Random) -> Any:
    """What are no budgets."""
    return r.choice([[T + 1], [-1], [1.5], [math.nan], ["x"], [None], "x", 3, 0.5, None, Thing(), [[1]], [True]])


def measured(r: random.Random) -> Any:
    """What answers to no question of quality."""
    wrong = [torch.rand(3), torch.rand(8, 2), torch.full((8,), math.nan), "x", None, Thing(), {"a": "x"}, {}]
    answer = r.choice(wrong)
    return r.choice([lambda final: answer, but_none(function(r))])


def apart(r: random.Random) -> Any:
    """What is no distance."""
    wrong = [torch.rand(3), torch.rand(8, 2), torch.full((8,), math.nan), "x", None, Thing()]
    answer = r.choice(wrong)
    return r.choice([lambda a, b: answer, but_none(function(r))])


def engine(r: random.Random) -> Any:
    """What is no engine."""
    return r.choice(["", "serail", "threads", 3, [], {}, Thing(), 1.5, True, ("serial",), Engine, len])


def calls(r: random.Random) -> Any:
    """What is neither a problem nor a run."""
    return r.choice([None, 3, "x", [], {}, Thing(), lambda schedule: 3, lambda schedule: None])


def not_a_budget(r: random.Random) -> Any:
    """Neither None nor a budget; how many samples there are is not known here."""
    value = but_none(budget(r))
    return "x" if isinstance(value, torch.Tensor) and value.shape == (N + 1,) else value


def paired() -> dict[str, Any]:
    """The arguments of what compares with stepwise correction."""
    options = {"keep_states": True}
    return {"run": record(**options), "stepwise": record("stepwise", **options)}


def three(*names: str) -> Any:
    """One number per sample for each of these arguments."""
    return lambda: {name: torch.rand(N) + i for i, name in enumerate(names)}


METRICS: Targets = {
    **spoil("path_error", metrics.path_error, run=no_record),
    **spoil("achieved_budget", metrics.achieved_budget, run=no_record),
    **spoil("endpoint_distance", metrics.endpoint_distance, paired, run=unpaired, stepwise=unpaired, distance=function),
    **spoil("state_error", metrics.state_error, paired, run=lambda r: r.choice([unpaired(r), record()]), stepwise=unpaired, distance=function),
    **spoil("euclidean", metrics.euclidean, lambda: {"a": torch.rand(N, 3), "b": torch.rand(N, 3)},
            a=one_of("x", None, 3, [], Thing(), torch.rand(N, 4), torch.rand(N + 1, 3)),
            b=one_of("x", None, 3, [], Thing(), torch.rand(N, 4), torch.rand(N + 1, 3), (torch.rand(N, 3),))),
    **spoil("nepe", metrics.nepe, three("path", "stepwise", "terminal"), path=each, stepwise=each, terminal=each, tolerance=level),
    **spoil("benefit", metrics.benefit, nepe=one_of("x", None, 3, [], Thing(), torch.rand(N, dtype=torch.complex64))),
    **spoil("improvement", metrics.improvement, three("method", "baseline"), method=each, baseline=each),
    **spoil("gap_closed", metrics.gap_closed, three("method", "baseline", "hindsight"), method=each, baseline=each, hindsight=each),
    **spoil("win_rate", metrics.win_rate, three("method", "baseline"), method=each, baseline=each),
    **spoil("summary", metrics.summary, values=one_of("x", None, 3, [], Thing(), torch.rand(N, dtype=torch.complex64))),
    **spoil("top_mass", metrics.top_mass, lambda: {"defects": torch.rand(T, N)},
            defects=one_of("x", None, 3, [], Thing(), torch.rand(()), torch.rand(T), torch.rand(0, N), torch.rand(T, N, dtype=torch.complex64)),
            q=lambda r: r.choice([0, 0.0, quantile(r)])),
    **spoil("residual_norm", residual_norm, lambda: {"before": [torch.rand(N, 3)], "after": [torch.rand(N, 3)]},
            before=one_of("x", None, 3, [], Thing(), [torch.rand(N, 4)], [torch.rand(N, 3)] * 2, ["x"]),
            after=one_of("x", None, 3, [], Thing(), [torch.rand(N, 4)], [torch.rand(N, 3)] * 2, ["x"])),
}  # fmt: skip
"""Measures of records."""

DISTRIBUTIONS: Targets = {
    **spoil("compare_samples", distributions.compare_samples, drawn, samples=other_samples, reference=other_samples, measure=word,
            floor=lambda r: r.choice([torch.rand(3, 3), but_none(samples(r))]), embed=lambda r: but_none(function(r)),
            relabellings=lambda r: r.choice([19, whole(r)]), seed=seed, shift=lambda r: r.choice([but_none(level(r)), -1.0]),
            called=one_of(3, None, b"x", [], Thing())),
    **spoil("compare_samples embed's", lambda answer: distributions.compare_samples(**drawn(), embed=lambda x: answer),
            answer=one_of("x", None, 3, [], Thing(), torch.rand(()), torch.full((32, 2), math.nan))),
    **spoil("compare_samples paired", lambda samples: distributions.compare_samples(samples, record("stepwise")),
            samples=one_of(record(), record("stepwise"))),
    **spoil("energy_excess", distributions.energy_excess, lambda: {"x": torch.rand(32, 3), "y": torch.rand(32, 3)}, x=samples, y=samples,
            less=lambda r: r.choice([torch.rand(31, 3), but_none(samples(r))])),
    **spoil("minimum_detectable_shift", distributions.minimum_detectable_shift, lambda: {"reference": torch.rand(32, 3), "n": 32}, reference=samples,
            n=lambda r: r.choice([1, whole(r)]), measure=word, embed=lambda r: but_none(function(r)),
            level=lambda r: r.choice([0, 1, quantile(r)]), power=lambda r: r.choice([0, 1, quantile(r)]), seed=seed),
    **spoil("as_quality", quality.as_quality, quality=lambda r: but_none(function(r))),
    **spoil("Quality", lambda **c: quality.Quality(**{"measure": lambda final: final.norm(dim=1)} | c).costs(torch.rand(N, 3)),
            measure=lambda r: r.choice([function(r), measured(r)]), higher_is_better=one_of("x", 3, None, [], Thing()), name=one_of(3, None, [], b"x", Thing())),
}  # fmt: skip
"""Measures of final samples."""

COMPARED: Targets = {
    **spoil("compare", compared, seeds=seeds, schedules=of_schedules, budgets=of_budgets, quality=measured, distance=apart,
            reference=one_of("x", 3, Thing(), torch.rand(()), {}, lambda schedule: 3), closing=word, engine=engine,
            check=one_of("x", 3, None, [], Thing()), progress=lambda r: but_none(function(r))),
    **spoil("compare", lambda source: tt.compare(source, {}), source=calls),
    **spoil("calibrate", lambda **c: of_problem(tt.calibrate, **c), engine=engine, progress=lambda r: but_none(function(r)),
            closing=word, check=one_of("x", 3, None, [], Thing()), quality=measured, distance=apart,
            candidates=one_of("x", 3, [1], {"a": 3}, {"a": None}, {3: prices()}, Thing()), look=lambda r: r.choice([math.inf, level(r)])),
    **spoil("calibrate", tt.calibrate, source=calls),
    **spoil("advise", lambda **c: of_problem(tt.advise, **c), engine=engine, progress=lambda r: but_none(function(r)), quality=measured,
            distance=apart, held_out=lambda r: but_none(calls(r)), objective=word, seconds=lambda r: but_none(above_zero(r)), window=lambda r: but_none(budget(r)),
            look=lambda r: r.choice([math.inf, level(r)]), constraint=lambda r: but_none(function(r)), nudge=lambda r: but_none(function(r))),
    **spoil("advise", tt.advise, source=calls),
    **spoil("Engine", Engine, name=lambda r: r.choice(["", "x", 3, None, [], Thing()]), workers=lambda r: but_none(whole(r)),
            keep=one_of(3, 1.5, [], {}, Thing(), "", "\0", "x" * 5000), make=lambda r: but_none(function(r))),
    **spoil("check_repeatable", lambda **c: repeatable.check_repeatable(**{"run": whole_run, "schedule": tt.Terminal()} | c),
            run=calls, schedule=function),
}  # fmt: skip
"""What runs several schedules, and where."""

BASICS: Targets = {
    **spoil("corrections", budgets.corrections, lambda: {"budget": 2, "n_steps": T}, budget=not_a_budget, n_steps=steps),
    **spoil("most_corrections", budgets.most_corrections, lambda: {"budget": 2, "n_steps": T}, budget=not_a_budget, n_steps=steps),
    **spoil("units", budgets.units, lambda: {"budget": 2, "n_steps": T, "unit": "iteration"},
            budget=one_of(-1, -0.5, math.nan, math.inf, "x", [], Thing(), True, torch.rand(N), torch.tensor([-1])), n_steps=steps, unit=word),
    **spoil("as_seeds", as_seeds, seeds=seeds),
    **spoil("as_schedule", schedule.as_schedule, schedule=function),
    **spoil("as_array", moment.as_array, x=one_of("x", None, 3, [], Thing(), len)),
    **spoil("last_corrections", moment.last_corrections, projected=one_of("x", None, 3, [], Thing(), torch.rand(T, N), torch.ones(()).bool())),
    **spoil("Watched", lambda schedule_: schedule.Watched(schedule_), schedule_=function),
    **spoil("StepView.of_record", moment.StepView.of_record, lambda: {"t": 1, "defects": torch.rand(T, N), "projected": torch.zeros(T, N).bool(), "budget": 2},
            t=one_of(-1, T, "x", None, 1.5, Thing()), defects=one_of("x", None, 3, [], Thing(), torch.rand(T), torch.rand(T, N + 1), torch.ones(T, N).long()),
            projected=one_of("x", None, 3, torch.rand(T, N), torch.ones(T, N + 1).bool(), Thing())),
    **spoil("Stepwise", lambda n_steps: tt.Corrector(ball(), tt.Stepwise(), n_steps), n_steps=steps),
    **spoil("Terminal", lambda n_steps: tt.Corrector(ball(), tt.Terminal(), n_steps), n_steps=steps),
    **spoil("Problem", lambda **c: tt.Problem(**{"sampler": Walk(), "constraint": ball(), "seeds": range(N)} | c), sampler=function, constraint=function,
            distance=function),
    **spoil("Problem.rollout", lambda **c: tt.Problem(Walk(), ball(), range(N)).rollout(**{"schedule": tt.Terminal()} | c), schedule=function, closing=word),
    **spoil("Rollout.save", lambda path: run_of_walk().save(path), path=one_of("", "/", "/no/such/folder/x", "\0", "x" * 5000, None, 3.5, [], Thing())),
}  # fmt: skip
"""Budgets, seeds and schedules."""

TARGETS: Targets = METRICS | DISTRIBUTIONS | COMPARED | BASICS
