"""A score model: the network, what it is shown, and the sampler settings it was made for.

Two kinds share one network family.

*Plain* models (the public PDM checkpoints) hand the state to the network and take its output as the score.

*Conditioned* models (ours) are trained under the conditions they are sampled in: the first and last waypoint are
always clean, so the network knows start and goal, and it is shown how the obstacles stand around each waypoint. One
model therefore serves every map of circles, and a map can be turned or mirrored to make more training data. The
network predicts the part of the trajectory that is left after the straight run from start to goal, scaled to unit
size at every noise level.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .network import Architecture, RefineNet
from .planner import states_from_positions, timing

__all__ = ["CONDITION_CHANNELS", "Model", "Settings", "straight_run"]

CONDITION_CHANNELS = 4 + 2 + 1 + 2 * 6
"""Input channels of a conditioned network: state, straight run, time, obstacles around either."""

_OBSTACLE_SCALES = (0.04, 0.16)


@dataclass(frozen=True)
class Settings:
    """How a model is sampled.

    Attributes:
        levels: Noise levels, K; geometric from `sigma_max` down to `sigma_min`.
        inner_steps: Langevin updates a level, L.
        sigma_max: Largest noise.
        sigma_min: Smallest noise.
        eps: Step size at the smallest noise; at level k it is eps (sigma_k / sigma_min)².
        sigma_data: Spread of the training data about the straight run, for a conditioned model; None for a
            plain one.
    """

    levels: int = 10
    inner_steps: int = 25
    sigma_max: float = 10.0
    sigma_min: float = 0.005
    eps: float = 1.5e-5
    sigma_data: float | None = None

    def __post_init__(self) -> None:
        """Refuse noise that does not fall."""
        if not 0 < self.sigma_min < self.sigma_max:
            raise ValueError(f"noise must fall: got sigma_max {self.sigma_max} and sigma_min {self.sigma_min}")
        if self.levels < 2 or self.inner_steps < 1 or self.eps <= 0:
            raise ValueError(f"need at least 2 levels, 1 inner step and eps above 0, got {self}")

    @property
    def sigmas(self) -> list[float]:
        """Noise by level, largest first."""
        fall = (self.sigma_min / self.sigma_max) ** (1 / (self.levels - 1))
        return [self.sigma_max * fall**k for k in range(self.levels)]


def straight_run(x: Tensor) -> Tensor:
    """The timed straight run between the first and the last waypoint of states: (n, 4, w) to (n, 4, w)."""
    share = timing(x.shape[2]).to(x)
    first, last = x[:, :2, :1], x[:, :2, -1:]
    return states_from_positions((first + share * (last - first)).transpose(1, 2))


def obstacle_field(points: Tensor, circles: Tensor) -> Tensor:
    """How obstacles stand around points: how near, and which way leads out, at a fine and a coarse scale.

    Args:
        points: (n, 2, k).
        circles: (m, 3) or (n, m, 3).

    Returns:
        (n, 6, k).
    """
    circles = circles.to(points).reshape(-1, circles.shape[-2], 3, 1)
    off = points[:, None] - circles[:, :, :2]  # (n, m, 2, k)
    away = off.square().sum(dim=2).add(1e-12).sqrt()
    depth, out = circles[:, :, 2] - away, off / away[:, :, None]
    fields = []
    for scale in _OBSTACLE_SCALES:
        near = torch.sigmoid(depth / scale)
        fields += [near.sum(dim=1, keepdim=True), torch.einsum("nmk,nmdk->ndk", near, out)]
    return torch.cat(fields, dim=1)


@dataclass(frozen=True, eq=False)
class Model:
    """A score model of trajectories.

    Attributes:
        network: The score network.
        settings: Noise levels and sampler defaults.
        about: Where the weights come from: training settings, data, figures. Plain JSON values.
    """

    network: RefineNet
    settings: Settings
    about: dict[str, object]

    def __post_init__(self) -> None:
        """Check that network and settings belong together."""
        shape = self.network.architecture
        inputs = CONDITION_CHANNELS if self.conditioned else 4
        if (shape.levels, shape.inputs, shape.outputs) != (self.settings.levels, inputs, 4):
            raise ValueError(
                f"network and settings do not belong together: {shape} and {self.settings}; this kind of model has "
                f"{self.settings.levels} levels, {inputs} input and 4 output channels"
            )

    @property
    def conditioned(self) -> bool:
        """Whether the network is shown start, goal and obstacles."""
        return self.settings.sigma_data is not None

    def check_circles(self, circles: Tensor | None, n: int) -> None:
        """Refuse a missing map, a map the model would not look at, or one of a wrong shape."""
        if circles is None:
            if self.conditioned:
                raise ValueError("this model looks at the obstacles: give circles, (m, 3) rows (x, y, radius)")
            return
        if not self.conditioned:
            raise ValueError("this model knows one map by heart and looks at no circles: leave them out")
        if circles.ndim not in (2, 3) or circles.shape[-1] != 3 or (circles.ndim == 3 and len(circles) != n):
            raise ValueError(
                f"circles must be rows (x, y, radius), (m, 3) or ({n}, m, 3) here: got {tuple(circles.shape)}"
            )

    def score(self, x: Tensor, level: int, circles: Tensor | None = None) -> Tensor:
        """The score of the noisy states.

        Args:
            x: (n, 4, w).
            level: Noise level, 0 the largest.
            circles: Obstacles, (m, 3) or (n, m, 3); for a conditioned model.

        Returns:
            (n, 4, w) in the dtype of `x`; the network computes in its own.
        """
        states = x.to(next(self.network.parameters()).dtype)
        if self.settings.sigma_data is None:
            plain: Tensor = self.network(states, level)
            return plain.to(x.dtype)
        assert circles is not None
        sigma = torch.tensor(self.settings.sigmas[level], dtype=states.dtype)
        run = straight_run(states)
        left = self.network(condition(states, run, sigma, self.settings.sigma_data, circles), level)
        clean = denoised(left, states - run, sigma, self.settings.sigma_data)
        return ((clean - (states - run)) / sigma**2).to(x.dtype)


def condition(states: Tensor, run: Tensor, sigma: Tensor, sigma_data: float, circles: Tensor) -> Tensor:
    """What a conditioned network is shown.

    Args:
        states: Noisy states with clean ends, (n, 4, w).
        run: Their straight run, (n, 4, w).
        sigma: Noise, () or (n, 1, 1).
        sigma_data: Spread of the data about the straight run.
        circles: (m, 3) or (n, m, 3).

    Returns:
        (n, CONDITION_CHANNELS, w).
    """
    n, _, w = states.shape
    scaled = (states - run) / (sigma**2 + sigma_data**2).sqrt()
    time = torch.linspace(-1, 1, w, dtype=states.dtype).expand(n, 1, w)
    around = obstacle_field(torch.cat([states[:, :2], run[:, :2]], dim=2), circles)
    return torch.cat([scaled, run[:, :2], time, around[..., :w], around[..., w:]], dim=1)


def denoised(left: Tensor, offset: Tensor, sigma: Tensor, sigma_data: float) -> Tensor:
    """The clean offset from the straight run that a network output stands for.

    Noisy input and network output are mixed so that the output has unit size at every noise (Karras et al., 2022).

    Args:
        left: Network output, (n, 4, w).
        offset: Noisy states less their straight run, (n, 4, w).
        sigma: Noise, () or (n, 1, 1).
        sigma_data: Spread of the data about the straight run.

    Returns:
        (n, 4, w).
    """
    total = sigma**2 + sigma_data**2
    return sigma_data**2 / total * offset + sigma * sigma_data / total.sqrt() * left


def conditioned_architecture(features: int, levels: int, waypoints: int) -> Architecture:
    """The network shape of a conditioned model: convolutions along the trajectory."""
    return Architecture(CONDITION_CHANNELS, 4, features, levels, 1, waypoints // 2, 2, "silu")
