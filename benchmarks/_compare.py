"""Time several ways of doing one thing, in turn on the same inputs, and say how many times one takes of another."""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Any

import torch

__all__ = ["Ratio", "Timing", "compare", "fitted_exponent", "skipped"]


@dataclass(frozen=True)
class Ratio:
    """The median of paired ratios, and an interval that holds the true median in at least 95 of 100 runs.

    With fewer than six rounds no such interval exists; it is then the whole range.
    """

    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class Timing:
    """Seconds of every round, by name."""

    seconds: Mapping[str, list[float]]

    def ratio(self, of: str, over: str) -> Ratio:
        """How many times the seconds of `over` those of `of` are, round by round."""
        return median_interval([a / b for a, b in zip(self.seconds[of], self.seconds[over], strict=True)])

    def median(self, name: str) -> float:
        """Median seconds of one of them."""
        return statistics.median(self.seconds[name])

    def row(self, claim: str, *, of: str, over: str, target: str = "", inputs: str = "", **more: Any) -> dict[str, Any]:
        """A result row: `of` over `over`, where the peer is the other one of the two than "ours"."""
        found = self.ratio(of, over)
        against = over if of == "ours" else of
        times = ", ".join(f"{name} {_short(self.median(name))}" for name in (of, over))
        return {
            "claim": claim,
            "against": against,
            "ratio": found.ratio,
            "low": found.low,
            "high": found.high,
            "target": target,
            "inputs": f"{inputs}; {times}" if inputs else times,
        } | more


def compare(
    functions: Mapping[str, Callable[[], object]],
    repeats: int = 15,
    *,
    warmup: int = 1,
    number: int = 1,
    one_thread: bool = False,
) -> Timing:
    """Run all functions in turn, `repeats` times, the order turned round each time.

    What else the machine does then falls on all of them alike, and dividing round by round takes it out.

    Args:
        functions: By name; each is called with nothing.
        repeats: Rounds.
        warmup: Rounds that are not counted.
        number: Calls a measurement, for functions of a few microseconds.
        one_thread: Whether torch gets one thread and the times are those of the processor. Waiting for other work of
            the machine does not count in those; threads of torch that wait for each other would.
    """
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    order = list(functions)
    clock = process_time if one_thread else perf_counter
    collecting, threads = gc.isenabled(), torch.get_num_threads()
    gc.disable()  # a collection would fall on whichever happens to run
    if one_thread:
        torch.set_num_threads(1)
    try:
        for i in range(-warmup, repeats):
            order.reverse()
            for name in order:
                begin = clock()
                for _ in range(number):
                    functions[name]()
                taken = clock() - begin
                if i >= 0:
                    seconds[name].append(taken / number)
            gc.collect()
    finally:
        torch.set_num_threads(threads)
        if collecting:
            gc.enable()
    return Timing(seconds)


def median_interval(values: list[float]) -> Ratio:
    """The median and its distribution-free 95% interval: two order statistics."""
    ordered = sorted(values)
    n = len(ordered)
    below = 0.0
    k = 0  # the largest k with P(Binomial(n, 1/2) < k) <= 2.5%
    while k < n // 2:
        below += math.comb(n, k) / 2**n
        if below > 0.025:
            break
        k += 1
    k = max(k - 1, 0)
    return Ratio(statistics.median(ordered), ordered[k], ordered[n - 1 - k])


def fitted_exponent(points: list[tuple[float, float]]) -> float:
    """The slope of log(seconds) against log(size), by least squares."""
    xs = [math.log(x) for x, _ in points]
    ys = [math.log(y) for _, y in points]
    return statistics.linear_regression(xs, ys).slope


def skipped(claim: str, against: str, why: str) -> dict[str, Any]:
    """A row for a comparison whose peer is not installed."""
    return {"claim": claim, "against": against, "skipped": why}


def _short(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
