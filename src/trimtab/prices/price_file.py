"""Reading a price back, whatever kind it is."""

from __future__ import annotations

import os

from safetensors import safe_open

from trimtab.core.files import as_path
from trimtab.experimental.value import Value
from trimtab.prices.plan import Plan
from trimtab.prices.thresholds import Thresholds

__all__ = ["load_price"]


def load_price(path: str | os.PathLike[str]) -> Thresholds | Plan | Value:
    """Read what `save` of any price wrote; a truncated or foreign file is refused.

    Example:
        >>> import tempfile, torch, trimtab as tt
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     tt.Thresholds(torch.tensor([[torch.inf, 0.5]])).save(f"{folder}/price.safetensors")
        ...     load_price(f"{folder}/price.safetensors").budget
        1
    """
    path = as_path(path)
    kind = ""
    if path.is_file():
        try:
            with safe_open(path, framework="pt") as file:
                kind = (file.metadata() or {}).get("kind", "")
        except Exception:
            pass  # Thresholds.load says what is wrong with it
    if kind == "plan":
        return Plan.load(path)
    return Value.load(path) if kind == "value" else Thresholds.load(path)
