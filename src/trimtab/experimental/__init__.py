"""Ideas that have not earned their place by a measurement yet; they may change or go without notice."""

__all__ = ["dense", "learn_value", "lookahead", "value"]
