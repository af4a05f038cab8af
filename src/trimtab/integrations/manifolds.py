"""Manifolds of flow_matching, geoopt and others (anything with `projx`) as constraints."""

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
    """Make a constraint of a manifold; its `projx` projects.

    Manifolds have a projection but no distance. A cheap defect is known for spheres, flat tori, Stiefel manifolds and
    Euclidean space of flow_matching and geoopt. For others, unless you give one, the defect is the distance to the
    projection: then every measurement costs a projection, and scheduling saves nothing (a warning says so).

    Args:
        manifold: With `projx`, on the last dimension or the last two of the states.
        defect: `defect(x)`, (n, *event) to (n,), at least 0, and 0 on the manifold; "projection" accepts the distance
            to the projection without a warning.

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
                f"no cheap defect is known for {type(manifold).__name__}: every measurement costs a projection and "
                "scheduling saves nothing; give defect=…, or defect='projection' to accept this",
                stacklevel=2,
            )
    return as_constraint(manifold.projx, None if defect == "projection" else defect)


def _known_defect(manifold: Any) -> Callable[[Tensor], Tensor] | None:
    """Look up the class that defines `projx`, in a library whose classes are known."""
    home = next(cls for cls in type(manifold).__mro__ if "projx" in vars(cls) or cls is object)
    if home.__module__.partition(".")[0] not in ("flow_matching", "geoopt") or "projx" in vars(manifold):
        return None
    if home.__name__ == "Sphere" and getattr(manifold, "projector", None) is not None:
        return None  # geoopt's sphere within a subspace
    return _DEFECTS.get(home.__name__)


def _norm(values: Tensor) -> Tensor:
    """Return the norm of each row, (n, …) to (n,), taken over all other dimensions together."""
    return values.reshape(len(values), -1).square().sum(dim=1).sqrt()


def _stiefel(x: Tensor) -> Tensor:
    gram = x.mT @ x
    return _norm(gram - torch.eye(gram.shape[-1], dtype=x.dtype, device=x.device))


_DEFECTS: dict[str, Callable[[Tensor], Tensor]] = {
    "Sphere": lambda x: _norm(x.norm(dim=-1) - 1),
    "FlatTorus": lambda x: _norm((-x).clamp(min=0) + (x - 2 * math.pi).clamp(min=0)),
    "Stiefel": _stiefel,
    "Euclidean": lambda x: torch.zeros(len(x), dtype=x.dtype, device=x.device),
}
