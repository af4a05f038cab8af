"""The loop and what it needs: constraints, noise, schedules, the corrector, its ledger and record, metrics, files."""

__all__ = [
    "applied",
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
    "schedule",
    "stream",
]
