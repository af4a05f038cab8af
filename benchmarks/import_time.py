"""What importing trimtab adds to importing torch, and how soon the command answers."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Any

from _compare import compare, median_interval, skipped

EVERYTHING = "import torch, trimtab; [getattr(trimtab, name) for name in trimtab.__all__]"


def python(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)


def run(quick: bool) -> list[dict[str, Any]]:
    repeats = 3 if quick else 15
    timing = compare(
        {
            "ours": lambda: python("-c", EVERYTHING),
            "torch": lambda: python("-c", "import torch"),
            "python": lambda: python("-c", "pass"),
        },
        repeats,
    )
    pairs = zip(timing.seconds["ours"], timing.seconds["torch"], strict=True)
    added = median_interval([1000 * (ours - torch) for ours, torch in pairs])
    base = f"torch alone {timing.median('torch'):.2f} s, python alone {timing.median('python'):.3f} s"
    rows = [
        {
            "claim": "importing trimtab, every public name used",
            "against": "importing torch",
            "ratio": added.ratio,
            "low": added.low,
            "high": added.high,
            "unit": "ms more",
            "target": "<= 150",
            "inputs": f"new processes; {base}",
        }
    ]
    if importlib.util.find_spec("trimtab.cli") is None:
        return [*rows, skipped("trimtab --help", "", "there is no command-line module")]
    timing = compare({"help": lambda: python("-c", "from trimtab.cli import main; main(['--help'])")}, repeats)
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
