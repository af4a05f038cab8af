"""Renew docs/results/budgets.md: what `advise` recommends on each sampler, and what that is worth on fresh seeds.

Run it from the repository's root: `python docs/make_choose.py`
"""

from __future__ import annotations

import argparse
from functools import partial
from statistics import median

from _page import kept, renew

import trimtab as tt
from trimtab.advice.recommend import advise
from trimtab.advice.result import Advice
from trimtab.core.statistics import Summary, ratio
from trimtab_lab.cli.advise import FIRST_SEED
from trimtab_lab.domains import SYNTHETIC
from trimtab_lab.studies.usercode import Source, domain_from

SOURCES = [Source.built_in(name, {}) for name in SYNTHETIC]
SOURCES += [Source.built_in(name, {"n_steps": 50}) for name in ("so3-flow", "se3-flow", "terrain-flow")]
SOURCES += [Source.built_in("linkage", {"n_steps": 24}), Source.built_in("reaction-flow", {"n_steps": 50})]
SOURCES += [Source.of_user("examples.my_sampler:make", {})]
TOLERANCES = (0.1, 0.3)
FRESH = range(5_000_000, 5_000_128)
HEAD = (
    "| sampler | T | tolerance | advice | cost | its loss | even spacing at equal work | once at the end | batches | "
    "paid back after |"
)


def payoff(source: Source, advice: Advice) -> tuple[Summary, Summary]:
    """Return the loss of the recommendation, and that of even spacing which costs as much, on fresh seeds."""
    domain, m = domain_from(source), advice.measured
    problem = domain.problem(FRESH)
    share = advice.trial.cost(m.unit) / m.stepwise.cost(m.unit)
    even = tt.Periodic(max(1, min(round(share * m.n_steps), m.n_steps)))
    full = problem.rollout(tt.Stepwise()).final
    runs = (problem.rollout(tt.Terminal()), problem.rollout(advice.schedule), problem.rollout(even))
    once, ours, spaced = (domain.distance(run.final, full) for run in runs)
    return ratio(ours, once), ratio(spaced, once)


def row(source: Source, advice: Advice, ours: Summary, even: Summary) -> str:
    """Return one line of the table."""
    m = advice.measured
    cost = f"{advice.trial.cost(m.unit):.0f} of {m.stepwise.cost(m.unit):.0f} {m.unit}"
    back = f"{m.paid_back:,.0f} samples" if m.paid_back < float("inf") else "never"
    cells = [f"`{source.name}`", str(m.n_steps), f"{m.goal.tolerance:g}", advice.trial.name, cost, str(ours), str(even)]
    return "| " + " | ".join([*cells, "1", str(m.batches), back]) + " |"


def case(source: Source, tolerance: float) -> tuple[str, int, float | None]:
    """Return a line of the table, the batches that `advise` ran, and what it gains on even spacing at equal work."""
    domain = domain_from(source)
    problem = domain.problem(range(FIRST_SEED, FIRST_SEED + 64))
    advice = advise(problem, cost="projections", distance=domain.distance, tolerance=tolerance)
    ours, even = payoff(source, advice)
    full = advice.trial is advice.measured.stepwise
    return row(source, advice, ours, even), advice.measured.batches, None if full else even.mean - ours.mean


def main() -> None:
    """Advise on each sampler, and measure what it recommends."""
    rows, batches, gained = [], [], []
    for source in SOURCES:
        for tolerance in TOLERANCES:
            line, ran, gain = kept("choose", f"{source.name} {tolerance}", partial(case, source, tolerance))
            rows.append(line)
            batches.append(ran)
            gained += [] if gain is None else [gain]
            print(line, flush=True)
    renew("results/budgets.md", "table", "\n".join([HEAD, "|---" * 10 + "|", *rows]))
    nearer, same, farther = (sum(test(one) for one in gained) for test in ((0.0).__lt__, (0.0).__eq__, (0.0).__gt__))
    words = (
        f"Something cheaper than full projection is recommended in {len(gained)} of {len(rows)} cases; there it is "
        f"nearer than even spacing at equal work in {nearer}, the same in {same} and farther in {farther}. `advise` "
        f"ran {median(batches):.0f} batches in the median, at most {max(batches)}."
    )
    renew("results/budgets.md", "batches", words)


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    main()
