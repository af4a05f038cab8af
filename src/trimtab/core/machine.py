"""What the last bits of a result depend on besides the code: the processor, threads and number formats."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import torch

__all__ = ["THREADS", "machine_facts"]

THREADS = 1
"""Of a task, whatever the engine: sums may be split, and so round, otherwise with more."""


def machine_facts() -> dict[str, Any]:
    """The facts by which results that may differ in their last bits are told apart; the record of a run holds them.

    Libraries choose their instructions by what the processor can do, and so may round otherwise on another one.
    """
    found: Any = np.show_config(mode="dicts")
    simd = found.get("SIMD Extensions", {})
    return {
        "processor": platform.machine(),
        "torch_instructions": torch.backends.cpu.get_cpu_capability(),
        "numpy_instructions": " ".join([*simd.get("baseline", ()), *simd.get("found", ())]),
        "threads": THREADS,
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
    }
