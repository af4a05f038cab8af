"""A user's function on one sample or on a batch: its values and its Jacobian for a whole batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from trimtab.core.checks import check_integer, check_number, check_positive

__all__ = ["Conditions", "check_solver"]

_IN_CACHE = 2**17  # numbers in a batch of gradients: larger ones wait for memory

# batched functions, and the shapes of states for which their rows were found to be independent
_INDEPENDENT: WeakKeyDictionary[Callable[..., Any], set[torch.Size]] = WeakKeyDictionary()


def check_solver(data: object, tolerance: float | None, max_iterations: int, nearness: float) -> None:
    """Check the settings that equations and inequalities have in common."""
    if not isinstance(data, tuple | list) or not all(isinstance(d, Tensor) and d.ndim for d in data):
        raise TypeError(f"data must be a tuple of tensors with one row per sample: got {data!r:.60}")
    if len({len(d) for d in data}) > 1:
        raise ValueError(f"data must have one row per sample: got tensors of {[len(d) for d in data]} rows")
    if tolerance is not None:
        check_positive(tolerance, "tolerance (or None for what the dtype allows)")
    check_integer(max_iterations, "max_iterations")
    check_number(nearness, "nearness", 0, 1e6)


@dataclass(frozen=True, eq=False)
class Conditions:
    r"""A function g of n samples, with states flattened to d numbers.

    Attributes:
        function: The user's function, (\*event) to (m,), or with `batched` (n, \*event) to (n, m).
        owner: The constraint's name, for messages.
        data: Tensors with one row per sample, their floats in the dtype of the states.
        event: The shape of one state.
        batched: Whether the function takes a whole batch.
    """

    function: Callable[..., Any]
    owner: str
    data: tuple[Tensor, ...]
    event: torch.Size
    batched: bool = False

    @classmethod
    def on(
        cls, x: Tensor, function: Callable[..., Any], owner: str, data: tuple[Tensor, ...], batched: bool
    ) -> Conditions:
        r"""Return the conditions on the samples that have this data, for states like x, (n, \*event)."""
        data = tuple(d.to(x) if d.is_floating_point() else d.to(x.device) for d in data)
        return cls(function, owner, data, x.shape[1:], batched)

    def values(self, flat: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return g, (k, m), for states (k, d) of the samples `rows` (k,), or of all samples."""
        x, data = flat.reshape(-1, *self.event), self._data_of(rows)
        try:
            values = (self.function if self.batched else torch.func.vmap(self.function))(x, *data)
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            called = "all at once" if self.batched else f"one of shape {tuple(self.event)} at a time under vmap"
            raise ValueError(
                f"the function of {self.owner} failed on states {tuple(x.shape)}, {called}: {error} (a function that "
                "calls torch.autograd.grad itself needs batched=True, and torch.enable_grad() around the call)"
            ) from error
        return self._checked(x, values)

    def linearised(self, flat: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return g, (k, m), and its Jacobian, (k, m, d), at states (k, d) of the samples `rows`, (k,)."""
        # samples are independent: the gradient of one equation of all samples is one row of every sample's Jacobian
        try:  # ordinary derivatives are twice as fast as those of torch.func
            with torch.inference_mode(False), torch.enable_grad():
                place = flat.detach().requires_grad_()
                g = self.values(place, rows)
                if not g.requires_grad:  # it does not depend on the state
                    return g, flat.new_zeros(*g.shape, flat.shape[1])
                jacobian = flat.new_empty(*g.shape, flat.shape[1])
                at_once = max(1, _IN_CACHE // max(1, flat.numel()))
                parts = zip(torch.split(jacobian, at_once, dim=1), torch.split(_each_equation(g), at_once), strict=True)
                for part, chosen in parts:
                    found = torch.autograd.grad(g, place, chosen, retain_graph=True, is_grads_batched=True)[0]
                    part.copy_(found.transpose(0, 1))
                return g.detach(), jacobian
        except (RuntimeError, ValueError):  # inside of a transform, or with tensors of the inference mode
            pulled: Any = torch.func.vjp(lambda y: self.values(y, rows), flat)
            (found,) = torch.func.vmap(pulled[1])(_each_equation(pulled[0]))
            return pulled[0], found.transpose(0, 1).contiguous()

    @torch.no_grad()
    def check_rows_are_independent(self, x: Tensor) -> None:
        r"""Check once that the first row of a batched function depends on its own sample only; x is (n, \*event)."""
        if not self.batched or len(x) < 2:
            return
        try:
            seen = _INDEPENDENT.setdefault(self.function, set())
        except TypeError:  # a callable that cannot be hashed is checked every time
            seen = set()
        if self.event in seen:
            return
        flat = x.detach().flatten(1)
        together, alone = self.values(flat)[:1], self.values(flat[:1], torch.tensor([0], device=x.device))
        if not alone.numel() or not bool(alone.isfinite().all()):
            return
        rounding = 1e3 * torch.finfo(x.dtype).eps
        if not torch.allclose(together, alone, rounding, rounding * float(alone.abs().max())):
            raise ValueError(
                "with batched=True each row of the function's answer must depend on its own sample alone: the first "
                f"row starts with {together[0, :3].tolist()} among {len(x)} samples and {alone[0, :3].tolist()} alone"
            )
        seen.add(self.event)

    def _data_of(self, rows: Tensor | None) -> tuple[Tensor, ...]:
        """Return the data of the samples `rows`, which are distinct and ascending."""
        if not self.data or rows is None or len(rows) == len(self.data[0]):
            return self.data
        return tuple(d[rows] for d in self.data)

    def _checked(self, x: Tensor, values: object) -> Tensor:
        if not isinstance(values, Tensor) or values.ndim != 2 or len(values) != len(x):
            wanted = "(n, m) values for a batch" if self.batched else "(m,) values for one sample"
            got: object = type(values).__name__
            if isinstance(values, Tensor):
                got = tuple(values.shape) if self.batched else tuple(values.shape[1:])
            raise ValueError(
                f"the function of {self.owner} must return {wanted}: for states {tuple(x.shape)} it returned {got}"
            )
        if values.dtype != x.dtype:
            raise ValueError(
                f"the function of {self.owner} must return values in the dtype of the states: for states in {x.dtype} "
                f"it returned {values.dtype}"
            )
        return values


def _each_equation(g: Tensor) -> Tensor:
    """Return one-hot rows that select one equation of all samples, (n, m) to (m, n, m)."""
    return torch.eye(g.shape[1], dtype=g.dtype, device=g.device)[:, None].expand(-1, len(g), -1)
