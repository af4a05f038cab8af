"""Fidelity of the distribution: can the final samples of a schedule be told from those of full projection?

A distance of paired samples punishes a sample for being another good sample. Here two *sets* are compared, which must
not share their seeds, and three things stand beside the distance: the noise floor, which is what two sets of full
projection show; a p-value by relabelling; and the smallest shift that so many samples would have shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from trimtab.core.errors import check_callable, check_integer, check_number, check_type
from trimtab.core.record import Rollout
from trimtab.core.set_distances import SetDistance, Sliced, as_rows, pooled, set_distance

__all__ = ["Fidelity", "Samples", "compare_samples", "minimum_detectable_shift"]

Samples = Any
"""A set of samples: (n, *event), as an array or a tree of arrays, or a rollout, whose final states are meant."""

Embedding = Callable[[Any], Tensor]

_NAMES = {"energy": "energy distance", "sliced": "sliced Wasserstein distance", "kernel": "squared kernel distance"}
_AT_MOST = 128  # samples of a set in the simulation of shifts; more are scaled up to
_NULL_DRAWS, _SHIFTED_DRAWS = 300, 150
_MANY = 600  # samples of either set: those can be dealt in more than 2^1075 ways, and one over that is 0.0
_BATCH = 1 << 21  # pairs of samples at once in that simulation


@dataclass(frozen=True, repr=False)
class Fidelity:
    """How far one set of samples is from another, and what that says.

    Attributes:
        measure: "energy", "sliced" or "kernel".
        value: The distance of the two sets.
        floor: Its median where nothing differs: between random halves of full projection alone, if a second set of it
            was given, else of both sets together.
        floor_high: The 95% quantile of the same.
        p: The share of relabellings, the actual one included, at least as far apart as the actual one.
        shift: The smallest shift that would have been seen, in units of `spread`, inf where none would: see
            `minimum_detectable_shift`.
        spread: Root mean square distance of the reference samples from their mean.
        n: Samples that were compared.
        n_reference: Samples they were compared with.
        relabellings: How many p rests on, the actual one included.
        reference: What the reference is, in words.
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
        """What was found, as advice and pages say it."""
        figures = f"{_NAMES[self.measure]} {self.value:.3g}, noise floor {self.floor:.3g} (95%: {self.floor_high:.3g})"
        if self.told_apart:
            return f"differ from {self.reference}, p = {self.p:.2g}: {figures}"
        count = f"{self.n}" if self.n == self.n_reference else f"{self.n} and {self.n_reference}"
        seen = f"with {count} samples a shift of {self.shift:.2g} of their spread would have been seen"
        if math.isinf(self.shift):
            seen = f"{count} samples are too few to see any shift"
        return f"cannot be told from {self.reference}, p = {self.p:.2g}; {seen} ({figures})"

    def facts(self) -> dict[str, str | int | float | None]:
        """As JSON, which has neither NaN nor inf."""
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(self).items()}

    def __repr__(self) -> str:
        """The figures in one line."""
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

    Memory does not grow with the number of pairs: they are visited in blocks. Nothing touches the global generators.

    Args:
        samples: Of the schedule, (n, \*event).
        reference: Of full projection on other seeds, or data of your own, (m, \*event). Rollouts that share seeds are
            refused: paired samples are closer than independent ones, and the p-value would mean nothing.
        measure: "energy" (the default; sees every difference), "sliced" (Wasserstein, along 128 directions) or "kernel"
            (maximum mean discrepancy, unbiased, as wide as the median distance).
        floor: A second set of full projection with at least as many samples, independent of the reference: what two
            sets of it show is then measured on them alone. It may share seeds with `samples`.
        embed: From states to numbers in which a Euclidean distance is meant, (k, \*event) to (k, …); by default the
            entries of the state. Rotations as matrices need none; entries in unlike units do.
        relabellings: Ways of dealing the samples into two sets, the actual one included: p is at least 1 over it.
        seed: Of the relabellings, directions and simulated shifts.
        shift: As `minimum_detectable_shift` found it earlier for this reference and these sizes, to save its time.
        called: What the reference is, as words name it.

    Returns:
        The distance with its noise floor, p-value and the smallest shift that would have been seen.

    Example:
        >>> import torch
        >>> drawn = torch.randn(2, 60, 2, generator=torch.Generator().manual_seed(0))
        >>> compare_samples(drawn[0], drawn[1]).told_apart, compare_samples(drawn[0] + 1, drawn[1]).told_apart
        (False, True)
    """
    check_integer(relabellings, "relabellings, on which a p-value rests,", 20)
    _check_options(measure, embed, seed)
    check_type(called, str, "called, what the reference is in words,")
    if shift is not None:
        check_number(shift, "shift, as minimum_detectable_shift found it,", 0)
    _check_pairs(samples, reference)
    x, y = _rows(samples, embed), _rows(reference, embed)
    pool, _ = pooled(x, y)
    distance = set_distance(measure, pool, seed)
    found = distance.relabelled(pool, _relabelled(len(x), len(y), relabellings, seed).to(pool.device))
    quiet = found[1:]
    if floor is not None:
        _check_pairs(floor, reference)
        again = _rows(floor, embed)
        if len(again) < len(x):
            raise ValueError(f"the floor needs at least as many samples as are compared, {len(x)}: got {len(again)}")
        quiet_pool, _ = pooled(again[: len(x)], y)
        labels = _relabelled(len(x), len(y), relabellings, seed + 1).to(pool.device)
        quiet = set_distance(measure, quiet_pool, seed).relabelled(quiet_pool, labels)[1:]
    low, high = quiet.quantile(torch.tensor([0.5, 0.95], dtype=quiet.dtype, device=quiet.device)).tolist()
    slack = 1e-9 * float(found.abs().max())  # a relabelling that is the actual one may differ by rounding
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
    r"""The smallest shift that comparing n samples with the reference would show, by simulation.

    Two sets are drawn from the reference, all of one is moved by the same vector, and the test looks at both; the
    answer is the length of the vector at which it finds a difference in 80% of the draws. The vector points where the
    samples vary: it is drawn with their own covariance. The unit is their spread, the root mean square distance from
    their mean. Sets of more than 128 are simulated with 128, and the answer is scaled by the root of the sizes. It
    is an estimate from few draws: take its first digit.

    Args:
        reference: (m, \*event).
        n: How many samples are compared with all m of the reference.
        measure: As in `compare_samples`.
        embed: As in `compare_samples`.
        level: Of the test.
        power: The share of draws in which the shift is found.
        seed: Of the draws.

    Returns:
        The shift over the spread; 0 if the reference is a single point, which shows any shift; inf if there are so few
        samples that even the two sets farthest apart are no rare way of dealing them.
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
    if isinstance(distance, Sliced):  # sorting is most of the time, and fewer directions tell the same of a shift
        distance = Sliced(distance.directions[:32].float())
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
    """The least p that relabelling n and m samples can give: two sets of one size are as far apart the other way."""
    if min(n, m) > _MANY:  # where counting the ways takes seconds, and says no more
        return 0.0
    return (2 if n == m else 1) / math.comb(n + m, n)


def _check_options(measure: str, embed: Embedding | None, seed: int) -> None:
    check_type(measure, str, "measure", f"give one of {', '.join(_NAMES)}")
    if embed is not None:
        check_callable(embed, "embed", "embed(states)")
    check_integer(seed, "seed", 0)


def _each(distance: SetDistance, x: Tensor, y: Tensor) -> Tensor:
    """Distances of many small sets, so many at once that memory stays bounded."""
    at_once = max(1, _BATCH // (x.shape[1] + y.shape[1]) ** 2)
    parts = [slice(i, i + at_once) for i in range(0, len(x), at_once)]
    return torch.cat([distance.each(x[part], y[part]) for part in parts])


def _relabelled(n: int, m: int, count: int, seed: int) -> Tensor:
    """Which samples are called x, (count, n + m) bool: the actual labels first, then random ones."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.zeros(count, n + m, dtype=torch.bool)
    labels[0, :n] = True
    for row in labels[1:]:
        row[torch.randperm(n + m, generator=generator)[:n]] = True
    return labels


def _rows(samples: Samples, embed: Embedding | None) -> Tensor:
    if isinstance(samples, Rollout) and samples.groups is not None:
        raise ValueError(
            "the rows of a group are not independent samples, and a p-value would count them as such; give the final "
            "states with one row per group: all of its rows side by side, or one of them"
        )
    states = samples.final if isinstance(samples, Rollout) else samples
    return as_rows(states if embed is None else embed(states))


def _spread(rows: Tensor) -> float:
    return float((rows - rows.mean(dim=0)).square().sum(dim=1).mean().sqrt())


def _check_pairs(samples: Samples, reference: Samples) -> None:
    if not (isinstance(samples, Rollout) and isinstance(reference, Rollout)):
        return
    if samples.seeds is None or reference.seeds is None:
        return
    shared = set(samples.seeds.tolist()) & set(reference.seeds.tolist())
    if shared:
        raise ValueError(
            f"{len(shared)} seeds are in both sets (first: {sorted(shared)[:5]}), whose samples are then paired; "
            "distributions are compared on different seeds"
        )
