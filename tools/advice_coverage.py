"""Check the answers of `advise` on disjoint sets of seeds against the truth on many other seeds.

`python tools/advice_coverage.py linkage so3` checks domains (64 seeds, 20 sets each); without names it runs them all.
Finished sets are kept in docs/results/coverage.json and not run again, and docs/results/coverage.md is renewed.

`python tools/advice_coverage.py --gusts` checks verdicts on a sampler whose samples full projection makes truly better,
by 6%, with 32 to 512 seeds, and prints a table.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

import trimtab as tt
from trimtab.advice.result import Advice
from trimtab.advice.trials import Trial

DOCS = Path(__file__).parent.parent / "docs"
KEPT = DOCS / "results" / "coverage.json"
DOMAINS = ("linkage", "so3", "se3", "terrain", "so3-impulse", "se3-lever", "terrain-ridge", "so3-flow", "terrain-flow")
HEAD = (
    "| case | sets | intervals of candidates | cover | recommended something cheaper | interval stated | covers | "
    "tolerance broken | undecided | batches |"
)
STEPS, SEEDS, SETS, TOLERANCE = 24, 64, 20, 0.3
_TRUTH = range(1_000_000, 1_002_048)
_COUNTS, _TRIALS = (32, 64, 128, 512), 30
_GUSTS_TRUTH = range(2_000_000, 2_020_000)


class Gusts:
    """A walk in a box that is pushed hard at every tenth step: corrections in the first steps are soon forgotten."""

    n_steps, dtype = 40, torch.float64

    def start(self, noise: Any) -> Tensor:
        """Return the middle of the box."""
        return torch.zeros(len(noise.seeds), 2, dtype=self.dtype)

    def step(self, x: Tensor, t: int, noise: Any) -> Tensor:
        """Return the next proposals, (n, 2)."""
        pushed: Tensor = 0.97 * x + (0.8 if t % 10 == 3 else 0.2) * noise.normal(t, (2,))
        return pushed


def gusts(seeds: range) -> tt.Problem:
    """Return the walk in a box of half width 1."""
    box = tt.as_constraint(lambda x: x.clamp(-1, 1), lambda x: (x.abs() - 1).clamp(min=0).norm(dim=1))
    return tt.Problem(Gusts(), box, seeds)


def off_target(final: Tensor) -> Tensor:
    """Return the quality of the walk, the distance to (0.9, 0.9)."""
    distance: Tensor = (final - 0.9).norm(dim=1)
    return distance


class Truth:
    """What any trial loses, on many seeds, in the unit of the measure."""

    def __init__(self, problem: tt.Problem, quality: Any = None) -> None:
        """Run both ends."""
        self.problem, self.quality = problem, quality
        self.end = problem.rollout(tt.Stepwise()).final
        self.full = self._measure(self.end)
        self._known: dict[str, float] = {}

    def _measure(self, final: Tensor) -> Tensor:
        return self.problem.distance(final, self.end).double() if self.quality is None else self.quality(final)

    def lost(self, trial: Trial) -> float:
        """Return what is lost against full projection; prices differ from set to set."""
        key = trial.name if trial.simple else ""
        if key not in self._known:
            run = self.problem.rollout(trial.schedule)
            self._known[key] = float((self._measure(run.final) - self.full).mean())
        return self._known.pop(key) if not key else self._known[key]


def one_set(truth: Truth, domain: str, number: int) -> dict[str, Any]:
    """Return what a set of seeds leads to, by its number."""
    seeds = range(10_000 + SEEDS * number, 10_000 + SEEDS * (number + 1))
    advice = tt.advise(tt.domain(domain, n_steps=STEPS).problem(seeds), tolerance=TOLERANCE, cost="projections")
    m = advice.measured
    fixed = [trial for trial in m.trials if trial.simple and trial.loss.reliable]
    losses = [(trial.judged.loss, truth.lost(trial)) for trial in fixed]
    found: dict[str, Any] = {
        "intervals": len(fixed),
        "right": sum(loss.low <= real <= loss.high for loss, real in losses),
        "batches": m.batches,
        "advice": advice.trial.name,
        "verdict": advice.verdict,
    }
    if advice.trial not in (m.terminal, m.stepwise):
        real = truth.lost(advice.trial)
        stated = (m.confirmed or advice.trial).judged.loss
        found |= {"stated": stated.reliable, "broken": real > m.tolerance, "real": real / m.scale}
        found["covered"] = stated.reliable and stated.low <= real <= stated.high
    return found


def row(domain: str, sets: list[dict[str, Any]]) -> str:
    """Return one line of the table."""
    chosen = [one for one in sets if "real" in one]
    count = {name: sum(one[name] for one in sets) for name in ("intervals", "right")}
    count |= {name: sum(one[name] for one in chosen) for name in ("stated", "covered", "broken")}
    cells = [f"`{domain}`", len(sets), count["intervals"], _share(count["right"], count["intervals"]), len(chosen)]
    cells += [count["stated"], _share(count["covered"], count["stated"]), _share(count["broken"], len(chosen))]
    cells += [sum(one["verdict"] == "undecided" for one in sets), f"{median(one['batches'] for one in sets):.0f}"]
    return "| " + " | ".join(map(str, cells)) + " |"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "n/a"


def is_right(advice: Advice, truth: Truth) -> bool:
    """Return whether a decided verdict is true: of the recommendation, or of everything cheaper that was tried."""
    m = advice.measured
    if advice.verdict == "no better":
        return truth.lost(advice.trial) <= m.tolerance
    cheaper = [trial for trial in (m.terminal, *m.trials) if trial.projections <= 0.9 * m.stepwise.projections]
    return all(truth.lost(trial) > 0 for trial in cheaper)


def verdicts(count: int, truth: Truth, trials: int = _TRIALS) -> Counter[str]:
    """Return how often advice on so many seeds is right, wrong and undecided."""
    found: Counter[str] = Counter()
    for number in range(trials):
        start = 10_000 + 1000 * number
        problem = gusts(range(start, start + count))
        advice = tt.advise(problem, quality=off_target, cost="projections")
        word = "undecided" if advice.verdict == "undecided" else "right" if is_right(advice, truth) else "wrong"
        found[word] += 1
        found["cheaper"] += advice.verdict == "no better"
    return found


def check_gusts() -> None:
    """Print the verdicts on the walk in a box, by the number of seeds."""
    truth = Truth(gusts(_GUSTS_TRUTH), off_target)
    terminal = float((off_target(truth.problem.rollout(tt.Terminal()).final) - truth.full).mean())
    print(f"full projection is better by {terminal:.4f}, {terminal / (float(truth.full.mean()) + terminal):.1%}")
    print("| seeds | trials | right | undecided | wrong | recommended something cheaper |\n|---|---|---|---|---|---|")
    for count in _COUNTS:
        found = verdicts(count, truth)
        words = [found[word] for word in ("right", "undecided", "wrong", "cheaper")]
        print(f"| {count} | {_TRIALS} | " + " | ".join(map(str, words)) + " |", flush=True)


def main() -> None:
    """Run the sets that are missing, and renew the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("domains", nargs="*", default=DOMAINS)
    parser.add_argument("--gusts", action="store_true", help="check verdicts on the walk in a box instead")
    arguments = parser.parse_args()
    if arguments.gusts:
        check_gusts()
        return
    kept: dict[str, list[dict[str, Any]]] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for domain in arguments.domains:
        done = kept.setdefault(domain, [])
        truth = Truth(tt.domain(domain, n_steps=STEPS).problem(_TRUTH)) if len(done) < SETS else None
        while truth is not None and len(done) < SETS:
            done.append(one_set(truth, domain, len(done)))
            KEPT.write_text(json.dumps(kept, indent=1))
        print(row(domain, done), flush=True)
    everything = [one for sets in kept.values() for one in sets]
    rows = [*(row(domain, sets) for domain, sets in kept.items()), row("all", everything)]
    sys.path.insert(0, str(DOCS))
    from _page import renew

    renew("results/coverage.md", "table", "\n".join([HEAD, "|---" * 10 + "|", *rows]))


if __name__ == "__main__":
    main()
