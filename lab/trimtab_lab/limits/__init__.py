"""Limits of any schedule: the best steps in hindsight."""
