"""Whether to project some rows of a batch, or all of them and keep some: by measuring both."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor

from trimtab.constraints.states import check_states
from trimtab.core.constraint import Constraint, Projection, checked_constraint
from trimtab.core.errors import real_number, whole_number
from trimtab.core.states import rowwise

__all__ = ["dense_pays"]

_IN_FLIGHT = 10  # calls between two looks at the clock on an accelerator, which works through them on its own


def dense_pays(constraint: Constraint, x: Tensor, share: float = 0.25, *, repeats: int = 5) -> bool:
    r"""Whether `rollout(..., dense=True)` is faster here than projecting only the rows that were chosen.

    Gathering rows does less arithmetic, but the host must wait for the device to learn which rows they are. So dense
    may pay for a cheap projection on an accelerator, or for a few rows of a batch; it never does where each sample is
    solved for itself. Both ways are run in turn and their median times are compared.

    Args:
        constraint: Of a batch of n; one that needs to know nothing beside the states.
        x: States such as the sampler proposes, (n, \*event), on the device it runs on.
        share: Of the rows that a step projects: the budget, as a fraction of T.
        repeats: Measurements of each way, after one that does not count.

    Example:
        >>> import trimtab as tt
        >>> problem = tt.domain("so3").problem(range(8))
        >>> x = problem.sampler.start(tt.core.noise.Noise(tt.core.noise.as_seeds(range(8))))
        >>> dense = dense_pays(problem.constraint, x)
        >>> run = tt.rollout(problem.sampler, problem.constraint, tt.Periodic(0.25), range(8), dense=dense)
    """
    checked_constraint(constraint)
    if constraint.needs:
        raise ValueError(
            f"dense_pays projects outside of a run, where {', '.join(constraint.needs)}, which the constraint needs, "
            "cannot be told; wrap it with typical ones, as in as_constraint(lambda x: constraint.project(x, "
            f"{constraint.needs[0]}=…), …)"
        )
    check_states(x, "dense_pays")
    whole_number(repeats, "repeats")
    if not 0 < real_number(share, "share") <= 1:
        raise ValueError(f"share must be above 0 and at most 1: got {share}")
    steps = torch.arange(len(x) + 1, device=x.device)
    chosen = (steps * share).floor().diff() > 0  # evenly spread
    kept = rowwise(chosen, x)

    def gathered() -> Tensor:
        rows = chosen.nonzero().squeeze(1)
        return x.index_copy(0, rows, _projected(constraint.take(rows), x.index_select(0, rows)))

    def dense() -> Tensor:
        return torch.where(kept, _projected(constraint, x), x)

    if not bool(chosen.any()):
        raise ValueError(f"a share of {share} is not one row of {len(x)}: give a larger batch or share")
    with torch.no_grad():
        times = [(_seconds(gathered, x.device), _seconds(dense, x.device)) for _ in range(repeats + 1)][1:]
    return statistics.median(d for _, d in times) < statistics.median(g for g, _ in times)


def _projected(constraint: Constraint, x: Tensor) -> Tensor:
    answer = constraint.project(x.clone())  # as the loop does: a projection may work in place
    states: Tensor = answer.x if isinstance(answer, Projection) else answer
    return states


def _seconds(function: Callable[[], Tensor], device: torch.device) -> float:
    begin = perf_counter()
    if device.type == "cpu":
        function()
    else:
        for _ in range(_IN_FLIGHT):
            function()
        getattr(torch, device.type).synchronize()
    return perf_counter() - begin
