"""The local search of `batched`, compiled with the package where there was a C compiler to build it.

It is more than ten times as fast, and its cost is in proportion to the samples, where torch pays for every call. Where
it is not there, torch takes the same steps, with other rounding. What it is given is checked in `module.c`, the only
way to it.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from trimtab.constraints.obstacles.effort import Effort
from trimtab.constraints.obstacles.geometry import Obstacles
from trimtab.constraints.states import host_array

__all__ = ["compiled_search", "search_paths"]


def _built() -> ModuleType | None:
    try:
        return import_module("trimtab.constraints.obstacles._search")
    except ImportError:  # installed without a C compiler
        return None


_MODULE = _built()


def compiled_search() -> ModuleType | None:
    """The compiled module, or None where the package was built without it."""
    return _MODULE


def search_paths(
    obstacles: Obstacles, proposal: Tensor, start: Tensor, aim: float, damping: float, effort: Effort
) -> tuple[Tensor, Tensor, Tensor]:
    """`batched.nearest_paths` by the compiled function: paths, (2, n, W), violations and rounds, (n,)."""
    module = compiled_search()
    assert module is not None, "ask compiled_search() first"
    n = proposal.shape[1]
    path, violation, rounds = host_array(start).copy(), np.empty(n), np.empty(n, dtype=np.int64)
    e = effort
    module.nearest_paths(
        host_array(obstacles.circles),
        host_array(obstacles.boxes),
        host_array(proposal),
        path,
        violation,
        rounds,
        (e.rounds, e.sweeps, e.stale, e.patience),
        (aim, damping, e.step, e.reach, e.damping, e.stiffening, e.settled, e.hopeless, e.leap),
    )
    return torch.from_numpy(path).to(start), torch.from_numpy(violation).to(start), torch.from_numpy(rounds)
