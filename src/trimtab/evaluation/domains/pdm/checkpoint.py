"""Reading and writing models: the public PDM checkpoints (read only) and our own safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from importlib.resources import as_file, files
from pathlib import Path

import torch
from torch import Tensor

from trimtab.core.files import UNUSABLE, load_tensors, save_tensors

from .model import Model, Prior, Settings
from .network import PDM_ARCHITECTURE, Architecture, RefineNet

__all__ = ["load_model", "save_model"]

_KIND = "trajectory model"
_PREFIX = "conv_layer."
_SHIPPED = "trajectories.safetensors"


def load_model(path: Path | str | None = None) -> Model:
    """Load a score model.

    Args:
        path: A model written by `save_model` (.safetensors) or a public PDM trajectory checkpoint (.pt); None for
            the model shipped with the package.

    Returns:
        The model, in evaluation mode, gradients off.

    Raises:
        ValueError: If the file is neither, or does not fit the network key by key.
        FileNotFoundError: If there is no such file.

    Example:
        >>> load_model().settings.levels
        10
    """
    if path is None:
        with as_file(files(__package__) / "weights" / _SHIPPED) as shipped:
            return _load_own(shipped)
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no model file at {path}")
    return _load_own(path) if path.suffix == ".safetensors" else _load_pdm(path)


def save_model(path: Path, model: Model) -> None:
    """Write a model as safetensors with its shape, settings and history as JSON metadata; atomic."""
    facts = {
        "architecture": asdict(model.network.architecture),
        "settings": asdict(model.settings),
        "about": model.about,
    }
    tensors = {f"network.{k}": v for k, v in model.network.state_dict().items()}
    if model.prior is not None:
        tensors |= {"prior.modes": model.prior.modes, "prior.variances": model.prior.variances}
    save_tensors(path, _KIND, tensors, facts)


def _load_own(path: Path) -> Model:
    tensors, facts = load_tensors(path, _KIND)
    weights = {k.removeprefix("network."): v for k, v in tensors.items() if not k.startswith("prior.")}
    try:
        architecture = Architecture(**facts["architecture"])
        settings = Settings(**facts["settings"])
        about = dict(facts["about"])
        prior = Prior(tensors["prior.modes"], tensors["prior.variances"]) if "prior.modes" in tensors else None
    except UNUSABLE as error:
        raise ValueError(f"{path}: the model's metadata is damaged ({error!r}); save it again") from error
    return Model(_filled(architecture, weights, path), settings, about, prior)


def _load_pdm(path: Path) -> Model:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the reader raises what it likes for damaged files
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise ValueError(
            f"{path} is not a PyTorch checkpoint of plain tensors ({reason}): it may be cut short, of another "
            "format, or hold objects that are never unpickled here"
        ) from error
    if not isinstance(content, Mapping) or not all(isinstance(v, Tensor) for v in content.values()):
        raise ValueError(
            f"{path} holds a {type(content).__name__}, expected a PDM state dict: names to tensors, nothing else"
        )
    weights = {str(k).removeprefix(_PREFIX): v for k, v in content.items()}
    return Model(_filled(PDM_ARCHITECTURE, weights, path), Settings(), {"source": "public PDM checkpoint"})


def _filled(architecture: Architecture, weights: Mapping[str, Tensor], path: Path) -> RefineNet:
    """A network with these weights, which must fit key by key and shape by shape."""
    network = RefineNet(architecture)
    own = network.state_dict()
    faults = {
        "missing": [k for k in own if k not in weights],
        "unexpected": [k for k in weights if k not in own],
        "of another shape": [
            f"{k} {tuple(weights[k].shape)} instead of {tuple(v.shape)}"
            for k, v in own.items()
            if k in weights and weights[k].shape != v.shape
        ],
        "not of floating point": [k for k, v in weights.items() if k in own and not v.is_floating_point()],
    }
    told = [
        f"{len(names)} {kind}: {', '.join(names[:5])}{' …' if len(names) > 5 else ''}"
        for kind, names in faults.items()
        if names
    ]
    if told:
        raise ValueError(f"{path} does not fit the network {architecture}; tensors {'; '.join(told)}")
    network.load_state_dict(dict(weights))
    return network.eval().requires_grad_(False)
