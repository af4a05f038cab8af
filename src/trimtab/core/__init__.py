"""The loop and what it needs: constraints, noise, schedules, the corrector and its record, metrics, engines, files."""

__all__ = [
    "budget",
    "constraint",
    "corrector",
    "distributions",
    "metrics",
    "noise",
    "problem",
    "quality",
    "record",
    "repeatable",
    "replay",
    "rollout",
    "runner",
    "schedule",
    "stream",
    "view",
]
