"""The quality of final samples: a number per sample that the user cares about."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trimtab.core.arrays import Form
from trimtab.core.checks import check_bool, check_callable, check_type

__all__ = ["Quality", "as_quality"]


@dataclass(frozen=True, eq=False)
class Quality:
    """A measure of final samples.

    Attributes:
        measure: `measure(final)` or `measure(final, problem)` returns one number per sample, (n,), or several by name.
        higher_is_better: False for a cost or a distance.
        name: The name of the quality, and the key of the number that decides if there are several.

    Example:
        >>> import torch
        >>> length = Quality(lambda final: final.norm(dim=1), name="length")
        >>> length.costs(torch.tensor([[3.0, 4.0]]))
        tensor([5.], dtype=torch.float64)
    """

    measure: Callable[..., Any]
    higher_is_better: bool = False
    name: str = "quality"

    def __post_init__(self) -> None:
        """Check the fields."""
        check_callable(self.measure, "the measure of a quality", "measure(final)")
        check_bool(self.higher_is_better, "higher_is_better")
        check_type(self.name, str, "the name of a quality")

    def values(self, final: Any, problem: Any = None) -> dict[str, Tensor]:
        """Return all numbers by name, (n,) each; a single one has the name of this quality."""
        found = self.measure(final, problem) if _takes_problem(self.measure) else self.measure(final)
        named = dict(found) if isinstance(found, Mapping) else {self.name: found}
        if not named:
            raise ValueError("the measure of a quality returned an empty dict; return one number per sample, (n,)")
        n = Form(final, floats=False).n
        return {name: _one_each(name, values, n) for name, values in named.items()}

    def costs(self, final: Any, problem: Any = None) -> Tensor:
        """Return the number that decides, with its sign such that lower is better, (n,) float64."""
        found = self.values(final, problem)
        if self.name not in found:
            one = next(iter(found))
            raise ValueError(
                f"the quality has {', '.join(found)}; choose the one that decides: Quality(measure, name={one!r})"
            )
        return -found[self.name] if self.higher_is_better else found[self.name]


def as_quality(quality: Quality | Callable[..., Any] | None) -> Quality | None:
    """Return a function as a quality that is better if lower; a Quality and None as they are."""
    if quality is None or isinstance(quality, Quality):
        return quality
    if not callable(quality):
        raise TypeError(f"quality is a function of the final states or a Quality: got {type(quality).__name__}")
    return Quality(quality, name=getattr(quality, "__name__", "quality").strip("<>"))


def _takes_problem(measure: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(measure).parameters.values()
    except (TypeError, ValueError):  # a built-in function
        return False
    required = [
        p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    return len(required) > 1


def _one_each(name: str, values: Any, n: int) -> Tensor:
    try:
        got = torch.as_tensor(values).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} must be one number per sample, a tensor (n,): got {values!r:.60}") from error
    if got.is_complex():
        raise TypeError(f"{name} must be one real number per sample, which can be larger or smaller: got {got.dtype}")
    found = got.double()
    if found.shape != (n,):
        raise ValueError(f"{name} must be one number per sample, shape ({n},): got {tuple(found.shape)}")
    if bool(found.isnan().any()):
        raise ValueError(f"{name} is NaN for {int(found.isnan().sum())} of {len(found)} samples; it must be a number")
    return found
