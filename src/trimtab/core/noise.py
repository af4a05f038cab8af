"""Randomness that belongs to a sample: a pure function of its seed, the step and nothing else.

Two schedules, two batch sizes or two numbers of workers therefore see the same noise, which is what makes
comparisons paired. There is no generator state to carry, save or restore, and the global generators are never
touched.

The numbers come from the SplitMix64 finaliser used as a counter-based generator: seed, step and stream are mixed
into a key for each sample, and the i-th number of a draw is the mix of the i-th multiple of the golden gamma
counted from that key. Normals are the inverse normal distribution function of those uniforms, made of exactly rounded
operations (`core.steady`), so a number never depends on where in a batch it stands, down to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.core.exact_math import normal_quantile

__all__ = ["Noise", "as_seeds"]


def _signed(value: int) -> int:
    """A 64-bit pattern as the signed integer torch knows it by."""
    value %= 1 << 64
    return value - (1 << 64) if value >= 1 << 63 else value


_GAMMA = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)
_STEP = _signed(0xD1342543DE82EF95)  # an odd multiplier of its own, so that steps and streams do not line up
_STREAM = _signed(0xAF251AF3B0F025B5)


def _mix(z: Any) -> Any:
    """SplitMix64's finaliser in place, (…) int64 to (…) int64; multiplication wraps, shifts are logical."""
    z ^= (z >> 30) & 0x3FFFFFFFF
    z *= _MIX_1
    z ^= (z >> 27) & 0x1FFFFFFFFF
    z *= _MIX_2
    z ^= (z >> 31) & 0x1FFFFFFFF
    return z


def as_seeds(seeds: Iterable[int] | Tensor, device: torch.device | str | None = None) -> Tensor:
    """Sample seeds as a (n,) int64 tensor.

    Args:
        seeds: One whole number per sample; a range, a list or an integer tensor.
        device: Where the noise is wanted.

    Example:
        >>> as_seeds(range(3))
        tensor([0, 1, 2])
    """
    if isinstance(seeds, Tensor):
        if seeds.is_floating_point() or seeds.dtype == torch.bool or seeds.ndim != 1:
            raise ValueError(
                f"seeds must be whole numbers, one a sample: got a {tuple(seeds.shape)} tensor of {seeds.dtype}"
            )
        out = seeds.to(device=device, dtype=torch.int64)
    else:
        if not isinstance(seeds, Iterable):
            raise ValueError(f"seeds must be whole numbers, one a sample: got {seeds!r} (for one sample, [{seeds!r}])")
        listed = list(seeds)
        if not all(isinstance(s, int | np.integer) and not isinstance(s, bool) for s in listed):
            raise ValueError(f"seeds must be whole numbers, one a sample: got {listed[:5]}")
        if not all(-(2**63) <= s < 2**63 for s in listed):
            raise ValueError(f"seeds must fit into 64 bits: got {max(listed, key=abs)}")
        out = torch.tensor([int(s) for s in listed], dtype=torch.int64, device=device)
    if len(out) == 0:
        raise ValueError("seeds is empty: give at least one seed, each is one rollout")
    return out


@dataclass(frozen=True, eq=False)
class Noise:
    """The noise of a batch of samples.

    Attributes:
        seeds: One seed a sample, (n,) int64.
        dtype: Of the numbers drawn.

    Example:
        >>> one, many = Noise(as_seeds([7])), Noise(as_seeds([3, 7, 9]))
        >>> bool((one.normal(5, (2, 2))[0] == many.normal(5, (2, 2))[1]).all())
        True
    """

    seeds: Tensor
    dtype: torch.dtype = torch.float64
    _blocks: dict[Any, tuple[int, Tensor]] = field(default_factory=dict, init=False, repr=False)

    def uniform(self, t: int, event: tuple[int, ...] = (), stream: int = 0) -> Tensor:
        """Uniform numbers in (0, 1).

        Args:
            t: The step; -1 is used by samplers for the initial state.
            event: Shape of one sample's draw.
            stream: Tells apart several draws of one step.

        Returns:
            (n, *event), each row a function of its seed, `t` and `stream`.
        """
        return self._draw(uniform_numbers, t, event, stream)

    def normal(self, t: int, event: tuple[int, ...] = (), stream: int = 0) -> Tensor:
        """Standard normal numbers, (n, *event); arguments as in `uniform`."""
        return self._draw(_normal, t, event, stream)

    def take(self, rows: Tensor) -> Noise:
        """The noise of the samples `rows`."""
        return Noise(self.seeds[rows], self.dtype)

    def _draw(self, draw: Draw, t: int, event: tuple[int, ...], stream: int) -> Tensor:
        """One step's numbers, cut from a block of steps: for small states the calls cost more than the numbers."""
        if not isinstance(event, tuple) or not all(type(side) is int and side >= 0 for side in event):
            raise ValueError(f"the shape of one sample's draw is a tuple of whole numbers: got {event!r}")
        size = len(self.seeds) * math.prod(event)
        steps = 1 if t < 0 else max(1, min(_BLOCK_STEPS, _BLOCK_NUMBERS // max(size, 1)))
        first = t - t % steps
        cached = self._blocks.get((draw, event, stream))
        if cached is None or cached[0] != first:
            block = draw(self.seeds, range(first, first + steps), event, stream).to(self.dtype)
            self._blocks[draw, event, stream] = cached = (first, block)
        return cached[1][t - first].clone()


Draw = Callable[[Tensor, range, tuple[int, ...], int], Tensor]
_BLOCK_STEPS = 64
_BLOCK_NUMBERS = 1 << 16


def uniform_numbers(seeds: Tensor, steps: range, event: tuple[int, ...], stream: int) -> Tensor:
    """(len(steps), n, *event) float64 in (0, 1)."""
    host = seeds.is_cpu  # where numpy's calls cost a third of torch's
    xp: Any = np if host else torch
    place = {} if host else {"device": seeds.device}
    salts = xp.asarray([[_signed(t * _STEP)] for t in steps], dtype=xp.int64, **place)
    key = _mix((seeds.numpy() if host else seeds) * _GAMMA + salts)
    key = _mix(key + _signed(stream * _STREAM))
    count = xp.arange(1, math.prod(event) + 1, dtype=xp.int64, **place)
    bits = _mix(key[..., None] + count * _GAMMA)
    # 52 bits, centred in their cells: never 0 or 1, symmetric about a half
    cells = xp.asarray((bits >> 12) & 0xFFFFFFFFFFFFF, dtype=xp.float64)
    cells += 0.5
    cells *= 2.0**-52
    numbers: Tensor = torch.from_numpy(cells) if host else cells
    return numbers.reshape(len(steps), len(seeds), *event)


def _normal(seeds: Tensor, steps: range, event: tuple[int, ...], stream: int) -> Tensor:
    """(len(steps), n, *event) float64, standard normal."""
    normal: Tensor = normal_quantile(uniform_numbers(seeds, steps, event, stream))
    return normal
