"""Nearest rotations of 3×3 matrices of all determinants, against a singular value decomposition and RoMa.

Small batches are timed too, since samplers project them step by step; they carry no target.
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
TARGETS = {SVD: ">= 8", ROMA: ">= 5"}
SIZES = {100_000: 1, 64: 30, 16: 30}  # matrices, and calls a measurement


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


def worst_error(f: Callable[[Tensor], Tensor], dtype: torch.dtype, count: int = 20_000) -> float:
    """Return the largest error, times a gap that says how well determined the answer is, in units of the last place.

    Matrices are made from known rotations and singular values in float64, so that the answer is known.
    """
    generator = torch.Generator().manual_seed(1)
    left, right = (by_svd(torch.randn(count, 3, 3, generator=generator, dtype=torch.float64)) for _ in range(2))
    values = torch.rand(count, 3, generator=generator, dtype=torch.float64).sort(descending=True).values
    values[:, 2] *= torch.where(torch.rand(count, generator=generator) < 0.5, -1.0, 1.0)
    gap = (values[:, 1] + values[:, 2]) / values[:, 0]
    a = (left * values[:, None]) @ right.mT
    error = (f(a.to(dtype)).double() - left @ right.mT).flatten(1).abs().amax(dim=1)
    return float((error * gap).max() / torch.finfo(dtype).eps)


def run(quick: bool) -> list[dict[str, Any]]:
    rows = []
    others = peers()
    for dtype in (torch.float32, torch.float64):
        name = str(dtype).removeprefix("torch.")
        errors = {peer: worst_error(f, dtype) for peer, f in ({"ours": nearest_rotation} | others).items()}
        for n, number in SIZES.items():
            a = torch.randn(n, 3, 3, generator=torch.Generator().manual_seed(0), dtype=dtype)
            timing = compare(
                {peer: partial(f, a) for peer, f in ({"ours": nearest_rotation} | others).items()},
                repeats=5 if quick else 15,
                number=number,
            )
            claim = f"nearest rotation, {n} matrices, {name}"
            for peer in others:
                accuracy = f"worst error {errors['ours']:.1f} ulp / gap, {peer} {errors[peer]:.1f}"
                target = TARGETS[peer] if n >= 10_000 else ""
                rows.append(timing.row(claim, of=peer, over="ours", target=target, inputs=f"Gaussian; {accuracy}"))
            if ROMA not in others:
                rows.append(skipped(claim, ROMA, "roma is not installed"))
    return rows
