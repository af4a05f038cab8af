"""Projecting onto linear inequalities: ours against solvers that take one sample per call.

The peers are DAQP (a dual active-set method in C, which ours calls too), from the qp extra, and quadprog (Goldfarb and
Idnani's dual method in C) where it is installed: its licence keeps it out of the extra. They take and return
tensors, as a sampler in torch needs, and tell which samples were solved. Times are processor times of one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from _compare import compare, skipped
from trimtab.constraints import HalfSpaces

CLAIM = "projecting onto half-spaces"
SIZES = (
    (1, 20, 10),
    (16, 20, 10),
    (64, 4, 3),
    (64, 20, 10),
    (64, 200, 50),
    (1024, 20, 10),
)  # samples, planes, dimension

Solve = Callable[[Tensor], tuple[Tensor, Tensor]]


def with_quadprog(A: NDArray[Any], b: NDArray[Any]) -> Solve:
    import quadprog

    identity, columns = np.eye(A.shape[1]), np.ascontiguousarray(-A.T)

    def solve(x: Tensor) -> tuple[Tensor, Tensor]:
        nearest = [quadprog.solve_qp(identity, point, columns, -b)[0] for point in x.numpy()]  # raises if none is found
        return torch.from_numpy(np.stack(nearest)), torch.ones(len(x), dtype=torch.bool)

    return solve


def with_daqp(A: NDArray[Any], b: NDArray[Any]) -> Solve:
    import daqp

    identity, none = np.eye(A.shape[1]), np.full_like(b, -1e30)
    kinds = np.zeros(len(b), dtype=np.intc)

    def solve(x: Tensor) -> tuple[Tensor, Tensor]:
        nearest, found = np.empty(x.shape), np.empty(len(x), dtype=np.bool_)
        for i, point in enumerate(x.numpy()):
            nearest[i], _, flag, _ = daqp.solve(identity, -point, A, b, none, kinds)
            found[i] = flag > 0
        return torch.from_numpy(nearest), torch.from_numpy(found)

    return solve


PEERS = {"DAQP": with_daqp, "quadprog": with_quadprog}


def run(quick: bool) -> list[dict[str, Any]]:
    rows = []
    how = "in torch"
    missing = [peer for peer in PEERS if find_spec(peer.lower()) is None]
    for n, m, d in SIZES[: 2 if quick else None]:
        generator = torch.Generator().manual_seed(0)
        A = torch.randn(m, d, generator=generator, dtype=torch.float64)
        b = 0.1 + torch.rand(m, generator=generator, dtype=torch.float64)
        x = 2 * torch.randn(n, d, generator=generator, dtype=torch.float64)
        ours = HalfSpaces(A, b)
        peers = {peer: make(A.numpy(), b.numpy()) for peer, make in PEERS.items() if peer not in missing}
        sides = {"ours": partial(ours.project, x)} | {peer: partial(solve, x) for peer, solve in peers.items()}
        rounds = 5 if quick else 31 if n > 1 else 301  # a call of ten microseconds is easily disturbed
        timing = compare(sides, rounds, number=max(1, 256 // n), one_thread=True)
        for peer, solve in peers.items():
            apart = float((solve(x)[0] - ours.project(x).x).abs().max())
            inputs = f"{n} samples, {m} planes, {d} dimensions, {how}, answers at most {apart:.0e} apart"
            rows.append(timing.row(CLAIM, of=peer, over="ours", target=">= 1" if peer == "DAQP" else "", inputs=inputs))
    return rows + [skipped(CLAIM, peer, f"pip install {peer.lower()}") for peer in missing]
