"""Write docs/results/future.md: two items of the paper's future work, measured.

    python docs/make_future.py [--seeds 256]

The value of a correction, as the dynamic program learns it, against what corrections really save; and the paper's rule
with one more model step before each decision. Takes about a minute.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from _page import renew
from torch import Tensor

from trimtab.core.metrics import nepe
from trimtab.core.noise import Noise
from trimtab.prices.transitions import estimate_transitions
from trimtab.schedules import RandomTimes, Terminal
from trimtab_lab.domains import domain
from trimtab_lab.report.formats import Cell, Table
from trimtab_lab.studies.summary import relative_improvement

SAMPLERS = ("so3-ramp", "se3-lever-ramp", "terrain-ridge-ramp")
EVALUATION, CALIBRATION, BUDGET = 8_000_000, 8_100_000, 0.25
Row = list[Any]


def program(runs: list[Any], budget: int) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Return prices (T, B + 1), and at each step the defects (k,) and what a correction saves there (B + 1, k)."""
    steps = estimate_transitions(runs)
    T = len(steps.scale)
    table, levels, saved = torch.full((T, budget + 1), torch.inf).double(), [], []
    value = torch.zeros(budget + 1, steps.nodes.shape[1]).double()
    for t in reversed(range(T)):
        defects, left = steps.scale[t] * steps.nodes[t], steps.scale[t] * steps.residual[t]
        stay, go = (value @ steps.alone[t].T, value @ steps.corrected[t].T) if t < T - 1 else (value, value)
        stay, go = defects + stay, torch.cat([torch.full_like(go[:1], torch.inf), (left + go)[:-1]])
        pays = stay > go
        table[t] = torch.where(pays, defects, torch.inf).amin(dim=1)
        table[t, T - t :] = -torch.inf
        value = torch.where(defects >= table[t][:, None], go, stay)
        levels.insert(0, defects)
        saved.insert(0, stay - go)
    return table, levels, saved


def projected(problem: Any, x: Tensor, rows: Tensor) -> Tensor:
    """Return the projections of some rows, (k, ...)."""
    answer = problem.constraint.take(rows).project(x[rows])
    return getattr(answer, "x", answer)


def follow(
    problem: Any, table: Tensor, x: Tensor, left: Tensor, start: int, until: int, first: bool | None = None
) -> Any:
    """Follow prices from step `start` on; return states, budgets left, path errors and the first defects."""
    noise, path, seen = Noise(problem.seeds), torch.zeros(len(x)).double(), torch.zeros(len(x)).double()
    for t in range(start, until):
        x = problem.sampler.step(x, t, noise)
        defect = problem.constraint.defect(x)
        chosen = (left > 0) & (defect >= table[t].gather(0, left))
        if t == start and first is not None:
            seen, chosen = defect, torch.full_like(chosen, first)
        rows = chosen.nonzero().squeeze(1)
        x = x.clone()
        x[rows] = projected(problem, x, rows)
        path, left = path + problem.constraint.defect(x), left - chosen.long()
    return x, left, path, seen


def correlation(a: Tensor, b: Tensor) -> float:
    """Return Spearman's correlation."""
    ranks = torch.stack([each.argsort().argsort().double() for each in (a, b)])
    return float(torch.corrcoef(ranks)[0, 1])


def value_row(name: str, seeds: int) -> Row:
    """Compare predicted with realised savings by twins: the same state and noise, corrected now or not."""
    made = domain(name)
    held_out = made.problem(range(CALIBRATION, CALIBRATION + seeds))
    T = held_out.sampler.n_steps
    budget = round(BUDGET * T)
    shares = (0.1, 0.2, 0.3, 0.5)
    runs = [held_out.rollout(RandomTimes(share), closing="free", measure_defects=True) for share in shares]
    runs.append(held_out.rollout(Terminal(), closing="free", measure_defects=True))
    table, levels, saved = program(runs, budget)
    problem = made.problem(range(EVALUATION, EVALUATION + seeds))
    told, real, heights = [], [], []
    for at in range(T // 10, T, T // 10):
        x = problem.sampler.start(Noise(problem.seeds))
        x, left, *_ = follow(problem, table, x, torch.full((seeds,), budget), 0, at)
        rows = (left > 0) & (left < T - at)
        errors = [follow(problem, table, x, left, at, T, first) for first in (False, True)]
        defect = errors[0][3]
        near = torch.searchsorted(levels[at].contiguous(), defect.contiguous()).clamp(max=len(levels[at]) - 1)
        told.append(saved[at][left, near][rows])
        real.append((errors[0][2] - errors[1][2])[rows])
        heights.append(defect[rows])
    predicted, realised, defects = torch.cat(told), torch.cat(real), torch.cat(heights)
    within = [[correlation(a, c) for a, c in zip(part, real, strict=True) if len(c) > 8] for part in (told, heights)]
    means = [sum(each) / len(each) for each in within]
    high = predicted > 0
    return [
        f"`{name}`",
        len(realised),
        *(Cell(correlation(part, realised)) for part in (predicted, defects)),
        *(Cell(mean) for mean in means),
        *(
            Cell(float(realised[rows].mean()), float(realised[rows].std() / rows.sum() ** 0.5))
            for rows in (high, ~high)
        ),
    ]


def paths(problem: Any, table: Tensor, budget: int, ahead: bool) -> tuple[Tensor, Tensor]:
    """Return path errors and scores (T, n) of the paper's rule, which may look one model step ahead."""
    noise, T = Noise(problem.seeds), problem.sampler.n_steps
    x, left = problem.sampler.start(noise), torch.full((len(problem.seeds),), budget)
    path, scores = torch.zeros(len(x)).double(), []
    for t in range(T):
        x = problem.sampler.step(x, t, noise)
        score = problem.constraint.defect(x)
        if ahead and t < T - 1:  # what it comes to if nothing is done now or at the next step
            score = score + problem.constraint.defect(problem.sampler.step(x, t + 1, noise))
        rows = ((left > 0) & (score >= table[t].gather(0, left))).nonzero().squeeze(1)
        x = x.clone()
        x[rows] = projected(problem, x, rows)
        left[rows] -= 1
        path, scores = path + problem.constraint.defect(x), [*scores, score]
    return path, torch.stack(scores)


def quantiles(scores: Tensor, budget: int) -> Tensor:
    """Return the paper's prices, lambda[t, b] = Q(1 - b / (T - t)) of the scores from t on, (T, B + 1)."""
    T = len(scores)
    table = torch.full((T, budget + 1), torch.inf).double()
    for t in range(T):
        shares = 1 - torch.arange(1, budget + 1).double() / (T - t)
        table[t, 1:] = torch.quantile(scores[t:].flatten().sort().values[:: max(1, (T - t) // 8)], shares.clamp(min=0))
        table[t, T - t :] = -torch.inf
    return table


def ahead_row(name: str, seeds: int) -> Row:
    """Compare the paper's rule with and without look-ahead at equal projections and at equal work."""
    made = domain(name)
    held_out, problem = (made.problem(range(first, first + seeds)) for first in (CALIBRATION, EVALUATION))
    T = problem.sampler.n_steps
    never, always = torch.full((T, T + 1), torch.inf).double(), torch.full((T, T + 1), -torch.inf).double()
    terminal, stepwise = paths(problem, never, 0, False)[0], paths(problem, always, T, False)[0]
    budget, fewer = round(BUDGET * T), round(BUDGET * T / 1.1)
    found = []
    for most, ahead in ((budget, False), (budget, True), (fewer, True)):
        table = quantiles(paths(held_out, never, 0, ahead)[1], most)
        found.append(nepe(paths(problem, table, most, ahead)[0], stepwise, terminal))
    gains = [relative_improvement(each, found[0]) for each in found[1:]]
    cells = [Cell(float(each.nanmean()), float(each.std() / len(each) ** 0.5)) for each in found]
    return [f"`{name}`", *cells, *(Cell(gain.mean, gain.se, "percent") for gain in gains)]


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=256)
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    heads = [
        "sampler",
        "twins",
        "predicted, realised",
        "defect, realised",
        "the same at one step",
        "defect, at one step",
    ]
    heads += ["saved where it pays", "saved elsewhere"]
    note = (
        "Rank correlations with what a correction really saved of the path error to go: two continuations of one state "
        "with the same noise and the same prices, one corrected now, at every tenth of the steps; 'at one step' is the "
        "mean of the correlations within each of those. 'Saved where it pays' is the mean of what was saved where the "
        "program predicts a saving, ± standard error; 'elsewhere' where it predicts none. B/T = 0.25."
    )
    table = Table(
        "value", "V against the realised value of corrections", heads, [value_row(n, seeds) for n in SAMPLERS], [note]
    )
    renew("results/future.md", "value", table.markdown().replace("## ", "### "))
    heads = ["sampler", "the paper's rule", "look-ahead, as many projections", "look-ahead, equal work"]
    heads += ["gain, as many projections", "gain, equal work"]
    note = (
        f"NEPE at B/T = 0.25, {seeds} seeds. Look-ahead adds the defect of one more model step from the proposal "
        "as it is; its prices are the same quantiles, of the sums. A step that was looked at is used if nothing is "
        "corrected, so that only corrections cost one more. Equal work: fewer projections, if a model step costs a "
        "tenth of one."
    )
    table = Table(
        "ahead", "One more model step before deciding", heads, [ahead_row(n, seeds) for n in SAMPLERS], [note]
    )
    renew("results/future.md", "ahead", table.markdown().replace("## ", "### "))


if __name__ == "__main__":
    main()
