"""Gauss-Newton for a batch of equations g(y) = 0: each step the shortest that solves the linearised ones.

A factored Jacobian is kept for as long as its steps shrink norm(g) enough, and taken anew at the present state where
they do not: the chord method where that is enough, Newton's where it must be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from trimtab.constraints.linearised import Factor, Linear, factored, linearise, matrix_free_steps, pushing
from trimtab.constraints.rows import row_norm

__all__ = ["Equations", "Iterate", "advance", "begin", "closer", "solve"]

_HALVINGS = 12


class Equations(NamedTuple):
    """Equations of n samples with states flattened to d numbers.

    Attributes:
        values: g of the states (k, d) of the samples (k,), (k, m).
        jacobian: Of those equations that bend, (k, q, d).
        linear: Those that do not.
        tolerance: Norm of g that counts as 0.
        shrink: What a step must multiply norm(g) by, or less, for its Jacobian to be kept.
        renew_once: Whether a search that began without one takes its second Jacobian after the first step: there it is
            near the solution, and serves to the end.
        shared: S of a Jacobian that serves all samples, (d, m), instead of one for each; None for none.
        matrix_free: Whether no Jacobian is ever made.
    """

    values: Callable[[Tensor, Tensor], Tensor]
    jacobian: Callable[[Tensor, Tensor], Tensor]
    linear: Linear | None
    tolerance: float
    shrink: float
    renew_once: bool = False
    shared: Tensor | None = None
    matrix_free: bool = False

    def factor(self, y: Tensor, rows: Tensor) -> Factor:
        """The factored Jacobians at states (k, d) of the samples (k,)."""
        return factored(self.jacobian(y, rows), self.linear)


class Iterate(NamedTuple):
    """Where k samples are.

    Attributes:
        y: States, (k, d).
        g: Their equations, (k, m).
        size: Norm of g, (k,).
        fell: Whether the last step made norm(g) smaller, (k,) bool.
        kept: Their factored Jacobians; None where none has been made.
    """

    y: Tensor
    g: Tensor
    size: Tensor
    fell: Tensor
    kept: Factor | None

    def take(self, rows: Tensor) -> Iterate:
        """Some of them."""
        kept = None if self.kept is None else self.kept.take(rows)
        return Iterate(self.y[rows], self.g[rows], self.size[rows], self.fell[rows], kept)


def begin(equations: Equations, y: Tensor, rows: Tensor, kept: Factor | None = None) -> Iterate:
    """The first iterate, with a factor that is known already or none."""
    g = equations.values(y, rows)
    return Iterate(y, g, row_norm(g), torch.ones(len(y), dtype=torch.bool, device=y.device), kept)


def solve(
    equations: Equations, start: Tensor, rows: Tensor, kept: Factor | None, max_iterations: int, spent: Tensor
) -> tuple[Tensor, Tensor]:
    """Solutions from `start`, (k, d), for the samples `rows`, (k,): states and norms of g; counts in `spent`, (n,)."""
    now = begin(equations, start, rows, kept)
    y, size = now.y.clone(), now.size.clone()
    place = torch.arange(len(start), device=start.device)  # where each of those still at work stands in y
    for k in range(max_iterations):
        if k == 1 and kept is None and equations.renew_once:
            now = now._replace(kept=None)
        going = now.fell & (now.size > equations.tolerance)
        if not bool(going.all()):
            going = going.nonzero().squeeze(1)
            now, place = now.take(going), place[going]
        if len(place) == 0:
            break
        now = advance(equations, now, rows[place])
        y[place], size[place] = now.y, now.size
        spent[rows[place]] += 1
    return y, size


def advance(equations: Equations, now: Iterate, rows: Tensor) -> Iterate:
    """One step of every sample given."""
    if equations.matrix_free:
        accuracy = 1e-2 if now.y.dtype == torch.float32 else 1e-4
        step = matrix_free_steps(lambda y: equations.values(y, rows), now.y, now.g, accuracy)
        return _searched(equations, now, step, rows)
    if equations.shared is not None:
        step = now.g @ equations.shared.T
    elif now.kept is not None:
        step = now.kept.steps(equations.linear, now.g)
    else:
        return _renewed(equations, now, rows)
    y = now.y - step
    g = equations.values(y, rows)
    size = row_norm(g)
    good = (size <= equations.shrink * now.size) | (size <= equations.tolerance)  # NaN is not good
    new = Iterate(y, g, size, torch.ones_like(good), now.kept)
    if bool(good.all()):
        return new
    poor = (~good).nonzero().squeeze(1)
    again = _renewed(equations, now.take(poor), rows[poor])
    kept = None  # the shared one stays
    if new.kept is not None and again.kept is not None:
        kept = Factor(*(part.index_copy(0, poor, own) for part, own in zip(new.kept, again.kept, strict=True)))
    y, g = y.index_copy(0, poor, again.y), g.index_copy(0, poor, again.g)
    return Iterate(y, g, size.index_copy(0, poor, again.size), new.fell.index_copy(0, poor, again.fell), kept)


def _renewed(equations: Equations, now: Iterate, rows: Tensor) -> Iterate:
    """One step by the Jacobian at the present states."""
    factor = equations.factor(now.y, rows)
    return _searched(equations, now._replace(kept=factor), factor.steps(equations.linear, now.g), rows)


def _searched(equations: Equations, now: Iterate, step: Tensor, rows: Tensor) -> Iterate:
    """Go against the step of each sample, halved until norm(g) falls."""
    y = now.y - step
    g = equations.values(y, rows)
    size = row_norm(g)
    fell = size < (1 - 1e-4) * now.size  # NaN does not fall
    share = 1.0
    for _ in range(_HALVINGS):
        left = (~fell).nonzero().squeeze(1)
        if len(left) == 0:
            break
        share /= 2
        y[left] = now.y[left] - share * step[left]
        g[left] = equations.values(y[left], rows[left])
        size[left] = row_norm(g[left])
        fell[left] = size[left] < (1 - 1e-4 * share) * now.size[left]
    stay = ~fell
    if bool(stay.any()):
        y, g = torch.where(fell[:, None], y, now.y), torch.where(fell[:, None], g, now.g)
        size = torch.where(fell, size, now.size)
    return Iterate(y, g, size, fell, now.kept)


def closer(
    equations: Equations, y: Tensor, size: Tensor, x: Tensor, rows: Tensor, nearness: float, limit: int, spent: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One step along the set towards x, (k, d), brought back to the set; kept where it ends nearer and feasible.

    Args:
        equations: The set.
        y: Solutions, (k, d).
        size: Their norms of g, (k,).
        x: What to be near to, (k, d).
        rows: Which samples, (k,).
        nearness: Share of the distance that a step along the set must exceed to be taken.
        limit: Steps to bring it back at the most.
        spent: Iterations of all samples, (n,), counted on.

    Returns:
        States, norms of g, and whether another step may shorten the way.
    """
    back = x - y
    g, pull_back = linearise(lambda z: equations.values(z, rows), y)
    pushed = pushing(pull_back, g)(back)
    if equations.matrix_free:
        kept = None
        along = back - matrix_free_steps(lambda z: equations.values(z, rows), y, pushed, 1e-3)
    else:
        kept = equations.factor(y, rows)
        along = back - kept.steps(equations.linear, pushed)
    spent[rows] += 1
    far = row_norm(along) > nearness * row_norm(back)
    moving = far.nonzero().squeeze(1)
    if len(moving) == 0:
        return y, size, far
    own = equations._replace(shared=None)  # the Jacobian is at hand
    new, new_size = solve(
        own, y[moving] + along[moving], rows[moving], None if kept is None else kept.take(moving), limit, spent
    )
    better = (new_size <= equations.tolerance) & (row_norm(x[moving] - new) < row_norm(back[moving]))
    y, size = y.clone(), size.clone()
    y[moving[better]], size[moving[better]] = new[better], new_size[better]
    return y, size, far.index_copy(0, moving, better)
