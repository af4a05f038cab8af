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

__all__ = ["RunBatch", "check_repeatable"]

RunBatch = Callable[[Schedule], Rollout]
"""Runs one batch of rollouts under a schedule, with the same seeds and noise every time."""


class Batch(NamedTuple):
    """The records of a batch that was run once or twice, and the global generators that the first of two drew from."""

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


def check_repeatable(run: RunBatch, schedule: Schedule) -> Rollout:
    """Run one batch twice and raise if the two differ by more than rounding; return the first record.

    Args:
        run: `run(schedule)` runs a loop once, always with the same seeds, and returns `corrector.rollout`.
        schedule: Any; one that never projects is the cheapest.

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
        drawn = f"The global generator of {' and '.join(batch.moved)} was drawn from: seed it in run, or draw from one "
        hidden = (
            "No global generator (torch, numpy, random) was drawn from: look for a generator made outside run, which "
            "goes on from call to call, for data taken in another order, and for kernels that are not deterministic"
        )
        raise ValueError(
            f"run is not repeatable: {found}. Schedules are compared on the same noise, so each call must start with "
            f"the same seeds. {drawn + 'that is made there' if batch.moved else hidden}"
        )
    return first


def differing(first: Rollout, second: Rollout, tolerance: float | None = None) -> str | None:
    """Return in words how two runs of one batch differ by more than rounding; None if they do not.

    `tolerance` is relative to the largest number; by default it is the square root of the numbers' precision.
    """
    if first.defects.shape != second.defects.shape:
        one, other = tuple(first.defects.shape), tuple(second.defects.shape)
        return f"two calls with the same schedule made {one} and then {other} (steps, samples)"
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


def _apart(a: Tensor, b: Tensor, tolerance: float | None) -> Tensor:
    """Return where two tensors differ by more than rounding, bool of the same shape."""
    if not a.is_floating_point():
        return a != b
    eps = torch.finfo(a.dtype).eps
    close = eps**0.5 if tolerance is None else max(tolerance, 8 * eps)
    return ~torch.isclose(a, b.to(a), rtol=close, atol=close * float(a.nan_to_num().abs().max()), equal_nan=True)


def _global_states() -> dict[str, bytes]:
    states = {"torch": torch.get_rng_state().numpy(), "numpy": np.random.get_state(), "random": random.getstate()}
    return {name: pickle.dumps(state) for name, state in states.items()}
