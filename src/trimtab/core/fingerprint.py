"""A short hash of what samplers and constraints are, so that a price is not used on another problem."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["fingerprint"]


def fingerprint(*things: Any) -> str:
    """A short hash of what samplers and constraints are: their types, settings and weights.

    Dataclass fields marked `metadata={"per_sample": True}` are left out, since they change with the seeds and not
    with the problem.
    """
    digest = hashlib.sha256()
    for thing in things:
        _feed(digest, thing, depth=0)
    return digest.hexdigest()[:16]


def _feed(digest: Any, thing: Any, depth: int) -> None:
    digest.update(f"<{type(thing).__module__}.{type(thing).__qualname__}>".encode())
    if isinstance(thing, Tensor):
        digest.update(f"{thing.dtype}{tuple(thing.shape)}".encode())
        digest.update(_bytes(thing))
    elif isinstance(thing, nn.Module):
        for name, value in thing.state_dict().items():
            digest.update(name.encode())
            _feed(digest, value, depth)
    elif is_dataclass(thing) and not isinstance(thing, type):
        for f in fields(thing):
            if not f.metadata.get("per_sample"):
                digest.update(f.name.encode())
                _feed(digest, getattr(thing, f.name), depth + 1)
    elif isinstance(thing, Mapping):
        for key in sorted(thing, key=str):
            digest.update(str(key).encode())
            _feed(digest, thing[key], depth + 1)
    elif isinstance(thing, list | tuple):
        for item in thing:
            _feed(digest, item, depth + 1)
    elif isinstance(thing, str | int | float | bool | None):
        digest.update(repr(thing).encode())
    elif hasattr(thing, "__code__"):
        digest.update(thing.__qualname__.encode() + thing.__code__.co_code)
    elif depth < 4 and hasattr(thing, "__dict__"):
        _feed(digest, vars(thing), depth + 1)


def _bytes(tensor: Tensor) -> bytes:
    """The numbers of a tensor, row by row.

    A tensor with no element or one counts as contiguous whatever its strides say, so `contiguous` would leave strides
    that a view of its bytes is refused for; a clone has strides of its own.
    """
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().clone(memory_format=torch.contiguous_format)
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes()
