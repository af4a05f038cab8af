"""Log the numbers of each step to TensorBoard, Weights & Biases or MLflow, none of which is a dependency.

`Corrector` and the integrations take `on_step(t, numbers)`, where numbers are batch means: defect, residual, and
projected, the share of samples projected. Defect and residual are NaN at steps where the schedule does not measure
them, unless `measure_defects=True`. The functions here make such an `on_step` from a logger.
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
    """Log to a `SummaryWriter`, or anything with `add_scalar(tag, value, step)`; steps are counted over all runs."""
    _check_logger(writer, "add_scalar", "a SummaryWriter", prefix)
    steps = count()

    def on_step(t: int, numbers: dict[str, float]) -> None:
        step = next(steps)
        for name, value in numbers.items():
            writer.add_scalar(f"{prefix}/{name}", value, step)

    return on_step


def to_wandb(run: Any, prefix: str = "trimtab") -> OnStep:
    """Log to the run that `wandb.init()` returned, or anything with `log(dict)`."""
    _check_logger(run, "log", "the run that wandb.init() returned", prefix)
    return lambda t, numbers: run.log({f"{prefix}/{name}": value for name, value in (numbers | {"t": t}).items()})


def to_mlflow(mlflow: Any, prefix: str = "trimtab") -> OnStep:
    """Log to the module `mlflow`, or anything with `log_metrics(dict, step=…)`; steps are counted over all runs."""
    _check_logger(mlflow, "log_metrics", "the module mlflow", prefix)
    steps = count()
    return lambda t, numbers: mlflow.log_metrics(
        {f"{prefix}/{name}": value for name, value in numbers.items()}, step=next(steps)
    )


def _check_logger(logger: Any, method: str, usual: str, prefix: str) -> None:
    if isinstance(logger, Tensor) or not callable(getattr(logger, method, None)):  # tensors have a `log`, too
        raise TypeError(f"the logger must have {method}(…), such as {usual}: got {type(logger).__name__}")
    check_type(prefix, str, "the prefix")
