"""The dynamics that the synthetic domains share: Langevin chains, flows along the set, and bursts of noise.

A synthetic sampler is a frozen dataclass. Its fields are its settings, all of them numbers, so that the settings of a
domain are the fields of its sampler. `docs/reproduce.md` describes the samplers.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from trimtab.core.checks import check_integer, check_number
from trimtab.core.noise import Noise

__all__ = ["Bursts", "Chain", "Dynamics", "Flow"]

_LEAST = {"n_steps": 1, "width": 1} | dict.fromkeys(
    ("kappa", "drift", "arc", "ramp", "noise", "bursts", "strength", "lever", "radius", "crests"), 0
)
_MOST = {"kappa": 1.0}
_ABOVE_ZERO = ("noise_start", "noise_end", "ridge_width", "frame", "tolerance")


@dataclass(frozen=True)
class Dynamics:
    """The settings of every synthetic sampler."""

    summary: ClassVar[str]

    n_steps: int = 100  # number of steps, T
    kappa: float = 0.3  # share of its distance to the set that a step pulls the state back, in [0, 1]

    def __post_init__(self) -> None:
        """Check the type and the range of every setting."""
        for setting in fields(self):
            name, value = setting.name, getattr(self, setting.name)
            if isinstance(setting.default, int):
                check_integer(value, name, int(_LEAST.get(name, -(2**31))))
                continue
            check_number(value, name, _LEAST.get(name, -math.inf), _MOST.get(name, math.inf))
            if not math.isfinite(value) or (name in _ABOVE_ZERO and value <= 0):
                wanted = "a finite number above 0" if name in _ABOVE_ZERO else "a finite number"
                raise ValueError(f"{name} must be {wanted}: got {value!r}")

    def settings(self) -> dict[str, Any]:
        """Return the settings by name, as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Chain(Dynamics):
    """An annealed Langevin chain in ambient space: drift along the set, pull towards it, noise."""

    drift: float = 0.05  # length of one step of the drift along the set
    noise_start: float = 0.03  # standard deviation of the noise of each coordinate at the first step
    noise_end: float = 0.01  # the same at the last step; in between it falls geometrically

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        if self.noise_end > self.noise_start:
            raise ValueError(
                "noise_end must not be above noise_start: got "
                f"noise_start={self.noise_start!r}, noise_end={self.noise_end!r}"
            )

    def noise(self, t: int) -> float:
        """Return the standard deviation of the noise of step t."""
        done = t / max(1, self.n_steps - 1)
        return self.noise_start * math.exp(done * math.log(self.noise_end / self.noise_start))


@dataclass(frozen=True)
class Flow(Dynamics):
    """Explicit Euler steps of a flow along the set.

        next = x + speed(t) F(x) + kappa (way back to the set) + noise

    F is evaluated at the state as it is, on the set or off it. Unlike the drift of a Langevin chain it has no
    attracting modes, so the rollout forgets nothing that happened on the way.
    """

    arc: float = 2 * math.pi  # sum of all speeds: the length of the path for a field of length 1
    ramp: float = 0.0  # p of the speed profile arc / T (1 + p) u^p with u = (t + 1/2) / T; 0 is a constant speed
    noise: float = 0.003  # standard deviation of the noise of each coordinate

    def speed(self, t: int) -> float:
        """Return the length of step t."""
        return float(self.arc / self.n_steps * (1 + self.ramp) * ((t + 0.5) / self.n_steps) ** self.ramp)

    def settings(self) -> dict[str, Any]:
        """Return the settings by name, with the kind of dynamics."""
        return super().settings() | {"dynamics": "flow"}


@dataclass(frozen=True)
class Bursts(Dynamics):
    """Short bursts of extra noise, at random times that differ from sample to sample."""

    bursts: int = 4  # number of bursts in a rollout
    width: int = 2  # number of steps that a burst lasts
    strength: float = 0.15  # standard deviation of the extra noise of each coordinate

    def burst(self, t: int, noise: Noise, event: tuple[int, ...]) -> Tensor:
        r"""Return the extra noise of step t, (n, \*event); it is 0 outside the bursts of a sample."""
        first = (noise.uniform(-1, (self.bursts,), stream=2) * max(1, self.n_steps - self.width + 1)).floor()
        inside = ((first <= t) & (t < first + self.width)).any(dim=1)
        extra = noise.normal(t, event, stream=2)
        return torch.einsum("n,n...->n...", self.strength * inside.to(extra), extra)
