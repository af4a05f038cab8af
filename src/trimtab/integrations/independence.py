"""Check that a sample's result does not depend on the other samples of its batch.

Decisions per sample need this. Batch normalisation in training mode, a norm over the whole batch, one step size for
all samples, or noise drawn for the whole batch break it without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from trimtab.core.arrays import Form, Leaves, all_finite, take_leaves
from trimtab.core.bound_constraint import bind
from trimtab.core.checks import check_integer, check_number, check_type
from trimtab.core.constraint import Constraint
from trimtab.core.noise import as_seeds
from trimtab.loop.rollout import Sampler, noise_of, take_rows

__all__ = ["check_independence", "check_rows"]


_COUPLED = (
    "Samples influence each other, so decisions for one sample would depend on the others: look for batch "
    "normalisation in training mode (call .eval()), a norm or mean over the whole batch, one adaptive step size for "
    "all, or noise drawn for the whole batch"
)


def check_independence(
    thing: Sampler | Callable[[Tensor], Any],
    batch: Iterable[int] | Tensor,
    *,
    samples: int = 3,
    tolerance: float | None = None,
) -> float:
    """Compare samples that run alone with the same samples in a batch.

    Args:
        thing: A sampler, which runs without corrections; or a function of a batch, (n, *event) to (n, …): an update,
            a model, a whole loop.
        batch: Seeds for a sampler; the input of a function, (n, *event).
        samples: How many samples, spread over the batch, also run alone.
        tolerance: Largest difference allowed, relative to the sample's largest number. None is the square root of the
            dtype's precision, because kernels round differently for other batch sizes.

    Returns:
        The largest relative difference found.

    Raises:
        ValueError: If it exceeds the tolerance, or the results of the batch are not finite.

    Example:
        >>> import torch
        >>> x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
        >>> check_independence(lambda x: x / x.norm(dim=1, keepdim=True), x) < 1e-6
        True
        >>> check_independence(lambda x: x / x.norm(), x)
        Traceback (most recent call last):
        ValueError: the function or sampler gives another result for sample 0 of 8 alone than in the batch...
    """
    check_integer(samples, "samples")
    n, run = _as_function(thing, batch)
    if n < 2:
        raise ValueError(f"a batch of at least 2 samples is needed to see influences: got {n}")
    with torch.no_grad():
        return _largest_difference(run, n, samples, tolerance, "the function or sampler", _COUPLED)


def check_rows(constraint: Constraint, x: Any, *, tolerance: float | None = None, **context: Any) -> float:
    """Check that `take` selects a constraint's rows: projecting some states gives the same as projecting all.

    Args:
        constraint: For exactly the samples of `x`.
        x: States, (n, *event), at least 2, or a tree of such arrays.
        tolerance: As in `check_independence`.
        **context: What the constraint needs besides the states; see `Constraint.needs`.

    Returns:
        The largest relative difference found.

    Raises:
        ValueError: If rows cannot be selected, or the results differ or are not finite.
    """
    check_type(constraint, Constraint, "the constraint of check_rows", "as_constraint(…) makes one of functions")
    bound, states = bind(constraint, x, **context)
    if not all_finite(states):
        raise ValueError("check_rows takes finite states, one row per sample: got NaN or inf among them")
    hint = (
        "take(rows) must select all per-sample data, nothing may be normalised over the batch, and nothing may be kept "
        "of the first batch"
    )

    def run(rows: Tensor) -> Leaves:
        everyone = len(rows) == len(states[0])
        some, own = (bound, states) if everyone else (bound.take(rows), take_leaves(states, rows))
        return (*some.project(own).x, some.defect(own))

    return _largest_difference(run, len(states[0]), 3, tolerance, type(constraint).__name__, hint)


def _as_function(thing: Any, batch: Any) -> tuple[int, Callable[[Tensor], Leaves]]:
    """Return the number of samples, and a function that runs some of them, given their rows."""
    if not hasattr(thing, "n_steps"):
        if not callable(thing) or not isinstance(batch, Tensor):
            raise ValueError("give a sampler and seeds, or a function and a batch of its input")
        Form(batch, floats=False)  # checks that it has rows
        if batch.is_floating_point() and not bool(batch.isfinite().all()):
            raise ValueError("the batch has NaN or inf in it, which cannot be compared; give finite numbers")
        return len(batch), lambda rows: _leaves(thing(batch[rows]), len(rows))
    seeds = as_seeds(batch)

    def run(rows: Tensor) -> Leaves:
        sampler = take_rows(thing, rows)
        noise = noise_of(sampler, seeds[rows])
        x = sampler.start(noise)
        for t in range(sampler.n_steps):
            x = sampler.step(x, t, noise)
        return _leaves(x, len(rows))

    return len(seeds), run


def _leaves(answer: Any, n: int) -> Leaves:
    """Return the arrays of an answer; raise if they do not have n rows of floats."""
    try:
        form = Form(answer)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the function must return floats with one row for each of {n} samples: {error}") from error
    if form.n != n:
        raise ValueError(f"the function must return floats with one row for each of {n} samples: got {form.n} rows")
    return form.leaves(answer)


def _largest_difference(
    run: Callable[[Tensor], Leaves], n: int, samples: int, tolerance: float | None, name: str, hint: str
) -> float:
    """Run some rows alone and all together; return the largest difference relative to a row's size."""
    if tolerance is not None:
        check_number(tolerance, "the tolerance", 0)
    everyone, alone = torch.arange(n), {}
    # single samples come first: what a constraint builds at its first call is then built from one sample
    for i in sorted({round(i) for i in torch.linspace(0, n - 1, min(samples, n)).tolist()}):
        try:
            alone[i] = run(everyone[i : i + 1])
        except Exception as error:
            run(everyone)  # a failure of the whole batch raises its own error here
            raise ValueError(
                f"{name} cannot run sample {i} of {n} alone: {type(error).__name__}: {error}. {hint}"
            ) from error
    whole, worst = run(everyone), 0.0
    if not all_finite(whole):
        raise ValueError(
            f"{name} gives NaN or inf for some of the {n} samples, which cannot be compared; use samples that stay "
            "finite"
        )
    coarsest = max(torch.finfo(leaf.dtype).eps for leaf in whole if leaf.is_floating_point())
    allowed = coarsest**0.5 if tolerance is None else tolerance
    for i, own in alone.items():
        for one, rows in zip(own, whole, strict=True):
            a, b = one[0].cpu().double(), rows[i].cpu().double()
            size = max(float(b.abs().max()), torch.finfo(torch.float32).tiny)
            difference = float((a - b).abs().max()) / size
            if not difference <= allowed:
                raise ValueError(
                    f"{name} gives another result for sample {i} of {n} alone than in the batch, by {difference:.2g} "
                    f"of its size (allowed: {allowed:.2g}). {hint}"
                )
            worst = max(worst, difference)
    return worst
