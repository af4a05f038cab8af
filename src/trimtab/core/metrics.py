"""What timing costs: pure functions of paired rollouts, which have the same seeds in every schedule."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trimtab.core.arrays import Form, difference, pick
from trimtab.core.checks import check_callable, check_floats, check_number, check_type, moved_to_lab
from trimtab.core.record import Rollout

__all__ = [
    "aligned",
    "check_paired",
    "distinct_seeds",
    "endpoint_distance",
    "euclidean",
    "nepe",
    "path_error",
    "state_error",
    "top_mass",
]

Distance = Callable[[Any, Any], Tensor]
"""Maps two batches of states, (n, *event) each, to their distances, (n,): the domain's rho."""


def euclidean(a: Any, b: Any) -> Tensor:
    r"""Return the Euclidean distances of two batches of states, (n,): the default of every `distance` argument.

    Args:
        a: (n, \*event), an array, or a tree of arrays, whose squared distances add up; true is 1 and false 0.
        b: Of the same form.

    Example:
        >>> import torch
        >>> euclidean(torch.zeros(2, 2, 2), torch.ones(2, 2, 2))
        tensor([2., 2.])
    """
    form, other = Form(a, floats=False), Form(b, floats=False)
    if (form.tree, form.shapes, form.dtypes) != (other.tree, other.shapes, other.dtypes):
        got = [
            f"{type(state).__name__} of {', '.join(f.names)} with {[tuple(shape) for shape in f.shapes]} of {f.dtypes}"
            for state, f in ((a, form), (b, other))
        ]
        raise ValueError(f"a distance needs states of the same tree, shape and dtype: got {got[0]} and {got[1]}")
    apart = [difference(x, y) for x, y in zip(form.leaves(a), form.leaves(b), strict=True)]
    parts = [torch.linalg.vector_norm(d.flatten(1), dim=1) if d.ndim > 1 else d.abs() for d in apart]
    distance: Tensor = parts[0] if len(parts) == 1 else torch.linalg.vector_norm(torch.stack(parts), dim=0)
    return distance


def aligned(a: Tensor, b: Tensor) -> Tensor:
    """Return the distance of point sets however they are turned and moved: RMSD after the best rotation (Kabsch), (n,).

    A `distance` for states such as molecules, if a turned sample is the same sample; mirror images differ.

    Args:
        a: (n, m, 3).
        b: Of the same shape.

    Example:
        >>> import torch
        >>> a = torch.rand(4, 5, 3, generator=torch.manual_seed(0), dtype=torch.float64)
        >>> turned = a @ torch.tensor([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]], dtype=a.dtype) + 2
        >>> bool((aligned(a, turned) < 1e-6).all()), bool((aligned(a, -a) > 0.1).all())
        (True, True)
    """
    check_floats(a, "point sets", ("n", "m", 3))
    if check_floats(b, "point sets", ("n", "m", 3)).shape != a.shape:
        raise ValueError(f"aligned needs point sets of the same shape: got {tuple(a.shape)} and {tuple(b.shape)}")
    a, b = (x.double() - x.double().mean(dim=1, keepdim=True) for x in (a, b))
    product = a.transpose(1, 2) @ b
    singular = torch.linalg.svdvals(product)
    singular[:, -1] *= torch.where(torch.linalg.det(product) < 0, -1.0, 1.0)  # a rotation, and no mirror image
    squared = (a * a + b * b).sum(dim=(1, 2)) - 2 * singular.sum(dim=1)
    distance: Tensor = (squared.clamp(min=0) / a.shape[1]).sqrt()
    return distance


def path_error(run: Rollout) -> Tensor:
    """Return E_path, the residuals summed over the path, (n,)."""
    _record(run, "run")
    return run.residuals.sum(dim=0)


def endpoint_distance(run: Rollout, stepwise: Rollout, distance: Distance = euclidean) -> Tensor:
    """Return E_end, the distance of the final states to those of the paired stepwise rollout, (n,)."""
    _paired(run, stepwise)
    return measured_distance(distance, run.final, stepwise.final)


def measured_distance(distance: Distance, a: Any, b: Any) -> Tensor:
    """Return `distance(a, b)`, (n,); raise if that is not one number per sample."""
    check_callable(distance, "distance", "distance(a, b)")
    apart, n = distance(a, b), Form(a, floats=False).n
    if not isinstance(apart, Tensor) or apart.shape != (n,) or bool(apart.isnan().any()):
        got = str(tuple(apart.shape)) if isinstance(apart, Tensor) else type(apart).__name__
        if isinstance(apart, Tensor) and apart.shape == (n,):
            got = f"NaN for {int(apart.isnan().sum())} samples"
        raise ValueError(f"distance(a, b) must give one number per sample, a tensor of shape ({n},): got {got}")
    return apart


def state_error(run: Rollout, stepwise: Rollout, distance: Distance = euclidean) -> Tensor:
    """Return E_state, the distance to the paired stepwise rollout summed over the path, (n,). Needs kept states."""
    _paired(run, stepwise)
    if run.states is None or stepwise.states is None:
        raise ValueError("state error needs the states along the path: run both rollouts with keep_states=True")
    if run.n_steps != stepwise.n_steps:
        raise ValueError(
            f"state error compares two rollouts step by step: got {run.n_steps} and {stepwise.n_steps} steps; compare "
            "runs of one length, or their final states with endpoint_distance"
        )
    # the initial state may or may not be kept
    pairs = ((pick(run.states, t), pick(stepwise.states, t)) for t in range(-run.n_steps, 0))
    return torch.stack([measured_distance(distance, a, b) for a, b in pairs]).sum(dim=0)


def nepe(path: Tensor, stepwise: Tensor, terminal: Tensor, tolerance: float = 1e-9) -> Tensor:
    """Return the normalised excess path error, (n,): 0 is stepwise correction, 1 is terminal correction.

    Args:
        path: Path errors of the schedule, (n,).
        stepwise: Of the paired stepwise rollouts, (n,).
        terminal: Of the paired terminal rollouts, (n,).
        tolerance: The value is NaN ("degenerate") if terminal is not above stepwise by at least this much: timing then
            makes no difference, or the scale would be upside down. Statistics leave such values out.
    """
    check_paired(path=path, stepwise=stepwise, terminal=terminal)
    check_number(tolerance, "tolerance", 0)
    span = terminal - stepwise
    return torch.where(span < tolerance, torch.nan, (path - stepwise) / span)


def top_mass(defects: Tensor, q: float = 0.2) -> Tensor:
    """Return C_q, the share of a rollout's defect in its largest ceil(q T) steps, (n,); NaN where there is no defect.

    Args:
        defects: (T, n).
        q: The share of steps.
    """
    check_floats(defects, "defects", ("T", "n"), finite=False)
    if not 0 < check_number(q, "q, a share of the steps,") <= 1 or len(defects) == 0:
        raise ValueError(f"q must be in (0, 1], and there must be a step: got q={q} and {len(defects)} steps")
    k = math.ceil(q * len(defects) - 1e-9)  # 0.2 * 15 is a hair above 3 in floating point
    total = defects.sum(dim=0)
    return torch.where(total > 0, defects.topk(k, dim=0).values.sum(dim=0) / total, torch.nan)


def distinct_seeds(seeds: Tensor) -> Tensor:
    """Return the first row of each distinct seed, (n,) to (k,) int64 in order: the unit of every statistic.

    Example:
        >>> import torch
        >>> distinct_seeds(torch.tensor([5, 5, 3, 5]))
        tensor([0, 2])
    """
    first: dict[int, int] = {}
    for row, seed in enumerate(seeds.tolist()):
        first.setdefault(seed, row)
    return torch.tensor(list(first.values()), device=seeds.device)


def _record(run: object, what: str) -> None:
    check_type(run, Rollout, what, "give what `rollout` or a corrector's `rollout` returned")


def _values(values: object, what: str) -> Tensor:
    if not isinstance(values, Tensor) or values.is_complex():
        got = values.dtype if isinstance(values, Tensor) else f"{values!r:.60} of type {type(values).__name__}"
        raise TypeError(f"{what} must be a tensor of real numbers: got {got}")
    return values


def check_paired(**values: Tensor) -> None:
    """Check that all values are tensors of real numbers of one shape."""
    shapes = {name: tuple(_values(value, name).shape) for name, value in values.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"paired values must have the same shape, one number per sample: got {shapes}")


def _paired(run: Rollout, other: Rollout) -> None:
    _record(run, "run")
    _record(other, "stepwise")
    ours, theirs = ([tuple(shape) for shape in Form(r.final, floats=False).shapes] for r in (run, other))
    if ours != theirs:
        raise ValueError(f"paired rollouts must have the same shape: got {ours} and {theirs}")
    if run.seeds is not None and other.seeds is not None and not torch.equal(run.seeds, other.seeds):
        raise ValueError("paired rollouts must have the same seeds, in the same order")


def __getattr__(name: str) -> Any:
    """Return a metric of the paper, which moved to the lab in 0.4; found here with a warning until 0.5."""
    if name in ("Summary", "achieved_budget", "benefit", "gap_closed", "improvement", "summary", "win_rate"):
        return moved_to_lab(__name__, name, "metrics", "MeanError" if name == "Summary" else name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
