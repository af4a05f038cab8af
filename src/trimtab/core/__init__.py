"""The loop and what it needs: constraints, noise, schedules, the corrector and its record, metrics, engines, files."""

__all__ = [
    "applied",
    "budget",
    "constraint",
    "corrector",
    "distributions",
    "engine",
    "excess",
    "metrics",
    "moment",
    "noise",
    "problem",
    "quality",
    "record",
    "repeatable",
    "replay",
    "rollout",
    "schedule",
    "stream",
]
