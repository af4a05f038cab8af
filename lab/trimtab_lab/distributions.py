"""Compare sets of samples: can the final samples of a schedule be distinguished from those of full projection?

A distance of paired samples punishes a sample for being another good sample. Here two *sets* are compared, by their
energy distance, which sees every difference of distributions. The sets must not share seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from trimtab.core.arrays import numbers_of
from trimtab.core.checks import check_callable, check_integer, check_number, check_type
from trimtab.core.metrics import distinct_seeds
from trimtab.core.record import Rollout
from trimtab_lab.metrics import MeanError

__all__ = [
    "Fidelity",
    "Samples",
    "compare_samples",
    "energy_distance",
    "energy_excess",
    "minimum_detectable_shift",
]

Samples = Any
"""A set of samples: (n, *event), as an array or a tree of arrays, or a rollout, whose final states are meant."""

Embedding = Callable[[Any], Tensor]

LEVEL, POWER = 0.05, 0.8
_PAIRS = 1 << 20  # pairs of samples at once: 8 MB
_AT_MOST = 128  # samples of a set in the simulation of shifts; results for more are scaled
_NULL_DRAWS, _SHIFTED_DRAWS = 300, 150


# ------------------------------------------------------------------ the distance


def energy_distance(x: Any, y: Any) -> float:
    r"""Return the energy distance sqrt(2 E|X - Y| - E|X - X'| - E|Y - Y'|) of two sets, in the units of the samples.

    Args:
        x: (n, \*event).
        y: (m, \*event).

    Example:
        >>> import torch
        >>> energy_distance(torch.zeros(5, 3), torch.ones(4, 3)) ** 2 / 2  # the length of (1, 1, 1)
        1.732...
    """
    rows, others = _as_rows(x), _as_rows(y)
    _check_widths(rows, others)
    return float(relabelled_distances(torch.cat([rows, others]), _labels(rows, others, 1))[0])


def energy_excess(x: Any, y: Any, less: Any = None) -> MeanError:
    r"""Return the squared energy distance of two sets, unbiased: 0 on average for equal sets, possibly below 0.

    The energy distance itself is never 0 for finite sets. With few samples of many numbers this noise floor is most of
    it, and two schedules that differ look alike. Memory grows with the number of pairs.

    Args:
        x: (n, \*event), at least 3.
        y: (m, \*event), at least 3.
        less: A set that is paired with `x` sample by sample, (n, \*event): the estimate is then by how much farther
            `x` is from `y` than this set, and the standard error is that of the difference.

    Returns:
        The estimate, in the units of the samples, with a jackknife standard error.

    Example:
        >>> import torch
        >>> drawn = torch.randn(3, 200, 2, generator=torch.Generator().manual_seed(0))
        >>> alike, apart = energy_excess(drawn[0], drawn[1]), energy_excess(drawn[0] + 1, drawn[1])
        >>> abs(alike.mean) < 3 * alike.se, apart.mean > 5 * apart.se
        (True, True)
    """
    rows, others = _as_rows(x), _as_rows(y)
    _check_widths(rows, others)
    if min(len(rows), len(others)) < 3:
        raise ValueError(f"a standard error needs at least 3 samples of each set: got {len(rows)} and {len(others)}")
    found = _jackknife(rows, others)
    if less is not None:
        paired = _as_rows(less)
        if paired.shape != rows.shape:
            raise ValueError(f"paired sets must have the same shape: got {tuple(rows.shape)} and {tuple(paired.shape)}")
        found = [one - other for one, other in zip(found, _jackknife(paired, others), strict=True)]
    whole, *left_out = found
    variance = torch.stack([(len(part) - 1) * part.var(correction=0) for part in left_out]).sum()
    return MeanError(float(whole), float(variance.sqrt()), len(rows))


def _jackknife(x: Tensor, y: Tensor) -> list[Tensor]:
    """Return the unbiased estimate, and those without each sample of x and of y: (), (n,), (m,)."""
    n, m = len(x), len(y)
    # the default computes distances from squares, which loses digits
    between, of_x, of_y = (
        torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist") for a, b in ((x, y), (x, x), (y, y))
    )
    of_x, of_y = of_x.sum(dim=1), of_y.sum(dim=1)
    xy, xx, yy = between.sum(), of_x.sum(), of_y.sum()

    def estimate(xy: Tensor, xx: Tensor, yy: Tensor, n: int, m: int) -> Tensor:
        return 2 * xy / (n * m) - xx / (n * (n - 1)) - yy / (m * (m - 1))

    return [
        estimate(xy, xx, yy, n, m),
        estimate(xy - between.sum(dim=1), xx - 2 * of_x, yy, n - 1, m),
        estimate(xy - between.sum(dim=0), xx, yy - 2 * of_y, n, m - 1),
    ]


def relabelled_distances(pool: Tensor, labels: Tensor) -> Tensor:
    """Return the energy distance of the labelled samples to the others, for each of P labellings.

    The distances of all pairs are computed once, in blocks that bound the memory. With the weights 1 / n for one set
    and -1 / m for the other, the squared energy distance is minus the weighted sum over all pairs.

    Args:
        pool: (N, d).
        labels: (P, N) bool, as many in every row.

    Returns:
        (P,).
    """
    pool = pool - pool.mean(dim=0)  # distances are computed from squares, which far from 0 would lose digits
    n = int(labels[0].sum())
    weights = torch.where(labels, 1 / n, -1 / (len(pool) - n)).to(pool.dtype).T
    total = pool.new_zeros(len(labels))
    at_once = max(1, _PAIRS // len(pool))
    for start in range(0, len(pool), at_once):
        rows = slice(start, start + at_once)
        apart = torch.cdist(pool[rows], pool)
        apart.diagonal(start).zero_()
        total -= (weights[rows] * (apart @ weights)).sum(dim=0)
    return total.clamp(min=0).sqrt()


def _labels(x: Tensor, y: Tensor, count: int, seed: int = 0) -> Tensor:
    """Return the actual labels of two sets, then random ones, (count, n + m) bool."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.zeros(count, len(x) + len(y), dtype=torch.bool)
    labels[0, : len(x)] = True
    for row in labels[1:]:
        row[torch.randperm(len(row), generator=generator)[: len(x)]] = True
    return labels.to(x.device)


# ------------------------------------------------------------------ the test


@dataclass(frozen=True, repr=False)
class Fidelity:
    """How far one set of samples is from another, and whether that is more than noise.

    Attributes:
        value: The energy distance of the two sets.
        floor: The median distance of two sets that do not differ: of both sets together, dealt at random.
        floor_high: The 95% quantile of the same.
        p: The share of relabellings, the actual one included, that are at least as far apart as the actual one.
        shift: The smallest shift that would have been detected, in units of `spread`; inf if there is none. See
            `minimum_detectable_shift`.
        spread: Root mean square distance of the reference samples from their mean.
        n: Number of samples.
        n_reference: Number of samples of the reference.
        relabellings: Number of labellings behind p, the actual one included.
        reference: The name of the reference in words.
    """

    value: float
    floor: float
    floor_high: float
    p: float
    shift: float
    spread: float
    n: int
    n_reference: int
    relabellings: int
    reference: str = "those of full projection"

    @property
    def told_apart(self) -> bool:
        """Whether the sets differ at a level of 5%."""
        return self.p <= LEVEL

    def words(self) -> str:
        """Return the result as part of a sentence about the samples."""
        figures = f"energy distance {self.value:.3g}, noise floor {self.floor:.3g} (95%: {self.floor_high:.3g})"
        if self.told_apart:
            return f"differ from {self.reference}, p = {self.p:.2g}: {figures}"
        count = f"{self.n}" if self.n == self.n_reference else f"{self.n} and {self.n_reference}"
        seen = f"with {count} samples a shift of {self.shift:.2g} of their spread would have been seen"
        if math.isinf(self.shift):
            seen = f"{count} samples are too few to see any shift"
        return f"cannot be told from {self.reference}, p = {self.p:.2g}; {seen} ({figures})"

    def facts(self) -> dict[str, str | int | float | None]:
        """Return the fields for JSON, with None for NaN and inf."""
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(self).items()}

    def __repr__(self) -> str:
        """Return the numbers in one line."""
        return (
            f"Fidelity(energy distance {self.value:.3g}, floor {self.floor:.3g}, p = {self.p:.2g}, "
            f"shift {self.shift:.2g}, n = {self.n})"
        )


def compare_samples(
    samples: Samples,
    reference: Samples,
    *,
    embed: Embedding | None = None,
    relabellings: int = 200,
    seed: int = 0,
    shift: float | None = None,
    called: str = "those of full projection",
) -> Fidelity:
    r"""Compare the final samples of a schedule with those of full projection, or with data, as distributions.

    Memory does not grow with the number of pairs, which are visited in blocks. Global generators are not touched. Of
    rollouts, samples with the same seed count once.

    Args:
        samples: Of the schedule, (n, \*event).
        reference: Of full projection on other seeds, or your data, (m, \*event). Rollouts that share seeds raise an
            error: paired samples are closer than independent ones, and the p-value would mean nothing.
        embed: Maps states to numbers with a meaningful Euclidean distance, (k, \*event) to (k, …); by default the
            entries of the state. Rotations as matrices need none; entries in different units do.
        relabellings: Number of labellings of the permutation test, the actual one included: p is at least 1 over it.
        seed: Of the relabellings and simulated shifts.
        shift: A result of `minimum_detectable_shift` for this reference and these sizes, to save its time.
        called: The name of the reference in words.

    Returns:
        The distance with its noise floor, p-value and the smallest shift that would have been detected.

    Example:
        >>> import torch
        >>> drawn = torch.randn(2, 60, 2, generator=torch.Generator().manual_seed(0))
        >>> compare_samples(drawn[0], drawn[1]).told_apart, compare_samples(drawn[0] + 1, drawn[1]).told_apart
        (False, True)
    """
    check_integer(relabellings, "relabellings, on which a p-value rests,", 20)
    check_integer(seed, "seed", 0)
    check_type(called, str, "called, the name of the reference,")
    if shift is not None:
        check_number(shift, "shift, a result of minimum_detectable_shift,", 0)
    _check_seeds(samples, reference)
    x, y = _rows(samples, embed), _rows(reference, embed)
    _check_widths(x, y)
    found = relabelled_distances(torch.cat([x, y]), _labels(x, y, relabellings, seed))
    low, high = found[1:].quantile(found.new_tensor([0.5, 0.95])).tolist()
    slack = 1e-9 * float(found.max())  # the actual labelling drawn again may differ by rounding
    return Fidelity(
        value=float(found[0]),
        floor=low,
        floor_high=high,
        p=float((found >= found[0] - slack).double().mean()),
        shift=minimum_detectable_shift(y, len(x), seed=seed) if shift is None else float(shift),
        spread=_spread(y),
        n=len(x),
        n_reference=len(y),
        relabellings=relabellings,
        reference=called,
    )


def minimum_detectable_shift(reference: Samples, n: int, *, embed: Embedding | None = None, seed: int = 0) -> float:
    r"""Return the smallest shift that a comparison of n samples with the reference would detect, by simulation.

    Two sets are drawn from the reference and one is moved by a vector; the result is the length of the vector at which
    the test finds a difference in 80% of the draws. The vector is drawn with the covariance of the samples, so it
    points where they vary. Sets of more than 128 are simulated with 128, and the result is scaled by the root of the
    sizes. It is an estimate from few draws: only its first digit counts.

    Args:
        reference: (m, \*event).
        n: How many samples are compared with all m of the reference.
        embed: As in `compare_samples`.
        seed: Of the draws.

    Returns:
        The shift divided by the spread, the root mean square distance of the reference from its mean; 0 if the
        reference is a single point; inf if there are too few samples for any permutation test at a level of 5%.
    """
    check_integer(n, "n, the samples that are compared,", 2)
    check_integer(seed, "seed", 0)
    y = _rows(reference, embed)
    spread, m = _spread(y), len(y)
    if n + m < 20 and (2 if n == m else 1) / math.comb(n + m, n) > LEVEL:  # swapping equal sets is no other labelling
        return math.inf
    if spread == 0:
        return 0.0
    y = ((y - y.mean(dim=0)) / spread).float()  # a simulation needs no more digits
    scale = min(1.0, _AT_MOST / max(n, m))
    small_n, small_m = max(2, round(n * scale)), max(2, round(m * scale))
    weights = y.new_tensor([1 / small_n] * small_n + [-1 / small_m] * small_m)
    generator = torch.Generator().manual_seed(seed)

    def draw(sets: int, size: int) -> Tensor:
        return y[torch.randint(m, (sets, size), generator=generator).to(y.device)]

    def distances(x: Tensor, others: Tensor) -> Tensor:
        """Return the squared distances of r pairs of sets, (r, n, d) and (r, m, d) to (r,)."""
        parts = torch.split(torch.cat([x, others], dim=1), max(1, 2 * _PAIRS // len(weights) ** 2))
        return torch.cat([-(torch.cdist(part, part) @ weights) @ weights for part in parts])

    critical = distances(draw(_NULL_DRAWS, small_n), draw(_NULL_DRAWS, small_m)).quantile(1 - LEVEL)
    moved, still = draw(_SHIFTED_DRAWS, small_n), draw(_SHIFTED_DRAWS, small_m)
    some = y[torch.randint(m, (min(m, 1000),), generator=generator).to(y.device)]
    way = torch.randn(_SHIFTED_DRAWS, len(some), generator=generator).to(y.device) @ some
    way = way / way.norm(dim=1, keepdim=True).clamp(min=1e-30)

    def seen(shift: float) -> bool:
        return float((distances(moved + shift * way[:, None], still) > critical).double().mean()) >= POWER

    low, high = 0.0, math.sqrt(1 / small_n + 1 / small_m)
    while not seen(high):
        low, high = high, 2 * high
        if high > 1e6:
            return math.inf
    for _ in range(5):  # to 3% of the first guess
        middle = (low + high) / 2
        low, high = (low, middle) if seen(middle) else (middle, high)
    return high * math.sqrt((1 / n + 1 / m) / (1 / small_n + 1 / small_m))


def _rows(samples: Samples, embed: Embedding | None) -> Tensor:
    """Return a set of samples as (n, d) float64: of a rollout the final states, one for each distinct seed."""
    if embed is not None:
        check_callable(embed, "embed", "embed(states)")
    run = samples if isinstance(samples, Rollout) else None
    states = samples if run is None else run.final
    rows = _as_rows(states if embed is None else embed(states))
    return rows if run is None or run.seeds is None else rows[distinct_seeds(run.seeds).to(rows.device)]


def _as_rows(states: Any) -> Tensor:
    """Return an array, or a tree of arrays, as (n, d) float64."""
    rows = numbers_of(states)
    if len(rows) < 2:
        raise ValueError(f"a set must have at least 2 samples along the first dimension: got {len(rows)}")
    if not bool(rows.isfinite().all()):
        bad = int((~rows.isfinite().all(dim=1)).sum())
        raise ValueError(f"{bad} of {len(rows)} samples are not finite; leave them out, and report how many they were")
    return rows


def _check_widths(x: Tensor, y: Tensor) -> None:
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"both sets need samples of the same shape: got {x.shape[1]} and {y.shape[1]} numbers")


def _check_seeds(samples: Samples, reference: Samples) -> None:
    seeds = [one.seeds for one in (samples, reference) if isinstance(one, Rollout) and one.seeds is not None]
    shared = set(seeds[0].tolist()) & set(seeds[1].tolist()) if len(seeds) == 2 else set()
    if shared:
        raise ValueError(
            f"{len(shared)} seeds are in both sets (first: {sorted(shared)[:5]}), so their samples are paired; "
            "compare distributions on different seeds"
        )


def _spread(rows: Tensor) -> float:
    return float((rows - rows.mean(dim=0)).square().sum(dim=1).mean().sqrt())
