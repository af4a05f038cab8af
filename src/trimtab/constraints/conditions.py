"""A user's conditions on one sample, called by the batch and differentiated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trimtab.constraints.linearised import gradients, linearise

__all__ = ["Conditions", "SampleFunction"]


@dataclass(frozen=True, eq=False)
class SampleFunction:
    r"""A function of one sample, (\*event) to (m,), and of its data; or of a whole batch.

    Attributes:
        function: As the user gave it.
        owner: The constraint it was given to, for errors.
        vectorised: Whether it may run under `torch.func.vmap`; otherwise it runs sample by sample.
        batched: Whether it takes a whole batch, (n, \*event) to (n, m), with all of its data.
        own_derivatives: What to do about a function that calls `torch.autograd.grad` itself, for errors.
        seen_apart: The shapes of states for which a function of a batch was seen to keep samples apart.
    """

    function: Callable[..., Tensor]
    owner: str
    vectorised: bool = True
    batched: bool = False
    own_derivatives: str = "needs vectorised=False"
    seen_apart: set[torch.Size] = field(default_factory=set)

    @cached_property
    def by_batch(self) -> Callable[..., Any]:
        """The function of a batch; what is no tensor is handed on as it got."""
        if self.batched:
            return self.function
        if self.vectorised:
            return torch.func.vmap(self.function)

        def one_by_one(*batch: Tensor) -> Any:
            answers = _for_each(self.function, *batch)
            others = [answer for answer in answers if not isinstance(answer, Tensor)]
            return others[0] if others else torch.stack([answer.detach() for answer in answers])

        return one_by_one

    def on(self, x: Tensor, data: tuple[Tensor, ...] = ()) -> Conditions:
        r"""The conditions on the samples that have this data, one row each, with states like x, (n, \*event)."""
        like_states = tuple(d.to(x) if d.is_floating_point() else d.to(x.device) for d in data)
        return Conditions(self, like_states, x.shape[1:])

    @torch.no_grad()
    def check_samples_stand_alone(self, x: Tensor, data: tuple[Tensor, ...]) -> None:
        r"""Refuse a function of a batch whose first row depends on other samples; x is (n, \*event)."""
        if not self.batched or len(x) < 2 or x.shape[1:] in self.seen_apart:
            return
        flat, conditions = x.detach().flatten(1), self.on(x, data)
        among_others, alone = conditions.values(flat)[:1], conditions.values(flat[:1], slice(0, 1))
        if not alone.numel() or not bool(alone.isfinite().all()):
            return
        rounding = 1e3 * torch.finfo(x.dtype).eps
        if not torch.allclose(among_others, alone, rounding, rounding * float(alone.abs().max())):
            raise ValueError(
                "with batched=True each row of the function's answer must depend on its own sample alone: the first "
                f"one begins {among_others[0, :3].tolist()} among {len(x)} samples and {alone[0, :3].tolist()} alone"
            )
        self.seen_apart.add(x.shape[1:])


class Conditions(NamedTuple):
    r"""Conditions on n samples, as functions of states that are flattened to d numbers.

    Attributes:
        function: What computes them.
        data: Of all n samples, its floats in the dtype of the states.
        event: The shape of one state.
    """

    function: SampleFunction
    data: tuple[Tensor, ...]
    event: torch.Size

    def values(self, flat: Tensor, rows: Tensor | slice | None = None) -> Tensor:
        """The values for states (k, d) of the samples `rows` (k,), or of all: (k, m).

        An error in the function is told with the shapes that it was called with.
        """
        x, data = flat.reshape(-1, *self.event), self._data_of(rows)
        try:
            values = self.function.by_batch(x, *data)
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            raise self._failed(x, error) from error
        if isinstance(values, Tensor) and values.ndim == 2 and len(values) == len(x) and values.dtype == x.dtype:
            return values
        raise self._unusable(x, values)

    def linearised(
        self, flat: Tensor, rows: Tensor, which: Tensor | None = None
    ) -> tuple[Tensor, Callable[[], Tensor]]:
        """The values, (k, m), and what gives the Jacobian there, (k, q, d), of those `which` (q,) names, or of all."""
        if self.function.vectorised:

            def values(y: Tensor) -> Tensor:
                return self.values(y, rows)

            g, pull_back = linearise(values, flat)
            return g, lambda: gradients(values, pull_back, flat, g, which)

        g = self.values(flat, rows)

        def jacobian_of_one(state: Tensor, *own: Tensor) -> Tensor:
            found: Tensor = torch.autograd.functional.jacobian(  # type: ignore[no-untyped-call]
                lambda s: self.function.function(s, *own), state.view(self.event)
            )
            return found

        def one_by_one() -> Tensor:
            if not g.shape[1]:  # of which torch makes no Jacobian
                return flat.new_zeros(len(flat), 0, flat.shape[1])
            jacobian = torch.stack(_for_each(jacobian_of_one, flat, *self._data_of(rows))).flatten(2)
            return jacobian if which is None else jacobian[:, which]

        return g, one_by_one

    def _data_of(self, rows: Tensor | slice | None) -> tuple[Tensor, ...]:
        """The data of some samples, told apart and in order: as many as there are, are all."""
        if not self.data or rows is None or (isinstance(rows, Tensor) and rows.shape[0] == self.data[0].shape[0]):
            return self.data
        return tuple(d[rows] for d in self.data)

    def _failed(self, x: Tensor, error: Exception) -> ValueError:
        how = self.function
        called = "all at once" if how.batched else f"one of shape {tuple(self.event)} at a time"
        mapped = how.vectorised and not how.batched
        hint = f" (one that calls torch.autograd.grad itself {how.own_derivatives})" if mapped else ""
        return ValueError(f"the function of {how.owner} failed on states {tuple(x.shape)}, {called}: {error}{hint}")

    def _unusable(self, x: Tensor, values: object) -> ValueError:
        """What is wrong with an answer."""
        what = f"the function of {self.function.owner} must return"
        shape = tuple(values.shape) if isinstance(values, Tensor) else None
        if not isinstance(values, Tensor) or values.ndim != 2 or len(values) != len(x):
            wanted = "(n, m) values for a batch" if self.function.batched else "(m,) values for one sample"
            got = type(values).__name__ if shape is None else shape if self.function.batched else shape[1:]
            return ValueError(f"{what} {wanted}: for states {tuple(x.shape)} it returned {got}")
        return ValueError(
            f"{what} values in the dtype of the states: for states in {x.dtype} it returned {values.dtype}"
        )


def _for_each(function: Callable[..., Any], *batch: Tensor) -> list[Any]:
    """What a function of one sample gives for each, where derivatives can be taken: in the inference mode as well."""
    with torch.inference_mode(False), torch.enable_grad():
        ordinary = [part.clone() if part.is_inference() else part for part in batch]
        return [function(*sample) for sample in zip(*ordinary, strict=True)]
