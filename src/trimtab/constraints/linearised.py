"""Shortest steps of linearised equations, for a whole batch at once: by a matrix that can be kept, and without one.

The shortest s with J s = target is s = S target with S = Jᵀ (J Jᵀ)⁻¹, (d, m), which serves any number of targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trimtab.constraints.rows import combine_columns, combine_rows, row_product

__all__ = [
    "Factor",
    "Linear",
    "Target",
    "factored",
    "find_linear",
    "gradients",
    "linearise",
    "matrix_free_steps",
    "products",
    "pushing",
    "step_matrix",
]

Products = Callable[[Tensor], Tensor]


class Linear(NamedTuple):
    """The equations that do not bend: their rows of J are the same at every state and for every sample.

    Attributes:
        rows: Which equations, (p,).
        bent: Which equations are the others, (q,).
        columns: Which numbers of a state they look at, (c,): of initial or boundary values, few.
        basis: An orthonormal basis of the span of their gradients there, (r, c).
        coordinates: Their shortest steps in coordinates of the basis, (r, p).
    """

    rows: Tensor
    bent: Tensor
    columns: Tensor
    basis: Tensor
    coordinates: Tensor

    def added(self, step: Tensor, weights: Tensor) -> Tensor:
        """A step (n, d) with sums of the basis, (n, r), added to it."""
        return step.index_add(1, self.columns, combine_rows(weights, self.basis.expand(len(weights), -1, -1)))


def find_linear(jacobians: Iterable[Tensor]) -> Linear | None:
    """Those equations whose gradients are the same in all the Jacobians given, (k, m, d) each, if there are any."""
    first, rows = None, None
    for some in jacobians:
        first = some[0] if first is None else first
        same = (some == first).all(dim=2).all(dim=0)
        rows = same if rows is None else rows & same
        if not bool(rows.any()) or not bool(some.isfinite().all()):
            return None
    if first is None or rows is None:
        return None
    columns = (first[rows] != 0).any(dim=0)
    matrix = first[rows][:, columns]
    u, s, vh = torch.linalg.svd(matrix.double(), full_matrices=False)
    full = s > torch.finfo(first.dtype).eps * max(matrix.shape) * s.amax() if len(s) else s > 0
    which, others, seen = (chosen.nonzero().squeeze(1) for chosen in (rows, ~rows, columns))
    return Linear(which, others, seen, vh[full].to(first), (u[:, full] / s[full]).T.to(first))


class Target(NamedTuple):
    """What a step is to change g by.

    Attributes:
        straight: The linear equations, as the shortest step for them in coordinates of their basis, (n, r).
        bent: The other equations, (n, q).
    """

    straight: Tensor
    bent: Tensor

    @classmethod
    def of(cls, linear: Linear | None, change: Tensor) -> Target:
        """From the change of all equations, (n, m)."""
        if linear is None:
            return cls(change[:, :0], change)
        straight = combine_columns(linear.coordinates.expand(len(change), -1, -1), change.index_select(1, linear.rows))
        return cls(straight, change.index_select(1, linear.bent))

    def plus(self, other: Target) -> Target:
        """Both changes together."""
        return Target(self.straight + other.straight, self.bent + other.bent)


class Factor(NamedTuple):
    """A Jacobian of every sample, factored for shortest steps.

    Only the equations that bend are factored. With C the bent rows' products with the linear ones' basis, the Gram
    matrix of what is left of them outside its span is J Jᵀ - C Cᵀ.

    Attributes:
        jacobian: J of the equations that bend, (n, q, d).
        cross: C, (n, q, r).
        cholesky: Of J Jᵀ - C Cᵀ, (n, q, q).
    """

    jacobian: Tensor
    cross: Tensor
    cholesky: Tensor

    def take(self, rows: Tensor) -> Factor:
        """Of some samples."""
        return Factor(*(part.index_select(0, rows) for part in self))

    def steps(self, linear: Linear | None, target: Target) -> Tensor:
        """The shortest steps that change g by `target`, (n, d)."""
        multipliers, rest = self.multipliers(target)
        step = combine_rows(multipliers, self.jacobian)
        return step if linear is None else linear.added(step, rest)

    def multipliers(self, target: Target) -> tuple[Tensor, Tensor]:
        """The shortest steps as sums of gradients: of the equations that bend, (n, q), and of the basis, (n, r)."""
        bent = target.bent - combine_columns(self.cross, target.straight)
        multipliers = torch.cholesky_solve(bent.unsqueeze(2), self.cholesky).squeeze(2)
        return multipliers, target.straight - combine_rows(multipliers, self.cross)

    def pushed(self, linear: Linear | None, step: Tensor) -> Target:
        """What the linearised equations change by along steps, (n, d)."""
        bent = combine_columns(self.jacobian, step)
        if linear is None:
            return Target(bent[:, :0], bent)
        return Target(
            combine_columns(linear.basis.expand(len(step), -1, -1), step.index_select(1, linear.columns)), bent
        )


def factored(bent: Tensor, linear: Linear | None) -> Factor:
    """Factor the Jacobian of the equations that bend, (n, q, d)."""
    gram = row_product(bent, bent.transpose(1, 2))
    cross = bent.new_zeros(len(bent), bent.shape[1], 0)
    # equations that repeat each other make the Gram matrix singular; the ridge is far below what a step must resolve
    trace = gram.diagonal(dim1=1, dim2=2).sum(dim=1)
    ridge = (torch.finfo(gram.dtype).eps * 8 * trace).clamp(min=torch.finfo(gram.dtype).tiny)
    if linear is not None:
        cross = row_product(bent.index_select(2, linear.columns), linear.basis.T.expand(len(bent), -1, -1))
        gram = gram - row_product(cross, cross.transpose(1, 2))
    gram.diagonal(dim1=1, dim2=2).add_(ridge[:, None])
    return Factor(bent, cross, torch.linalg.cholesky_ex(gram).L)


def step_matrix(factor: Factor, linear: Linear | None, m: int) -> Tensor:
    """Sᵀ of the one sample of a factor, (m, d): what targets, in rows, are multiplied with for their shortest steps."""
    identity = torch.eye(m, dtype=factor.jacobian.dtype, device=factor.jacobian.device)
    repeated = Factor(*(part.expand(m, -1, -1) for part in factor))
    return repeated.steps(linear, Target.of(linear, identity))


def linearise(function: Callable[[Tensor], Tensor], at: Tensor) -> tuple[Tensor, Products]:
    """The function's values, (n, m), and products with the transpose of its Jacobian, (…, n, m) to (…, n, d).

    By ordinary derivatives, which cost half as much per operation as those of `torch.func`. Inside its transforms, and
    where tensors belong to the inference mode, there are only the latter.
    """
    if not torch.is_inference_mode_enabled():
        try:
            with torch.enable_grad():
                place = at.detach().requires_grad_()
                values = function(place)
            return values.detach(), _pulling_back(values, place)
        except (RuntimeError, ValueError):  # those of the function itself come again
            pass
    g, pull_back = products(function, at)
    return g, lambda many: pull_back(many) if many.ndim == 2 else torch.func.vmap(pull_back)(many)


def _pulling_back(values: Tensor, place: Tensor) -> Products:
    def pull_back(multipliers: Tensor) -> Tensor:
        if not values.requires_grad or not len(multipliers):
            return multipliers.new_zeros(*multipliers.shape[:-1], place.shape[1])
        many = multipliers.ndim > values.ndim
        found: Tensor = torch.autograd.grad(
            values, place, multipliers, retain_graph=True, is_grads_batched=many, materialize_grads=True
        )[0]
        return found

    return pull_back


def products(function: Callable[[Tensor], Tensor], at: Tensor) -> tuple[Tensor, Products]:
    """As `linearise`, by `torch.func`: products with Jᵀ, (n, m) to (n, d), of which `pushing` makes those with J."""
    found: Any = torch.func.vjp(function, at)
    return found[0], lambda multipliers: found[1](multipliers)[0]


def pushing(pull_back: Products, like: Tensor) -> Products:
    """Products with J, (n, d) to (n, m), from those with Jᵀ: the derivative of a linear function is its transpose."""
    return products(pull_back, torch.zeros_like(like))[1]


def gradients(
    function: Callable[[Tensor], Tensor], pull_back: Products, at: Tensor, g: Tensor, which: Tensor | None
) -> Tensor:
    """The Jacobian, (n, q, d), of those equations that `which` (q,) names, or all.

    Samples are independent: the pull-back of one equation of all of them is a row of every sample's matrix, and the
    push of one coordinate a column; whichever are fewer are taken.

    Args:
        function: Of states, (n, d) to (n, m).
        pull_back: Products with its transpose, as `linearise` gives them.
        at: Where, (n, d).
        g: The values there, (n, m).
        which: Of the equations.
    """
    (n, d), m = at.shape, g.shape[1]
    if which is None and m > 2 * d:
        columns = torch.eye(d, dtype=g.dtype, device=g.device)[:, None].expand(-1, n, -1)
        push = pushing(products(function, at)[1], g)
        return torch.func.vmap(push)(columns).permute(1, 2, 0).contiguous()
    rows = torch.eye(m, dtype=g.dtype, device=g.device)
    rows = (rows if which is None else rows[which])[:, None].expand(-1, n, -1)
    return pull_back(rows).transpose(0, 1).contiguous()


def matrix_free_steps(function: Callable[[Tensor], Tensor], at: Tensor, target: Tensor, accuracy: float) -> Tensor:
    """The shortest steps by conjugate gradients on J Jᵀ, with products of J only: memory in proportion to the states.

    Args:
        function: g for a batch, (n, d) to (n, m).
        at: Where J is taken, (n, d).
        target: (n, m).
        accuracy: Residual, relative to the target, at which a sample's step is good enough.
    """
    _, pull_back = products(function, at)
    push = pushing(pull_back, target)
    step, residual = torch.zeros_like(at), target.clone()
    direction, energy = residual, (residual * residual).sum(dim=1)
    enough = accuracy**2 * energy
    for _ in range(2 * target.shape[1] + 10):
        back = pull_back(direction)
        pushed = push(back)
        curvature = (direction * pushed).sum(dim=1)
        going = (energy > enough) & (curvature > 0)
        if not bool(going.any()):
            break
        length = torch.where(going, energy / curvature.where(going, 1.0), 0.0)[:, None]
        step, residual = step + length * back, residual - length * pushed
        new = (residual * residual).sum(dim=1)
        direction = residual + torch.where(going, new / energy.where(going, 1.0), 0.0)[:, None] * direction
        energy = torch.where(going, new, energy)
    return step
