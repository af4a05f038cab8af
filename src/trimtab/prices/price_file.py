"""Reading whichever price a file holds."""

from __future__ import annotations

import os

from trimtab.core.files import as_path, kind_of
from trimtab.prices.plan import Plan
from trimtab.prices.raced import Raced
from trimtab.prices.thresholds import Thresholds

__all__ = ["load"]

_ELSEWHERE = {
    "mean prices": "prices of a mean budget; read them with trimtab.prices.MeanPrices.load",
    "seconds": "prices of seconds; read them with trimtab.prices.seconds.TimedPrices.load",
    "stationary price": "a stationary price; read it with trimtab.prices.stationary.StationaryPrice.load",
    "value": "a learned value; read it with trimtab.experimental.value.Value.load",
    "rollout": "the record of a run; read it with trimtab.Rollout.load",
}


def load(path: str | os.PathLike[str]) -> Thresholds | Plan | Raced:
    """Read a price that `calibrate` made and `save` wrote: a table, planned times, or the winners of a race.

    Example:
        >>> import tempfile, torch, trimtab as tt
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     tt.prices.Thresholds(torch.tensor([[torch.inf, 0.5]])).save(f"{folder}/price.safetensors")
        ...     load(f"{folder}/price.safetensors").budget
        1
    """
    kind = kind_of(as_path(path))
    if kind == "plan":
        return Plan.load(path)
    if kind in _ELSEWHERE:
        raise ValueError(f"{path}: holds {_ELSEWHERE[kind]}")
    return Raced.load(path) if kind == "race" else Thresholds.load(path)
