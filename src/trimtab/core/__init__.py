"""The loop and what it needs: constraints, noise, schedules, the corrector and its record, metrics, runners, files."""

__all__ = [
    "bound_constraint",
    "budget",
    "constraint",
    "corrector",
    "groups",
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
    "state",
    "statistics",
    "stream",
    "view",
]
