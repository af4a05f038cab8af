"""Time several ways to do one thing, in turn on the same inputs, and report ratios."""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Any, NamedTuple

import torch

__all__ = ["Ratio", "Timing", "compare", "fitted_exponent", "median_interval", "row", "skipped"]


class Ratio(NamedTuple):
    """A median and an interval that contains the true median in at least 95 of 100 runs.

    With fewer than six values there is no such interval, and it is the whole range.
    """

    ratio: float
    low: float
    high: float


def row(claim: str, against: str, found: Ratio, target: str = "", inputs: str = "", **more: Any) -> dict[str, Any]:
    """Return a row of results."""
    return {"claim": claim, "against": against, **found._asdict(), "target": target, "inputs": inputs} | more


def skipped(claim: str, against: str, why: str) -> dict[str, Any]:
    """Return the row of a comparison that could not be made."""
    return {"claim": claim, "against": against, "skipped": why}


@dataclass(frozen=True)
class Timing:
    """Seconds of every round, by name."""

    seconds: Mapping[str, list[float]]

    def ratio(self, of: str, over: str) -> Ratio:
        """Return how many times longer `of` takes than `over`, round by round."""
        return median_interval([a / b for a, b in zip(self.seconds[of], self.seconds[over], strict=True)])

    def median(self, name: str) -> float:
        """Return the median seconds of one of them."""
        return statistics.median(self.seconds[name])

    def row(self, claim: str, *, of: str, over: str, target: str = "", inputs: str = "") -> dict[str, Any]:
        """Return a row for `of` over `over`; the peer is the one that does not start with "ours"."""
        times = ", ".join(f"{name} {_short(self.median(name))}" for name in (of, over))
        against = over if of.startswith("ours") else of
        return row(claim, against, self.ratio(of, over), target, f"{inputs}; {times}" if inputs else times)


def compare(
    functions: Mapping[str, Callable[[], object]],
    repeats: int = 15,
    *,
    warmup: int = 1,
    number: int = 1,
    one_thread: bool = False,
) -> Timing:
    """Call all functions in turn, `repeats` times, and reverse their order each time.

    Other work of the machine then affects all of them, and drops out of the ratio of a round.

    Args:
        functions: By name, without arguments.
        repeats: Rounds.
        warmup: Rounds that are not counted.
        number: Calls per measurement, for functions that take microseconds.
        one_thread: Use one thread of torch, and processor time, in which waiting does not count.
    """
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    order = list(functions)
    clock = process_time if one_thread else perf_counter
    collecting, threads = gc.isenabled(), torch.get_num_threads()
    gc.disable()  # a collection would be charged to one of them
    if one_thread:
        torch.set_num_threads(1)
    try:
        for i in range(-warmup, repeats):
            order.reverse()
            for name in order:
                begin = clock()
                for _ in range(number):
                    functions[name]()
                if i >= 0:
                    seconds[name].append((clock() - begin) / number)
            gc.collect()
    finally:
        torch.set_num_threads(threads)
        if collecting:
            gc.enable()
    return Timing(seconds)


def median_interval(values: list[float]) -> Ratio:
    """Return the median and its distribution-free 95% interval: two order statistics."""
    ordered, n = sorted(values), len(values)
    below, k = 0.0, 0  # the largest k with P(Binomial(n, 1/2) < k) <= 2.5%
    while k < n // 2:
        below += math.comb(n, k) / 2**n
        if below > 0.025:
            break
        k += 1
    k = max(k - 1, 0)
    return Ratio(statistics.median(ordered), ordered[k], ordered[n - 1 - k])


def fitted_exponent(points: list[tuple[float, float]]) -> float:
    """Return the slope of log(y) against log(x)."""
    return statistics.linear_regression([math.log(x) for x, _ in points], [math.log(y) for _, y in points]).slope


def _short(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
