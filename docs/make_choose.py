"""Renew what docs/choose-a-schedule.md and docs/advise.md show: a table, an example of advice and its picture.

Run it from the repository's root: `python docs/make_choose.py`
"""

from __future__ import annotations

from _page import HERE, renew
from trimtab.advice.recommend import advise
from trimtab.advice.result import Advice
from trimtab.cli.advise import FIRST_SEED
from trimtab.domains import SYNTHETIC
from trimtab.studies.usercode import Source, domain_from

HEAD = "| domain | steps | C_0.2 | survives one step | rank correlation | periodic | planned | adaptive |"
MINE = Source.of_user("examples.my_sampler:make", {})


def advice_on(source: Source) -> Advice:
    """As `trimtab advise --cost projections` gives it."""
    domain, seeds = domain_from(source), range(FIRST_SEED, FIRST_SEED + 64)
    problem = domain.problem(seeds)
    return advise(problem, cost="projections", distance=domain.distance)


def row(source: Source, advice: Advice) -> str:
    """Projections needed for a NEPE within 0.1, and what they depend on."""
    m = advice.measured
    assert m.effects is not None
    measured = [m.concentration, float(m.effects.survival[1]), m.alignment.mean]
    needed = [m.needed[kind].budget for kind in ("periodic", "planned", "adaptive")]
    cells = [f"`{source.name}`", str(m.n_steps), *(f"{x:.2f}" for x in measured), *map(str, needed)]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Advise on each domain, counting projections."""
    advice = {source: advice_on(source) for source in [*(Source.built_in(name, {}) for name in SYNTHETIC), MINE]}
    rows = [row(source, each) for source, each in advice.items()]
    renew("choose-a-schedule.md", "table", "\n".join([HEAD, "|---" * 8 + "|", *rows]))
    renew("advise.md", "advice", f"```text\n{advice[MINE]}\n```")
    advice[MINE].plot(HERE / "images" / "advise.png")


if __name__ == "__main__":
    main()
