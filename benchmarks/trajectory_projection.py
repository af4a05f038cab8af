"""The nearest collision-free trajectory, batched in torch, against CasADi's IPOPT: 64 waypoints, 24 circles, batch 64.

IPOPT runs in three ways: as Projected Diffusion Models run it (`_pdm_projection`: the program is built again for every
call), built once in one process, and built once in a pool over all cores. The last two have a small first barrier,
which makes IPOPT several times faster here. All project the same proposals, with the noise of the last five of ten
levels, in turn with ours, which has one thread.
"""

from __future__ import annotations

import importlib.util
import math
import os
import statistics
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from _compare import Ratio, compare, median_interval, row, skipped
from _pdm_projection import project_as_pdm
from trimtab_lab.obstacles import AvoidObstacles, Obstacles, scattered_circles
from trimtab_lab.obstacles.geometry import gaps

N, WAYPOINTS, CIRCLES = 64, 64, 24
SIGMAS = [10 * (0.005 / 10) ** (k / 9) for k in range(10)]
LAST_LEVELS = range(5, 10)
CLAIM = f"obstacle-avoiding projection per sample, {WAYPOINTS} waypoints, {CIRCLES} circles, batch {N}"
PEERS = {
    "IPOPT rebuilt each call, as PDM runs it": "≥ 500",
    "IPOPT built once, one process": "≥ 40",
    "IPOPT built once, a pool on all cores": "≥ 20",
}


def proposals(obstacles: Obstacles, levels: list[int], seed: int) -> tuple[Tensor, AvoidObstacles]:
    """Return bent free paths with the noise of a level on every waypoint, one sample per level, and the constraint."""
    n = len(levels)
    g = torch.Generator().manual_seed(seed)
    points = torch.rand(2, 64 * n, generator=g) * 1.9 - 0.95
    start, goal = points[:, gaps(obstacles, points, points).amin(0) > 0.03].T[: 2 * n].split(n)
    t = torch.linspace(0, 1, WAYPOINTS)
    x = start[:, :, None] * (1 - t) + goal[:, :, None] * t
    for k in (1, 2, 3):
        x = x + 0.25 / k * torch.randn(n, 2, 1, generator=g) * torch.sin(k * math.pi * t)
    avoid = AvoidObstacles(obstacles, start, goal)
    sigma = torch.tensor([SIGMAS[k] for k in levels])[:, None, None]
    x = avoid.project(x).x + sigma * torch.randn(n, 2, WAYPOINTS, generator=g)
    x[:, :, 0], x[:, :, -1] = start, goal
    return x, avoid


def seconds(function: Callable[[], object]) -> float:
    begin = perf_counter()
    function()
    return perf_counter() - begin


def run(quick: bool) -> list[dict[str, Any]]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        obstacles = scattered_circles(3 if quick else CIRCLES, seed=1)
        x, avoid = proposals(obstacles, [LAST_LEVELS[k % len(LAST_LEVELS)] for k in range(N)], seed=1)
        rows = against_ipopt(obstacles, x, avoid, quick)
        return [*rows, share_solved(obstacles, quick), against_score_step(quick)]
    finally:
        torch.set_num_threads(threads)


def against_ipopt(obstacles: Obstacles, x: Tensor, avoid: AvoidObstacles, quick: bool) -> list[dict[str, Any]]:
    if importlib.util.find_spec("casadi") is None:
        return [skipped(CLAIM, name, "casadi is not installed: pip install 'trimtab[bench]'") for name in PEERS]
    from trimtab_lab.obstacles.ipopt import IpoptPaths, build_program, solve_one

    circles = tuple(map(tuple, obstacles.circles.tolist()))
    program = build_program(circles, (), WAYPOINTS, avoid.tolerance)
    cores = os.cpu_count() or 1
    pool = IpoptPaths(obstacles, avoid.tolerance, workers=0, tries=1)
    paths = x.transpose(0, 1)
    inside = paths.clamp(-1, 1)
    pool.solve(paths[:, : 2 * cores], inside[:, : 2 * cores])  # start the processes, build the program in each
    times: dict[str, list[float]] = {name: [] for name in ("ours", *PEERS)}
    answer = avoid.project(x)
    distance = (answer.x - x).square().sum((1, 2)).sqrt()
    nearer: list[float] = []
    rebuilt, once, pooled = PEERS
    solved = rebuilt_solved = 0
    rounds = 1 if quick else 20
    for k in range(rounds):
        times["ours"].append(statistics.median(seconds(partial(avoid.project, x)) for _ in range(3)) / N)
        q = x[k].double().numpy()
        begin = perf_counter()
        path, ok, _ = solve_one(program, q, np.clip(q, -1, 1))
        times[once].append(perf_counter() - begin)
        some = torch.arange(k * 2 * cores, (k + 1) * 2 * cores) % N
        times[pooled].append(seconds(partial(pool.solve, paths[:, some], inside[:, some])) / len(some))
        if k < (1 if quick else 8):
            begin = perf_counter()
            rebuilt_solved += project_as_pdm(circles, q)[1]
            times[rebuilt].append(perf_counter() - begin)
        solved += ok
        if ok and float(distance[k]) > 1e-3:
            nearer.append(float(distance[k]) / float(np.linalg.norm(path - q)))
    pool.close()
    rows = []
    for name, target in PEERS.items():
        found = median_interval([a / b for a, b in zip(times[name], times["ours"], strict=False)])
        inputs = f"ours {statistics.median(times['ours']) * 1e3:.2f} ms, {name} {statistics.median(times[name]):.3g} s"
        inputs += f", solved {rebuilt_solved} of {len(times[name])}" if name == rebuilt else ""
        rows.append(row(CLAIM, name, found, target, inputs))
    if nearer:
        note = (
            f"{len(nearer)} of {rounds} samples that had to move and that IPOPT, built once, solved ({solved} in all)"
        )
        rows.append(row("distance to the proposal", "IPOPT if it succeeds", median_interval(nearer), "≤ 1.02", note))
    return rows


def share_solved(obstacles: Obstacles, quick: bool) -> dict[str, Any]:
    """Return the share of proposals that end with a violation of at most 1e-3, at the worst noise level."""
    shares, worst = [], 0.0
    for level in range(len(SIGMAS)):
        x, avoid = proposals(obstacles, [level] * (8 if quick else 1024), seed=level)
        violation = avoid.violation(avoid.project(x).x)
        shares.append(float((violation <= 1e-3).double().mean()))
        worst = max(worst, float(violation.max()))
    note = f"{8 if quick else 1024} proposals at each of {len(SIGMAS)} levels, largest violation {worst:.1e}"
    found = Ratio(min(shares), min(shares), max(shares))
    return row("share solved to 1e-3 at the worst noise level", "all proposals", found, "≥ 0.999", note)


def against_score_step(quick: bool) -> dict[str, Any]:
    """Return the time of a defect relative to one evaluation of a score network."""
    from trimtab_lab.domains.pdm.network import PDM_ARCHITECTURE, RefineNet

    ends = torch.tensor([-0.9, -0.9]), torch.tensor([0.9, 0.9])
    avoid = AvoidObstacles(scattered_circles(CIRCLES, seed=1), *ends)
    network = RefineNet(PDM_ARCHITECTURE)
    x = torch.rand(N, 4, WAYPOINTS, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.no_grad():
        timing = compare({"ours": partial(avoid.defect, x), "a score step": partial(network, x, 5)}, 2 if quick else 60)
    claim = f"defect of {N} trajectories, {CIRCLES} circles, as a share of a step"
    return timing.row(claim, of="ours", over="a score step", target="≤ 0.02")
