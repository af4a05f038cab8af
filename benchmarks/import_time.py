"""What importing trimtab adds to importing torch, and how soon the command answers."""

from __future__ import annotations

import importlib.util
import statistics
import subprocess
import sys
from typing import Any

from _compare import compare, median_interval, skipped

# Both in one process: the import of torch varies by more than that of trimtab takes.
BOTH = """
from time import perf_counter
begin = perf_counter()
import torch
between = perf_counter()
import trimtab
[getattr(trimtab, name) for name in trimtab.__all__]
print(between - begin, perf_counter() - between)
"""


def python(*arguments: str) -> str:
    return subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


def run(quick: bool) -> list[dict[str, Any]]:
    repeats = 3 if quick else 15
    times = [tuple(map(float, python("-c", BOTH).split())) for _ in range(repeats + 1)][1:]
    added = median_interval([1000 * ours for _, ours in times])
    rows = [
        {
            "claim": "importing trimtab, every public name used",
            "against": "importing torch",
            "ratio": added.ratio,
            "low": added.low,
            "high": added.high,
            "unit": "ms more",
            "target": "<= 150",
            "inputs": f"new processes; torch {statistics.median(torch for torch, _ in times):.2f} s",
        }
    ]
    if importlib.util.find_spec("trimtab.cli.main") is None:
        return [*rows, skipped("trimtab --help", "", "there is no command-line module")]
    timing = compare({"help": lambda: python("-c", "from trimtab.cli.main import main; main(['--help'])")}, repeats)
    found = median_interval(timing.seconds["help"])
    rows.append(
        {
            "claim": "trimtab --help",
            "against": "nothing",
            "ratio": found.ratio,
            "low": found.low,
            "high": found.high,
            "unit": "s",
            "target": "<= 0.5",
            "inputs": "a new process, torch not imported",
        }
    )
    return rows
