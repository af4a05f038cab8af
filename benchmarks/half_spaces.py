"""Projecting onto linear inequalities: ours against DAQP called sample by sample; processor times of one thread."""

from __future__ import annotations

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
SIZES = ((1, 20, 10), (64, 20, 10), (1024, 20, 10))  # samples, planes, dimensions


def by_daqp(A: NDArray[Any], b: NDArray[Any], x: Tensor) -> Tensor:
    import daqp

    identity, none, kinds = np.eye(A.shape[1]), np.full_like(b, -1e30), np.zeros(len(b), dtype=np.intc)
    return torch.from_numpy(np.stack([daqp.solve(identity, -point, A, b, none, kinds)[0] for point in x.numpy()]))


def run(quick: bool) -> list[dict[str, Any]]:
    if find_spec("daqp") is None:
        return [skipped(CLAIM, "DAQP", "pip install daqp")]
    rows = []
    for n, m, d in SIZES[: 1 if quick else None]:
        generator = torch.Generator().manual_seed(0)
        A = torch.randn(m, d, generator=generator, dtype=torch.float64)
        b = 0.1 + torch.rand(m, generator=generator, dtype=torch.float64)
        x = 2 * torch.randn(n, d, generator=generator, dtype=torch.float64)
        ways = {"ours": partial(HalfSpaces(A, b).project, x), "DAQP": partial(by_daqp, A.numpy(), b.numpy(), x)}
        apart = float((ways["DAQP"]() - ways["ours"]().x).abs().max())
        timing = compare(ways, 5 if quick else 31, number=max(1, 256 // n), one_thread=True)
        inputs = f"{n} samples, {m} planes, {d} dimensions, answers at most {apart:.0e} apart"
        rows.append(timing.row(CLAIM, of="DAQP", over="ours", inputs=inputs))
    return rows
