"""Advice: is timing worth it, which schedule and projection to use, and what that loses and saves."""

__all__ = ["compare", "recommend", "result"]
