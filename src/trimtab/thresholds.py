"""The price of a correction: a table lambda[t, b], what it was made from, and its file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trimtab._version import __version__
from trimtab.files import load_tensors, save_tensors
from trimtab.scale import OwnScale

if TYPE_CHECKING:
    from trimtab.schedule import Adaptive, Budget, Moment

__all__ = ["Thresholds", "fingerprint"]


@dataclass(frozen=True, eq=False)
class Thresholds:
    """Prices lambda[t, b]: at step t with b corrections left, project where the defect is at least this.

    Attributes:
        table: (T, B + 1); +inf in column 0, no NaN.
        method: How it was estimated.
        seeds: The calibration seeds; evaluation on any of them is refused.
        objective: What the price is meant to lower.
        fingerprint: Of the sampler and the constraint it was calibrated on; "" if unknown.
        version: Of the library that made it.
        notes: Anything else worth keeping, JSON only.
        own_scale: Where samples differ in scale, how to tell; prices are multiplied by it.

    Example:
        >>> import torch
        >>> prices = Thresholds(torch.tensor([[torch.inf, 0.5], [torch.inf, -torch.inf]]))
        >>> prices.n_steps, prices.budget
        (2, 1)
    """

    table: Tensor
    method: str = "by hand"
    seeds: tuple[int, ...] = ()
    objective: str = "path"
    fingerprint: str = ""
    version: str = __version__
    notes: Mapping[str, Any] = field(default_factory=dict)
    own_scale: OwnScale | None = None

    def __post_init__(self) -> None:
        """Refuse a table no schedule could use."""
        table = self.table
        if not isinstance(table, Tensor):
            raise ValueError(f"a threshold table is a (T, B + 1) tensor of floats: got {type(table).__name__}")
        if table.ndim != 2 or len(table) == 0 or table.shape[1] == 0 or not table.is_floating_point():
            raise ValueError(
                f"a threshold table is (T, B + 1) floats with T >= 1: got {tuple(table.shape)} of {table.dtype}"
            )
        if table.shape[1] - 1 > len(table):
            raise ValueError(f"a table for B = {table.shape[1] - 1} corrections does not fit T = {len(table)} steps")
        if bool(table.isnan().any()):
            t, b = table.isnan().nonzero()[0].tolist()
            raise ValueError(f"the threshold table has NaN, first at t = {t}, b = {b}; use inf for 'never'")
        if bool((table[:, 0] != torch.inf).any()):
            raise ValueError("column 0 of a threshold table must be +inf: with no budget left nothing can be spent")
        if self.own_scale is not None:
            self.own_scale.check_steps(len(table))

    @property
    def n_steps(self) -> int:
        """T."""
        return self.table.shape[0]

    @property
    def budget(self) -> int:
        """The largest budget the table serves."""
        return self.table.shape[1] - 1

    def at(self, budget: Budget) -> Adaptive:
        """The schedule for a budget, at most the table's own."""
        from trimtab.schedule import Adaptive

        return Adaptive(self, budget)

    def price(self, now: Moment) -> Tensor:
        """What a correction costs each sample now, (n,)."""
        price = self.table[now.t].take(now.budget_left)
        return price if self.own_scale is None else price * self.own_scale.now(now)

    def to(self, device: torch.device) -> Thresholds:
        """The same prices on `device`."""
        if self.table.device == device:
            return self
        return replace(self, table=self.table.to(device), own_scale=self.own_scale and self.own_scale.to(device))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file."""
        tensors = {"table": self.table}
        facts = {name: getattr(self, name) for name in ("method", "seeds", "objective", "fingerprint")}
        if self.own_scale is not None:
            tensors["typical"], facts["prior"] = self.own_scale.typical, self.own_scale.prior
        save_tensors(path, "thresholds", tensors, facts | {"notes": dict(self.notes)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Thresholds:
        """Read what `save` wrote; a truncated, foreign or inconsistent file is refused."""
        tensors, facts = load_tensors(path, "thresholds")
        try:
            prior = facts.pop("prior", None)
            own_scale = None if prior is None else OwnScale(tensors["typical"], prior)
            return cls(tensors["table"], **facts | {"seeds": tuple(map(int, facts["seeds"])), "own_scale": own_scale})
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: not a usable threshold table: {error}") from error


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
        digest.update(thing.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
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
