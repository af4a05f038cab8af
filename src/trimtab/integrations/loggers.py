"""Numbers of each step for the logger you have, with no dependency on it.

A `Corrector` (and `wrap`, and `ProjectionCallback`) takes `on_step(t, numbers)`, where numbers are batch means: defect,
residual, and projected, the share of samples projected. These adapters make such a function of a logger's own object.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

__all__ = ["to_mlflow", "to_tensorboard", "to_wandb"]

OnStep = Callable[[int, dict[str, float]], None]


def to_tensorboard(writer: Any, prefix: str = "trimtab") -> OnStep:
    """Log to a `SummaryWriter`.

    Steps are counted over all runs, since t begins at 0 in each.

    Args:
        writer: `torch.utils.tensorboard.SummaryWriter` or anything with `add_scalar(tag, value, step)`.
        prefix: Of the tags.
    """
    steps = count()

    def on_step(t: int, numbers: dict[str, float]) -> None:
        step = next(steps)
        for name, value in numbers.items():
            writer.add_scalar(f"{prefix}/{name}", value, step)

    return on_step


def to_wandb(run: Any, prefix: str = "trimtab") -> OnStep:
    """Log to Weights & Biases: `run` is what `wandb.init()` returned, or anything with `log(dict)`."""

    def on_step(t: int, numbers: dict[str, float]) -> None:
        run.log({f"{prefix}/{name}": value for name, value in numbers.items()} | {f"{prefix}/t": t})

    return on_step


def to_mlflow(mlflow: Any, prefix: str = "trimtab") -> OnStep:
    """Log to MLflow: give the module itself, or anything with `log_metrics(dict, step=…)`."""
    steps = count()

    def on_step(t: int, numbers: dict[str, float]) -> None:
        mlflow.log_metrics({f"{prefix}/{name}": value for name, value in numbers.items()}, step=next(steps))

    return on_step
