"""Manifolds of flow_matching, geoopt and their like (anything with `projx`) as constraints."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from trimtab.core.constraint import Constraint, as_constraint

__all__ = ["manifold_constraint"]


def manifold_constraint(
    manifold: Any, defect: Callable[[Tensor], Tensor] | Literal["projection"] | None = None
) -> Constraint:
    """A manifold as a constraint: its `projx` projects.

    Manifolds offer a projection but no distance. For spheres, flat tori, Stiefel manifolds and Euclidean space of
    flow_matching and geoopt a cheap defect is known here and chosen by the class whose projection it is. For others,
    and without one of your own, the defect is the projection residual: then every look at a state costs a projection,
    is counted as one, and scheduling saves nothing (a warning says so).

    Args:
        manifold: With `projx`, on the last dimension or the last two of the states.
        defect: `defect(x)`, (n, *event) to (n,), at least 0 and 0 on the manifold; "projection" accepts the projection
            residual without a warning.

    Example:
        >>> import torch
        >>> from flow_matching.utils.manifolds import Sphere
        >>> manifold_constraint(Sphere()).defect(torch.tensor([[0.0, 3.0], [0.6, 0.8]]))
        tensor([2., 0.])
    """
    if not callable(getattr(manifold, "projx", None)):
        raise ValueError(
            f"a manifold needs projx(x); {type(manifold).__name__} has none (for functions, use trimtab.as_constraint)"
        )
    if defect is None:
        defect = _known_defect(manifold)
        if defect is None:
            warnings.warn(
                f"no cheap defect is known for {type(manifold).__name__}: every look at a state costs a projection and "
                "scheduling saves nothing; give defect=…, or defect='projection' to accept this",
                stacklevel=2,
            )
    return as_constraint(manifold.projx, None if defect == "projection" else defect)


def _known_defect(manifold: Any) -> Callable[[Tensor], Tensor] | None:
    """By the class whose projection it is, in a library where its name is known: anybody may call theirs Sphere."""
    home = next(cls for cls in type(manifold).__mro__ if "projx" in vars(cls) or cls is object)
    if home.__module__.partition(".")[0] not in _LIBRARIES or "projx" in vars(manifold):
        return None
    if home.__name__ == "Sphere" and getattr(manifold, "projector", None) is not None:
        return None  # geoopt's sphere within a subspace
    return _DEFECTS.get(home.__name__)


def _row_norm(values: Tensor) -> Tensor:
    """(n, …) to (n,): a product of manifolds is as far off as its parts together."""
    return values.reshape(len(values), -1).square().sum(dim=1).sqrt()


def _off_sphere(x: Tensor) -> Tensor:
    return _row_norm(x.norm(dim=-1) - 1)


def _off_torus(x: Tensor) -> Tensor:
    return _row_norm((-x).clamp(min=0) + (x - 2 * math.pi).clamp(min=0))


def _off_stiefel(x: Tensor) -> Tensor:
    gram = x.mT @ x
    return _row_norm(gram - torch.eye(gram.shape[-1], dtype=x.dtype, device=x.device))


def _nowhere_off(x: Tensor) -> Tensor:
    return torch.zeros(len(x), dtype=x.dtype, device=x.device)


_LIBRARIES = ("flow_matching", "geoopt")
_DEFECTS: dict[str, Callable[[Tensor], Tensor]] = {
    "Sphere": _off_sphere,
    "FlatTorus": _off_torus,
    "Stiefel": _off_stiefel,
    "Euclidean": _nowhere_off,
}
