"""Reading a price back, whatever kind it is."""

from __future__ import annotations

import os
from pathlib import Path

from safetensors import SafetensorError, safe_open

from trimtab.plan import Plan
from trimtab.thresholds import Thresholds

__all__ = ["load_price"]


def load_price(path: str | os.PathLike[str]) -> Thresholds | Plan:
    """Read what `save` of a price or a plan wrote; a truncated or foreign file is refused.

    Example:
        >>> import tempfile, torch, trimtab as tt
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     tt.Thresholds(torch.tensor([[torch.inf, 0.5]])).save(f"{folder}/price.safetensors")
        ...     load_price(f"{folder}/price.safetensors").budget
        1
    """
    path = Path(path)
    kind = ""
    if path.is_file():
        try:
            with safe_open(path, framework="pt") as file:
                kind = (file.metadata() or {}).get("kind", "")
        except SafetensorError:
            pass  # Thresholds.load says what is wrong with it
    return Plan.load(path) if kind == "plan" else Thresholds.load(path)
