"""Numbers of each step for the logger you have, with no dependency on it.

A `Corrector` (and `wrap`, and `ProjectionCallback`) takes `on_step(t, numbers)`, where numbers are batch means: defect,
residual, and projected, the share of samples projected. Defect and residual are NaN at steps where the schedule did not
look, unless `measure_defects=True`. These adapters make such a function of a logger's own object.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from torch import Tensor

from trimtab.core.checks import check_type

__all__ = ["to_mlflow", "to_tensorboard", "to_wandb"]

OnStep = Callable[[int, dict[str, float]], None]


def to_tensorboard(writer: Any, prefix: str = "trimtab") -> OnStep:
    """Log to a `SummaryWriter`.

    Steps are counted over all runs, since t begins at 0 in each.

    Args:
        writer: `torch.utils.tensorboard.SummaryWriter` or anything with `add_scalar(tag, value, step)`.
        prefix: Of the tags.
    """
    _check_logger(writer, "add_scalar", "a SummaryWriter", prefix)
    steps = count()

    def on_step(t: int, numbers: dict[str, float]) -> None:
        step = next(steps)
        for name, value in numbers.items():
            writer.add_scalar(f"{prefix}/{name}", value, step)

    return on_step


def to_wandb(run: Any, prefix: str = "trimtab") -> OnStep:
    """Log to Weights & Biases: `run` is what `wandb.init()` returned, or anything with `log(dict)`."""
    _check_logger(run, "log", "what wandb.init() returned", prefix)

    def on_step(t: int, numbers: dict[str, float]) -> None:
        run.log({f"{prefix}/{name}": value for name, value in numbers.items()} | {f"{prefix}/t": t})

    return on_step


def to_mlflow(mlflow: Any, prefix: str = "trimtab") -> OnStep:
    """Log to MLflow: give the module itself, or anything with `log_metrics(dict, step=…)`."""
    _check_logger(mlflow, "log_metrics", "the module mlflow", prefix)
    steps = count()

    def on_step(t: int, numbers: dict[str, float]) -> None:
        mlflow.log_metrics({f"{prefix}/{name}": value for name, value in numbers.items()}, step=next(steps))

    return on_step


def _check_logger(logger: Any, method: str, usual: str, prefix: str) -> None:
    """Refuse what cannot log now, not in mid-run."""
    if isinstance(logger, Tensor) or not callable(getattr(logger, method, None)):  # a tensor has a log of its own
        raise TypeError(f"a logger with {method}(…) was expected, such as {usual}: got {type(logger).__name__}")
    check_type(prefix, str, "the prefix of the names that are logged")
