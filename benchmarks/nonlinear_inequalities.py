"""Projecting onto nonlinear inequalities and equations: the batched method in torch against IPOPT, sample by sample.

Points in three dimensions outside a disc of their own and on a parabola. IPOPT is built once and runs in one process;
it needs fewer iterations, but its cost is in proportion to the samples, where that of the batched method hardly is.
Times are processor times of one thread.
"""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from _compare import compare, skipped
from trimtab.constraints import NonlinearInequality, NonlinearProgram

CLAIM = "projecting onto nonlinear inequalities"
PEER = "IPOPT built once, one process"


def beyond_disc(y: Tensor, p: Tensor) -> Tensor:
    return (1 - (y[0] - p[0]) ** 2 - (y[1] - p[1]) ** 2)[None]


def on_parabola(y: Tensor, p: Tensor) -> Tensor:
    return (y[2] - y[1] ** 2)[None]


def conditions(y: Any, p: Any) -> tuple[list[Any], list[Any]]:
    """The same for CasADi."""
    return [1 - (y[0] - p[0]) ** 2 - (y[1] - p[1]) ** 2], [y[2] - y[1] ** 2]


def run(quick: bool) -> list[dict[str, Any]]:
    if find_spec("casadi") is None:
        return [skipped(CLAIM, PEER, "pip install 'trimtab[ipopt]'")]
    rows = []
    for n in (16,) if quick else (16, 256, 4096):
        generator = torch.Generator().manual_seed(0)
        p = torch.randn(n, 2, generator=generator, dtype=torch.float64)
        x = 1.5 * torch.randn(n, 3, generator=generator, dtype=torch.float64)
        ours, peer = NonlinearInequality(beyond_disc, on_parabola, (p,)), NonlinearProgram(conditions, p)
        mine, theirs = ours.project(x), peer.project(x)
        ratio = ((mine.x - x).norm(dim=1) / (theirs.x - x).norm(dim=1).clamp(min=1e-9)).median()
        ways = {"ours": partial(ours.project, x), PEER: partial(peer.project, x)}
        timing = compare(ways, 3 if quick or n > 1000 else 7, one_thread=True)
        found = f"solved {int(mine.converged.sum())} and {int(theirs.converged.sum())} of {n}"
        inputs = f"{n} samples, 3 unknowns; {found}, median distance {ratio:.4f} of IPOPT's"
        rows.append(timing.row(CLAIM, of=PEER, over="ours", inputs=inputs))
    return rows
