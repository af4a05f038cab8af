"""What final samples are worth to their user: one number per sample."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from trimtab.core.arrays import Form
from trimtab.core.checks import check_bool, check_callable, check_type, unknown

__all__ = ["Quality", "QualityWarning", "as_quality"]


class QualityWarning(UserWarning):
    """The quality of a batch could not be measured."""


@dataclass(frozen=True, eq=False)
class Quality:
    """A measure of final samples.

    Attributes:
        measure: `measure(final)` or `measure(final, problem)` gives one number per sample, (n,), or several by name.
        higher_is_better: Whether more is better; a cost or a distance is better if lower.
        name: Which of several numbers decides, and how words call it.
        nan: What to do with a sample whose number is NaN: raise an error, drop the sample and count it, or give it the
            worst number of its batch.

    Example:
        >>> import torch
        >>> length = Quality(lambda final: final.norm(dim=1), name="length")
        >>> length.costs(torch.tensor([[3.0, 4.0]]))
        tensor([5.], dtype=torch.float64)
    """

    measure: Callable[..., Any]
    higher_is_better: bool = False
    name: str = "quality"
    nan: Literal["raise", "drop", "worst"] = "raise"

    def __post_init__(self) -> None:
        """Check the settings."""
        check_callable(self.measure, "the measure of a quality", "measure(final)")
        check_bool(self.higher_is_better, "higher_is_better")
        check_type(self.name, str, "the name of a quality")
        if self.nan not in ("raise", "drop", "worst"):
            raise unknown("policy for NaN", self.nan, ("raise", "drop", "worst"))

    @property
    def lenient(self) -> Quality:
        """Return the same quality, which drops samples that are NaN instead of raising an error."""
        return replace(self, nan="drop") if self.nan == "raise" else self

    def values(self, final: Any, problem: Any = None) -> dict[str, Tensor]:
        """All numbers by name, (n,) each; a single one goes by the name of this quality."""
        found = self.measure(final, problem) if _takes_problem(self.measure) else self.measure(final)
        named = dict(found) if isinstance(found, Mapping) else {self.name: found}
        if not named:
            raise ValueError("the measure of a quality returned no numbers at all; return one per sample, (n,)")
        n = Form(final, floats=False).n
        return {name: self._settled(name, _one_each(name, values, n)) for name, values in named.items()}

    def _settled(self, name: str, values: Tensor) -> Tensor:
        """Apply the policy for NaN to the numbers, (n,)."""
        missing = values.isnan()
        if self.nan == "drop" or not bool(missing.any()):
            return values
        if self.nan == "raise" or bool(missing.all()):
            raise ValueError(
                f"{name} is NaN for {int(missing.sum())} of {len(values)} samples; return a number, or choose a "
                "policy: Quality(measure, nan='drop') or nan='worst'"
            )
        known = values[~missing]
        return torch.where(missing, known.min() if self.higher_is_better else known.max(), values)

    def costs_or_missing(self, final: Any, problem: Any = None, failed: Callable[[str], None] | None = None) -> Tensor:
        """The same as `costs`, (n,), with NaN for what the measure could not tell: no error of it loses the samples.

        `failed(error)` is called with the error in words; without it, a warning is given.
        """
        try:
            return self.lenient.costs(final, problem)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            if failed is not None:
                failed(said)
            else:
                warnings.warn(
                    f"{self.name} failed, and counts as missing for this batch; the samples are kept ({said})",
                    QualityWarning,
                    stacklevel=2,
                )
            return torch.full((Form(final, floats=False).n,), torch.nan, dtype=torch.float64)

    def costs(self, final: Any, problem: Any = None) -> Tensor:
        """The number that decides, turned so that lower is better, (n,) float64."""
        found = self.values(final, problem)
        if self.name not in found:
            one = next(iter(found))
            raise ValueError(
                f"the quality has {', '.join(found)}; choose the one that decides: Quality(measure, name={one!r})"
            )
        return -found[self.name] if self.higher_is_better else found[self.name]


def as_quality(quality: Quality | Callable[..., Any] | None) -> Quality | None:
    """Return a plain function as a quality, lower being better."""
    if quality is None or isinstance(quality, Quality):
        return quality
    if not callable(quality):
        raise TypeError(f"quality must be a function of the final states or a Quality: got {type(quality).__name__}")
    name = getattr(quality, "__name__", "<none>")
    return Quality(quality, name="quality" if name.startswith("<") else name)


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
    return found
