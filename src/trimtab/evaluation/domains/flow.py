"""The second kind of dynamics of the synthetic domains: a flow along the set that does not contract."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from trimtab.core.errors import check_integer
from trimtab.core.exact_math import Array, batch_first, exp, log, product, sin_cos, sqrt

__all__ = ["Flow", "hat", "rotation_of"]


@dataclass(frozen=True)
class Flow:
    """Explicit Euler steps of a flow along the set: `docs/domains.md` gives the reasons for the defaults.

        next = x + speed(t) F(x) + kappa (way back to the set) + noise

    F is taken at the state as it is, on the set or off it. Unlike the drift of a Langevin chain it has no attracting
    modes, so that nothing that happened on the way is forgotten.

    Attributes:
        n_steps: T.
        kappa: The share of its distance to the constraint set that a state is pulled back in one step, in [0, 1].
        arc: The sum of all speeds, the length of the way for a field of length 1.
        ramp: p of the speed profile arc / T (1 + p) u^p with u = (t + 1/2) / T: 0 is a constant speed.
        noise: Standard deviation of each coordinate's noise.
    """

    n_steps: int = 100
    kappa: float = 0.3
    arc: float = 6.283185307179586
    ramp: float = 0.0
    noise: float = 0.003

    def __post_init__(self) -> None:
        """Refuse settings that make no flow."""
        check_integer(self.n_steps, "n_steps")
        if not 0 <= self.kappa <= 1:
            raise ValueError(f"kappa is the share of the defect pulled back in a step, in [0, 1]: got {self.kappa!r}")
        for name in ("arc", "ramp", "noise"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be at least 0: got {getattr(self, name)!r}")

    def speed(self, t: int) -> float:
        """The length of step t."""
        return self._speeds[t]

    @cached_property
    def _speeds(self) -> list[float]:
        u = (torch.arange(self.n_steps, dtype=torch.float64) + 0.5) / self.n_steps
        speeds: list[float] = (self.arc / self.n_steps * (1 + self.ramp) * exp(self.ramp * log(u))).tolist()
        return speeds

    def settings(self) -> dict[str, Any]:
        """The settings by name."""
        return asdict(self) | {"dynamics": "flow"}


def hat(w: Array, like: Array) -> Array:
    """The skew matrix of the cross product with w, (3, n) to (3, 3, n), in the kind of array `like` is."""
    matrix = 0 * like[:, :3]
    matrix[0, 1], matrix[0, 2], matrix[1, 2] = -w[2], w[1], -w[0]
    matrix[1, 0], matrix[2, 0], matrix[2, 1] = w[2], -w[1], w[0]
    return matrix


def rotation_of(w: Array) -> Tensor:
    """The rotation by the angle norm(w) about w, (3, n) to (n, 3, 3)."""
    angle = sqrt(w[0] * w[0] + w[1] * w[1] + w[2] * w[2]) + 1e-30  # no 0 / 0 for no turn
    axis = w / angle
    sine, _ = sin_cos(angle)
    half, _ = sin_cos(angle / 2)
    K = hat(axis, axis[:, None] * axis)
    rotation = sine * K + 2 * half * half * product(K, K)
    for i in range(3):
        rotation[i, i] += 1
    return batch_first(rotation)
