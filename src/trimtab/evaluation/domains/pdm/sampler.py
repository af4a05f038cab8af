"""Annealed Langevin sampling of trajectories between a start and a goal."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from trimtab.core.checks import check_positive
from trimtab.core.errors import check_integer
from trimtab.core.noise import Noise

from .model import Model

__all__ = ["AnnealedLangevin"]


@dataclass(frozen=True, eq=False)
class AnnealedLangevin:
    """Langevin steps at falling noise levels, start and goal held fixed.

    A state is (n, 4, w): positions in channels 0 and 1, velocities in 2 and 3, over w waypoints. At level k, with
    noise sigma_k and step size a = eps (sigma_k / sigma_min)², one update is

        x + a/2 · score(x, k) + sqrt(a) · normal

    after which the first and the last waypoint are set to the start and the goal, at rest. There are
    `levels × inner_steps` updates in all. All settings default to the model's own.

    Attributes:
        model: The score, and the settings it was made for.
        starts: (n, 2), one a sample.
        goals: (n, 2), one a sample.
        circles: Obstacles the model is told of, (m, 3) or (n, m, 3); only for a model that looks at them.
        inner_steps: Langevin updates a level, L.
        eps: Step size at the last level.
        eligible_from: First level whose updates are offered for correction. The levels before it run inside
            `start`, with the noise they would have had as steps.

    Example:
        >>> from trimtab.core.noise import as_seeds
        >>> from trimtab.evaluation.domains.pdm import load_model, shipped_map, start_goal_pairs
        >>> starts, goals = start_goal_pairs(range(2), shipped_map())
        >>> sampler = AnnealedLangevin(load_model(), starts, goals, shipped_map(), inner_steps=1)
        >>> noise = Noise(as_seeds(range(2)))
        >>> x = sampler.start(noise)
        >>> for t in range(sampler.n_steps):
        ...     x = sampler.step(x, t, noise)
        >>> x.shape
        torch.Size([2, 4, 64])
    """

    model: Model
    starts: Tensor = field(metadata={"per_sample": True})
    goals: Tensor = field(metadata={"per_sample": True})
    circles: Tensor | None = None
    inner_steps: int | None = None
    eps: float | None = None
    eligible_from: int = 0

    dtype = torch.float32  # of the noise a rollout draws: the weights are float32, and so are the states

    def __post_init__(self) -> None:
        """Check shapes and settings, and fill in the model's defaults."""
        for name, ends in (("starts", self.starts), ("goals", self.goals)):
            if ends.ndim != 2 or ends.shape[1] != 2 or ends.shape != self.starts.shape:
                raise ValueError(
                    f"{name} must hold one point a sample, (n, 2), as many as starts: got {tuple(ends.shape)}"
                )
        defaults = self.model.settings
        if self.inner_steps is None:
            object.__setattr__(self, "inner_steps", defaults.inner_steps)
        if self.eps is None:
            object.__setattr__(self, "eps", defaults.eps)
        check_integer(self.inner_steps, "inner_steps")
        check_positive(self.eps, "eps")
        check_integer(self.eligible_from, "eligible_from, a noise level,", 0, defaults.levels - 1)
        self.model.check_circles(self.circles, len(self.starts))

    @property
    def updates_a_level(self) -> int:
        """L, filled in."""
        assert self.inner_steps is not None
        return self.inner_steps

    @property
    def n_steps(self) -> int:
        """Updates offered for correction: inner steps times eligible levels."""
        return self.updates_a_level * (self.model.settings.levels - self.eligible_from)

    @property
    def skipped(self) -> int:
        """Updates made inside `start`, before the first eligible level."""
        return self.updates_a_level * self.eligible_from

    @torch.no_grad()
    def start(self, noise: Noise) -> Tensor:
        """States before the first eligible update, (n, 4, w): uniform numbers in [0, 1), then the levels skipped."""
        if len(noise.seeds) != len(self.starts):
            raise ValueError(
                f"got noise for {len(noise.seeds)} samples and {len(self.starts)} starts and goals: give one a sample"
            )
        x = self.pin(noise.uniform(-1, self.event))
        for t in range(self.skipped):
            x = self._update(x, t, noise)
        return x

    @torch.no_grad()
    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """The proposal for update location `t`, counted from the first eligible one: (n, 4, w) to (n, 4, w)."""
        if not 0 <= t < self.n_steps:
            raise ValueError(f"the sampler has update locations 0 to {self.n_steps - 1}, got {t}")
        return self._update(x, t + self.skipped, noise)

    @property
    def event(self) -> tuple[int, int]:
        """Shape of one state, (4, w)."""
        return 4, self.model.network.architecture.waypoints

    def level(self, t: int) -> int:
        """Noise level of update location `t`."""
        return self.eligible_from + t // self.updates_a_level

    def pin(self, x: Tensor) -> Tensor:
        """A copy of `x` with the first waypoint at the start and the last at the goal, both at rest."""
        rest = torch.zeros_like(self.starts)
        ends = (torch.cat([p, rest], dim=1).to(x.dtype)[:, :, None] for p in (self.starts, self.goals))
        first, last = ends
        return torch.cat([first, x[:, :, 1:-1], last], dim=2)

    def take(self, rows: Tensor) -> AnnealedLangevin:
        """The sampler of the samples `rows`."""
        own = self.circles is not None and self.circles.ndim == 3
        circles = self.circles[rows] if own and self.circles is not None else self.circles
        return replace(self, starts=self.starts[rows], goals=self.goals[rows], circles=circles)

    def _update(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """One Langevin update; `t` counts from the noisiest level."""
        assert self.inner_steps is not None
        assert self.eps is not None
        level, settings = t // self.inner_steps, self.model.settings
        size = self.eps * (settings.sigmas[level] / settings.sigma_min) ** 2
        drift = self.model.score(x, level, self.circles)
        return self.pin(x + 0.5 * size * drift + size**0.5 * noise.normal(t, self.event))
