"""A score model: the network, its inputs, the sampler settings it was made for, and its files.

*Plain* models (the public PDM checkpoints) pass the state to the network and take its output as the score.

*Conditioned* models (ours) are trained as they are sampled: the first and last waypoint are always clean, so start and
goal are known, and the network sees the obstacles around the trajectory. One model therefore serves every map of
circles. A Gaussian prior, fitted to the data, gives the best linear guess of the clean trajectory, and the network
predicts what that guess misses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.resources import as_file, files
from pathlib import Path

import torch
from torch import Tensor

from trimtab.core.files import UNUSABLE, load_tensors, save_tensors

from .network import PDM_ARCHITECTURE, Architecture, RefineNet
from .planner import states_from_positions, timing

__all__ = ["Model", "Prior", "Settings", "denoised", "fit_prior", "load_model", "save_model", "straight_run"]

CONDITION_CHANNELS = 4 + 2 + 1 + 2 * 6
"""Input channels of a conditioned network: state, linear guess, time, obstacles around two paths."""

_OBSTACLE_SCALES = (0.04, 0.16)
_KIND = "trajectory model"


@dataclass(frozen=True)
class Settings:
    """How a model is sampled."""

    levels: int = 10  # number of noise levels, K; geometric from `sigma_max` down to `sigma_min`
    inner_steps: int = 25  # number of Langevin updates at each level, L
    sigma_max: float = 10.0  # largest noise
    sigma_min: float = 0.005  # smallest noise
    eps: float = 1.5e-5  # step size at the smallest noise; at level k it is eps (sigma_k / sigma_min)²

    def __post_init__(self) -> None:
        """Check the settings, which may come from a file."""
        if not 0 < self.sigma_min < self.sigma_max:
            raise ValueError(f"noise must fall: got sigma_max {self.sigma_max} and sigma_min {self.sigma_min}")
        if self.levels < 2 or self.inner_steps < 1 or self.eps <= 0:
            raise ValueError(f"need at least 2 levels, 1 inner step and eps above 0: got {self}")

    @property
    def sigmas(self) -> list[float]:
        """The noise by level, largest first."""
        fall = (self.sigma_min / self.sigma_max) ** (1 / (self.levels - 1))
        return [self.sigma_max * fall**k for k in range(self.levels)]


def straight_run(x: Tensor) -> Tensor:
    """Return the timed straight run between the first and the last waypoint of states, (n, 4, w)."""
    share = timing(x.shape[2]).to(x)
    first, last = x[:, :2, :1], x[:, :2, -1:]
    return states_from_positions((first + share * (last - first)).transpose(1, 2))


def obstacle_field(points: Tensor, circles: Tensor) -> Tensor:
    """Return how near obstacles are to points (n, 2, k), and which way leads out, at two scales, (n, 6, k).

    Circles are (m, 3) or (n, m, 3).
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
    """A Gaussian prior of the offsets of trajectories from the straight run, the same for both axes."""

    modes: Tensor  # orthonormal shapes of position and velocity over time, (2w, r)
    variances: Tensor  # variances of their amplitudes in the data, (r,)

    def amplitudes(self, offset: Tensor) -> Tensor:
        """Return the amplitudes of offsets from the straight run, (n, 4, w) to (n, 2, r), one row for each axis."""
        n, _, w = offset.shape
        return offset.reshape(n, 2, 2, w).transpose(1, 2).reshape(n, 2, 2 * w) @ self.modes.to(offset)

    def offsets(self, amplitudes: Tensor) -> Tensor:
        """Return the offsets of amplitudes, (n, 2, r) to (n, 4, w)."""
        n = len(amplitudes)
        shapes = amplitudes @ self.modes.to(amplitudes).T
        return shapes.reshape(n, 2, 2, -1).transpose(1, 2).reshape(n, 4, -1)


def fit_prior(states: Tensor, least: float = 1e-3) -> Prior:
    """Return the prior of clean states (n, 4, w), without shapes whose amplitudes spread less than `least`."""
    n, _, w = states.shape
    offset = (states - straight_run(states)).double().reshape(n, 2, 2, w)
    backwards = offset.flip(3) * torch.tensor([1.0, -1.0], dtype=torch.float64)[:, None, None]
    rows = torch.cat([offset, backwards]).transpose(1, 2).reshape(-1, 2 * w)
    variances, modes = torch.linalg.eigh(rows.T @ rows / len(rows))
    kept = variances > least**2
    return Prior(modes[:, kept].flip(1).float(), variances[kept].flip(0).float())


@dataclass(frozen=True, eq=False)
class Model:
    """A score model of trajectories."""

    network: RefineNet
    settings: Settings  # noise levels and sampler defaults
    about: dict[str, object]  # where the weights come from, as JSON values
    prior: Prior | None = None  # prior of a conditioned model; None for a plain one

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
        """True if the network sees start, goal and obstacles."""
        return self.prior is not None

    def check_circles(self, circles: Tensor | None, n: int) -> None:
        """Check that a conditioned model has circles (m, 3) or (n, m, 3), and that a plain one has none."""
        if circles is None:
            if self.conditioned:
                raise ValueError("this model sees the obstacles: give circles, (m, 3) rows (x, y, radius)")
            return
        if not self.conditioned:
            raise ValueError("this model knows one map and sees no circles: leave them out")
        if circles.ndim not in (2, 3) or circles.shape[-1] != 3 or (circles.ndim == 3 and len(circles) != n):
            raise ValueError(
                f"circles must be rows (x, y, radius), (m, 3) or ({n}, m, 3) here: got {tuple(circles.shape)}"
            )

    def score(self, x: Tensor, level: int, circles: Tensor | None = None) -> Tensor:
        """Return the score of noisy states (n, 4, w) at a noise level, in their dtype; 0 is the noisiest level."""
        states = x.to(next(self.network.parameters()).dtype)
        if self.prior is None:
            plain: Tensor = self.network(states, level)
            return plain.to(x.dtype)
        assert circles is not None
        sigma = self.settings.sigmas[level]
        clean = denoised(self.network, self.prior, states, torch.tensor(level), torch.tensor(sigma), circles)
        return ((clean.to(x.dtype) - x) / sigma**2).to(x.dtype)


def denoised(network: RefineNet, prior: Prior, states: Tensor, level: Tensor, sigma: Tensor, circles: Tensor) -> Tensor:
    """Return the guess of a conditioned model of the clean states, (n, 4, w).

    In the modes of the prior, noisy amplitudes are scaled to unit size for the network and shrunk to the best linear
    guess. The output of the network is scaled to what that guess leaves open: the preconditioning of Karras et al.
    (2022), mode by mode.

    Args:
        network: The network.
        prior: The prior.
        states: Noisy states with clean ends, (n, 4, w).
        level: The noise level, () or (n,).
        sigma: Its noise, () or (n,).
        circles: The obstacles, (m, 3) or (n, m, 3).
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
    seen = torch.cat([scaled, guess[:, :2], time, around[..., :w], around[..., w:]], dim=1)
    missed = prior.amplitudes(network(seen, level)) * open_spread(spread, noise)
    return run + prior.offsets(linear + missed)


def open_spread(variances: Tensor, noise: Tensor) -> Tensor:
    """Return the standard deviation that a linear guess leaves of each mode, from variances (r,) and (n, 1, 1)."""
    return (variances * noise / (variances + noise)).sqrt()


def conditioned_architecture(features: int, levels: int, waypoints: int) -> Architecture:
    """Return the network shape of a conditioned model: convolutions along the path, two waypoints in a pixel."""
    return Architecture(CONDITION_CHANNELS, 4, features, levels, 1, waypoints // 2, 2, "silu")


# ------------------------------------------------------------------ files


def save_model(path: Path, model: Model) -> None:
    """Write a model as safetensors, with its shape, settings and history as JSON metadata."""
    facts = {
        "architecture": asdict(model.network.architecture),
        "settings": asdict(model.settings),
        "about": model.about,
    }
    tensors = {f"network.{k}": v for k, v in model.network.state_dict().items()}
    if model.prior is not None:
        tensors |= {"prior.modes": model.prior.modes, "prior.variances": model.prior.variances}
    save_tensors(path, _KIND, tensors, facts)


def load_model(path: Path | str | None = None) -> Model:
    """Load a score model, in evaluation mode and without gradients.

    Args:
        path: A model that `save_model` wrote (.safetensors) or a public PDM trajectory checkpoint (.pt); None for
            the model that comes with the package.

    Example:
        >>> load_model().settings.levels
        10
    """
    if path is None:
        with as_file(files(__package__) / "weights" / "trajectories.safetensors") as shipped:
            return _load_own(shipped)
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no model file at {path}")
    return _load_own(path) if path.suffix == ".safetensors" else _load_pdm(path)


def _load_own(path: Path) -> Model:
    tensors, facts = load_tensors(path, _KIND)
    weights = {k.removeprefix("network."): v for k, v in tensors.items() if not k.startswith("prior.")}
    try:
        architecture, settings = Architecture(**facts["architecture"]), Settings(**facts["settings"])
        about = dict(facts["about"])
        prior = Prior(tensors["prior.modes"], tensors["prior.variances"]) if "prior.modes" in tensors else None
    except UNUSABLE as error:
        raise ValueError(f"{path}: the model's metadata is damaged ({error!r}); save it again") from error
    return Model(_filled(architecture, weights, path), settings, about, prior)


def _load_pdm(path: Path) -> Model:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files raise errors of many kinds
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise ValueError(
            f"{path} is not a PyTorch checkpoint of plain tensors ({reason}): it may be truncated, of another format, "
            "or contain objects, which are never unpickled here"
        ) from error
    if not isinstance(content, Mapping) or not all(isinstance(v, Tensor) for v in content.values()):
        raise ValueError(f"{path} contains a {type(content).__name__}, expected a PDM state dict of tensors only")
    weights = {str(k).removeprefix("conv_layer."): v for k, v in content.items()}
    return Model(_filled(PDM_ARCHITECTURE, weights, path), Settings(), {"source": "public PDM checkpoint"})


def _filled(architecture: Architecture, weights: Mapping[str, Tensor], path: Path) -> RefineNet:
    """Return a network with these weights."""
    network = RefineNet(architecture)
    try:
        network.load_state_dict(dict(weights))
    except RuntimeError as error:
        raise ValueError(f"{path} does not fit the network {architecture}: {error}") from error
    return network.eval().requires_grad_(False)
