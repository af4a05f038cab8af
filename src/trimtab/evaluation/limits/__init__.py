"""How good any schedule could be: the best times in hindsight."""

__all__ = ["hindsight"]
