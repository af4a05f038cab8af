"""Samplers whose samples form groups of two or three, in a module that the command line can name."""

from __future__ import annotations

import torch

import trimtab as tt


class Walk:
    """A random walk with a jump at every seventh step."""

    n_steps = 20

    def start(self, noise):
        return torch.zeros_like(noise.start((2,)))

    def step(self, x, t, noise):
        return 0.95 * x + (1.0 if t % 7 == 3 else 0.15) * noise.normal(t, (2,))


class Lead(tt.Constraint):
    """Keeps the rows of each group within 0.5 of their mean; groups are successive rows, and all must be complete."""

    def __init__(self, size=2):
        self.size = size

    def project(self, x):
        middle, way = self._together(x)
        return (middle + way * (0.5 / self._farthest(way).clamp(min=1e-12)).clamp(max=1)).reshape(x.shape)

    def defect(self, x):
        _, way = self._together(x)
        return (self._farthest(way)[:, 0, 0] - 0.5).clamp(min=0).repeat_interleave(self.size)

    def take(self, rows):
        return self

    def _together(self, x):
        assert len(x) % self.size == 0, "half a group"
        groups = x.reshape(-1, self.size, x.shape[1])
        middle = groups.mean(dim=1, keepdim=True)
        return middle, groups - middle

    def _farthest(self, way):
        return way.norm(dim=2, keepdim=True).amax(dim=1, keepdim=True)


class Flock(Walk):
    """A walk that is drawn to the mean position, without signs, of the rows with the same label."""

    def __init__(self, labels):
        self.labels = labels

    def step(self, x, t, noise):
        _, group = torch.unique(self.labels, return_inverse=True)
        where = torch.zeros(int(group.max()) + 1, 2, dtype=x.dtype).index_add(0, group, x.abs())
        return super().step(x + 0.3 * (where / group.bincount()[:, None])[group], t, noise)

    def take(self, rows):
        return Flock(self.labels[rows])


class Alike(tt.Constraint):
    """Moves rows with the same label to the first of them."""

    def __init__(self, labels):
        self.labels = labels

    def project(self, x):
        return x[(self.labels[:, None] == self.labels).int().argmax(dim=1)]

    def defect(self, x):
        return (x - self.project(x)).norm(dim=1)

    def take(self, rows):
        return Alike(self.labels[rows])


def make_flock(seeds):
    """Return pairs that the sampler knows by their seeds."""
    return tt.Problem(Flock(seeds // 2), Lead(), seeds, groups=seeds // 2)


def make_flock_by_rows(seeds):
    """Return pairs that the sampler knows by their places in the batch."""
    return tt.Problem(Flock(torch.arange(len(seeds)) // 2), Lead(), seeds, groups=seeds // 2)


def make_alike(seeds):
    """Return pairs that the constraint knows by their seeds."""
    return tt.Problem(Walk(), Alike(seeds // 2), seeds, groups=seeds // 2)


def make(seeds):
    """Return pairs of walkers on a lead."""
    return tt.Problem(Walk(), Lead(), seeds, groups=seeds // 2)


def make_threes(seeds):
    """Return groups of three, a size that divides neither a million nor 16."""
    return tt.Problem(Walk(), Lead(3), seeds, groups=seeds // 3)


def make_without_seeds():
    """Return pairs for fixed seeds."""
    return tt.Problem(Walk(), Lead(), range(4), groups=[0, 0, 1, 1])
