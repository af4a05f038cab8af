"""What the synthetic samplers share: the settings of an annealed Langevin chain in ambient space."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch

from trimtab.core.errors import check_integer, check_number
from trimtab.core.exact_math import exp, log

__all__ = ["Chain"]


@dataclass(frozen=True)
class Chain:
    """Step sizes of an ambient Langevin chain; `docs/domains.md` gives the reasons for the defaults.

    Attributes:
        n_steps: T.
        kappa: The share of its distance to the constraint set that a state is pulled back in one step, in [0, 1].
        drift: Length of one step of the drift along the constraint set.
        noise_start: Standard deviation of each coordinate's noise at the first step.
        noise_end: At the last step; in between it falls geometrically.
    """

    n_steps: int = 100
    kappa: float = 0.3
    drift: float = 0.05
    noise_start: float = 0.03
    noise_end: float = 0.01

    def __post_init__(self) -> None:
        """Refuse settings that make no chain."""
        check_integer(self.n_steps, "n_steps")
        for name in ("kappa", "drift", "noise_start", "noise_end"):
            check_number(getattr(self, name), name)
        if not 0 <= self.kappa <= 1:
            raise ValueError(f"kappa is the share of the defect pulled back in a step, in [0, 1]: got {self.kappa!r}")
        if not self.drift >= 0:
            raise ValueError(f"drift is a step length of at least 0: got {self.drift!r}")
        if not 0 < self.noise_end <= self.noise_start:
            raise ValueError(
                "noise falls from noise_start to noise_end, both above 0: got "
                f"noise_start = {self.noise_start!r}, noise_end = {self.noise_end!r}"
            )

    def noise(self, t: int) -> float:
        """The standard deviation of the noise of step t."""
        return self._levels[t]

    @cached_property
    def _levels(self) -> list[float]:
        done = torch.arange(self.n_steps, dtype=torch.float64) / max(1, self.n_steps - 1)
        fall = log(torch.tensor([self.noise_end / self.noise_start], dtype=torch.float64))
        levels: list[float] = (self.noise_start * exp(done * fall)).tolist()
        return levels

    def settings(self) -> dict[str, Any]:
        """The settings by name."""
        return asdict(self)
