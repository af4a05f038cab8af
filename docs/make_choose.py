"""Print the table of docs/choose-a-schedule.md: projections needed for a NEPE within 0.1.

Run it from the repository's root: `python docs/make_choose.py`
"""

from __future__ import annotations

from trimtab.advice import advise
from trimtab.commands.advise import FIRST_SEED
from trimtab.domains import SYNTHETIC
from trimtab.usercode import Source, domain_from


def main() -> None:
    """Advise on each domain, counting projections."""
    sources = [Source.built_in(name, {}) for name in SYNTHETIC] + [Source.of_user("examples.my_sampler:make", {})]
    seeds = range(FIRST_SEED, FIRST_SEED + 64)
    for source in sources:
        domain = domain_from(source)
        problem = domain.problem(seeds)
        m = advise(problem.sampler, problem.constraint, seeds, cost="projections", distance=domain.distance).measured
        assert m.effects is not None
        measured = [m.concentration, float(m.effects.survival[1]), m.alignment.mean]
        needed = [m.needed[kind].budget for kind in ("periodic", "planned", "adaptive")]
        cells = [f"`{source.name}`", str(m.n_steps), *(f"{x:.2f}" for x in measured), *map(str, needed)]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
