"""The program behind a budget on average: what a correction must remove to be worth its cost, whoever pays.

Where only the mean cost over many samples counts, a unit of cost has one price mu for all of them, and the program has
no budget in it:

    U[t](r) = r + E[ V[t+1](s') | r ],     V[t](s) = min( U[t](s),  mu + E[ V[t](r1(s)) ] )

with tau[t] the defect from which on a correction (a projection, or one more iteration) pays. Where beginning costs more
than going on, a step has two values, as in `trimtab.prices.graded`. Calibration rollouts show what each mu costs on
average, and the one that costs what was asked for is taken.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from trimtab.core.noise import uniform_numbers
from trimtab.core.record import Rollout
from trimtab.prices.batches import Batches
from trimtab.prices.dynamic import break_even
from trimtab.prices.explore import ExploreIterations
from trimtab.prices.graded import IterationSteps, iteration_costs, iteration_steps
from trimtab.prices.mean import AtPrice, Mean, MeanPrices, within_reach
from trimtab.prices.objective import describe
from trimtab.prices.pools import Array
from trimtab.prices.transitions import NODES

__all__ = ["falling", "mean_prices", "shared_out", "solve_mean"]

_LEVELS = 32
_SPREAD = 1e-6  # of the dearest price: the cheapest
_PASSES = 64  # within a step
_TRIALS = 4
_NEAR = 0.6  # of the cost asked for, where prices are tried out more closely
_ORDER = 1 << 35  # a stream of noise of its own


def solve_mean(steps: IterationSteps, mu: float, weights: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """The defects from which on beginning and going on pay at each step, (T,) each; None where they are the same.

    Args:
        steps: What a correction and what a step do to a defect, and what it costs.
        mu: The price of a unit of cost, in those of the objective.
        weights: What a unit of residual costs at each step, (T,); 1 for path error.
    """
    nodes, improved, following = (part.numpy() for part in (steps.nodes, steps.improved, steps.following))
    T = len(nodes)
    unit = np.ones(T) if weights is None else weights.double().numpy()
    (begin, onward), sums = np.empty((2, T)), np.empty((NODES, 1))
    value: Array = np.zeros(NODES)
    for t in reversed(range(T)):
        stay = unit[t] * nodes[t] + (following[t] @ value if t < T - 1 else 0.0)
        within = stay
        for _ in range(_PASSES):
            go = mu * steps.go_on + improved[t] @ within
            better = np.minimum(stay, go)
            if np.allclose(better, within, rtol=1e-9, atol=0):
                break
            within = better
        onward[t] = break_even(nodes[t], (stay - go)[:, None], sums)[0]
        value = within
        if steps.begin != steps.go_on:
            go = mu * steps.begin + improved[t] @ within
            value = np.minimum(stay, go)
            begin[t] = break_even(nodes[t], (stay - go)[:, None], sums)[0]
    if steps.begin == steps.go_on:
        return torch.from_numpy(onward), None
    return torch.from_numpy(begin), torch.from_numpy(onward)


def mean_prices(batches: Batches, budget: Mean) -> MeanPrices:
    """Calibrate prices for mean costs around the one asked for: about half of it to twice as much."""
    wanted = budget.units(batches.n_steps)
    if batches.unit == "projection" and wanted > batches.n_steps:
        raise ValueError(
            f"a mean of {wanted:g} projections does not fit T = {batches.n_steps} steps: give at most that"
        )
    if batches.unit == "projection" and batches.n_choices == 1:
        raise ValueError(
            f"with T = {batches.n_steps} and closing={batches.closing!r} there is one step at which there is a choice, "
            "and a mean budget is shared out among several: take more steps, or use Trigger(value) with a quantile of "
            "the defects at that step, which corrects the share of samples above it"
        )
    if not bool(batches.free.defects.any()):
        raise ValueError(
            "no correction is worth anything: the defects of all calibration rollouts are 0; check the defect, or use "
            "Terminal()"
        )
    runs = [*_explored(batches, budget), batches.cut(batches.free)]
    steps = iteration_steps(runs)
    top = _dearest(steps, batches.weights)
    if not top > 0:
        raise ValueError(
            f"no correction is worth anything by the objective {describe(batches.objective)!r}: in the calibration "
            "rollouts leaving some out adds nothing to it; use Terminal(), or another objective"
        )
    mus = np.geomspace(_SPREAD * top, top, _LEVELS)
    _, costs = _tried(batches, steps, mus, trials=1)
    near = np.flatnonzero((costs >= _NEAR * wanted) & (costs <= wanted / _NEAR))
    if len(near) == 0:
        raise _out_of_reach(wanted, batches, "all heights", costs)
    finer = np.geomspace(mus[max(near[0] - 1, 0)], mus[min(near[-1] + 1, _LEVELS - 1)], _LEVELS)
    (table, onward), costs = _tried(batches, steps, finer, _TRIALS)
    prices = MeanPrices(table, torch.from_numpy(costs), batches.unit, **batches.facts({}), onward=onward)
    if not within_reach(wanted, prices.costs):
        raise _out_of_reach(wanted, batches, "the nearest heights", costs)
    return prices


def _out_of_reach(wanted: float, batches: Batches, which: str, costs: Array) -> ValueError:
    return ValueError(
        f"a mean of {wanted:g} {batches.unit}s per sample is out of reach: prices of {which} cost {costs[-1]:.3g} to "
        f"{costs[0]:.3g}; ask for a budget between those"
    )


def _tried(
    batches: Batches, steps: IterationSteps, mus: Array, trials: int
) -> tuple[tuple[Tensor, Tensor | None], Array]:
    """The prices of all levels, (T, k), and what each costs on the calibration seeds, shared out among them, (k,)."""
    solved = [solve_mean(steps, float(mu), batches.weights) for mu in mus]
    table = _levels([begin for begin, _ in solved], batches)
    others = [onward for _, onward in solved if onward is not None]
    onward = _levels(others, batches) if others else None
    paid, count = torch.zeros(2, len(mus), dtype=torch.float64)
    for k in range(trials):
        level = shared_out(len(mus), batches.n, _ORDER, k, trials)
        going_on = None if onward is None else onward[:, level]
        run = batches.run(AtPrice(table[:, level], counted=batches.unit, onward=going_on))
        paid.index_add_(0, level, run.paid.double().cpu())
        count.index_add_(0, level, torch.ones(batches.n, dtype=torch.float64))
    return (table, onward), falling(paid.numpy(), count.numpy())


def _levels(prices: list[Tensor], batches: Batches) -> Tensor:
    """Side by side, (T, k); a last step that the budget pays for corrects all."""
    table = torch.stack(prices, dim=1)
    everyone = torch.full((1, len(prices)), -torch.inf, dtype=table.dtype)
    return torch.cat([table, everyone]) if batches.closing_reserve else table


def _explored(batches: Batches, budget: Mean) -> list[Rollout]:
    """Batches with corrections at random."""
    if batches.unit == "projection":
        return batches.explore(range(4))
    most = 2 * budget.units(batches.n_steps)
    runs: list[Rollout] = []
    for k in range(4):
        if k == 1:  # where iterations cost more than one, as many of them are seen all the same
            most *= iteration_costs(runs)[0]
        order = uniform_numbers(torch.tensor([k]), range(1), (batches.n,), _ORDER + 1)[0, 0].argsort()
        budgets = ((order + 0.5) / batches.n * most).long() + 1
        runs.append(batches.cut(batches.run(ExploreIterations(budgets, seed=k))))
    return runs


def _dearest(steps: IterationSteps, weights: Tensor | None) -> float:
    """The largest gain that a correction could have if it lasted to the end."""
    unit = torch.ones(len(steps.nodes), dtype=torch.float64) if weights is None else weights.double()
    return float((unit * steps.nodes[:, -1]).sum())


def shared_out(levels: int, n: int, stream: int, trial: int, trials: int) -> Tensor:
    """Which of the levels each of n samples tries, (n,), in an order of its own at each trial.

    Where there are fewer samples than levels, they are spread over all of them, at each trial over others.
    """
    order = uniform_numbers(torch.tensor([trial]), range(1), (n,), stream)[0, 0].argsort()
    if n >= levels:
        return order % levels
    return ((order + (trial + 0.5) / trials) * levels / n).long()


def falling(paid: Array, count: Array) -> Array:
    """Mean costs of levels that do not rise, nearest to those seen: neighbours that would rise are taken together.

    Levels that nobody tried have the costs between those of their neighbours.
    """
    tried = np.flatnonzero(count)
    if len(tried) < len(count):
        return np.interp(np.arange(len(count)), tried, falling(paid[tried], count[tried]))
    blocks: list[list[float]] = []  # sum, weight, levels
    for total, weight in zip(paid, count, strict=True):
        blocks.append([float(total), float(weight), 1.0])
        while len(blocks) > 1 and blocks[-2][0] * blocks[-1][1] < blocks[-1][0] * blocks[-2][1]:
            last = blocks.pop()
            blocks[-1] = [a + b for a, b in zip(blocks[-1], last, strict=True)]
    return np.concatenate([np.full(int(levels), total / weight) for total, weight, levels in blocks])
