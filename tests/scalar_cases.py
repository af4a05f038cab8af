"""Samplers of one number per sample, feasible at 0, of which it is known what a correction is worth."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import trimtab as tt

LINE = tt.as_constraint(lambda x: torch.zeros_like(x), lambda x: x[:, 0].abs())  # the feasible set is the point 0


@dataclass(frozen=True)
class Scalar:
    """x' = keep[t] * x + push(t, noise): one number a sample, feasible at 0."""

    keep: tuple[float, ...]
    push: object

    @property
    def n_steps(self):
        return len(self.keep)

    def start(self, noise):
        return torch.zeros(len(noise.seeds), 1, dtype=torch.float64)

    def step(self, x, t, noise):
        return self.keep[t] * x + self.push(t, noise)


def one(t, noise):
    return torch.ones_like(noise.uniform(t, (1,)))
