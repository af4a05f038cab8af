"""A score model: the network, what it is shown, and the sampler settings it was made for.

Two kinds share one network family.

*Plain* models (the public PDM checkpoints) hand the state to the network and take its output as the score.

*Conditioned* models (ours) are trained under the conditions they are sampled in: the first and last waypoint are
always clean, so start and goal are known, and the network is shown how the obstacles stand around the trajectory. One
model therefore serves every map of circles, and a map can be turned or mirrored to make more training data. What any
smooth trajectory has in common is not left to the network: a Gaussian prior, fitted to the data, gives the best
linear guess of the clean trajectory, and the network predicts what that guess misses.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .network import Architecture, RefineNet
from .planner import states_from_positions, timing

__all__ = ["CONDITION_CHANNELS", "Model", "Prior", "Settings", "denoised", "fit_prior", "straight_run"]

CONDITION_CHANNELS = 4 + 2 + 1 + 2 * 6
"""Input channels of a conditioned network: state, linear guess, time, obstacles around two paths."""

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
    """

    levels: int = 10
    inner_steps: int = 25
    sigma_max: float = 10.0
    sigma_min: float = 0.005
    eps: float = 1.5e-5

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
class Prior:
    """A Gaussian prior of how trajectories leave the straight run, the same for both axes.

    Attributes:
        modes: Orthonormal shapes of position and velocity over time, (2w, r).
        variances: Of their amplitudes in the data, (r,).
    """

    modes: Tensor
    variances: Tensor

    def amplitudes(self, offset: Tensor) -> Tensor:
        """Amplitudes of offsets from the straight run: (n, 4, w) to (n, 2, r), an axis a row."""
        n, _, w = offset.shape
        return offset.reshape(n, 2, 2, w).transpose(1, 2).reshape(n, 2, 2 * w) @ self.modes.to(offset)

    def offsets(self, amplitudes: Tensor) -> Tensor:
        """Offsets of amplitudes: (n, 2, r) to (n, 4, w)."""
        n = len(amplitudes)
        shapes = amplitudes @ self.modes.to(amplitudes).T
        return shapes.reshape(n, 2, 2, -1).transpose(1, 2).reshape(n, 4, -1)


def fit_prior(states: Tensor, least: float = 1e-3) -> Prior:
    """The prior of clean states, (n, 4, w); shapes with amplitudes that spread less than `least` are left out."""
    n, _, w = states.shape
    offset = (states - straight_run(states)).double().reshape(n, 2, 2, w)
    backwards = offset.flip(3) * torch.tensor([1.0, -1.0], dtype=torch.float64)[:, None, None]
    rows = torch.cat([offset, backwards]).transpose(1, 2).reshape(-1, 2 * w)
    variances, modes = torch.linalg.eigh(rows.T @ rows / len(rows))
    kept = variances > least**2
    return Prior(modes[:, kept].flip(1).float(), variances[kept].flip(0).float())


@dataclass(frozen=True, eq=False)
class Model:
    """A score model of trajectories.

    Attributes:
        network: The score network.
        settings: Noise levels and sampler defaults.
        about: Where the weights come from: training settings, data, figures. Plain JSON values.
        prior: For a conditioned model; None for a plain one.
    """

    network: RefineNet
    settings: Settings
    about: dict[str, object]
    prior: Prior | None = None

    def __post_init__(self) -> None:
        """Check that network, settings and prior belong together."""
        shape = self.network.architecture
        inputs = CONDITION_CHANNELS if self.conditioned else 4
        if (shape.levels, shape.inputs, shape.outputs) != (self.settings.levels, inputs, 4):
            raise ValueError(
                f"network and settings do not belong together: {shape} and {self.settings}; this kind of model has "
                f"{self.settings.levels} levels, {inputs} input and 4 output channels"
            )
        if self.prior is not None and self.prior.modes.shape != (2 * shape.waypoints, len(self.prior.variances)):
            raise ValueError(
                f"the prior has modes {tuple(self.prior.modes.shape)} and {len(self.prior.variances)} variances, "
                f"expected modes ({2 * shape.waypoints}, {len(self.prior.variances)})"
            )

    @property
    def conditioned(self) -> bool:
        """Whether the network is shown start, goal and obstacles."""
        return self.prior is not None

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
        if self.prior is None:
            plain: Tensor = self.network(states, level)
            return plain.to(x.dtype)
        assert circles is not None
        sigma = self.settings.sigmas[level]
        clean = denoised(self.network, self.prior, states, torch.tensor(level), torch.tensor(sigma), circles)
        return ((clean.to(x.dtype) - x) / sigma**2).to(x.dtype)


def denoised(network: RefineNet, prior: Prior, states: Tensor, level: Tensor, sigma: Tensor, circles: Tensor) -> Tensor:
    """A conditioned model's guess of the clean states.

    In the prior's modes, noisy amplitudes are scaled to unit size for the network, shrunk to the best linear guess,
    and the network's output is scaled to what that guess leaves open: the preconditioning of Karras et al. (2022),
    mode by mode.

    Args:
        network: The network.
        prior: The prior.
        states: Noisy states with clean ends, (n, 4, w).
        level: Noise level, () or (n,).
        sigma: Its noise, () or (n,).
        circles: (m, 3) or (n, m, 3).

    Returns:
        (n, 4, w).
    """
    n, _, w = states.shape
    run = straight_run(states)
    noise, spread = sigma.to(states).reshape(-1, 1, 1) ** 2, prior.variances.to(states)
    amplitudes = prior.amplitudes(states - run)
    scaled = prior.offsets(amplitudes * torch.rsqrt(spread + noise))
    linear = amplitudes * (spread / (spread + noise))
    guess = run + prior.offsets(linear)
    time = torch.linspace(-1, 1, w, dtype=states.dtype).expand(n, 1, w)
    around = obstacle_field(torch.cat([guess[:, :2], run[:, :2]], dim=2), circles)
    shown = torch.cat([scaled, guess[:, :2], time, around[..., :w], around[..., w:]], dim=1)
    missed = prior.amplitudes(network(shown, level)) * open_spread(spread, noise)
    return run + prior.offsets(linear + missed)


def open_spread(variances: Tensor, noise: Tensor) -> Tensor:
    """What a linear guess leaves open of each mode (a standard deviation): (r,) variances, (n, 1, 1) noise variance."""
    return (variances * noise / (variances + noise)).sqrt()


def conditioned_architecture(features: int, levels: int, waypoints: int) -> Architecture:
    """The network shape of a conditioned model: convolutions along the trajectory, two waypoints a pixel."""
    return Architecture(CONDITION_CHANNELS, 4, features, levels, 1, waypoints // 2, 2, "silu")
