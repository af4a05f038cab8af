"""Rollouts as the paper counts them: the closing projection is apart from the budget, and defects are measured."""

from __future__ import annotations

from typing import Any

import trimtab as tt

COUNTING: dict[str, Any] = {"closing": "free", "measure_defects": True}


def rollout(*args: Any, **options: Any) -> tt.Rollout:
    return tt.rollout(*args, **COUNTING | options)


def Corrector(*args: Any, **options: Any) -> tt.Corrector:  # noqa: N802  (stands for the class)
    return tt.Corrector(*args, **COUNTING | options)


def calibrate(source: Any, *args: Any, **options: Any) -> Any:
    return tt.calibrate(source, *args, **{"closing": "free", "check": False} | options)
