"""Nearest points of a polyhedron by a dual active-set method in torch, for a whole batch at once and on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from trimtab.constraints.rows import apply_matrix

__all__ = ["nearest_points"]

_PARALLEL = 1e-10  # squared sine of the angle below which a normal lies in the span of others


def nearest_points(normals: Tensor, gram: Tensor, x: Tensor, b: Tensor, max_iterations: int) -> tuple[Tensor, Tensor]:
    """The nearest points, (n, d), and the planes added or removed on the way, (n,).

    Args:
        normals: Of length 1, (m, d).
        gram: Their inner products, (m, m).
        x: (n, d).
        b: (m,) or (n, m).
        max_iterations: Planes added or removed per row at the most.
    """
    beyond = apply_matrix(normals, x) - b
    multipliers, iterations = _multipliers(gram, beyond, min(normals.shape), max_iterations)
    return x - apply_matrix(normals.T.contiguous(), multipliers), iterations


def _multipliers(gram: Tensor, beyond: Tensor, size: int, max_iterations: int) -> tuple[Tensor, Tensor]:
    """Multipliers z >= 0 with G z - beyond >= 0 and z (G z - beyond) = 0 for each row: a dual active-set method.

    Planes that are violated most are added one at a time to the set of touching planes of a row; where a multiplier
    would become negative, its plane leaves first. The normals of a set are independent at all times, so that parallel
    or superfluous planes do no harm. The inverse of a set's Gram matrix is kept up to date by one outer product.

    Args:
        gram: Inner products of the planes' unit normals, (m, m).
        beyond: How far each point is beyond each plane, (n, m).
        size: How many planes may touch at once.
        max_iterations: Planes added or removed per row at the most.

    Returns:
        z, (n, m), and the planes added or removed, (n,). Rows that have no solution keep what they had.
    """
    n, m = beyond.shape
    z = torch.zeros_like(beyond)
    iterations = torch.zeros(n, dtype=torch.int64, device=beyond.device)
    limit = 1e-11 * (1 + beyond.abs().masked_fill(beyond.isinf(), 0.0).amax(dim=1))  # a plane may be infinitely far
    rows = (beyond.amax(dim=1) > limit).nonzero().squeeze(1)  # all others are inside already
    k = len(rows)
    plane = torch.zeros(k, size, dtype=torch.int64, device=beyond.device)  # which plane is in which place of a set
    used = torch.zeros(k, size, dtype=torch.bool, device=beyond.device)
    u, inverse = beyond.new_zeros(k, size), beyond.new_zeros(k, size, size)
    entering, share = torch.zeros(k, dtype=torch.int64, device=beyond.device), beyond.new_zeros(k)
    choosing = torch.ones(k, dtype=torch.bool, device=beyond.device)

    for _ in range(max_iterations):
        full = torch.zeros(len(rows), m, dtype=beyond.dtype, device=beyond.device).scatter_add_(1, plane, u)
        full.scatter_add_(1, entering[:, None], share[:, None])
        z[rows] = full
        violation = beyond[rows] - apply_matrix(gram, full)
        worst, candidate = violation.max(dim=1)
        going = (~choosing | (worst > limit[rows])).nonzero().squeeze(1)
        if len(going) < len(rows):
            rows, plane, used, u, inverse = (part[going] for part in (rows, plane, used, u, inverse))
            entering, share, choosing = (part[going] for part in (entering, share, choosing))
            violation, candidate = violation[going], candidate[going]
        if len(rows) == 0:
            break
        iterations[rows] += 1
        entering = torch.where(choosing, candidate, entering)
        here = violation.gather(1, entering[:, None]).squeeze(1)

        # moving along the entering plane's normal, less its part in the span of the touching ones
        inner = gram[entering[:, None], plane] * used
        rate = (inverse * inner[:, None, :]).sum(dim=2)
        length = 1 - (inner * rate).sum(dim=1)
        independent = (length > _PARALLEL) & ~used.all(dim=1)
        reach = torch.where(independent, here / length.clamp(min=_PARALLEL), torch.inf)
        ratio = torch.where(used & (rate > 1e-13), u.clamp(min=0) / rate.clamp(min=1e-13), torch.inf)
        block, leaving = ratio.min(dim=1)
        step = torch.minimum(reach, block)
        stuck = step.isinf()  # neither can it move nor can a plane leave: the planes leave nothing
        step = torch.where(stuck, 0.0, step)
        u = u - step[:, None] * rate
        share = share + step

        enters, leaves = ~stuck & (reach <= block), ~stuck & (reach > block)
        free = used.int().argmin(dim=1)  # the first place not in use
        at_free = _one_hot(free, size) & enters[:, None]
        outer = torch.where(at_free, -1.0, rate) * enters[:, None]
        inverse = inverse + outer[:, :, None] * (outer / length.clamp(min=_PARALLEL)[:, None])[:, None, :]
        plane, u = torch.where(at_free, entering[:, None], plane), torch.where(at_free, share[:, None], u)

        at_leaving = _one_hot(leaving, size) & leaves[:, None]
        column = inverse.gather(2, leaving[:, None, None].expand(-1, size, 1)).squeeze(2)
        pivot = column.gather(1, leaving[:, None])
        column = column * leaves[:, None]
        inverse = inverse - column[:, :, None] * (column / torch.where(leaves[:, None], pivot, 1.0))[:, None, :]
        gone = at_leaving[:, :, None] | at_leaving[:, None, :]
        inverse, u = inverse.masked_fill(gone, 0.0), u.masked_fill(at_leaving, 0.0)
        used = (used | at_free) & ~at_leaving
        share, choosing = torch.where(enters, 0.0, share), enters
        keep = (~stuck).nonzero().squeeze(1)
        if len(keep) < len(rows):
            rows, plane, used, u, inverse = (part[keep] for part in (rows, plane, used, u, inverse))
            entering, share, choosing = (part[keep] for part in (entering, share, choosing))
    return z, iterations


def _one_hot(index: Tensor, size: int) -> Tensor:
    return index[:, None] == torch.arange(size, device=index.device)
