"""x."""

TARGETS = {}
