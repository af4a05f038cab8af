"""Projecting onto linear inequalities: ours against solvers that take one sample a call.

The peers are DAQP (a dual active-set method in C, which ours calls too), from the qp extra, and quadprog (Goldfarb and
Idnani's dual method in C) where it is installed: its licence keeps it out of the extra. Times are processor times.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from _compare import compare, skipped
from trimtab.constraints import HalfSpaces
from trimtab.constraints.daqp import daqp_is_there

CLAIM = "projecting onto half-spaces"
SIZES = (
    (1, 20, 10),
    (16, 20, 10),
    (64, 4, 3),
    (64, 20, 10),
    (64, 200, 50),
    (1024, 20, 10),
)  # samples, planes, dimension

Solve = Callable[[NDArray[Any]], NDArray[Any]]


def with_quadprog(A: NDArray[Any], b: NDArray[Any]) -> Solve:
    import quadprog

    identity, columns = np.eye(A.shape[1]), np.ascontiguousarray(-A.T)
    return lambda x: np.stack([quadprog.solve_qp(identity, point, columns, -b)[0] for point in x])


def with_daqp(A: NDArray[Any], b: NDArray[Any]) -> Solve:
    import daqp

    identity, none = np.eye(A.shape[1]), np.full_like(b, -1e30)
    kinds = np.zeros(len(b), dtype=np.intc)
    return lambda x: np.stack([daqp.solve(identity, -point, A, b, none, kinds)[0] for point in x])


PEERS = {"quadprog": with_quadprog, "DAQP": with_daqp}


def run(quick: bool) -> list[dict[str, Any]]:
    rows = []
    how = "by DAQP" if daqp_is_there() else "in torch"
    missing = {peer for peer in PEERS if find_spec(peer.lower()) is None}
    for n, m, d in SIZES[: 2 if quick else None]:
        generator = torch.Generator().manual_seed(0)
        A = torch.randn(m, d, generator=generator, dtype=torch.float64)
        b = 0.1 + torch.rand(m, generator=generator, dtype=torch.float64)
        x = 2 * torch.randn(n, d, generator=generator, dtype=torch.float64)
        ours = HalfSpaces(A, b)
        for peer in sorted(PEERS.keys() - missing):
            solve = PEERS[peer](A.numpy(), b.numpy())
            apart = float(np.abs(solve(x.numpy()) - ours.project(x).x.numpy()).max())
            sides = {"ours": lambda: ours.project(x), peer: lambda: solve(x.numpy())}  # noqa: B023  (used at once)
            timing = compare(sides, 5 if quick else 31, number=max(1, 256 // n)).on_the_processor()
            inputs = f"{n} samples, {m} planes, {d} dimensions, {how}, answers at most {apart:.0e} apart"
            rows.append(timing.row(CLAIM, of=peer, over="ours", inputs=inputs))
    return rows + [skipped(CLAIM, peer, f"pip install {peer.lower()}") for peer in sorted(missing)]
