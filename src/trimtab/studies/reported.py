"""The figures the paper reports, to put beside ours."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files
from typing import Any

__all__ = ["reported"]


@lru_cache(maxsize=1)
def reported() -> dict[str, Any]:
    """The paper's tables 1 and 3 by our names of domains; each number is [mean, standard error].

    Example:
        >>> reported()["table1"]["so3"]["nepe"]["adaptive"]
        [0.13, 0.0016]
    """
    text = files("trimtab.studies").joinpath("reported.json").read_text(encoding="utf-8")
    return dict(json.loads(text))
