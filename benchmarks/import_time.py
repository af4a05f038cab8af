"""What importing trimtab adds to importing torch, and how soon the command line answers."""

from __future__ import annotations

import statistics
import subprocess
import sys
from typing import Any

from _compare import compare, median_interval, row

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
HELP = "from trimtab.cli.main import main; main(['--help'])"


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout


def run(quick: bool) -> list[dict[str, Any]]:
    repeats = 2 if quick else 7
    times = [tuple(map(float, python(BOTH).split())) for _ in range(repeats + 1)][1:]
    added = median_interval([1000 * ours for _, ours in times])
    inputs = f"new processes; torch {statistics.median(torch for torch, _ in times):.2f} s"
    claim = "importing trimtab, every public name used"
    answers = median_interval(compare({"help": lambda: python(HELP)}, repeats).seconds["help"])
    return [
        row(claim, "importing torch", added, "<= 150", inputs, unit="ms more"),
        row("trimtab --help", "nothing", answers, "<= 0.5", "a new process, torch not imported", unit="s"),
    ]
