"""What calibration costs beside the rollouts themselves, at all budgets of a long rollout, against the plain forms.

The plain forms are the formulas as they are stated: kernel means by full matrices, the cheapest times by trying every
gap at every budget and walking every way back, and the dynamic program with a row for every budget at every step. Then
the whole of `calibrate` on a trivial sampler, rollouts included: how its time grows with T, over how the table grows,
T x B with B = T. Times are processor times of one thread.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

import trimtab as tt
from _compare import compare
from trimtab.prices.plan import cheapest_times, gap_costs
from trimtab.prices.program import solve
from trimtab.prices.sample_scale import smoothed_means
from trimtab.prices.transitions import NODES, Steps


def plain_means(total: Tensor, count: Tensor) -> Tensor:
    T = len(total)
    steps, gaps = torch.arange(T, dtype=torch.float64), torch.arange(T + 1, dtype=torch.float64).clamp(min=0.5).log()

    def kernel(x: Tensor, width: float) -> Tensor:
        return (-0.5 * ((x[:, None] - x) / width) ** 2).exp()

    narrow, wide = (kernel(steps, max(2.0, T / 10)), kernel(gaps, 0.2)), (kernel(steps, T / 4), kernel(gaps, 0.5))

    def smooth(cells: Tensor) -> Tensor:
        return narrow[0] @ cells @ narrow[1] + 1e-3 * (wide[0] @ cells @ wide[1])

    return smooth(total) / smooth(count).clamp(min=1e-300)


def plain_times(costs: Tensor, budget: int) -> Tensor:
    T = len(costs) - 1
    reached = torch.full((T + 1,), torch.inf, dtype=costs.dtype)
    reached[0] = 0.0
    masks, came_from = torch.zeros(budget + 1, T, dtype=torch.bool), []
    for b in range(1, budget + 1):
        best, origin = (reached[:, None] + costs[:, :T]).min(dim=0)
        reached = torch.cat([best.new_full((1,), torch.inf), best])
        came_from.append(origin.tolist())
        row = int((reached + costs[:, T]).argmin())
        for before in reversed(came_from):
            masks[b, row - 1] = True
            row = before[row - 1]
    return masks


def plain_program(steps: Steps, budget: int) -> Tensor:
    T, B = len(steps.scale), budget
    left, settle = torch.arange(B + 1), 1 / steps.fresh_steps
    table, costs = torch.empty(T, B + 1).double(), torch.empty(T, B + 1, NODES).double()
    fresh, settled = torch.zeros(2, B + 1, NODES, dtype=torch.float64)
    for t in reversed(range(T)):
        stay_fresh = stay_settled = steps.scale[t] * steps.nodes[t].expand(B + 1, NODES)
        go = steps.scale[t] * steps.residual[t].expand(B + 1, NODES)
        if t < T - 1:
            stay_fresh = stay_fresh + torch.lerp(fresh, settled, settle) @ steps.alone[t].T
            stay_settled = stay_settled + settled @ steps.settled[t].T
            go = go + fresh @ steps.corrected[t].T
        rate = (left / (T - t)).clamp(max=1)[:, None].double()
        share = rate / (1 - (1 - rate) * (1 - settle))
        defects = steps.nodes[t] * steps.scale[t]
        gain = torch.lerp(stay_settled, stay_fresh, share)[1:] - go[:-1]
        best, cut = gain.flip(1).cumsum(dim=1).flip(1).max(dim=1)
        below = (cut - 1).clamp(min=0)
        here, there = gain.gather(1, cut[:, None])[:, 0], gain.gather(1, below[:, None])[:, 0]
        between = torch.where(here > there, here / (here - there), 0.0).clamp(0, 1)
        price = torch.where(cut == 0, -torch.inf, torch.lerp(defects[cut], defects[below], between))
        table[t, 0] = torch.inf
        table[t, 1:] = torch.where(left[1:] >= T - t, -torch.inf, torch.where(best > 0, price, torch.inf))
        spend = defects >= table[t][:, None]
        fresh, settled = (torch.where(spend, go.roll(1, dims=0), stay) for stay in (stay_fresh, stay_settled))
        costs[t] = torch.lerp(settled, fresh, share)
    return table


def some_steps(T: int, generator: torch.Generator) -> Steps:
    def weights(*shape: int) -> Tensor:
        return torch.softmax(3 * torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1)

    nodes = torch.rand(T, NODES, generator=generator, dtype=torch.float64).cumsum(dim=1) / 8
    scale = 1 + torch.rand(T, generator=generator, dtype=torch.float64)
    after = [weights(T - 1, k, NODES) for k in (NODES, NODES, NODES, 1)]
    return Steps(scale, nodes, 0.05 * nodes, *after, weights(NODES), torch.ones(3, T - 1), max(2, T // 25))


def whole(method: str, T: int) -> object:
    """All prices of a sampler that costs next to nothing, 64 rollouts."""
    ball = tt.as_constraint(
        project=lambda x: x / x.norm(dim=1, keepdim=True).clamp(min=1),
        defect=lambda x: (x.norm(dim=1) - 1).clamp(min=0),
    )
    noise = 0.2 * torch.randn(T, 64, 2, generator=torch.Generator().manual_seed(0))

    def rollout(schedule: Any) -> Any:
        corrector = tt.Corrector(ball, schedule, n_steps=T)
        x = torch.zeros(64, 2)
        for t in range(T):
            x = corrector(0.98 * x + noise[t], t)
        return corrector.rollout

    return tt.calibrate(rollout, 1.0, method, objective="path", check=False)


def growth(lengths: list[int]) -> list[dict[str, Any]]:
    rows = []
    for method in ("dp", "planned"):
        ways = {f"T = {T}": partial(whole, method, T) for T in lengths}
        timing = compare(ways, 3, warmup=0, one_thread=True)
        for shorter, longer in pairwise(lengths):
            found = timing.ratio(of=f"T = {longer}", over=f"T = {shorter}")
            table = (longer / shorter) ** 2
            seconds = (f"{timing.median(f'T = {T}'):.3g} s at T = {T}" for T in (shorter, longer))
            rows.append(
                {
                    "claim": f"growth of calibrate(method={method!r}), all budgets",
                    "against": "growth of T x B",
                    "ratio": found.ratio / table,
                    "low": found.low / table,
                    "high": found.high / table,
                    "target": "<= 1",
                    "inputs": "64 rollouts of a trivial sampler, which are counted; " + ", ".join(seconds),
                }
            )
    return rows


def run(quick: bool) -> list[dict[str, Any]]:
    T = 200 if quick else 2000
    generator = torch.Generator().manual_seed(0)
    count = torch.randint(0, 4, (T, T + 1), generator=generator).double()
    total = count * torch.rand(T, T + 1, generator=generator, dtype=torch.float64)
    steps = torch.arange(T + 1, dtype=torch.float64)
    costs = gap_costs(1 - (-(steps[:T] - steps[:, None]).clamp(min=0) / 20).exp() + 0.01 * total.T)
    known = some_steps(T, generator)
    torch.testing.assert_close(smoothed_means(total, count), plain_means(total, count))
    assert torch.equal(cheapest_times(costs[None], T)[:, :, 0], plain_times(costs, T))
    torch.testing.assert_close(solve(known, T, keep_cost=False).table, plain_program(known, T))
    pairs = {
        "means of defects since a correction": (
            partial(smoothed_means, total, count),
            partial(plain_means, total, count),
        ),
        "planned times at every budget": (partial(cheapest_times, costs[None], T), partial(plain_times, costs, T)),
        "the dynamic program": (partial(solve, known, T, keep_cost=False), partial(plain_program, known, T)),
    }
    rows = []
    for name, (ours, plain) in pairs.items():
        timing = compare({"ours": ours, "the plain form": plain}, 3, warmup=0, one_thread=True)
        rows.append(timing.row(name, of="the plain form", over="ours", inputs=f"T = B = {T}, equal results"))
    return rows + growth([50, 100] if quick else [500, 1000, 2000])
