"""Studies: schedules × budgets × seeds on domains, as tasks whose results are kept in a run directory."""
