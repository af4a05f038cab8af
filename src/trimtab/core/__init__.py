"""The loop and what it needs: constraints, noise, schedules, the corrector, its ledger and record, metrics, files."""
