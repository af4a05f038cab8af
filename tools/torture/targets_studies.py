"""Bad arguments for domains, studies and reports."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import trimtab as tt
from torture.spoil import Targets, spoil
from torture.targets_measures import each
from torture.values import N, Thing, but_none, function, not_a_number, one_of, seeds, whole, word
from trimtab import domains
from trimtab.evaluation.report import write_report
from trimtab.evaluation.studies import config, engine, rows, schedules, summary

CHAINED = ("so3", "se3", "terrain", "so3-impulse", "se3-lever", "terrain-ridge", "linkage", "so3-flow", "terrain-ramp")
"""Domains that are quick to make, of which every setting is spoiled."""


def no_number(r: random.Random) -> Any:
    """What is no number that any setting takes."""
    return r.choice([math.nan, math.inf, -math.inf, but_none(not_a_number(r)), but_none(not_a_number(r))])


def no_directory(r: random.Random) -> Any:
    """What is no directory of a run."""
    wrong = ["", "no/such/place", "\0", "x" * 5000, "/dev/null"]
    return r.choice([*wrong, *map(Path, ("no/such/place", "/dev/null", "x" * 5000)), None, 3, [], Thing(), b"x"])


def no_store(r: random.Random) -> Any:
    """What is no store of a run."""
    return r.choice([None, 3, "x", Path("x"), [], Thing(), {}, len])


def names(r: random.Random) -> Any:
    """What are no names of domains."""
    return r.choice([(), ("so3", "so3"), "so3", (3,), None, 3, (None,), Thing(), ("",), ("a/b",), [["so3"]]])


def fractions(r: random.Random) -> Any:
    """What are no budgets of a study."""
    return r.choice(
        [(), (0.5, 0.25), (0.25, 0.25), (2.0,), (-0.1,), ("x",), (math.nan,), "x", None, 3, Thing(), (None,)]
    )


def study(**changes: Any) -> Any:
    """A study, with something spoiled."""
    return replace(config.preset("tiny"), **changes)


def simplify_objective(r: random.Random) -> Any:
    """What is no mapping of samplers."""
    return r.choice(["x", 3, None, [1], {"x": 3}, {3: {}}, Thing(), {"x": {"factory": 3}}])


def one_column(r: random.Random) -> Any:
    """What are no columns of equal length."""
    good = np.arange(3)
    return r.choice([{}, {"seed": good, "a": np.arange(2)}, "x", None, 3, {"a": good}, {"seed": "x"}, Thing(), [good]])


def of_settings(name: str) -> Targets:
    """Every number that a domain may be given, spoiled."""
    known = {key: value for key, value in tt.domain(name).settings.items() if type(value) in (int, float)}
    return spoil(f"domain {name}", lambda **c: tt.domain(name, **c), **dict.fromkeys(known, no_number))


TARGETS: Targets = {
    **spoil("base_of", domains.base_of, name=one_of(None, 3, [], {}, Thing(), b"so3", 1.5)),
    **spoil("dynamics_of", domains.dynamics_of, name=one_of(None, 3, [], {}, Thing(), b"so3", 1.5)),
    **spoil("domain", lambda **c: tt.domain("so3", **c), dynamics=word, no_such_setting=one_of(1, 2.0, "x")),
    **spoil("Domain", lambda **c: domains.Domain(**{"name": "own", "summary": "Own.", "problem": tt.domain("so3").problem, "distance": lambda a, b: a[:, 0, 0]} | c),
            name=one_of(None, 3, [], "", Thing(), "a/b", "../x"), summary=one_of(None, 3, [], Thing()), problem=function, distance=function,
            settings=one_of("x", 3, None, [1], Thing()), quality=lambda r: but_none(function(r)), view=one_of("x", 3, [], Thing())),
    **spoil("Domain.problem", lambda seeds: tt.domain("so3").problem(seeds), seeds=seeds),
    **spoil("View", lambda **c: domains.View(**{"label": "own"} | c), label=one_of(None, 3, [], Thing()), title=one_of(None, 3, [], Thing()),
            axes=one_of((), ("a",), ("a", "b", "c", "d"), "ab", None, 3, (1, 2), Thing()), points=function),
    **spoil("preset", config.preset, name=word),
    **spoil("budget_name", config.budget_name, budget=one_of("x", None, [], Thing(), math.nan, math.inf, -0.1, 1.1, 1j, True)),
    **spoil("Study", study, preset=one_of(None, 3, [], Thing()), domains=names, schedules=one_of((), ("terminal",), "x", None, 3, ("x", "y"), Thing(), (3,)),
            budgets=fractions, seeds=whole, block=whole, calibration_seeds=whole, table_budget=one_of(0.3, math.nan, "x", None, [], Thing()),
            example_seeds=lambda r: whole(r) or 99, kappas=one_of("x", (math.nan,), (2.0,), (-1.0,), ("a",), None, 3, Thing()),
            kappa_domains=one_of("x", None, 3, (3,), Thing(), ("", )), kappa_seeds=whole, samplers=simplify_objective, unit=word),
    **spoil("run_study", engine.run_study, store=no_store),
    **spoil("join_rows", rows.join_rows, store=no_store),
    **spoil("write_rows", rows.write_rows, store=no_store),
    **spoil("read_rows", rows.read_rows, lambda: {"directory": Path("no/such/place"), "name": "so3"}, directory=no_directory, name=one_of("../x", "/etc/passwd", "", None, 3, "x\0", Thing())),
    **spoil("read_timing", rows.read_timing, directory=one_of(None, 3, [], Thing(), b"x", "\0", "x" * 5000)),
    **spoil("Rows", rows.Rows, columns=one_column),
    **spoil("study_schedule", schedules.study_schedule, name=word),
    **spoil("StudySchedule", lambda **c: schedules.StudySchedule(**{"summary": "Own.", "build": lambda given, budgets: tt.Terminal()} | c),
            summary=one_of(None, 3, [], Thing()), build=function, only_budget=one_of(2.0, -1.0, math.nan, "x", [], Thing())),
    **spoil("summarise", summary.summarise, files=no_store),
    **spoil("write_summary", summary.write_summary, files=no_store),
    **spoil("relative_improvement", summary.relative_improvement, lambda: {"method": torch.rand(N), "baseline": torch.rand(N)}, method=each, baseline=each),
    **spoil("write_report", write_report, files=no_store),
}  # fmt: skip
for _name in CHAINED:
    TARGETS |= of_settings(_name)
