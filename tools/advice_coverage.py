"""Check the answers of `advise` on disjoint sets of seeds against the loss on 2,048 other seeds.

Run it as `python tools/advice_coverage.py linkage so3`; without domains it runs the whole table. Finished sets are kept
in docs/results/coverage.json and not run again, and the table of docs/results/coverage.md is renewed.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from torch import Tensor

import trimtab as tt
from trimtab.advice.trials import Trial, cheaper_constraint

DOCS = Path(__file__).parent.parent / "docs"
KEPT = DOCS / "results" / "coverage.json"
DOMAINS = ("linkage", "so3", "se3", "terrain", "so3-impulse", "se3-lever", "terrain-ridge", "so3-flow", "terrain-flow")
HEAD = (
    "| domain | sets | intervals of candidates | cover | cheaper recommended | interval stated | covers | "
    "tolerance broken | batches |"
)
STEPS, SEEDS, SETS, TOLERANCE = 24, 64, 20, 0.3
_TRUTH = range(1_000_000, 1_002_048)


class Truth:
    """The loss of any trial on many seeds."""

    def __init__(self, domain: str) -> None:
        """Run both ends."""
        self.problem = tt.domain(domain, n_steps=STEPS).problem(_TRUTH)
        self.full = self.problem.rollout(tt.Stepwise()).final
        self.gain = float(self._apart(self.problem.rollout(tt.Terminal()).final).mean())
        self._known: dict[str, float] = {}

    def _apart(self, final: Tensor) -> Tensor:
        return self.problem.distance(final, self.full).double()

    def loss(self, trial: Trial) -> float:
        """Return the share of full projection's gain that is lost; prices differ from set to set."""
        if hasattr(trial.schedule, "price"):
            return self._measured(trial)
        if trial.name not in self._known:
            self._known[trial.name] = self._measured(trial)
        return self._known[trial.name]

    def _measured(self, trial: Trial) -> float:
        constraint = cheaper_constraint(self.problem.constraint, trial.how)
        run = replace(self.problem, constraint=constraint).rollout(trial.schedule)
        return float(self._apart(run.final).mean()) / self.gain


def one_set(truth: Truth, domain: str, number: int) -> dict[str, Any]:
    """Return what a set of seeds leads to, by its number."""
    seeds = range(10_000 + SEEDS * number, 10_000 + SEEDS * (number + 1))
    advice = tt.advise(tt.domain(domain, n_steps=STEPS).problem(seeds), tolerance=TOLERANCE, cost="projections")
    m = advice.measured
    fixed = [trial for trial in (*m.trials, *m.efforts) if trial.kind != "adaptive" and trial.loss.reliable]
    found: dict[str, Any] = {
        "intervals": len(fixed),
        "right": sum(trial.loss.low <= truth.loss(trial) <= trial.loss.high for trial in fixed),
        "batches": m.batches,
        "advice": advice.trial.name,
    }
    if advice.trial not in (m.terminal, m.stepwise):
        real = truth.loss(advice.trial)
        found |= {"stated": advice.loss.reliable, "broken": real > TOLERANCE, "real": real}
        found["covered"] = advice.loss.reliable and advice.loss.low <= real <= advice.loss.high
    return found


def row(domain: str, sets: list[dict[str, Any]]) -> str:
    """Return one line of the table."""
    chosen = [one for one in sets if "real" in one]
    count = {name: sum(one[name] for one in sets) for name in ("intervals", "right")}
    count |= {name: sum(one[name] for one in chosen) for name in ("stated", "covered", "broken")}
    cells = [f"`{domain}`", len(sets), count["intervals"], _share(count["right"], count["intervals"]), len(chosen)]
    cells += [count["stated"], _share(count["covered"], count["stated"]), _share(count["broken"], len(chosen))]
    return "| " + " | ".join(str(cell) for cell in [*cells, f"{median(one['batches'] for one in sets):.0f}"]) + " |"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "n/a"


def main() -> None:
    """Run the sets that are missing, and renew the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("domains", nargs="*", default=DOMAINS)
    domains = parser.parse_args().domains
    kept: dict[str, list[dict[str, Any]]] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for domain in domains:
        done = kept.setdefault(domain, [])
        truth = Truth(domain) if len(done) < SETS else None
        while truth is not None and len(done) < SETS:
            done.append(one_set(truth, domain, len(done)))
            KEPT.write_text(json.dumps(kept, indent=1))
        print(row(domain, done), flush=True)
    everything = [one for sets in kept.values() for one in sets]
    rows = [*(row(domain, sets) for domain, sets in kept.items()), row("all", everything)]
    sys.path.insert(0, str(DOCS))
    from _page import renew

    renew("results/coverage.md", "table", "\n".join([HEAD, "|---" * 9 + "|", *rows]))


if __name__ == "__main__":
    main()
