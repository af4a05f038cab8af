"""Studies: schedules × budgets × seeds on domains, cut into tasks, kept as rows.

`config` says what to run, `schedules` how each key is built, `tasks` runs one task, `engine` runs them all, `rows`
joins what they returned, `summary` condenses the rows, `traces` keeps examples to look at.
"""

__all__ = ["config", "engine", "rows", "schedules", "summary"]
