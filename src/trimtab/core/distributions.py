"""Compare sets of samples: can the final samples of a schedule be distinguished from those of full projection?

A distance of paired samples punishes a sample for being another good sample. Here two *sets* are compared, which must
not share seeds. A permutation test needs the distance of the same samples under hundreds of labellings, so each
distance does the expensive part once: energy and kernel distance compute the distances of all pairs once, in blocks,
and the sliced Wasserstein distance sorts once along each direction.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from trimtab.core.arrays import Form, numbers_of
from trimtab.core.checks import check_callable, check_integer, check_number, check_positive, check_type, unknown
from trimtab.core.metrics import Summary, distinct_seeds
from trimtab.core.record import Rollout

__all__ = [
    "MEASURES",
    "Fidelity",
    "Samples",
    "compare_samples",
    "energy_distance",
    "energy_excess",
    "kernel_distance",
    "minimum_detectable_shift",
    "set_distance",
    "sliced_wasserstein",
]

Samples = Any
"""A set of samples: (n, *event), as an array or a tree of arrays, or a rollout, whose final states are meant."""

Embedding = Callable[[Any], Tensor]

MEASURES = {
    "energy": "energy distance",
    "sliced": "sliced Wasserstein distance",
    "kernel": "squared kernel distance",
}
"""The measures by name, with what words call them."""

_PAIRS = 1 << 20  # pairs of samples at once: 8 MB
_DIRECTIONS = 128
_MEDIAN_OF = 1000  # samples whose pairs set the width of the kernel
_SORTED = 1 << 22  # numbers that are sorted at once: 32 MB
_AT_MOST = 128  # samples of a set in the simulation of shifts; results for more are scaled
_NULL_DRAWS, _SHIFTED_DRAWS = 300, 150
_MANY = 600  # two larger sets have more than 2^1075 permutations, and one over that is 0.0
_BATCH = 1 << 21  # pairs of samples at once in that simulation


# ------------------------------------------------------------------ the distances


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
    return _of_two(PairDistance(), x, y)


def sliced_wasserstein(x: Any, y: Any, directions: int = _DIRECTIONS, seed: int = 0) -> float:
    r"""Return the mean Wasserstein distance of order 1 along random directions, in the units of the samples.

    Args:
        x: (n, \*event).
        y: (m, \*event).
        directions: How many; samples of one number have only one.
        seed: Of the directions.

    Example:
        >>> import torch
        >>> sliced_wasserstein(torch.zeros(5), torch.full((4,), 2.0))
        2.0
    """
    check_integer(directions, "directions, along which samples are compared,")
    rows = as_rows(x)
    return _of_two(SlicedDistance(_directions(rows.shape[1], directions, seed).to(rows.device)), x, y)


def kernel_distance(x: Any, y: Any, bandwidth: float | None = None) -> float:
    r"""Return the squared maximum mean discrepancy under a Gaussian kernel, unbiased: 0 on average for equal sets.

    Args:
        x: (n, \*event), at least two.
        y: (m, \*event), at least two.
        bandwidth: Of the kernel exp(-|a - b|² / (2 bandwidth²)); by default the median distance of two samples.

    Example:
        >>> import torch
        >>> kernel_distance(torch.zeros(5, 1), torch.ones(4, 1), bandwidth=0.01)  # far apart: two kinds of samples
        2.0
    """
    if bandwidth is not None:
        return _of_two(PairDistance(check_positive(bandwidth, "the bandwidth of a kernel")), x, y)
    return _of_two(set_distance("kernel", pooled(as_rows(x), as_rows(y))[0]), x, y)


def energy_excess(x: Any, y: Any, less: Any = None) -> Summary:
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
    rows, others = as_rows(x), as_rows(y)
    pooled(rows, others)  # checks the shapes
    if min(len(rows), len(others)) < 3:
        raise ValueError(f"a standard error needs at least 3 samples of each set: got {len(rows)} and {len(others)}")
    found = _jackknife(rows, others)
    if less is not None:
        paired = as_rows(less)
        if paired.shape != rows.shape:
            raise ValueError(
                f"paired sets have as many samples of the same shape: got {tuple(rows.shape)} and {tuple(paired.shape)}"
            )
        found = [one - other for one, other in zip(found, _jackknife(paired, others), strict=True)]
    whole, *left_out = found
    variance = torch.stack([(len(part) - 1) * part.var(correction=0) for part in left_out]).sum()
    return Summary(float(whole), float(variance.sqrt()), len(rows))


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


@dataclass(frozen=True)
class PairDistance:
    """Energy distance, or with a bandwidth the squared kernel distance: sums over pairs of samples."""

    bandwidth: float | None = None

    def relabelled(self, pool: Tensor, labels: Tensor) -> Tensor:
        """Return the distance of one part of a pool to the rest, (N, d) and labels (P, N) bool to (P,)."""
        return self._combined(*_pair_sums(pool, labels, self._pairs), *_sizes(labels))

    def each(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the distances of r pairs of small sets, (r, n, d) and (r, m, d) to (r,)."""
        xx, xy, yy = (self._pairs(a, b).sum(dim=(1, 2)) for a, b in ((x, x), (x, y), (y, y)))
        n, m = x.shape[1], y.shape[1]
        same = 0.0 if self.bandwidth is None else 1.0  # of a sample with itself, which does not count
        return self._combined(xx - same * n, xy, yy - same * m, n, m)

    def _pairs(self, x: Tensor, y: Tensor) -> Tensor:
        apart = torch.cdist(x, y)
        return apart if self.bandwidth is None else apart.div_(self.bandwidth).square_().mul_(-0.5).exp_()

    def _combined(self, xx: Tensor, xy: Tensor, yy: Tensor, n: int, m: int) -> Tensor:
        if self.bandwidth is None:
            return (2 * xy / (n * m) - xx / n**2 - yy / m**2).clamp(min=0).sqrt()
        return xx / (n * (n - 1)) + yy / (m * (m - 1)) - 2 * xy / (n * m)


@dataclass(frozen=True, eq=False)
class SlicedDistance:
    """Sliced Wasserstein distance of order 1 along these directions, (L, d); methods as those of `PairDistance`."""

    directions: Tensor

    def relabelled(self, pool: Tensor, labels: Tensor) -> Tensor:
        """Sort once along each direction, (N, d) and labels (P, N) bool to (P,)."""
        weights = _weights(labels)
        total = torch.zeros(len(labels), dtype=pool.dtype, device=pool.device)
        at_once = max(1, _SORTED // len(pool))
        for i in range(0, len(self.directions), at_once):
            along, order = (self.directions[i : i + at_once] @ pool.T).sort(dim=1)
            gaps = along.diff(dim=1)
            for k, weight in enumerate(weights):
                total[k] += _area(weight[order], gaps).sum()
        return total / len(self.directions)

    def each(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the distances of r pairs of small sets, (r, n, d) and (r, m, d) to (r,)."""
        n, m = x.shape[1], y.shape[1]
        along, order = (self.directions @ torch.cat([x, y], dim=1).mT).sort(dim=2)  # (r, L, n + m)
        weight = _weights(torch.arange(n + m, device=x.device)[None] < n)[0].to(x.dtype)
        return _area(weight[order], along.diff(dim=2)).mean(dim=1)


SetDistance = PairDistance | SlicedDistance


def set_distance(measure: str, pool: Tensor, seed: int = 0) -> SetDistance:
    """Return the distance of that name for a pool of samples, (N, d)."""
    if measure not in MEASURES:
        raise unknown("measure", measure, list(MEASURES))
    if measure == "energy":
        return PairDistance()
    if measure == "sliced":
        return SlicedDistance(_directions(pool.shape[1], _DIRECTIONS, seed).to(pool.device))
    if len(pool) > _MEDIAN_OF:
        generator = torch.Generator().manual_seed(seed)
        pool = pool[torch.randperm(len(pool), generator=generator)[:_MEDIAN_OF].to(pool.device)]
    apart = torch.nn.functional.pdist(pool)
    return PairDistance(float(apart.median()) or float(apart.max()) or 1.0)  # more than half may coincide


def _directions(d: int, count: int, seed: int) -> Tensor:
    """Return random unit vectors, (count, d), or the only one there is."""
    if d == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    drawn = torch.randn(count, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(drawn, dim=1)


def _area(weights: Tensor, gaps: Tensor) -> Tensor:
    """Return the area between two distribution functions, (…, N) sorted signed weights, (…, N - 1) gaps to (…,)."""
    return weights.cumsum(dim=-1)[..., :-1].abs_().mul_(gaps).sum(dim=-1)


def _pair_sums(
    pool: Tensor, labels: Tensor, pairwise: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Sum a symmetric function over the pairs within x, between x and y, and within y; no sample with itself.

    Args:
        pool: (N, d).
        labels: Which samples are x, (P, N) bool.
        pairwise: (a, d) and (b, d) to (a, b).

    Returns:
        Three sums of each labelling, (P,) each; both orders of a pair count.
    """
    pool = pool - pool.mean(dim=0)  # distances are computed from squares, which far from 0 would lose digits
    chosen = labels.T.to(pool.dtype)
    by_sample, xx = pool.new_zeros(len(pool)), pool.new_zeros(len(labels))
    at_once = max(1, _PAIRS // len(pool))
    for i in range(0, len(pool), at_once):
        rows = slice(i, i + at_once)
        block = pairwise(pool[rows], pool)
        block.diagonal(i).zero_()
        by_sample[rows] = block.sum(dim=1)
        xx += (chosen[rows] * (block @ chosen)).sum(dim=0)
    x_any = by_sample @ chosen
    return xx, x_any - xx, by_sample.sum() - 2 * x_any + xx


def _sizes(labels: Tensor) -> tuple[int, int]:
    n = int(labels[0].sum())
    return n, labels.shape[1] - n


def _weights(labels: Tensor) -> Tensor:
    """Return 1 / n for the samples of x and -1 / m for those of y, (P, N) bool to (P, N)."""
    n, m = _sizes(labels)
    return labels.double() * (1 / n + 1 / m) - 1 / m


def pooled(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return both sets in one, (n + m, d), and which samples are of the first, (1, n + m) bool."""
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"both sets need samples of the same shape: got {x.shape[1]} and {y.shape[1]} numbers")
    return torch.cat([x, y]), (torch.arange(len(x) + len(y), device=x.device) < len(x))[None]


def as_rows(x: Any) -> Tensor:
    """Return a set of samples, an array or a tree of arrays, as (n, d) float64."""
    form = Form(x, floats=False)
    if form.n < 2:
        raise ValueError(f"a set of samples has at least 2, one along the first dimension each: got {form.n}")
    rows = numbers_of(x)
    if not bool(rows.isfinite().all()):
        bad = int((~rows.isfinite().all(dim=1)).sum())
        raise ValueError(f"{bad} of {len(rows)} samples are not finite; leave them out, and report how many they were")
    return rows


def _of_two(distance: SetDistance, x: Any, y: Any) -> float:
    return float(distance.relabelled(*pooled(as_rows(x), as_rows(y)))[0])


# ------------------------------------------------------------------ the test


@dataclass(frozen=True, repr=False)
class Fidelity:
    """How far one set of samples is from another, and whether that is more than noise.

    Attributes:
        measure: "energy", "sliced" or "kernel".
        value: The distance of the two sets.
        floor: The median distance of two sets that do not differ: of random halves of full projection alone, if a
            second set of it was given, else of both sets together.
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

    measure: str
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
        return self.p <= 0.05

    def words(self) -> str:
        """Return the result as part of a sentence about the samples."""
        figures = (
            f"{MEASURES[self.measure]} {self.value:.3g}, noise floor {self.floor:.3g} (95%: {self.floor_high:.3g})"
        )
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
        """Show the figures in one line."""
        return (
            f"Fidelity({self.measure} {self.value:.3g}, floor {self.floor:.3g}, p = {self.p:.2g}, "
            f"shift {self.shift:.2g}, n = {self.n})"
        )


def compare_samples(
    samples: Samples,
    reference: Samples,
    *,
    measure: str = "energy",
    floor: Samples | None = None,
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
        measure: "energy" (the default; sees every difference), "sliced" (Wasserstein, along 128 directions) or "kernel"
            (maximum mean discrepancy, unbiased, as wide as the median distance).
        floor: A second set of full projection with at least as many samples, independent of the reference: the noise
            floor is then measured on these two alone. It may share seeds with `samples`.
        embed: Maps states to numbers with a meaningful Euclidean distance, (k, \*event) to (k, …); by default the
            entries of the state. Rotations as matrices need none; entries in different units do.
        relabellings: Number of labellings of the permutation test, the actual one included: p is at least 1 over it.
        seed: Of the relabellings, directions and simulated shifts.
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
    _check_options(measure, embed, seed)
    check_type(called, str, "called, the name of the reference,")
    if shift is not None:
        check_number(shift, "shift, a result of minimum_detectable_shift,", 0)
    _check_seeds(samples, reference)
    x, y = _rows(samples, embed), _rows(reference, embed)
    found = _permuted(measure, x, y, relabellings, seed, seed)
    quiet = found[1:]
    if floor is not None:
        _check_seeds(floor, reference)
        again = _rows(floor, embed)
        if len(again) < len(x):
            raise ValueError(f"the floor needs at least as many samples as are compared, {len(x)}: got {len(again)}")
        quiet = _permuted(measure, again[: len(x)], y, relabellings, seed, seed + 1)[1:]
    low, high = quiet.quantile(torch.tensor([0.5, 0.95], dtype=quiet.dtype, device=quiet.device)).tolist()
    slack = 1e-9 * float(found.abs().max())  # the actual labelling drawn again may differ by rounding
    return Fidelity(
        measure=measure,
        value=float(found[0]),
        floor=low,
        floor_high=high,
        p=float((found >= found[0] - slack).double().mean()),
        shift=minimum_detectable_shift(y, len(x), measure=measure, seed=seed) if shift is None else float(shift),
        spread=_spread(y),
        n=len(x),
        n_reference=len(y),
        relabellings=relabellings,
        reference=called,
    )


def minimum_detectable_shift(
    reference: Samples,
    n: int,
    *,
    measure: str = "energy",
    embed: Embedding | None = None,
    level: float = 0.05,
    power: float = 0.8,
    seed: int = 0,
) -> float:
    r"""Return the smallest shift that a comparison of n samples with the reference would detect, by simulation.

    Two sets are drawn from the reference and one is moved by a vector; the result is the length of the vector at which
    the test finds a difference in 80% of the draws. The vector is drawn with the covariance of the samples, so it
    points where they vary. Sets of more than 128 are simulated with 128, and the result is scaled by the root of the
    sizes. It is an estimate from few draws: only its first digit counts.

    Args:
        reference: (m, \*event).
        n: How many samples are compared with all m of the reference.
        measure: As in `compare_samples`.
        embed: As in `compare_samples`.
        level: Of the test.
        power: The share of draws in which the shift is found.
        seed: Of the draws.

    Returns:
        The shift divided by the spread, the root mean square distance of the reference from its mean; 0 if the
        reference is a single point; inf if there are too few samples for any permutation test at this level.
    """
    check_integer(n, "n, the samples that are compared,", 2)
    _check_options(measure, embed, seed)
    for name, value in (("level", level), ("power", power)):
        if not 0 < check_number(value, name) < 1:
            raise ValueError(f"{name} is between 0 and 1: got {value!r}")
    y = _rows(reference, embed)
    spread, m = _spread(y), len(y)
    if _least_p(n, m) > level:
        return math.inf
    if spread == 0:
        return 0.0
    y = ((y - y.mean(dim=0)) / spread).float()  # a simulation needs no more digits
    scale = min(1.0, _AT_MOST / max(n, m))
    small_n, small_m = max(2, round(n * scale)), max(2, round(m * scale))
    generator = torch.Generator().manual_seed(seed)

    def draw(sets: int, size: int) -> Tensor:
        return y[torch.randint(m, (sets, size), generator=generator).to(y.device)]

    distance = set_distance(measure, y, seed)
    if isinstance(distance, SlicedDistance):  # sorting takes most of the time, and fewer directions show the same
        distance = SlicedDistance(distance.directions[:32].float())
    quiet = _each(distance, draw(_NULL_DRAWS, small_n), draw(_NULL_DRAWS, small_m))
    critical = float(quiet.quantile(1 - level))
    moved, still = draw(_SHIFTED_DRAWS, small_n), draw(_SHIFTED_DRAWS, small_m)
    some = y[torch.randint(m, (min(m, 1000),), generator=generator).to(y.device)]
    way = torch.randn(_SHIFTED_DRAWS, len(some), generator=generator).to(y.device) @ some
    way = way / way.norm(dim=1, keepdim=True).clamp(min=1e-30)

    def seen(shift: float) -> bool:
        return float((_each(distance, moved + shift * way[:, None], still) > critical).double().mean()) >= power

    low, high = 0.0, math.sqrt(1 / small_n + 1 / small_m)
    while not seen(high):
        low, high = high, 2 * high
        if high > 1e6:
            return math.inf
    for _ in range(5):  # to 3% of the first guess
        middle = (low + high) / 2
        low, high = (low, middle) if seen(middle) else (middle, high)
    return high * math.sqrt((1 / n + 1 / m) / (1 / small_n + 1 / small_m))


def _least_p(n: int, m: int) -> float:
    """Return the smallest p-value of a permutation test; with n = m, swapping the sets gives the same distance."""
    if min(n, m) > _MANY:  # counting the permutations would take seconds
        return 0.0
    return (2 if n == m else 1) / math.comb(n + m, n)


def _each(distance: SetDistance, x: Tensor, y: Tensor) -> Tensor:
    """Return the distances of many small sets, in batches that bound the memory."""
    at_once = max(1, _BATCH // (x.shape[1] + y.shape[1]) ** 2)
    parts = [slice(i, i + at_once) for i in range(0, len(x), at_once)]
    return torch.cat([distance.each(x[part], y[part]) for part in parts])


def _permuted(measure: str, x: Tensor, y: Tensor, count: int, seed: int, labels_seed: int) -> Tensor:
    """Return the distance of two sets under their actual labels, then under random ones, (count,)."""
    pool, actual = pooled(x, y)
    generator = torch.Generator().manual_seed(labels_seed)
    labels = torch.zeros(count, len(pool), dtype=torch.bool)
    labels[0] = actual[0].cpu()
    for row in labels[1:]:
        row[torch.randperm(len(pool), generator=generator)[: len(x)]] = True
    return set_distance(measure, pool, seed).relabelled(pool, labels.to(pool.device))


def _rows(samples: Samples, embed: Embedding | None) -> Tensor:
    if not isinstance(samples, Rollout):
        return as_rows(samples if embed is None else embed(samples))
    if samples.groups is not None:
        raise ValueError(
            "the rows of a group are not independent samples, and a p-value would count them as such; give the final "
            "states with one row per group: all of its rows side by side, or one of them"
        )
    rows = as_rows(samples.final if embed is None else embed(samples.final))
    return rows if samples.seeds is None else rows[distinct_seeds(samples.seeds).to(rows.device)]


def _spread(rows: Tensor) -> float:
    return float((rows - rows.mean(dim=0)).square().sum(dim=1).mean().sqrt())


def _check_options(measure: str, embed: Embedding | None, seed: int) -> None:
    check_type(measure, str, "measure", f"give one of {', '.join(MEASURES)}")
    if embed is not None:
        check_callable(embed, "embed", "embed(states)")
    check_integer(seed, "seed", 0)


def _check_seeds(samples: Samples, reference: Samples) -> None:
    seeds = [one.seeds for one in (samples, reference) if isinstance(one, Rollout) and one.seeds is not None]
    shared = set(seeds[0].tolist()) & set(seeds[1].tolist()) if len(seeds) == 2 else set()
    if shared:
        raise ValueError(
            f"{len(shared)} seeds are in both sets (first: {sorted(shared)[:5]}), so their samples are paired; "
            "distributions are compared on different seeds"
        )
