"""Check that a `run` gives the same batch twice: every comparison of schedules on the same noise rests on this."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from trimtab.core.arrays import Form
from trimtab.core.checks import check_callable
from trimtab.core.record import Rollout
from trimtab.core.schedule import Schedule

__all__ = ["check_repeatable"]


class Batch(NamedTuple):
    """A batch that was run once or twice.

    Attributes:
        records: One per run.
        moved: The global random generators that the first of two runs drew from.
    """

    records: tuple[Rollout, ...]
    moved: tuple[str, ...] = ()


def run_batch(run: Callable[[Schedule], Any], schedule: Schedule, times: int = 1) -> Batch:
    """Run one batch in this process, once or twice."""
    if times == 1:
        return Batch((as_record(run(schedule)),))
    before = _global_states()
    first = as_record(run(schedule))
    moved = tuple(name for name, state in _global_states().items() if state != before[name])
    return Batch((first, as_record(run(schedule))), moved)


def check_repeatable(run: Callable[[Schedule], Rollout], schedule: Schedule) -> Rollout:
    """Run one batch twice and raise if the two differ by more than rounding.

    Args:
        run: `run(schedule)` runs a loop once, always with the same seeds, and returns `corrector.rollout`.
        schedule: Any; one that never projects is the cheapest.

    Returns:
        The record of the first run, which need not be made again.

    Raises:
        TypeError: If `run` does not return a record.
        ValueError: If it is not repeatable; the message says where the runs differ, and which global generator they
            drew from.

    Example:
        >>> import torch, trimtab as tt
        >>> ball = tt.as_constraint(lambda x: x.clamp(-1, 1), lambda x: (x.abs() - 1).clamp(min=0).amax(dim=1))
        >>> def run(schedule):
        ...     corrector = tt.Corrector(ball, schedule, n_steps=5)
        ...     for t in range(5):
        ...         corrector(0.1 * torch.randn(4, 2), t)
        ...     return corrector.rollout
        >>> check_repeatable(run, tt.Terminal())
        Traceback (most recent call last):
        ValueError: run is not repeatable: 4 of 4 samples differ between two calls with the same schedule (first: ...
    """
    check_callable(run, "run", "run(schedule)")
    # batches on an engine are run twice in one worker
    batch: Batch = run.twice(schedule) if hasattr(run, "twice") else run_batch(run, schedule, 2)
    first, second = batch.records
    found = differing(first, second)
    if found is not None:
        raise ValueError(
            f"run is not repeatable: {found}. Schedules are compared on the same noise, so each call must start with "
            f"the same seeds. {_advice(batch.moved)}"
        )
    return first


def differing(first: Rollout, second: Rollout, tolerance: float | None = None) -> str | None:
    """Return in words how two runs of one batch differ by more than rounding; None if they do not.

    Args:
        first: One run.
        second: The other one.
        tolerance: Relative to the largest number; by default the square root of the precision of the numbers. It is
            never below the precision.
    """
    if first.defects.shape != second.defects.shape:
        return (
            f"two calls with the same schedule made {tuple(first.defects.shape)} and then "
            f"{tuple(second.defects.shape)} (steps, samples)"
        )
    apart = _apart(first.defects, second.defects, tolerance)  # (T, n)
    differs = apart.any(dim=0)
    form = Form(first.final, floats=False)
    for a, b in zip(form.leaves(first.final), form.leaves(second.final), strict=True):
        differs = differs | _apart(a, b, tolerance).reshape(len(differs), -1).any(dim=1)
    if not bool(differs.any()):
        return None
    sample = int(differs.nonzero()[0])
    steps = apart[:, sample].nonzero().flatten().tolist()
    place = f"from step {steps[0]} on" if steps else "in its final state"
    return (
        f"{int(differs.sum())} of {len(differs)} samples differ between two calls with the same schedule (first: "
        f"sample {sample}, {place})"
    )


def as_record(
    answer: object, what: str = "run(schedule) must return the record of its run, corrector.rollout"
) -> Rollout:
    """Return what a `run` returned; raise if it is not the record of a corrector."""
    if not isinstance(answer, Rollout):
        raise TypeError(f"{what}: got {type(answer).__name__}")
    return answer


def recorded(run: Callable[[Schedule], Rollout]) -> Callable[[Schedule], Rollout]:
    """Return the same `run` with a check that it returns records."""
    check_callable(run, "run", "run(schedule)")
    return lambda schedule: as_record(run(schedule))


def _apart(a: Tensor, b: Tensor, tolerance: float | None) -> Tensor:
    """Return where two tensors differ by more than rounding, bool of the same shape."""
    if not a.is_floating_point():
        return a != b
    eps = torch.finfo(a.dtype).eps
    close = eps**0.5 if tolerance is None else max(tolerance, 8 * eps)
    return ~torch.isclose(a, b.to(a), rtol=close, atol=close * float(a.nan_to_num().abs().max()), equal_nan=True)


_SEEDING = {
    "torch": "torch.manual_seed(seed), or a torch.Generator made in run and passed to every draw",
    "numpy": "numpy.random.seed(seed), or better a numpy.random.default_rng(seed) made in run",
    "random": "random.seed(seed), or a random.Random(seed) made in run",
}


def _global_states() -> dict[str, bytes]:
    states = {"torch": torch.get_rng_state().numpy(), "numpy": np.random.get_state(), "random": random.getstate()}
    return {name: pickle.dumps(state) for name, state in states.items()}


def _advice(moved: tuple[str, ...]) -> str:
    if not moved:
        return (
            "No global generator (torch, numpy, random) was drawn from: look for a generator made outside run, which "
            "continues from call to call, for data taken in another order, and for kernels that are not deterministic"
        )
    return " ".join(
        f"The global generator of {name} was drawn from: start run with {_SEEDING[name]}." for name in moved
    )
