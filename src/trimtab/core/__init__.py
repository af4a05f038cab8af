"""Values that loops work with: constraints, noise, schedules, budgets, records, metrics, files; no loop itself."""

__all__ = [
    "bound_constraint",
    "budget",
    "constraint",
    "metrics",
    "noise",
    "quality",
    "record",
    "repeatable",
    "schedule",
    "state",
    "statistics",
    "view",
]
