"""Draw the control samples: some rows of each batch, at random, from a stream that does not start again.

A batch of n samples owes n / one_in control samples. What it does not pay is carried over to the next, so that
batches of a single sample pay too, and a random start spreads the payments of many workers.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["ControlStream"]


class ControlStream:
    """Says which rows of each batch are control; every draw is a new one, in whatever thread.

    Draws belong to (seed, worker, number of the batch), which are hashed: two workers of one seed draw independently,
    and so do two correctors that take turns with one stream. The global random generator is not used.

    Example:
        >>> stream = ControlStream(seed=0)
        >>> sum(int(stream.draw(4, one_in=8)[0].sum()) for batch in range(120))
        60
    """

    def __init__(self, seed: int, worker: str = "") -> None:
        """Start a stream; workers of one seed need names that differ."""
        self.seed, self.worker = int(seed), str(worker)
        self.batches = 0
        self.owed = (self._hash("start") % 2**20) / 2**20  # control samples, always below 1
        self._turn = threading.Lock()

    def draw(self, n: int, one_in: float) -> tuple[Tensor, torch.Generator]:
        """Return which of n rows are control, (n,) bool, with the generator of this batch for what else is random."""
        if one_in < 1:
            raise ValueError(f"one_in must be at least 1, for a share of 1 / one_in: got {one_in}")
        with self._turn:
            self.owed += n / one_in
            kept = min(int(self.owed), n)
            self.owed -= kept
            self.batches, batch = self.batches + 1, self.batches
        generator = torch.Generator().manual_seed(self._hash(str(batch)))
        control = torch.zeros(n, dtype=torch.bool)
        control[torch.randperm(n, generator=generator)[:kept]] = True
        return control, generator

    def state(self) -> list[Any]:
        """Return where the stream is, as JSON values."""
        return [self.seed, self.worker, self.batches, self.owed]

    @classmethod
    def from_state(cls, state: Sequence[Any]) -> ControlStream:
        """Return the stream that goes on from a `state`."""
        seed, worker, batches, owed = state
        stream = cls(seed, worker)
        stream.batches, stream.owed = int(batches), float(owed)
        if stream.batches < 0 or not 0 <= stream.owed <= 1:
            raise ValueError(f"not the state of a stream of control samples: {list(state)}")
        return stream

    def __getstate__(self) -> list[Any]:
        """Return the state, for copies and pickles, which cannot hold a lock."""
        return self.state()

    def __setstate__(self, state: list[Any]) -> None:
        """Go on from a state."""
        self.__dict__.update(self.from_state(state).__dict__)

    def _hash(self, what: str) -> int:
        """Return 63 bits that belong to the seed, the worker and `what`."""
        words = f"{self.seed}\n{len(self.worker)}\n{self.worker}\n{what}".encode()
        return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "big") >> 1
