"""Compare two rules while they serve, with intervals that hold whenever one looks: the batch is the unit.

Some samples of a batch follow one rule (treated) and others, chosen at random, another (control). Batches differ: in
prompts, in scale, in how the day goes. So the two are compared within a batch only, in units of that batch, and a
batch without both of them proves nothing. Each batch gives one bounded number, whose mean is zero if the rules are
alike, and bets on that number multiply a fortune that is ever 50 times the stake with probability 1/50 at most
(Ville's inequality). What would have made some fortune as large as that is outside the interval, whether one
looks once or after every batch. No tail matters, since a batch cannot multiply the fortune by more than 2.

Assumed is that batches are exchangeable as far as the *comparison* goes: the factor between the rules, or the share of
wins, is the same on average from batch to batch. Costs themselves may drift or jump, samples of a batch may depend on
each other, and under "no difference" nothing is assumed but that the control was drawn at random. If the factor drifts,
the interval is about the average of the batches seen. A jump of it is noticed (`changed`), and counting starts again.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Comparison", "Interval", "batch_identity", "change_point"]

_LEVEL = 0.04  # of the two-sided intervals, which are said to be right in 95%: a little is kept for bad luck
_STAKES = np.array([0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95])  # shares of the fortune that are bet, side by side
_SHARES = np.log(np.array([1, 1, 1, 1, 1, 2, 2, 3]) / 12)
_ENOUGH = math.log(2 / _LEVEL)
_TIGHTEST = 5  # batches at which the second test, of means, is at its best
_WIDEST = 50.0  # factors beyond exp(±50) are not told apart
_ROUNDING = 1e-9  # differences below this share of the costs are rounding
_WINDOW = 64  # batches in which a change is looked for
_LEAST = 4  # batches on either side of a change
_JUMP = 3.8  # standard errors between them, at the likeliest place

Array = NDArray[np.float64]


class Interval(NamedTuple):
    """An estimate with an interval that is valid at any time; its ends are NaN as long as nothing is known."""

    value: float
    low: float
    high: float


class _Batch(NamedTuple):
    """What is kept of a batch. Costs are in units of its largest one, so that nothing overflows."""

    order: int
    scale: float
    treated: int
    control: int
    treated_mean: float
    control_mean: float
    treated_spread: float  # sum of squared deviations from the mean
    control_spread: float
    wins: float  # share of pairs in which the treated sample costs less; a tie is half
    lowest: float
    missing: int


class Comparison:
    """Costs of treated and control samples, compared batch by batch; lower is better.

    `ratio` is the factor by which the control's costs must be multiplied so that the treated samples cost as much on
    average, where each batch counts in units of its own mean: an odd batch ten times as dear as the others counts like
    them. It needs costs that are not negative. What is outside its interval is beyond doubt in two ways: by bets, which
    hold for any number of batches if costs of the two kinds have one shape, and by means, which hold for any shape.
    `wins` is the share of pairs, of a treated and a control sample of one batch, in which the treated one costs less.
    It needs no scale, and .5 means no difference.

    A NaN or infinite cost is missing: it is left out and counted. Each batch id counts once, however often it is added
    or merged. Memory is eleven numbers per batch.

    Example:
        >>> import torch
        >>> costs, seen = torch.Generator().manual_seed(0), Comparison()
        >>> for batch in range(20):
        ...     x = torch.rand(16, generator=costs) + 1
        ...     seen.add(0.5 * x[:14], x[14:], f"batch {batch}")
        >>> print(seen)
        0.50 of the control's (0.41 to 0.60, valid whenever you look): better
    """

    def __init__(self) -> None:
        """Start with nothing seen."""
        self._known: dict[str, _Batch] = {}
        self._restart()

    def __repr__(self) -> str:
        """Return the ratio, or the wins if costs can be negative, in words."""
        (value, low, high), form, text = self.wins, "{:.0%}", "in {} of the pairs better than the control"
        if self.nonnegative:
            (value, low, high), form, text = self.ratio, "{:.2f}", "{} of the control's"
        if math.isnan(value):
            return "not known yet"
        said = text.format(form.format(value))
        if math.isnan(low):
            return f"{said}; too few batches for an interval"
        return f"{said} ({form.format(low)} to {form.format(high)}, valid whenever you look): {self.verdict}"

    def __eq__(self, other: object) -> bool:
        """Return whether two comparisons have seen the same."""
        return isinstance(other, Comparison) and self._known == other._known

    __hash__ = None  # type: ignore[assignment]

    # -------------------------------------------------------------- counting

    def add(self, treated: Tensor, control: Tensor, batch_id: str) -> None:
        """Count a batch.

        Args:
            treated: Costs of the treated samples, (k,).
            control: Costs of the control samples, (m,).
            batch_id: What identifies the run, such as `batch_identity(run.residuals)`.
        """
        batch = _summary(self._last + 1, treated, control)
        known = self._known.get(batch_id)
        if known is None:
            self._known[batch_id] = batch
            self._count(batch)
        elif known[1:] != batch[1:]:
            raise ValueError(_TWICE.format(batch_id))

    def merge(self, other: Comparison) -> Comparison:
        """Return a comparison that knows what both know, and counts each batch once."""
        if not isinstance(other, Comparison):
            raise TypeError(f"what is merged must be a Comparison: got {type(other).__name__}")
        merged = Comparison()
        merged._known = dict(self._known)
        for batch_id, batch in other._known.items():
            known = merged._known.get(batch_id, batch)
            if known[1:] != batch[1:]:
                raise ValueError(_TWICE.format(batch_id))
            merged._known[batch_id] = min(known, batch)
        merged._recount()
        return merged

    def state(self) -> dict[str, Any]:
        """Return everything that was counted, as JSON values."""
        return {"batches": {batch_id: list(batch) for batch_id, batch in self._ordered()}}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Comparison:
        """Return the comparison of a `state`."""
        found = cls()
        try:
            for batch_id, row in state["batches"].items():
                found._known[str(batch_id)] = _checked(row)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"not the state of a comparison: {error}") from error
        found._recount()
        return found

    def _ordered(self) -> list[tuple[str, _Batch]]:
        return sorted(self._known.items(), key=lambda one: (one[1].order, one[0]))

    def _recount(self) -> None:
        self._restart()
        for _, batch in self._ordered():
            self._count(batch)

    def _restart(self) -> None:
        self._last = 0  # order of the latest batch
        self._all = [0, 0, 0]  # treated, control and missing samples
        self._sums = np.zeros(2)  # of the mean costs
        self._regime: list[_Batch] = []  # batches with both, since the last change
        self._start = 0  # those of them that noticing the change has used up
        self._logs = np.zeros((4, len(_STAKES)))  # fortunes at ratio 1 and at half the wins: for better, for worse
        self._apart = np.zeros(2)  # differences of the means at ratio 1, and their squares
        self._change: tuple[int, float, float] | None = None
        self.batches = 0  # with both treated and control samples
        self.nonnegative = True

    def _count(self, batch: _Batch) -> None:
        self._last = max(self._last, batch.order)
        self._all = [a + b for a, b in zip(self._all, (batch.treated, batch.control, batch.missing), strict=True)]
        self.nonnegative &= batch.lowest >= 0
        if not (batch.treated and batch.control):
            return
        self.batches += 1
        self._sums = self._sums + batch.scale * np.array([batch.treated_mean, batch.control_mean])
        self._regime.append(batch)
        lower, higher, apart = _costs(np.array([batch]), 1.0) if self.nonnegative else np.zeros((3, 1, 1))
        bets = [lower, higher, *_wins(np.array([batch.wins]), 0.5)]
        self._logs = self._logs + np.log1p(np.concatenate(bets) * _STAKES)
        self._apart = self._apart + float(apart[0, 0]) ** np.array([1, 2])
        wins = np.array([one.wins for one in self._regime[-_WINDOW:]])
        split = change_point(wins)
        if split is not None:
            self._change = (self.batches - len(wins) + split, float(wins[:split].mean()), float(wins[split:].mean()))
            self._regime = self._regime[len(self._regime) - len(wins) + split :]
            self._start, self._logs, self._apart = len(self._regime), np.zeros_like(self._logs), np.zeros(2)

    # -------------------------------------------------------------- what is known

    @property
    def samples(self) -> tuple[int, int]:
        """How many treated and control samples were counted, in all batches."""
        return self._all[0], self._all[1]

    @property
    def missing(self) -> int:
        """How many costs were NaN or infinite."""
        return self._all[2]

    @property
    def means(self) -> tuple[float, float]:
        """The mean costs of treated and control samples, averaged over the batches that have both; NaN at first."""
        a, b = self._sums / self.batches if self.batches else (math.nan, math.nan)
        return float(a), float(b)

    @property
    def since(self) -> int:
        """How many batches with both kinds of samples the intervals are about: those since the last change."""
        return len(self._regime) - self._start

    @property
    def ratio(self) -> Interval:
        """The costs of the treated samples as a share of the control's, since the last change."""
        table = np.array(self._regime)
        if not (self.nonnegative and len(table) and table[:, 5].any()):
            return Interval(math.nan, math.nan, math.nan)
        middle = _crossing(lambda r: -_costs(table, math.exp(r))[2].sum(), -_WIDEST, _WIDEST)
        late = table[self._start :]
        here = _crossing(lambda r: -_costs(late, math.exp(r))[2].sum(), -_WIDEST, _WIDEST) if len(late) else middle
        low = _crossing(lambda r: -_surplus(late, math.exp(r))[1], -_WIDEST, here)
        high = _crossing(lambda r: _surplus(late, math.exp(r))[0], here, _WIDEST)
        low, high = (0.0 if low == -_WIDEST else math.exp(low)), math.exp(high)
        return _interval(math.exp(middle), low, high, math.exp(_WIDEST))

    @property
    def wins(self) -> Interval:
        """The share of pairs of a batch in which the treated sample costs less, since the last change."""
        wins = np.array([batch.wins for batch in self._regime])
        if not len(wins):
            return Interval(math.nan, math.nan, math.nan)
        late = wins[self._start :]
        low = _crossing(lambda p: _ENOUGH - _fortune(_wins(late, p)[0]), 0.0, 1.0)
        high = _crossing(lambda p: _fortune(_wins(late, p)[1]) - _ENOUGH, 0.0, 1.0)
        found = _interval(float(wins.mean()), low, high, math.inf)
        return found if (low, high) != (0.0, 1.0) else Interval(found.value, math.nan, math.nan)

    @property
    def verdict(self) -> Literal["better", "worse", "undecided"]:
        """Whether the costs are lower, beyond doubt: by the ratio, or by the wins if costs can be negative."""
        better, worse = (_total(logs) - _ENOUGH for logs in (self._logs[:2] if self.nonnegative else self._logs[2:]))
        if self.nonnegative:
            away = _away(self.since, *self._apart)
            better, worse = min(better, -away - 1), min(worse, away - 1)
        return "better" if better > 0 else "worse" if worse > 0 else "undecided"

    @property
    def changed(self) -> str:
        """A sentence if the comparison came out differently from some batch on; "" otherwise, and when it is long ago.

        Ranks of batches decide, so that no scale and no tail matters.
        """
        if self._change is None or len(self._regime) >= _WINDOW:
            return ""
        first, before, since = self._change
        return (
            f"The comparison has changed after about {first} batches: {before:.0%} of the pairs were better than the "
            f"control before, and {since:.0%} since; what is said is about the batches since."
        )


def batch_identity(*tensors: Tensor) -> str:
    """Return a name for what was observed: the same for the same numbers, in whatever process."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        one = torch.as_tensor(tensor).detach().cpu().contiguous()
        digest.update(f"{tuple(one.shape)}{one.dtype}".encode())
        digest.update(one.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def change_point(values: Any) -> int | None:
    """Return after how many of the values, (k,), in order of time, they changed; None if that is not beyond doubt.

    Ranks before and after the likeliest place are compared. Over thousands of looks at exchangeable values it is wrong
    rarely: see docs/results/coverage.md.
    """
    x = np.asarray(values, dtype=np.float64)
    k = len(x)
    if k < 2 * _LEAST:
        return None
    ordered = np.sort(x)
    ranks = (np.searchsorted(ordered, x) + np.searchsorted(ordered, x, side="right") + 1) / 2
    first = np.arange(_LEAST, k - _LEAST + 1)
    away = ranks.cumsum()[first - 1] - first * (k + 1) / 2
    jumps = np.abs(away) / np.sqrt(first * (k - first) * (k + 1) / 12)
    place = int(jumps.argmax())
    return int(first[place]) if jumps[place] > _JUMP else None


_TWICE = "batch {!r} was seen twice with different numbers: give each batch an identity of its own"


def _summary(order: int, treated: Tensor, control: Tensor) -> _Batch:
    """Return what is kept of the costs of a batch, (k,) and (m,)."""
    whole = [torch.as_tensor(one).detach().cpu().double().reshape(-1).numpy() for one in (treated, control)]
    x, y = (one[np.isfinite(one)] for one in whole)
    both = np.concatenate([x, y])
    scale = float(np.abs(both).max(initial=0.0)) or 1.0
    missing, wins = sum(map(len, whole)) - len(both), 0.5
    if len(x) and len(y):
        ordered = np.sort(y)
        beaten = 2 * len(y) - np.searchsorted(ordered, x) - np.searchsorted(ordered, x, side="right")
        wins = float(beaten.mean()) / (2 * len(y))
    (a, b), (s, t) = zip(*(_moments(one / scale) for one in (x, y)), strict=True)
    return _Batch(order, scale, len(x), len(y), a, b, s, t, wins, float(both.min(initial=0.0)) / scale, missing)


def _moments(x: Array) -> tuple[float, float]:
    """Return the mean and the sum of squared deviations of x, (k,); zeros if it is empty."""
    mean = float(x.mean()) if len(x) else 0.0
    return mean, float(np.square(x - mean).sum())


def _checked(row: Any) -> _Batch:
    """Return one batch of a saved state, whose numbers must be possible."""
    batch = _Batch(*row)
    counts, numbers = (batch[i] for i in (0, 2, 3, 10)), [float(batch[i]) for i in (1, 4, 5, 6, 7, 8, 9)]
    if not all(type(count) is int and 0 <= count < 2**53 for count in counts):
        raise ValueError(f"counts must be integers from 0 on: got {row}")
    scale, a, b, s, t, wins, lowest = numbers
    possible = all(map(math.isfinite, numbers)) and scale > 0 <= min(s, t) and 0 <= wins <= 1
    if not possible or max(abs(a), abs(b)) > 1.0 + _ROUNDING or not lowest <= min(a, b) + _ROUNDING:
        raise ValueError(f"impossible numbers: got {row}")
    return _Batch(batch[0], scale, batch[2], batch[3], a, b, s, t, wins, lowest, batch[10])


def _costs(table: Array, ratio: float) -> tuple[Array, Array, Array]:
    """Return the bets on "lower than `ratio` times the control's" and on "higher", and the differences, (K, 1) each.

    A difference is that of the two means, in units of the batch's mean.

    A bet is the difference of the two means over the largest that it could be, against the bet, with the costs of the
    batch dealt out anew: by their spread, and because costs are not negative. That bound does not depend on who got
    what, so a bet has mean zero if treated costs / `ratio` and control costs are alike.
    """
    _, _, n, m, a, b, s, t, *_ = table.T[:, :, None]
    a, s = a / ratio, s / ratio**2
    mean = (n * a + m * b) / (n + m)
    share = n * m / (n + m)
    spread = np.sqrt((s + t) / share + (a - b) ** 2 + (_ROUNDING * mean) ** 2)
    lower, higher = (np.minimum(spread, mean * (n + m) / one) for one in (n, m))
    safe = [np.where(one > 0, one, np.inf) for one in (lower, higher, mean)]
    # a sample that is large makes the mean that it is divided by larger: to first order, this much
    known = (n > 1) & (m > 1)
    tilt = np.where(known, s / np.maximum(n - 1, 1) - t / np.maximum(m - 1, 1), 0.0) / (n + m)
    return (b - a) / safe[0], (a - b) / safe[1], ((a - b) + tilt / safe[2]) / safe[2]


def _surplus(table: Array, ratio: float) -> tuple[float, float]:
    """Return by how much it is beyond doubt that costs are lower than `ratio` times the control's, and higher.

    Both the bets and the means must say so. The bets need no more than that costs of the two kinds have one shape, and
    the means no more than enough batches.
    """
    lower, higher, apart = _costs(table, ratio)
    away = _away(len(table), float(apart.sum()), float(np.square(apart).sum()))
    return min(_fortune(lower) - _ENOUGH, -away - 1), min(_fortune(higher) - _ENOUGH, away - 1)


def _away(k: int, total: float, squares: float) -> float:
    """Return how far the sum of k differences is from zero; 1 is what it exceeds with probability 4% at any time.

    It is the confidence sequence of Robbins (1970) for normal numbers, with the variance that was seen.
    """
    variance = (squares - total**2 / k) / (k - 1) if k > 1 else math.inf
    if variance == math.inf or total == 0:
        return 0.0
    bound = (k + _TIGHTEST) * math.log((k + _TIGHTEST) / (_TIGHTEST * _LEVEL**2))
    return total / math.sqrt(max(variance * bound, 1e-300))


def _wins(wins: Array, share: float) -> tuple[Array, Array]:
    """Return the bets on "more wins than `share`" and on "fewer", (K, 1) each."""
    away = wins[:, None] - share
    return away / max(share, 1e-12), -away / max(1 - share, 1e-12)


def _fortune(bets: Array) -> float:
    """Return the log of what bets, (K, 1), have made of 1."""
    return _total(np.log1p(bets * _STAKES).sum(axis=0))


def _total(logs: Array) -> float:
    return float(np.logaddexp.reduce(logs + _SHARES))


def _crossing(rising: Any, low: float, high: float) -> float:
    """Return where a rising function passes zero, or the end if it does not."""
    if rising(low) >= 0 or rising(high) <= 0:
        return low if rising(low) >= 0 else high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) >= 0 else (middle, high)
    return (low + high) / 2


def _interval(value: float, low: float, high: float, most: float) -> Interval:
    """Return an estimate with its ends, which are NaN if there is no upper end and the lower one decides nothing."""
    high = math.inf if high >= most else high
    if low <= 1 and high == math.inf:
        return Interval(value, math.nan, math.nan)
    return Interval(min(max(value, low), high), low, high)
