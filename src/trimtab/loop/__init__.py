"""Run loops: rollouts of samplers, and batches of them on other machines."""

__all__ = ["corrector", "replay", "rollout", "runner"]
