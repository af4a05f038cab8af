"""Renew what docs/results/budgets.md shows: the projections that each domain needs.

Run it from the repository's root: `python docs/make_choose.py`
"""

from __future__ import annotations

import argparse

from _page import renew

from trimtab.advice.recommend import advise
from trimtab.advice.result import Advice
from trimtab.cli.advise import FIRST_SEED
from trimtab.evaluation.domains import SYNTHETIC
from trimtab.evaluation.studies.usercode import Source, domain_from

KINDS = ("periodic", "window", "adaptive")
HEAD = "| domain | steps | C_0.2 | survives one step | rank correlation | periodic | window | adaptive | advice |"
MINE = Source.of_user("examples.my_sampler:make", {})


def advice_on(source: Source) -> Advice:
    """As `trimtab advise --cost projections` gives it, by the endpoint."""
    domain, seeds = domain_from(source), range(FIRST_SEED, FIRST_SEED + 64)
    problem = domain.problem(seeds)
    return advise(problem, cost="projections", distance=domain.distance)


def row(source: Source, advice: Advice) -> str:
    """Projections needed to lose no more than a tenth of what full projection gains, and what they depend on."""
    m = advice.measured
    assert m.effects is not None
    measured = [m.concentration, float(m.effects.survival[1]), m.effects.alignment(m.effects.value).mean]
    needed = [str(m.needed[kind].budget) if kind in m.needed else "n/a" for kind in KINDS]
    cells = [f"`{source.name}`", str(m.n_steps), *(f"{x:.2f}" for x in measured), *needed]
    cells.append(advice.trial.name)
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Advise on each domain, counting projections."""
    advice = {source: advice_on(source) for source in [*(Source.built_in(name, {}) for name in SYNTHETIC), MINE]}
    rows = [row(source, each) for source, each in advice.items()]
    for source, each in advice.items():  # what the text below the table quotes
        print(source.name, *(finding.text for finding in each.findings if finding.name == "tails"), sep=": ")
    renew("results/budgets.md", "table", "\n".join([HEAD, "|---" * 9 + "|", *rows]))


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    main()
