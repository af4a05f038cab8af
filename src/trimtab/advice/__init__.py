"""Advice: is timing worth it here, which schedule, which budget, and what is lost."""

__all__ = ["compare", "recommend", "result"]
