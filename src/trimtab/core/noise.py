"""Randomness that belongs to a sample: a pure function of its seed, the step and the stream.

Two schedules, two batch sizes or two numbers of workers therefore see the same noise, which makes comparisons paired.
There is no generator state to carry or restore, and the global generators are never touched.

The numbers come from the SplitMix64 finaliser, used as a counter-based generator: seed, step and stream are mixed into
a key for each sample, and the i-th number of a draw is the mix of the key plus i times the golden gamma. Normal numbers
are the inverse normal distribution function of these uniform numbers, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["Noise", "as_seeds"]


def _signed(value: int) -> int:
    """Return a 64-bit pattern as the signed integer that torch knows."""
    value %= 1 << 64
    return value - (1 << 64) if value >= 1 << 63 else value


_GAMMA = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)
_STEP = _signed(0xD1342543DE82EF95)  # other odd multipliers, so that steps and streams do not line up
_STREAM = _signed(0xAF251AF3B0F025B5)
_START = -1  # the step of the initial states
_BLOCK_STEPS = 64
_BLOCK_NUMBERS = 1 << 16


def as_seeds(seeds: Iterable[int] | Tensor, device: torch.device | str | None = None) -> Tensor:
    """Return seeds as a (n,) int64 tensor.

    Args:
        seeds: One whole number per sample; a range, a list or an integer tensor.
        device: Of the tensor, and so of the noise.

    Example:
        >>> as_seeds(range(3))
        tensor([0, 1, 2])
    """
    if isinstance(seeds, Tensor):
        if seeds.is_floating_point() or seeds.dtype == torch.bool or seeds.ndim != 1:
            raise ValueError(
                f"seeds must be whole numbers, one per sample: got a {tuple(seeds.shape)} tensor of {seeds.dtype}"
            )
        out = seeds.to(device=device, dtype=torch.int64)
    else:
        if not isinstance(seeds, Iterable):
            raise ValueError(f"seeds must be whole numbers, one per sample: got {seeds!r} (for one, [{seeds!r}])")
        listed = list(seeds)
        if not all(isinstance(s, int | np.integer) and not isinstance(s, bool) for s in listed):
            raise ValueError(f"seeds must be whole numbers, one per sample: got {listed[:5]}")
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
        seeds: One seed per sample, (n,) int64.
        dtype: Of the numbers drawn.

    Example:
        >>> one, many = Noise(as_seeds([7])), Noise(as_seeds([3, 7, 9]))
        >>> bool((one.normal(5, (2, 2))[0] == many.normal(5, (2, 2))[1]).all())
        True
    """

    seeds: Tensor
    dtype: torch.dtype = torch.float64
    _blocks: dict[Any, tuple[int, Tensor]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        """Check the seeds; the rows of a batch may be none."""
        if not isinstance(self.seeds, Tensor) or self.seeds.dtype != torch.int64 or self.seeds.ndim != 1:
            object.__setattr__(self, "seeds", as_seeds(self.seeds))

    def uniform(self, t: int, event: tuple[int, ...] = (), stream: int = 0) -> Tensor:
        """Draw uniform numbers in (0, 1).

        Args:
            t: The step.
            event: Shape of one sample's draw.
            stream: Distinguishes several draws of one step.

        Returns:
            (n, *event), each row a function of its seed, `t` and `stream`.
        """
        return self._draw("uniform", t, event, stream)

    def normal(self, t: int, event: tuple[int, ...] = (), stream: int = 0) -> Tensor:
        """Draw standard normal numbers, (n, *event); arguments as in `uniform`."""
        return self._draw("normal", t, event, stream)

    def start(self, event: tuple[int, ...] = (), stream: int = 0) -> Tensor:
        """Draw standard normal numbers for the initial states, (n, *event); a step may ask for them again."""
        return self.normal(_START, event, stream)

    def take(self, rows: Tensor) -> Noise:
        """Return the noise of the samples `rows`."""
        return Noise(self.seeds[rows], self.dtype)

    def _draw(self, law: str, t: int, event: tuple[int, ...], stream: int) -> Tensor:
        """Draw a block of steps at once and keep it: for small states the calls cost more than the numbers."""
        if not isinstance(event, tuple) or not all(type(side) is int and side >= 0 for side in event):
            raise ValueError(f"the shape of one sample's draw must be a tuple of whole numbers: got {event!r}")
        size = len(self.seeds) * math.prod(event)
        steps = 1 if t < 0 else max(1, min(_BLOCK_STEPS, _BLOCK_NUMBERS // max(size, 1)))
        first = t - t % steps
        key = law, event, stream
        if key not in self._blocks or self._blocks[key][0] != first:
            block = uniform_numbers(self.seeds, range(first, first + steps), event, stream)
            self._blocks[key] = first, (torch.special.ndtri(block) if law == "normal" else block).to(self.dtype)
        return self._blocks[key][1][t - first].clone()


def uniform_numbers(seeds: Tensor, steps: range, event: tuple[int, ...], stream: int) -> Tensor:
    """Draw uniform numbers in (0, 1) for several steps, (len(steps), n, *event) float64."""
    salts = torch.arange(steps.start, steps.stop, device=seeds.device)[:, None] * _STEP
    key = _mix(_mix(seeds * _GAMMA + salts) + torch.tensor(stream, device=seeds.device) * _STREAM)
    count = torch.arange(1, math.prod(event) + 1, device=seeds.device)
    bits = _mix(key[..., None] + count * _GAMMA)
    # 52 bits, centred in their cells: never 0 or 1, symmetric about a half
    cells = ((bits >> 12) & 0xFFFFFFFFFFFFF).double().add_(0.5).mul_(2.0**-52)
    return cells.reshape(len(steps), len(seeds), *event)


def _mix(z: Tensor) -> Tensor:
    """Apply SplitMix64's finaliser in place, (…) int64; multiplication wraps, shifts are logical."""
    z ^= (z >> 30) & 0x3FFFFFFFF
    z *= _MIX_1
    z ^= (z >> 27) & 0x1FFFFFFFFF
    z *= _MIX_2
    z ^= (z >> 31) & 0x1FFFFFFFF
    return z
