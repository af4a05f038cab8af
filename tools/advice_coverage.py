"""Check the intervals of `advise` on disjoint sets of seeds against the loss on 2,048 other seeds.

Run it as `python tools/advice_coverage.py linkage so3 se3 terrain-ridge`.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import replace

from torch import Tensor

import trimtab as tt
from trimtab.advice.trials import Trial, cheaper_constraint

_TRUTH = range(1_000_000, 1_002_048)


class Truth:
    """The loss of any trial on many seeds."""

    def __init__(self, domain: str, n_steps: int) -> None:
        """Run both ends."""
        self.problem = tt.domain(domain, n_steps=n_steps).problem(_TRUTH)
        self.full = self.problem.rollout(tt.Stepwise()).final
        self.gain = float(self._apart(self.problem.rollout(tt.Terminal()).final).mean())
        self._known: dict[str, float] = {}

    def _apart(self, final: Tensor) -> Tensor:
        return self.problem.distance(final, self.full).double()

    def loss(self, trial: Trial) -> float:
        """Return the share of full projection's gain that is lost."""
        key = f"{trial.how} {trial.schedule!r}"
        if key not in self._known or trial.kind == "adaptive":
            constraint = cheaper_constraint(self.problem.constraint, trial.how)
            run = replace(self.problem, constraint=constraint).rollout(trial.schedule)
            self._known[key] = float(self._apart(run.final).mean()) / self.gain
        return self._known[key]


def coverage(domain: str, n_steps: int, seeds: int, sets: range, tolerance: float) -> Counter[str]:
    """Count intervals and recommendations of one domain."""
    truth, found = Truth(domain, n_steps), Counter[str]()
    for k in sets:
        problem = tt.domain(domain, n_steps=n_steps).problem(range(10_000 + seeds * k, 10_000 + seeds * (k + 1)))
        advice = tt.advise(problem, tolerance=tolerance, cost="projections")
        m = advice.measured
        for trial in (*m.trials, *m.efforts):
            found["trials"] += 1
            found["shown"] += trial.loss.reliable
            found["right"] += trial.loss.reliable and trial.loss.low <= truth.loss(trial) <= trial.loss.high
        found["advice"] += 1
        found["batches"] += m.batches
        if advice.trial in (m.terminal, m.stepwise):
            continue
        real = truth.loss(advice.trial)
        found["cheaper"] += 1
        found["stated"] += advice.loss.reliable
        found["covered"] += advice.loss.reliable and advice.loss.low <= real <= advice.loss.high
        found["broken"] += real > tolerance
    return found


def main() -> None:
    """Print one line per domain."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("domains", nargs="*", default=["linkage", "so3", "se3", "terrain-ridge"])
    for name, default in (("--steps", 24), ("--seeds", 64), ("--first", 0), ("--sets", 8)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--tolerance", type=float, default=0.3)
    given = parser.parse_args()
    sets = range(given.first, given.first + given.sets)
    for domain in given.domains:
        print(domain, dict(coverage(domain, given.steps, given.seeds, sets, given.tolerance)), flush=True)


if __name__ == "__main__":
    main()
