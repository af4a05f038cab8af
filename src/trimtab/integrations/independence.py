"""Is a sample's result its own? A batch of one against a batch of many.

Decisions per sample are worth something only if its batch-mates have no influence on it. Batch normalisation in
training mode, a norm taken over the whole batch, one step size for all, or noise drawn for the batch break that
silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from trimtab.core.arrays import Form, Leaves, all_finite, take_leaves
from trimtab.core.bound_constraint import BoundConstraint, bind
from trimtab.core.constraint import Constraint
from trimtab.core.checks import check_integer, check_number, check_type
from trimtab.core.noise import as_seeds
from trimtab.core.rollout import Sampler, noise_of, take_rows

__all__ = ["check_independence", "check_rows"]


_COUPLED = (
    "Samples influence each other, so that decisions for each sample would depend on its batch-mates: look for batch "
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
    """Compare samples alone with the same samples in a batch.

    Args:
        thing: A sampler, which is run without corrections; or a function of a batch, (n, *event) to (n, …): an update,
            a model, a whole loop.
        batch: For a sampler, seeds; for a function, its input, (n, *event).
        samples: How many samples, spread over the batch, are also run alone.
        tolerance: Largest difference allowed, relative to the sample's largest number; by default the square root of
            the dtype's precision, since kernels round differently for other batch sizes.

    Returns:
        The largest relative difference found.

    Raises:
        ValueError: If it is beyond the tolerance, or what comes out of the batch is not finite.

    Example:
        >>> import torch
        >>> x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
        >>> check_independence(lambda x: x / x.norm(dim=1, keepdim=True), x) < 1e-6
        True
        >>> check_independence(lambda x: x / x.norm(), x)
        Traceback (most recent call last):
        ValueError: sample 0 of 8 comes out differently alone than in the batch...
    """
    check_integer(samples, "samples, how many are run alone,")
    if tolerance is not None:
        check_number(tolerance, "the tolerance", 0)
    inputs, run = _as_function(thing, batch)
    n = len(inputs)
    if n < 2:
        raise ValueError(f"a batch of at least 2 samples is needed to see influences: got {n}")
    with torch.no_grad():
        together = _one_row_each(run(inputs), n)
        if not all_finite(together):
            raise ValueError(
                f"what came out for the batch of {n} has NaN or an infinity in it, which compare with nothing; give "
                "samples that stay finite, with nothing corrected on the way"
            )
        worst = 0.0
        for i in _spread(n, samples):
            try:
                alone = run(inputs[i : i + 1])
            except Exception as error:
                raise ValueError(
                    f"sample {i} of {n} cannot be run alone: {type(error).__name__}: {error}. {_COUPLED}"
                ) from error
            allowed = _rounding(together) if tolerance is None else tolerance
            difference = _relative(_one_row_each(alone, 1), 0, together, i)
            worst = max(worst, difference)
            if not difference <= allowed:
                raise ValueError(
                    f"sample {i} of {n} comes out differently alone than in the batch, by {difference:.2g} of its size "
                    f"(allowed: {allowed:.2g}). {_COUPLED}"
                )
    return worst


def check_rows(constraint: Constraint, x: Any, *, tolerance: float | None = None, **context: Any) -> float:
    """Check that `take` selects a constraint's rows: projecting some states is the same as projecting all.

    Args:
        constraint: For exactly the samples of `x`.
        x: States, (n, *event), at least 2, or a tree of such arrays.
        tolerance: As in `check_independence`.
        **context: What the constraint needs to know beside the states; see `Constraint.needs`.

    Returns:
        The largest relative difference found.

    Raises:
        ValueError: If rows cannot be selected, come out differently, or not finite.
    """
    check_type(constraint, Constraint, "the constraint of check_rows", "as_constraint(…) makes one of functions")
    if tolerance is not None:
        check_number(tolerance, "the tolerance", 0)
    applied, states = bind(constraint, x, **context)
    if not all_finite(states):
        raise ValueError("check_rows takes finite states, one row per sample: got NaN or inf among them")
    name, n = type(constraint).__name__, len(states[0])
    allowed = _rounding(states) if tolerance is None else tolerance
    # samples alone come first: what a constraint makes at its first call would be made of the whole batch after it
    alone = {i: _alone(applied, states, i, name) for i in _spread(n, 3)}
    whole = _answers(applied, states)
    if not all_finite(whole):
        raise ValueError(
            f"{name} projects to, or measures, NaN or an infinity for some of the {n} states, which compare with "
            "nothing; give states that it can project"
        )
    worst = 0.0
    for i, own in alone.items():
        difference = _relative(own, 0, whole, i)
        worst = max(worst, difference)
        if not difference <= allowed:
            raise ValueError(
                f"{name} projects or measures sample {i} of {n} differently after take([{i}]), by "
                f"{difference:.2g} of its size (allowed: {allowed:.2g}); does take(rows) select all data that belongs "
                "to samples, is nothing normalised over the batch, and nothing kept of the first one?"
            )
    return worst


def _answers(applied: BoundConstraint, states: Leaves) -> Leaves:
    return (*applied.project(states).x, applied.defect(states))


def _alone(applied: BoundConstraint, states: Leaves, i: int, name: str) -> Leaves:
    """What sample i is projected to by itself, and its defect."""
    rows = torch.tensor([i], device=states[0].device)
    try:
        return _answers(applied.take(rows), take_leaves(states, rows))
    except Exception as error:
        _answers(applied, states)  # what fails for all of them fails for another reason, and says which
        raise ValueError(
            f"{name} cannot work on sample {i} of {len(states[0])} alone: take([{i}]) and a projection ended in "
            f"{type(error).__name__}: {error}. take(rows) must select the rows of all data that belongs to samples"
        ) from error


def _as_function(thing: Any, batch: Any) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """Rows to select from, and what to run on them."""
    if not hasattr(thing, "n_steps"):
        if not callable(thing) or not isinstance(batch, Tensor):
            raise ValueError("give a sampler and seeds, or a function and a batch of its input")
        Form(batch, floats=False)  # refuses what has no rows; numbers of rows are integers
        if batch.is_floating_point() and not bool(batch.isfinite().all()):
            raise ValueError("the batch has NaN or an infinity in it, which compare with nothing; give finite numbers")
        return batch, thing
    seeds = as_seeds(batch)
    rows = torch.arange(len(seeds))

    def run(rows: Tensor) -> Any:
        sampler = take_rows(thing, rows)
        noise = noise_of(sampler, seeds[rows])
        x = sampler.start(noise)
        for t in range(sampler.n_steps):
            x = sampler.step(x, t, noise)
        return x

    return rows, run


def _one_row_each(answer: Any, n: int) -> Leaves:
    """The arrays that a function of n samples returned, refused where they cannot be compared row by row."""
    try:
        form = Form(answer)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the function must return floats with one row for each of {n} samples: {error}") from error
    if form.n != n:
        raise ValueError(f"the function must return floats with one row for each of {n} samples: got {form.n} rows")
    return form.leaves(answer)


def _spread(n: int, samples: int) -> list[int]:
    return sorted({round(i) for i in torch.linspace(0, n - 1, max(1, min(samples, n))).tolist()})


def _rounding(leaves: Leaves) -> float:
    """The square root of the precision of the coarsest floats."""
    precisions = [torch.finfo(leaf.dtype).eps for leaf in leaves if leaf.is_floating_point()]
    return float(max(precisions) ** 0.5)


def _relative(one: Leaves, i: int, other: Leaves, j: int) -> float:
    """How far row i of one state is from row j of another, of the size of the latter; the largest over the arrays."""
    return max(_difference(a[i].cpu().double(), b[j].cpu().double()) for a, b in zip(one, other, strict=True))


def _difference(a: Tensor, b: Tensor) -> float:
    size = max(float(b.abs().max()), torch.finfo(torch.float32).tiny)
    return float((a - b).abs().max()) / size
