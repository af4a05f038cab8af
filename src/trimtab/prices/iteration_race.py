"""What races where iterations are counted: prices of one iteration, whole projections, and what needs no table at all.

Everything is a price of iterations here. A whole projection is one where going on costs nothing to decide: a step is
begun by the price of a projection with as many left as the budget pays for, and gone on with to the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trimtab.core.record import Rollout
from trimtab.prices.batches import Batches
from trimtab.prices.counts import Allowance, counts_with_closing, even_counts, whole_counts
from trimtab.prices.graded import iteration_costs, iteration_prices, iteration_steps
from trimtab.prices.mean import AtPrice
from trimtab.prices.mean_program import falling, shared_out
from trimtab.prices.pools import Array
from trimtab.prices.race import EVEN, fixed_plans
from trimtab.prices.sample_scale import SampleScale
from trimtab.prices.thresholds import Thresholds, with_closing

__all__ = ["WholeProjections", "iteration_candidates"]

_LEVELS = 16  # of tau
_TRIALS = 2
_SPREAD = 1e-6  # of the largest defect: the least tau
_ORDER = 1 << 38  # a stream of noise of its own


@dataclass(frozen=True, eq=False)
class WholeProjections:
    """Prices of whole projections, made on the same calibration seeds.

    Attributes:
        tables: By name, (T', B' + 1): for the steps at which there is a choice, and without the closing projection.
        sample_scale: Where samples differ in scale.
        cost: Of a whole projection on average, in units.
    """

    tables: Mapping[str, Tensor]
    sample_scale: SampleScale | None
    cost: float


def iteration_candidates(
    batches: Batches, runs: Sequence[Rollout], weights: Mapping[str, Tensor | None], whole: WholeProjections
) -> dict[str, Thresholds | Allowance]:
    """All candidates by name.

    Args:
        batches: Run a few more.
        runs: Records that stop at random places, cut.
        weights: What a unit of residual costs at each step, by the name of the objective.
        whole: Whole projections.
    """
    held, T, B = batches.held, batches.n_choices, batches.spendable
    counts = {EVEN: even_counts(T, B, *iteration_costs(runs))}
    for name, masks in fixed_plans(T, min(T, B)).items():
        counts[f"whole projections, {name}"] = whole_counts(masks, B, whole.cost)
    found: dict[str, Thresholds | Allowance] = {
        name: Allowance(counts_with_closing(some, held), max(held, 1), method=name) for name, some in counts.items()
    }
    found["until below one tau"] = _priced(batches, _tau_table(batches))
    steps = iteration_steps(runs)
    for name, weight in weights.items():
        found[f"iterations by price for {name}"] = iteration_prices(batches, steps, weight)[0]
    for name, table in whole.tables.items():
        found[f"whole projections by price for {name}"] = _in_iterations(batches, table, whole)
    return found


def _priced(
    batches: Batches, table: Tensor, onward: Tensor | None = None, sample_scale: SampleScale | None = None
) -> Thresholds:
    held = batches.held
    return Thresholds(
        with_closing(table, held),
        unit="iteration",
        closing_reserve=max(held, 1),
        onward=None if onward is None else with_closing(onward, held),
        sample_scale=sample_scale,
    )


def _in_iterations(batches: Batches, table: Tensor, whole: WholeProjections) -> Thresholds:
    """Prices of whole projections as prices of beginning one; what is begun is gone on with."""
    pays_for = (torch.arange(batches.spendable + 1) / whole.cost).round().long().clamp(max=table.shape[1] - 1)
    begin = table[:, pays_for]
    onward = torch.full_like(begin, -torch.inf)
    onward[:, 0] = torch.inf
    return _priced(batches, begin, onward, whole.sample_scale)


def _tau_table(batches: Batches) -> Tensor:
    """Iterate until the defect is below one tau, that which spends what is left evenly over the steps to go.

    What each tau costs per step is seen in a few batches in which samples have different ones.
    """
    T, B = batches.n_choices, batches.spendable
    largest = max(float(batches.cut(batches.free).defects.max()), 1e-300)
    taus = np.geomspace(_SPREAD * largest, largest, _LEVELS)
    paid, count = torch.zeros(2, _LEVELS, dtype=torch.float64)
    for k in range(_TRIALS):
        level = shared_out(_LEVELS, batches.n, _ORDER, k, _TRIALS)
        prices = torch.from_numpy(taus)[level].expand(batches.n_steps, -1)
        run = batches.run(AtPrice(prices, counted="iteration"))
        on_the_way = batches.cut(run).iterations.sum(dim=0).double().cpu()
        paid.index_add_(0, level, on_the_way / T)
        count.index_add_(0, level, torch.ones_like(on_the_way))
    costs: Array = falling(paid.numpy(), count.numpy())
    rate = np.arange(B + 1) / np.arange(T, 0, -1)[:, None]
    logs = np.interp(rate, costs[::-1], np.log(taus[::-1]))
    table = torch.from_numpy(np.exp(logs))
    table[:, 0] = torch.inf
    return table
