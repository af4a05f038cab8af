"""Gauss-Newton for a batch of equations g(y) = 0: each step the shortest that solves the linearised ones.

A factored Jacobian is kept for as long as its steps shrink norm(g) enough, and taken anew at the present state where
they do not: the chord method where that is enough, Newton's where it must be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from trimtab.constraints.linearised import (
    Factor,
    Linear,
    Target,
    factored,
    linearise,
    matrix_free_steps,
    products,
    pushing,
)
from trimtab.constraints.rows import row_dot

__all__ = ["Equations", "Iterate", "advance", "begin", "closer", "far_by_multipliers", "solve"]

_HALVINGS = 12

Derivatives = Callable[[], Tensor]
"""Gives a Jacobian at states where g has been evaluated, for less than evaluating both."""


class Equations(NamedTuple):
    """Equations of n samples with states flattened to d numbers.

    Attributes:
        values: g of the states (k, d) of the samples (k,), (k, m).
        linearised: g likewise, and what gives the Jacobian there of those equations that bend, (k, q, d).
        linear: Those that do not.
        tolerance: Norm of g that counts as 0.
        shrink: What a step must multiply norm(g) by, or less, for its Jacobian to be kept.
        renew_once: Whether a search that began without one takes its second Jacobian after the first step: there it is
            near the solution, and serves to the end.
        shared: Sᵀ of a Jacobian that serves all samples, (m, d), instead of one for each; None for none.
        matrix_free: Whether no Jacobian is ever made.
    """

    values: Callable[[Tensor, Tensor], Tensor]
    linearised: Callable[[Tensor, Tensor], tuple[Tensor, Derivatives]]
    linear: Linear | None
    tolerance: float
    shrink: float
    renew_once: bool = False
    shared: Tensor | None = None
    matrix_free: bool = False

    def factor(self, y: Tensor, rows: Tensor) -> Factor:
        """The factored Jacobians at states (k, d) of the samples (k,)."""
        return factored(self.linearised(y, rows)[1](), self.linear)


class Iterate(NamedTuple):
    """Where k samples are.

    Attributes:
        y: States, (k, d).
        g: Their equations, (k, m).
        size: Norm of g, (k,).
        fell: Whether the last step made norm(g) smaller, (k,) bool.
        kept: Their factored Jacobians; None where none has been made.
        last: States and equations one step ago, (k, d) and (k, m), where the same Jacobian made that step, or None;
            for a sample whose Jacobian is new, its present ones.
        derivatives: The Jacobian at y, to be had on demand, where the next step is known to want it; None elsewhere.
    """

    y: Tensor
    g: Tensor
    size: Tensor
    fell: Tensor
    kept: Factor | None
    last: tuple[Tensor, Tensor] | None = None
    derivatives: Derivatives | None = None

    def take(self, rows: Tensor) -> Iterate:
        """Some of them."""
        kept = None if self.kept is None else self.kept.take(rows)
        last = None if self.last is None else (self.last[0].index_select(0, rows), self.last[1].index_select(0, rows))
        y, g, size, fell = (part.index_select(0, rows) for part in self[:4])
        return Iterate(y, g, size, fell, kept, last)


def begin(equations: Equations, y: Tensor, rows: Tensor, kept: Factor | None = None) -> Iterate:
    """The first iterate, with a factor that is known already or none."""
    wanted = kept is None and equations.shared is None and not equations.matrix_free
    g, derivatives = equations.linearised(y, rows) if wanted else (equations.values(y, rows), None)
    all_fell = torch.ones(len(y), dtype=torch.bool, device=y.device)
    return Iterate(y, g, _norm(g), all_fell, kept, derivatives=derivatives)


def solve(
    equations: Equations, start: Tensor, rows: Tensor, kept: Factor | None, limit: int, spent: Tensor, x: Tensor
) -> tuple[Tensor, Tensor, Factor | None]:
    """Solutions from `start` that are near x, (k, d) both, for the samples `rows`, (k,).

    Args:
        equations: To be solved.
        start: Where to begin.
        rows: Which samples.
        kept: Their factored Jacobians to begin with, if there are any.
        limit: Iterations at the most.
        spent: Iterations of all samples, (n,), counted on.
        x: What the solutions are to be near to.

    Returns:
        States, norms of g, and the Jacobians that were the last to serve all samples, if there are any.
    """
    now = begin(equations, start, rows, kept)
    y, size, factor = now.y, now.size, kept
    together, alone = 0, torch.zeros_like(rows)  # steps made by all samples, and by those still at work
    place: Tensor | None = None  # where each of those still at work stands in y; None while all are
    renews = kept is None and equations.renew_once
    for k in range(limit):
        if k == 1 and renews:
            now = now._replace(kept=None)
        going = now.fell & (now.size > equations.tolerance)
        if not bool(going.all()):
            if place is None:
                y, size = y.clone(), size.clone()
            left = going.nonzero().squeeze(1)
            now, place = now.take(left), left if place is None else place[left]
            if len(place) == 0:
                break
        if place is None:
            nearest_to = None if k == 0 and start is x else x  # from x itself the shortest step leads to the nearest
            now = advance(equations, now, rows, nearest_to, renews and k == 0)
            y, size, factor = now.y, now.size, now.kept
            together += 1
        else:
            now = advance(equations, now, rows[place], x.index_select(0, place), renews and k == 0)
            y.index_copy_(0, place, now.y)
            size.index_copy_(0, place, now.size)
            alone.index_add_(0, place, torch.ones_like(place))
    spent[rows] += alone + together
    return y, size, factor


def advance(
    equations: Equations, now: Iterate, rows: Tensor, x: Tensor | None = None, renews_next: bool = False
) -> Iterate:
    """One step of every sample given; with a Jacobian taken anew, towards the solutions nearest to x, (k, d).

    Where the next step takes one anew as well, that is prepared.
    """
    if equations.matrix_free:
        accuracy = 1e-2 if now.y.dtype == torch.float32 else 1e-4
        step = matrix_free_steps(lambda y: equations.values(y, rows), now.y, now.g, accuracy)
        return _searched(equations, now, step, rows)
    if equations.shared is None and now.kept is None:
        return _renewed(equations, now, rows, x, renews_next)
    from_y, target = (now.y, now.g) if now.last is None else _extrapolated(now.y, now.g, *now.last)
    if equations.shared is not None:
        y = torch.addmm(from_y, target, equations.shared, alpha=-1)
    else:
        assert now.kept is not None
        y = from_y - now.kept.steps(equations.linear, Target.of(equations.linear, target))
    g = equations.values(y, rows)
    size = _norm(g)
    good = size <= (equations.shrink * now.size).clamp(min=equations.tolerance)  # NaN is not good
    new = Iterate(y, g, size, good, now.kept, (now.y, now.g))
    if bool(good.all()):
        return new
    poor = (~good).nonzero().squeeze(1)
    # a shared Jacobian's solutions are not the nearest to x, and the way there may be long
    near = None if x is None or equations.shared is not None else x[poor]
    again = _renewed(equations, now.take(poor), rows[poor], near)
    kept = None  # the shared one stays
    if new.kept is not None and again.kept is not None:
        kept = Factor(*(part.index_copy(0, poor, own) for part, own in zip(new.kept, again.kept, strict=True)))
    y, g = y.index_copy(0, poor, again.y), g.index_copy(0, poor, again.g)
    size, fell = size.index_copy(0, poor, again.size), good.index_copy(0, poor, again.fell)
    last = now.y.index_copy(0, poor, again.y), now.g.index_copy(0, poor, again.g)
    return Iterate(y, g, size, fell, kept, last)


def _extrapolated(y: Tensor, g: Tensor, last_y: Tensor, last_g: Tensor) -> tuple[Tensor, Tensor]:
    """Where on the line through the last two states g is smallest if it is straight there, and that g.

    A kept Jacobian's steps shrink g by about the same share every time, and two of them show which. What is added lies
    in the span of the steps, so that the solution found is the same one.
    """
    change = g - last_g
    back = row_dot(change, g).div_(row_dot(change, change))
    back = back.nan_to_num_(0.0, 0.0, 0.0).clamp_(-3, 1).unsqueeze(1)  # 0 / 0: nothing to learn
    return torch.lerp(y, last_y, back), torch.lerp(g, last_g, back)


def _renewed(equations: Equations, now: Iterate, rows: Tensor, x: Tensor | None, renews_next: bool = False) -> Iterate:
    """One step by the Jacobian at the present states, to the solution of the linearised equations nearest to x.

    That is the shortest step and one along the set; with no x, the shortest. Where it is too long for norm(g) to fall,
    the shortest one is taken by itself, and halved until it does.
    """
    linear = equations.linear
    factor = equations.factor(now.y, rows) if now.derivatives is None else factored(now.derivatives(), linear)
    now = now._replace(kept=factor, last=None, derivatives=None)
    target = Target.of(linear, now.g)
    if x is None:
        y = now.y - factor.steps(linear, target)
    else:
        y = x - factor.steps(linear, target.plus(factor.pushed(linear, x - now.y)))
    g, derivatives = equations.linearised(y, rows) if renews_next else (equations.values(y, rows), None)
    size = _norm(g)
    fell = size < (1 - 1e-4) * now.size  # NaN does not fall
    if bool(fell.all()):
        return Iterate(y, g, size, fell, factor, derivatives=derivatives)
    failed = (~fell).nonzero().squeeze(1)
    rest = now.take(failed)
    again = _searched(equations, rest, factor.take(failed).steps(linear, Target.of(linear, rest.g)), rows[failed])
    y, g = y.index_copy(0, failed, again.y), g.index_copy(0, failed, again.g)
    return Iterate(y, g, size.index_copy(0, failed, again.size), fell.index_copy(0, failed, again.fell), factor)


def _norm(rows: Tensor) -> Tensor:
    return row_dot(rows, rows).sqrt()


def _searched(equations: Equations, now: Iterate, step: Tensor, rows: Tensor) -> Iterate:
    """Go against the step of each sample, halved until norm(g) falls."""
    y = now.y - step
    g = equations.values(y, rows)
    size = _norm(g)
    fell = size < (1 - 1e-4) * now.size  # NaN does not fall
    share = 1.0
    for _ in range(_HALVINGS):
        left = (~fell).nonzero().squeeze(1)
        if len(left) == 0:
            break
        share /= 2
        y[left] = now.y[left] - share * step[left]
        g = g.index_copy(0, left, equations.values(y[left], rows[left]))  # what the function returned may be expanded
        size[left] = _norm(g[left])
        fell[left] = size[left] < (1 - 1e-4 * share) * now.size[left]
    stay = ~fell
    if bool(stay.any()):
        y, g = torch.where(fell[:, None], y, now.y), torch.where(fell[:, None], g, now.g)
        size = torch.where(fell, size, now.size)
    return Iterate(y, g, size, fell, now.kept)


def far_by_multipliers(equations: Equations, y: Tensor, x: Tensor, factor: Factor, nearness: float) -> Tensor:
    """Which solutions y, (n, d), may be far from the nearest to x, (n,) bool: a bound that needs no Jacobian at y.

    The way back to x is compared with a sum of gradients at y. Whatever the sum, what the two differ by is no shorter
    than the step along the set that would remain. The sum is that of the same equations at an earlier state, with one
    correction by what it leaves.
    """
    back, linear = x - y, equations.linear
    g, pull_back = linearise(lambda z: equations.values(z, torch.arange(len(y), device=y.device)), y)
    left, near = back, nearness * _norm(back)
    far = torch.ones_like(near, dtype=torch.bool)
    for _ in range(2):
        multipliers, rest = factor.multipliers(factor.pushed(linear, left))
        if linear is None:
            left = left - pull_back(multipliers)
        else:
            pulled = pull_back(torch.zeros_like(g).index_copy(1, linear.bent, multipliers))
            left = left - linear.added(pulled, rest)
        far &= ~(_norm(left) <= near)
        if not bool(far.any()):
            break
    return far


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
    if equations.matrix_free:
        kept = None
        g, pull_back = products(lambda z: equations.values(z, rows), y)
        pushed = pushing(pull_back, g)(back)
        along = back - matrix_free_steps(lambda z: equations.values(z, rows), y, pushed, 1e-3)
    else:
        kept = equations.factor(y, rows)
        along = back - kept.steps(equations.linear, kept.pushed(equations.linear, back))
    spent[rows] += 1
    far = _norm(along) > nearness * _norm(back)
    moving = far.nonzero().squeeze(1)
    if len(moving) == 0:
        return y, size, far
    own = equations._replace(shared=None)  # the Jacobian is at hand
    factor = None if kept is None else kept.take(moving)
    new, new_size, _ = solve(own, y[moving] + along[moving], rows[moving], factor, limit, spent, x[moving])
    better = (new_size <= equations.tolerance) & (_norm(x[moving] - new) < _norm(back[moving]))
    y, size = y.clone(), size.clone()
    y[moving[better]], size[moving[better]] = new[better], new_size[better]
    return y, size, far.index_copy(0, moving, better)
