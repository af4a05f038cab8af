"""Nearest rotations of 3×3 matrices, against a singular value decomposition and RoMa; processor times of one thread.

States in a rollout are rotations with the errors of a step: here each number is off by 0.05. A batch of Gaussian
matrices, of all determinants, takes the decomposition, and so do batches of fewer than 32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from _compare import compare, skipped
from trimtab.constraints.rotation import nearest_rotation

SVD, ROMA = "torch.linalg.svd", "roma.special_procrustes"


def by_svd(a: Tensor) -> Tensor:
    """Project as it is usually written."""
    u, _, vh = torch.linalg.svd(a)
    sign = torch.linalg.det(u @ vh)
    return torch.cat([u[..., :2], u[..., 2:] * sign[..., None, None]], dim=-1) @ vh


def peers() -> dict[str, Callable[[Tensor], Tensor]]:
    if find_spec("roma") is None:
        return {SVD: by_svd}
    import roma

    return {SVD: by_svd, ROMA: roma.special_procrustes}


def gaussian(n: int, seed: int) -> Tensor:
    return torch.randn(n, 3, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def run(quick: bool) -> list[dict[str, Any]]:
    rows, others = [], peers()
    sides = {"ours": nearest_rotation} | others
    cases = [(4096, "near rotations", torch.float64), (4096, "near rotations", torch.float32)]
    cases += [(n, "near rotations", torch.float64) for n in (256, 64, 16, 1)] + [(4096, "Gaussian", torch.float64)]
    for n, kind, dtype in cases[3:5] if quick else cases:
        true = by_svd(gaussian(n, 0))
        a = (gaussian(n, 1) if kind == "Gaussian" else true + 0.05 * gaussian(n, 1)).to(dtype)
        calls = {name: partial(side, a) for name, side in sides.items()}
        exact = by_svd(a.double())
        apart = float((calls["ours"]().double() - exact).abs().max())
        timing = compare(calls, 3 if quick else 15, number=max(1, 256 // n), one_thread=True)
        claim = f"nearest rotation, {n} matrices, {kind}, {str(dtype).removeprefix('torch.')}"
        for peer in others:
            target = ">= 4" if peer == SVD and n == 4096 and kind != "Gaussian" and dtype == torch.float64 else ""
            inputs = f"answers at most {apart:.0e} from the decomposition's"
            rows.append(timing.row(claim, of=peer, over="ours", target=target, inputs=inputs))
        if ROMA not in others:
            rows.append(skipped(claim, ROMA, "roma is not installed"))
    return rows
