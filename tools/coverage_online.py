"""Check the intervals of control samples: are they right at every look, and how soon do they decide?

Run it as `python tools/coverage_online.py`; `--write` renews the table of docs/results/coverage.md. Costs are drawn
from distributions whose truth is known, in batches, and after every batch the intervals are asked for. A run counts as
covered if no interval at any time excludes the truth.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import torch

from trimtab.core import evidence
from trimtab.core.evidence import Comparison

DOCS = Path(__file__).parent.parent / "docs"
HEAD = (
    "| case | truth | samples per batch | ratio covers | wins cover | wrong verdicts | changes noticed | "
    "first interval | verdict at batch |"
)
BATCHES = 60

Draw = Callable[[np.random.Generator, int], np.ndarray]


class Batch(NamedTuple):
    """The costs of a batch, with the factor between the rules and the share of wins that are true of it."""

    treated: np.ndarray
    control: np.ndarray
    ratio: float
    wins: float


def normal(rng: np.random.Generator, n: int) -> np.ndarray:
    """Draw costs that are nearly normal."""
    return np.abs(1 + 0.3 * rng.standard_normal(n))


def lognormal(rng: np.random.Generator, n: int) -> np.ndarray:
    """Draw costs with a long tail."""
    return np.exp(1.5 * rng.standard_normal(n))


def mild(rng: np.random.Generator, n: int) -> np.ndarray:
    """Draw costs with a short tail."""
    return np.exp(0.5 * rng.standard_normal(n))


def pareto(rng: np.random.Generator, n: int) -> np.ndarray:
    """Draw costs whose variance is infinite."""
    return 1 + rng.pareto(1.2, n)


def student(rng: np.random.Generator, n: int) -> np.ndarray:
    """Draw qualities of any sign, whose variance is infinite."""
    return rng.standard_t(2, n)


def zeros(rng: np.random.Generator, n: int) -> np.ndarray:
    """Draw costs of which most are zero."""
    return mild(rng, n) * (rng.random(n) < 0.4)


@cache
def share_of_wins(draw: Draw, factor: float, other: Draw | None = None) -> float:
    """Return how often `factor` times a cost is lower than another, ties being half."""
    rng = np.random.default_rng(12345)
    x, y = factor * draw(rng, 1_000_000), (other or draw)(rng, 1_000_000)
    return 0.5 if factor == 1 and other is None else float((x < y).mean() + (x == y).mean() / 2)


@dataclass(frozen=True)
class Case:
    """Batches from a known truth.

    Attributes:
        name: What is special about them.
        draw: Costs of the control, and of the treated samples up to the factor.
        sizes: Treated and control samples per batch.
        ratio: The factor of batch k.
        scale: The scale of batch k, from a generator.
        shared: Share of the variance (of logs) that the samples of a batch have in common.
        treated: Another distribution for the treated samples, of the same mean.
        first: How many of the first batch are control; all if None.
    """

    name: str
    draw: Draw
    sizes: tuple[int, int] = (14, 2)
    ratio: Callable[[int], float] = field(default=lambda k: 1.0)
    scale: Callable[[np.random.Generator, int], float] = field(default=lambda rng, k: 1.0)
    shared: float = 0.0
    treated: Draw | None = None
    all_control_first: bool = True

    def batches(self, seed: int) -> Iterator[Batch]:
        """Return the batches of one run."""
        rng = np.random.default_rng([seed, zlib.crc32(f"{self.name} {self.sizes}".encode())])
        for k in range(BATCHES):
            n, m = self.sizes
            if k == 0 and self.all_control_first:
                n, m = 0, n + m
            scale, factor = self.scale(rng, k), self.ratio(k)
            if self.shared:
                common = np.exp(1.5 * np.sqrt(self.shared) * rng.standard_normal())
                x, y = (common * lognormal(rng, size) ** np.sqrt(1 - self.shared) for size in (n, m))
            else:
                x, y = (self.treated or self.draw)(rng, n), self.draw(rng, m)
            wins = share_of_wins(self.draw, factor, None) if not self.treated else self._other_wins()
            yield Batch(factor * scale * x, scale * y, factor, wins)

    def _other_wins(self) -> float:
        assert self.treated is not None
        return share_of_wins(self.treated, 1.0, self.draw)


def level_one(sigma: float) -> Draw:
    """Return costs of mean 1, log-normal."""
    return partial(_level_one, sigma)


def _level_one(sigma: float, rng: np.random.Generator, n: int) -> np.ndarray:
    return np.exp(sigma * rng.standard_normal(n) - sigma**2 / 2)


def own_scale(rng: np.random.Generator, k: int) -> float:
    """Return a scale for each batch, as of its prompt."""
    return float(np.exp(rng.standard_normal()))


def cases() -> list[Case]:
    """Return all cases, by the order of the table."""
    named = {"normal": normal, "log-normal": lognormal, "Pareto 1.2": pareto}
    found = [
        Case(f"independent, {name}", draw, sizes)
        for name, draw in named.items()
        for sizes in ((14, 2), (8, 8), (3, 1), (1, 1))
    ]
    for sizes in ((14, 2), (8, 8)):
        found += [
            Case("batches with their own scale", normal, sizes, scale=own_scale),
            Case("batches with their own scale, log-normal", lognormal, sizes, scale=own_scale),
            Case("first batch 3 times larger", normal, sizes, scale=lambda rng, k: 3.0 if k == 0 else 1.0),
            Case(
                "the same, with treated samples",
                normal,
                sizes,
                scale=lambda rng, k: 3.0 if k == 0 else 1.0,
                all_control_first=False,
            ),
            Case("drift 0.9^k", normal, sizes, scale=lambda rng, k: 0.9**k),
            Case("10 times dearer from batch 20", mild, sizes, scale=lambda rng, k: 10.0 if k >= 20 else 1.0),
            Case("samples of a batch correlated 0.8", lognormal, sizes, shared=0.8),
            Case("Student-t(2), any sign", student, sizes),
            Case("60% of costs are zero", zeros, sizes),
            Case("same mean, treated less spread", level_one(1.0), sizes, treated=level_one(0.3)),
            Case("same mean, treated more spread", level_one(0.3), sizes, treated=level_one(1.0)),
            Case("no difference until batch 20, then 0.5", mild, sizes, ratio=lambda k: 0.5 if k >= 20 else 1.0),
            Case("0.5 until batch 20, then no difference", mild, sizes, ratio=lambda k: 1.0 if k >= 20 else 0.5),
            Case("the factor drifts from 0.5 to 1", mild, sizes, ratio=lambda k: 0.5 * 2 ** (k / BATCHES)),
        ]
        for factor in (0.5, 0.8, 2.0):
            found += [
                Case(name, draw, sizes, ratio=lambda k, factor=factor: factor)  # type: ignore[misc]
                for name, draw in ({"normal": normal, "log-normal 0.5": mild} | named).items()
            ]
    return found


@dataclass
class Outcome:
    """What happened in one run."""

    ratio: bool = True  # never excluded the truth
    wins: bool = True
    wrong: bool = False  # said better or worse where there is no difference, or the opposite of the truth
    noticed: int | None = None
    first: int | None = None
    verdict: int | None = None


def watch(batches: Iterator[Batch]) -> Outcome:
    """Return what one run says, looked at after every batch.

    Whether an interval holds the truth is asked of the fortunes that decide it, for all looks at once, which is quicker
    than to ask where it ends. Every 20 batches the interval itself is asked for, and must agree.
    """
    seen, found, looks = Comparison(), Outcome(), []
    for k, batch in enumerate(batches):
        seen.add(torch.from_numpy(batch.treated), torch.from_numpy(batch.control), str(k))
        if not (len(batch.treated) and len(batch.control)):
            continue
        if seen.changed and found.noticed is None:
            found.noticed = k + 1
        ends = (*seen.wins[1:], *seen.ratio[1:]) if k % 20 == 19 else None
        looks.append(Look(k, batch, seen._regime[-1], seen.since, ends))
        if seen.verdict != "undecided":
            found.verdict = found.verdict or k + 1
            effect = 0.0 if batch.wins == 0.5 else 0.5 - batch.wins
            if seen.nonnegative:
                effect = float(np.mean([np.log(look.batch.ratio) for look in looks[-seen.since :]]))
            found.wrong |= effect == 0 or (seen.verdict == "better") != (effect < 0)
    starts = [i + 1 - look.since for i, look in enumerate(looks)]
    for start in sorted(set(starts)):
        regime = looks[start : max(i for i, one in enumerate(starts) if one == start) + 1]
        if regime:
            _judge(regime, found, seen.nonnegative)
    return found


class Look(NamedTuple):
    """A batch with what was said after it."""

    k: int
    batch: Batch
    counted: evidence._Batch
    since: int
    ends: tuple[float, ...] | None


def _judge(looks: list[Look], found: Outcome, nonnegative: bool) -> None:
    """Judge the looks between two changes."""
    table = np.array([look.counted for look in looks])
    count = np.arange(1, len(looks) + 1)
    ratios = np.exp(np.cumsum([np.log(look.batch.ratio) for look in looks]) / count)
    wins = np.cumsum([look.batch.wins for look in looks]) / count
    lost = {"wins": _excluded(wins, lambda truth: evidence._wins(table[:, 8], truth))}
    if nonnegative:
        lost["ratio"] = _excluded(ratios, lambda truth: evidence._costs(table, truth))
        first = _beyond(evidence._costs(table, np.exp(50.0))).nonzero()[0]
        if len(first) and found.first is None:
            found.first = looks[first[0]].k + 1
    for name, truths, place in (("wins", wins, 0), ("ratio", ratios, 2)):
        if name not in lost:
            continue
        setattr(found, name, getattr(found, name) and not lost[name].any())
        for look, truth, out in zip(looks, truths, lost[name], strict=True):
            if look.ends is not None and look.since:
                low, high = look.ends[place : place + 2]
                assert (low > truth or high < truth) == out, (name, look.k, low, high, truth)


def _excluded(truths: np.ndarray, bets: Callable[[float], tuple[np.ndarray, ...]]) -> np.ndarray:
    """Return at which looks the truth of that look is excluded."""
    if np.ptp(truths) < 1e-9:
        return _beyond(bets(float(truths[0])))
    return np.array([_beyond(bets(float(truth)))[i] for i, truth in enumerate(truths)])


def _beyond(bets: tuple[np.ndarray, ...]) -> np.ndarray:
    """Return at which looks one of two fortunes is large enough, and the means, if there are any, agree."""
    logs = [np.log1p(one * evidence._STAKES).cumsum(axis=0) + evidence._SHARES for one in bets[:2]]
    out = [np.logaddexp.reduce(one, axis=1) > evidence._ENOUGH for one in logs]
    if len(bets) == 3:
        sums = [bets[2][:, 0].cumsum(), np.square(bets[2][:, 0]).cumsum()]
        away = np.array([evidence._away(k + 1, *one) for k, one in enumerate(zip(*sums, strict=True))])
        out = [out[0] & (away < -1), out[1] & (away > 1)]
    return out[0] | out[1]


def run(case: Case, seed: int) -> Outcome:
    """Return the outcome of one run of a case."""
    return watch(case.batches(seed))


def row(case: Case, outcomes: list[Outcome]) -> str:
    """Return one line of the table."""
    n = len(outcomes)
    count = {name: sum(getattr(one, name) for one in outcomes) for name in ("ratio", "wins", "wrong")}
    signed = bool((case.draw(np.random.default_rng(0), 1000) < 0).any())
    truth = sorted({case.ratio(k) for k in range(BATCHES)})
    constant = len(truth) == 1
    cells = [case.name, f"{truth[0]:g}" if constant else "changes", "{} + {}".format(*case.sizes)]
    cells += ["n/a" if signed else f"{count['ratio'] / n:.1%}", f"{count['wins'] / n:.1%}", f"{count['wrong'] / n:.1%}"]
    cells += [f"{sum(one.noticed is not None for one in outcomes) / n:.0%}"]
    cells += [_when([one.first for one in outcomes]), _when([one.verdict for one in outcomes])]
    return "| " + " | ".join(cells) + " |"


def _when(batches: list[int | None]) -> str:
    """Return the median batch, or how many runs had come to one at all."""
    known = [k for k in batches if k is not None]
    middle = median([k if k is not None else BATCHES * 9 for k in batches])
    return (
        f"{middle:.0f}" if middle <= BATCHES else "never" if not known else f"{len(known) / len(batches):.0%} of runs"
    )


def main() -> None:
    """Print the table, and write it if told."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--write", action="store_true", help="renew the table of docs/results/coverage.md")
    words = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with ProcessPoolExecutor(words.jobs) as pool:
        for number, case in enumerate(CASES):
            if words.only in case.name:
                outcomes = pool.map(partial(_numbered, number), range(words.runs), chunksize=10)
                rows.append(row(case, list(outcomes)))
                print(rows[-1], flush=True)
    if words.write:
        sys.path.insert(0, str(DOCS))
        from _page import renew

        renew("results/coverage.md", "online", "\n".join([HEAD, "|---" * 9 + "|", *rows]))


CASES = cases()


def _numbered(number: int, seed: int) -> Outcome:
    return run(CASES[number], seed)


if __name__ == "__main__":
    main()
