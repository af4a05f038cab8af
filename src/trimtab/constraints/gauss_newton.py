"""Gauss-Newton for a batch of equations g(y) = 0, towards solutions near x.

Each step is the shortest one that solves the linearised equations, s = Jᵀ (J Jᵀ)⁻¹ g. A factored Jacobian is kept for
as long as its steps shrink norm(g) enough (the chord method), and is computed again if they do not (Newton's method).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trimtab.constraints.functions import Conditions

__all__ = ["Factor", "Iterate", "Method", "closer", "factorise", "iterate", "solve", "start"]

_HALVINGS = 12


class Method(NamedTuple):
    """How equations are solved.

    Attributes:
        conditions: The equations of n samples.
        tolerance: A norm of g that counts as 0.
        shrink: A kept Jacobian is computed again if a step leaves more than this share of norm(g).
        renew_once: Whether a search computes its second Jacobian after the first step: near the solution it then
            serves to the end.
        shared: One Jacobian for all samples as a step matrix, (m, d), or None.
    """

    conditions: Conditions
    tolerance: float
    shrink: float
    renew_once: bool = False
    shared: Tensor | None = None


class Factor(NamedTuple):
    """Jacobians J, (k, m, d), with the Cholesky factors of J Jᵀ, (k, m, m)."""

    jacobian: Tensor
    cholesky: Tensor

    def take(self, rows: Tensor) -> Factor:
        """Return the factors of some samples."""
        return Factor(*(part[rows] for part in self))

    def steps(self, target: Tensor) -> Tensor:
        """Return the shortest steps s, (k, d), with J s = target, (k, m)."""
        multipliers = torch.cholesky_solve(target[:, :, None], self.cholesky)
        return (multipliers.mT @ self.jacobian).squeeze(1)

    def pushed(self, step: Tensor) -> Tensor:
        """Return J s, (k, m), for steps (k, d)."""
        return (self.jacobian @ step[:, :, None]).squeeze(2)


class Iterate(NamedTuple):
    """Where k samples are.

    Attributes:
        y: States, (k, d).
        g: Their equations, (k, m).
        fell: Whether the last step made norm(g) smaller, (k,) bool.
        kept: Their factored Jacobians, or None.
        last: States and equations one step ago if the same Jacobian made that step, (k, d) and (k, m), or None. For a
            sample with a new Jacobian they are its present ones.
    """

    y: Tensor
    g: Tensor
    fell: Tensor
    kept: Factor | None = None
    last: tuple[Tensor, Tensor] | None = None

    @property
    def size(self) -> Tensor:
        """The norm of g, (k,)."""
        return _norm(self.g)

    def take(self, rows: Tensor) -> Iterate:
        """Return some of the samples."""
        kept = None if self.kept is None else self.kept.take(rows)
        last = None if self.last is None else (self.last[0][rows], self.last[1][rows])
        return Iterate(self.y[rows], self.g[rows], self.fell[rows], kept, last)

    def put(self, rows: Tensor, some: Iterate) -> Iterate:
        """Return the iterate with the samples `rows` replaced."""
        kept, last = self.kept, self.last
        if kept is not None and some.kept is not None:
            kept = Factor(*(a.index_copy(0, rows, b) for a, b in zip(kept, some.kept, strict=True)))
        if last is not None:
            last = last[0].index_copy(0, rows, some.y), last[1].index_copy(0, rows, some.g)
        y, g, fell = (a.index_copy(0, rows, b) for a, b in zip(self[:3], some[:3], strict=True))
        return Iterate(y, g, fell, kept, last)


def start(method: Method, y: Tensor, rows: Tensor, kept: Factor | None = None) -> Iterate:
    """Return the first iterate at states (k, d) of the samples `rows`, (k,), with factored Jacobians if given."""
    g = method.conditions.values(y, rows)
    return Iterate(y, g, torch.ones(len(y), dtype=torch.bool, device=y.device), kept)


def solve(
    method: Method, y: Tensor, rows: Tensor, kept: Factor | None, limit: int, spent: Tensor, x: Tensor
) -> tuple[Tensor, Tensor]:
    """Find solutions near x, (k, d), for the samples `rows`, (k,), from the states y, (k, d).

    Starts with the factored Jacobians `kept`, if there are any, makes at most `limit` iterations per sample, and adds
    them to `spent`, (n,). Returns states, (k, d), and norms of g, (k,).
    """
    now = start(method, y, rows, kept)
    y, size = now.y.clone(), now.size
    place = torch.arange(len(y), device=y.device)  # where in y each sample stands that is still being solved
    for k in range(limit):
        if k == 1 and kept is None and method.renew_once:
            now = now._replace(kept=None)
        active = (now.fell & (now.size > method.tolerance)).nonzero().squeeze(1)
        if len(active) == 0:
            break
        if len(active) < len(place):
            now, place = now.take(active), place[active]
        now = iterate(method, now, rows[place], x[place])
        y[place], size[place] = now.y, now.size
        spent[rows[place]] += 1
    return y, size


def iterate(method: Method, now: Iterate, rows: Tensor, x: Tensor) -> Iterate:
    """Make one step of every sample; a step with a new Jacobian leads towards the solution nearest to x, (k, d)."""
    if not now.g.shape[1]:  # there are no equations
        return now
    if method.shared is None and now.kept is None:
        return _newton(method, now, rows, x)
    from_y, target = (now.y, now.g) if now.last is None else _extrapolate(now.y, now.g, *now.last)
    if method.shared is not None:
        y = from_y - target @ method.shared
    else:
        assert now.kept is not None
        y = from_y - now.kept.steps(target)
    g = method.conditions.values(y, rows)
    good = _norm(g) <= (method.shrink * now.size).clamp(min=method.tolerance)  # False for NaN
    new = Iterate(y, g, good, now.kept, (now.y, now.g))
    poor = (~good).nonzero().squeeze(1)
    if len(poor) == 0:
        return new
    # with a shared Jacobian the steps before did not lead to the solution nearest to x, and the way to it may be long
    near = now.y[poor] if method.shared is not None else x[poor]
    return new.put(poor, _newton(method, now.take(poor), rows[poor], near))


def _extrapolate(y: Tensor, g: Tensor, last_y: Tensor, last_g: Tensor) -> tuple[Tensor, Tensor]:
    """Return the point on the line through the last two states where a linear g would be smallest, and that g.

    The steps of a kept Jacobian shrink g by about the same factor each time. The point lies in the span of the steps,
    so that the same solution is found.
    """
    change = g - last_g
    back = (change * g).sum(dim=1) / (change * change).sum(dim=1)
    back = back.nan_to_num(0.0, 0.0, 0.0).clamp(-3, 1)[:, None]
    return torch.lerp(y, last_y, back), torch.lerp(g, last_g, back)


def _newton(method: Method, now: Iterate, rows: Tensor, x: Tensor) -> Iterate:
    """Make one step with the Jacobian at the present states, to the solution of the linearised equations nearest to x.

    That is the shortest step plus one along the set. If norm(g) does not fall, only the shortest step is made, halved
    until it does.
    """
    factor = factorise(method.conditions.linearised(now.y, rows)[1])
    y = x - factor.steps(now.g + factor.pushed(x - now.y))
    g = method.conditions.values(y, rows)
    fell = _norm(g) < (1 - 1e-4) * now.size  # False for NaN
    new = Iterate(y, g, fell, factor)
    failed = (~fell).nonzero().squeeze(1)
    if len(failed) == 0:
        return new
    rest = now.take(failed)._replace(kept=factor.take(failed), last=None)
    return new.put(failed, _line_search(method, rest, factor.take(failed).steps(rest.g), rows[failed]))


def _line_search(method: Method, now: Iterate, step: Tensor, rows: Tensor) -> Iterate:
    """Subtract the step (k, d) of each sample, halved until norm(g) falls; samples for which it never does stay."""
    y, g = now.y.clone(), now.g.clone()
    fell = torch.zeros_like(now.fell)
    left = torch.arange(len(y), device=y.device)
    for k in range(_HALVINGS + 1):
        share = 0.5**k
        there = now.y[left] - share * step[left]
        g_there = method.conditions.values(there, rows[left])
        good = _norm(g_there) < (1 - 1e-4 * share) * now.size[left]  # False for NaN
        y[left[good]], g[left[good]], fell[left[good]] = there[good], g_there[good], True
        left = left[~good]
        if len(left) == 0:
            break
    return Iterate(y, g, fell, now.kept)


def closer(
    method: Method, y: Tensor, size: Tensor, x: Tensor, rows: Tensor, nearness: float, limit: int, spent: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Make one step along the set from solutions y towards x, (k, d) both, and return to the set.

    The result is kept if it is nearer to x and feasible. A step shorter than the share `nearness` of the distance is
    not made. Returns states, norms of g, (k,), and whether another step may shorten the distance, (k,) bool.
    """
    back = x - y
    factor = factorise(method.conditions.linearised(y, rows)[1])
    along = back - factor.steps(factor.pushed(back))
    spent[rows] += 1
    more = _norm(along) > nearness * _norm(back)
    moving = more.nonzero().squeeze(1)
    if len(moving) == 0:
        return y, size, more
    own = method._replace(shared=None)  # each sample has its own Jacobian here
    new, new_size = solve(own, y[moving] + along[moving], rows[moving], factor.take(moving), limit, spent, x[moving])
    better = (new_size <= method.tolerance) & (_norm(x[moving] - new) < _norm(back[moving]))
    y, size = y.clone(), size.clone()
    y[moving[better]], size[moving[better]] = new[better], new_size[better]
    return y, size, more.index_copy(0, moving, better)


def factorise(jacobian: Tensor) -> Factor:
    """Factor Jacobians, (k, m, d), for shortest steps."""
    gram = jacobian @ jacobian.mT
    # equations that repeat each other make J Jᵀ singular; the ridge is far below the accuracy of a step
    trace = gram.diagonal(dim1=1, dim2=2).sum(dim=1)
    ridge = (torch.finfo(gram.dtype).eps * 8 * trace).clamp(min=torch.finfo(gram.dtype).tiny)
    gram.diagonal(dim1=1, dim2=2).add_(ridge[:, None])
    return Factor(jacobian, torch.linalg.cholesky_ex(gram).L)


def _norm(rows: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norm
