"""A sampler whose samples belong together in pairs, in a module that the command line can name."""

from __future__ import annotations

import torch

import trimtab as tt


class Walk:
    """Walks with a jump now and then."""

    n_steps = 20

    def start(self, noise):
        return torch.zeros_like(noise.normal(-1, (2,)))

    def step(self, x, t, noise):
        return 0.95 * x + (1.0 if t % 7 == 3 else 0.15) * noise.normal(t, (2,))


class Lead(tt.Constraint):
    """Two rows that follow each other are at most 1 apart; anything but whole pairs is an error."""

    def project(self, x):
        middle, way = self._pairs(x)
        size = way[:, :1].norm(dim=2, keepdim=True).clamp(min=1e-12)
        return (middle + way * (0.5 / size).clamp(max=1)).reshape(x.shape)

    def defect(self, x):
        _, way = self._pairs(x)
        return (way[:, 0].norm(dim=1) - 0.5).clamp(min=0).repeat_interleave(2)

    def take(self, rows):
        return self

    def _pairs(self, x):
        assert len(x) % 2 == 0, "half a pair"
        pairs = x.reshape(-1, 2, x.shape[1])
        middle = pairs.mean(dim=1, keepdim=True)
        return middle, pairs - middle


def make(seeds):
    """Pairs of walkers on a lead."""
    return tt.Problem(Walk(), Lead(), seeds, groups=seeds // 2)


def make_without_seeds():
    """The same, but for no seeds in particular."""
    return tt.Problem(Walk(), Lead(), range(4), groups=[0, 0, 1, 1])
