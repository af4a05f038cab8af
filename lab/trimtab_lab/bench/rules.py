"""The rules of the benchmark: when, how much and how samples are corrected, published constants among them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import trimtab as tt
from trimtab.prices import Learner
from trimtab.schedules import AboveNoise, By, Fixed, RandomRamp, Window, windows
from trimtab_lab.bench.descent import Descent
from trimtab_lab.bench.system import FITTING, System

__all__ = ["RULES", "NotApplicable", "Rule", "at_every_step"]


class NotApplicable(Exception):  # noqa: N818 - it is an outcome
    """A rule has no meaning on a system; the text says why."""


@dataclass(frozen=True)
class Changed:
    """A schedule that runs with another constraint: `constraint(c)` of the problem's."""

    schedule: Any
    constraint: Callable[[Any], Any]


@dataclass(frozen=True)
class Rule:
    """Decides on corrections.

    Attributes:
        name: Its name in tables and files.
        make: `make(system, budget)` returns a schedule, a `Changed`, or a `Learner` for the line; `budget` is a share
            of full projection. It may learn from `system.calibrating`, and raises `NotApplicable` where it means
            nothing.
        source: Where a published constant was read, and what was left out.
        by_budget: False if the rule costs what it costs, whatever the budget: it is then run once.
    """

    name: str
    make: Callable[[System, float], Any]
    source: str = ""
    by_budget: bool = True


# ------------------------------------------------------------------ how much


def at_every_step(way: str, schedule: Any = None) -> Callable[[System, float], Any]:
    """Return a `make` that corrects by a way ("2 iterations", "frozen Jacobian") at all times of a schedule."""

    def make(system: System, budget: float) -> Any:
        constraint = system.calibrating.constraint
        if way.rpartition(" ")[2].startswith("iteration") and not constraint.improves:
            raise NotApplicable("its solver offers no single iterations")
        if system.meter is None and not _counts(system):
            raise NotApplicable("its solver counts no iterations, so they cannot be weighed against projections")
        if not way[0].isdigit() and way not in constraint.cheaper():
            raise NotApplicable(f"its constraint offers no {way!r}")
        return By(way) if schedule is None else By(way, schedule)

    return make


@cache
def _counts(system: System) -> bool:
    """Return whether the projection says how many iterations it took."""
    run = system.problem(range(FITTING, FITTING + 2)).rollout(tt.Stepwise())
    return bool((run.all_iterations > 0).any())


# ------------------------------------------------------------------ when


def _count(system: System, budget: float) -> int:
    """Return a share of full projection as a number of projections, the closing one included."""
    return max(1, round(budget * system.calibrating.n_steps))


def _last(system: System, budget: float) -> Any:
    return windows(_count(system, budget), system.calibrating.n_steps)[-1]


def _first(system: System, budget: float) -> Any:
    return windows(_count(system, budget), system.calibrating.n_steps)[0]


def _best(system: System, budget: float) -> Any:
    """Return the best of five windows on the seeds to learn from: by median quality (or distance), then mean."""
    problem = system.calibrating
    found = windows(_count(system, budget), problem.n_steps)
    tried = [found[round(share * (len(found) - 1))] for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    finals = [problem.rollout(window).final for window in tried]
    if system.quality is None:
        full = problem.rollout(tt.Stepwise()).final
        costs = [problem.distance(final, full) for final in finals]
    else:
        costs = [system.quality(final) for final in finals]
    return min(zip(tried, costs, strict=True), key=lambda one: (float(one[1].median()), float(one[1].mean())))[0]


def _noise_test(system: System, budget: float) -> Any:
    return AboveNoise.from_stepwise(system.calibrating.rollout(tt.Stepwise(), measure_defects=True))


_PRICES: dict[tuple[System, str], Any] = {}


def _priced(method: str, system: System, budget: float) -> Any:
    """Return the schedule of calibrated prices; one calibration serves all budgets of a system."""
    key = (system, method)
    if key not in _PRICES:
        quiet: dict[str, Any] = {"check": False, "progress": lambda text: None}
        _PRICES[key] = tt.calibrate(system.calibrating, 0.6, method, objective="path", **quiet)
    return _PRICES[key].at(min(0.6, _count(system, budget) / system.calibrating.n_steps))


def _line(system: System, budget: float, judged: bool = False) -> Any:
    if judged and system.quality is None:
        raise NotApplicable("the system has no quality of its own")
    return Learner(budget, quality=system.quality if judged else None)


def _gradients(way: str, schedule: Any = None) -> Callable[[System, float], Any]:
    """Return a `make` for published numbers of gradient steps, which mean nothing to another solver."""

    def make(system: System, budget: float) -> Any:
        if not system.gradients:
            raise NotApplicable("its correction is not made of gradient steps")
        return at_every_step(way, schedule)(system, budget)

    return make


def _afterwards(system: System, budget: float) -> Changed:
    """Return one long correction of the final samples."""
    problem = system.calibrating
    constraint = problem.constraint
    if not isinstance(constraint, Descent):
        raise NotApplicable("its correction has no number of steps")
    steps = max(1, round(budget * problem.n_steps * constraint.steps))
    return Changed(tt.Terminal(), lambda c: c.longer(steps))


# ------------------------------------------------------------------ all of them

_ALL = (
    Rule("terminal", lambda system, budget: tt.Terminal(), by_budget=False),
    Rule("full", lambda system, budget: tt.Stepwise(), by_budget=False),
    Rule("all afterwards", _afterwards),
    Rule("even", lambda system, budget: tt.Periodic(_count(system, budget))),
    Rule("last window", _last),
    Rule("first window", _first),
    Rule("best window", _best),
    Rule("1 iteration", at_every_step("1 iteration"), by_budget=False),
    Rule("2 iterations", at_every_step("2 iterations"), by_budget=False),
    Rule("5 iterations", at_every_step("5 iterations"), by_budget=False),
    Rule("frozen Jacobian", at_every_step("frozen Jacobian"), by_budget=False),
    Rule("frozen, 1 iteration", at_every_step("frozen Jacobian, 1 iteration"), by_budget=False),
    Rule(
        "PDM",
        lambda system, budget: Window(0.6),
        "the last 4 of 10 noise levels (arXiv 2402.03559, public code); its repetitions until success are left out",
        by_budget=False,
    ),
    Rule(
        "DPCC",
        lambda system, budget: Window(0.5),
        "the last half of the steps (arXiv 2412.09342, a default of its public code)",
        by_budget=False,
    ),
    Rule(
        "SMD",
        lambda system, budget: Fixed([-16, -6, -1]),
        "15 and 5 steps before the end, and the last (arXiv 2502.03607, defaults of its public code)",
        by_budget=False,
    ),
    Rule(
        "DDAT",
        lambda system, budget: RandomRamp(_count(system, budget)),
        "at random, ever more often (arXiv 2502.15043, public code); its noise levels are replaced by the steps",
    ),
    Rule(
        "MPD",
        at_every_step("5 iterations", Window(0.75)),
        "5 inner steps in the last quarter (arXiv 2308.01557, public code); its 5 steps without noise are left out",
        by_budget=False,
    ),
    Rule(
        "CDIM",
        _noise_test,
        "while the residual is more than noise explains (arXiv 2411.00359, public code and paper); measured here by "
        "the 0.95 quantile of the defects of full projection",
        by_budget=False,
    ),
    Rule(
        "Boltz",
        _gradients("20 iterations"),
        "20 gradient steps at every step (boltz 2.2.1, public code: num_gd_steps); of its terms' intervals only those "
        "of 1 apply to one molecule",
        by_budget=False,
    ),
    Rule(
        "Protenix",
        _gradients("10 iterations"),
        "10 inner steps at every step (public code: the default of tfg_inner); a term's interval is 1 by default, and "
        "the intervals of its released settings were not found",
        by_budget=False,
    ),
    Rule("every fifth step", lambda system, budget: tt.Periodic(0.2), "as any term with an interval of 5", False),
    Rule("the paper's rule", partial(_priced, "paper"), "arXiv 2605.11214, appendix B"),
    Rule("dp", partial(_priced, "dp")),
    Rule("the line", _line),
    Rule("the line, with quality", partial(_line, judged=True)),
)
RULES: dict[str, Rule] = {rule.name: rule for rule in _ALL}
"""The rules by name."""
