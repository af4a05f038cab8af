"""How good any schedule could be: the best times in hindsight, and a bound on what an online schedule can reach."""

__all__ = ["hindsight", "online_bound"]
