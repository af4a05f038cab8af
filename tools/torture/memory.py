"""Memory over a million calls of one corrector, and over runs of a million samples."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import trimtab as tt
from torture.things import ball

T = 1000
SLACK = 10
"""Megabytes by which memory may differ between two measurements: less than a hundredth of what a run takes."""


def resident() -> float:
    """Megabytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def after_trim() -> float:
    """The same once the allocator has given back what is free: what grows here is held, not just kept for later."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it
    if trim is not None:
        trim(0)
    return resident()


def run(count: int, seed: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """`count` calls with one sample, then ten runs with `count` samples."""
    del seed
    corrector = tt.Corrector(ball(), tt.Periodic(0.1), T)
    x = torch.zeros(1, 3)
    calls: list[float] = []
    for i in range(count):
        x = corrector(x + 0.1)
        if (i + 1) % max(1, count // 10) == 0:
            gc.collect()
            calls.append(round(resident(), 1))
            progress(f"{i + 1} of {count} calls, {calls[-1]} MB")
    many: list[float] = []
    held: list[float] = []
    for i in range(10):
        corrector = tt.Corrector(ball(), tt.Periodic(2), 6)
        x = torch.zeros(count, 3)
        for _ in range(6):
            x = corrector(x + 0.4)
        assert int(corrector.rollout.spent[0]) == 2
        del corrector, x
        gc.collect()
        many.append(round(resident(), 1))
        held.append(round(after_trim(), 1))
        progress(f"{i + 1} of 10 runs of {count} samples, {many[-1]} MB")
    return {
        "calls": count,
        "MB after each tenth of the calls": calls,
        "samples": count,
        "MB after each run of so many samples": many,
        "MB after each such run, free memory given back": held,
        "growth after the first, calls": round(calls[-1] - calls[0], 1),
        "growth after the first, samples": round(many[-1] - many[0], 1),
        "growth after the first, samples, free memory given back": round(held[-1] - held[0], 1),
        "MB that stay": round(max(calls[-1] - calls[0], held[-1] - held[0])) // SLACK,
    }
