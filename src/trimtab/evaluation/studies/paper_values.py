"""The figures the paper reports, to put beside ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any

from trimtab.evaluation.domains import base_of

__all__ = ["reported", "reported_beside"]


@lru_cache(maxsize=1)
def reported() -> dict[str, Any]:
    """The paper's tables 1 and 3 by our names of domains; each number is [mean, standard error].

    Example:
        >>> reported()["table1"]["so3"]["nepe"]["adaptive"]
        [0.13, 0.0016]
    """
    text = files("trimtab.evaluation.studies").joinpath("reported.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def reported_beside(table: str, domain: str, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The paper's figures for a domain; None if it has none, or if the run is of something else.

    That is so where the run changed the domain's settings, and where its budgets pay for the closing projection: the
    paper's do not, so that the same share of the steps is one projection less.

    Args:
        table: "table1" or "win_rates".
        domain: By our name; the variants of a synthetic domain stand beside the same figures.
        config: Of the run, as `Study.facts` has it.

    Example:
        >>> reported_beside("table1", "so3", {"samplers": {"so3": {"settings": {"kappa": 0.0}}}}) is None
        True
        >>> reported_beside("table1", "so3", {"closing": "paid"}) is None
        True
    """
    if config.get("closing") == "paid" or config.get("samplers", {}).get(domain, {}).get("settings"):
        return None
    found: dict[str, Any] | None = reported()[table].get(base_of(domain))
    return found
