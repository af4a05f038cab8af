"""The record of a rollout, and its file."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from trimtab.core import html
from trimtab.core.budget import Unit
from trimtab.core.files import load_tensors, save_tensors
from trimtab.core.groups import Groups
from trimtab.core.record_checks import check_record
from trimtab.core.states import Form

__all__ = ["Closing", "Passes", "Rollout"]

Closing = Literal["paid", "free", "none"]
"""How a run ends: with a projection that the budget pays for, one apart from it (as the paper counts), or none."""

_FACTS = ("seconds", "calls", "rows", "closing_rule")


class Passes(NamedTuple):
    """What a schedule looked at when it was asked again within a step, pass by pass.

    Attributes:
        step: The step of each pass, (p,) int64.
        defects: Of the deciders (samples, or groups) that it was asked about, (p, n); NaN for those that had finished.
        cost: Of the iteration before it, (p, n) int32; 0 for those that had none.
    """

    step: Tensor
    defects: Tensor
    cost: Tensor


@dataclass(frozen=True, eq=False)
class Rollout:
    """One recorded run of a batch of n samples over T steps.

    Attributes:
        final: Final states, feasible, (n, *event).
        defects: Of the proposals, before the decision, (T, n).
        residuals: Of the states kept, after the decision, (T, n); what path error adds up. A closing projection beside
            those of the steps is not credited here, so that no schedule gains by leaving the last step to it.
        projected: Which samples were projected after which step, (T, n) bool.
        closing: Which samples had a closing projection beside those of the steps, (n,) bool: apart from the budget, or
            paid for by the correction that was kept back for it, where such a run was stopped early.
        failed: Where a projection of the rollout failed, (T, n) bool.
        closing_failed: Where the closing projection failed, (n,) bool.
        iterations: Solver iterations, (T, n), 0 where nothing was projected or nothing was counted; where they are what
            is counted, a projection that does not tell is one.
        seeds: (n,), where known.
        states: Kept states, (T + 1, n, *event) with the initial one first (T where the loop did not show it), or None.
        seconds: Wall clock by kind: update, defect, projection, scheduling.
        calls: Calls by kind: update, defect, projection.
        rows: Samples handled by kind; `rows["projection"]` is the true number of projections, closing, retries and
            residual defects included.
        closing_rule: How the run ended: "paid", "free" or "none"; see `Corrector`.
        groups: Which samples were decided on together, if any were.
        planned_steps: How many steps there should have been, if the run was stopped before; None for a whole one.
        unit: What was counted: "projection"s, or each "iteration" of the solver.
        closing_iterations: Solver iterations of such a closing projection, (n,), where counted.
        passes: What was looked at within steps, where iterations were counted; None otherwise.
    """

    final: Any
    defects: Tensor
    residuals: Tensor
    projected: Tensor
    closing: Tensor
    failed: Tensor
    closing_failed: Tensor
    iterations: Tensor
    seeds: Tensor | None
    states: Any
    seconds: dict[str, float]
    calls: dict[str, int]
    rows: dict[str, int]
    closing_rule: Closing = "paid"
    groups: Groups | None = None
    planned_steps: int | None = None
    unit: Unit = "projection"
    closing_iterations: Tensor | None = None
    passes: Passes | None = None

    def __repr__(self) -> str:
        """One line."""
        T, n = self.projected.shape
        spent = f"{self.spent.double().mean().item():.4g}"
        unit = self.unit if spent == "1" else f"{self.unit}s"
        early = "" if self.planned_steps is None else f" of {self.planned_steps}"
        apart = 0.0 if self.closing_rule == "paid" else self.closing.double().mean().item()
        return (
            f"Rollout(T={T}{early}, n={n}, {spent} {unit} per sample, {apart:.4g} apart from the budget, "
            f"{sum(self.seconds.values()):.3g} s)"
        )

    def _repr_html_(self) -> str:
        """What was spent and when, in a notebook."""
        T, n = self.projected.shape
        facts: list[tuple[str, object]] = [("steps", T), ("samples", n)]
        facts += [(f"{self.unit}s per sample", self.paid.double().mean().item() if n else 0.0)]
        facts += [(f"{kind}, seconds", seconds) for kind, seconds in self.seconds.items()]
        failed = int(self.failed.sum() + self.closing_failed.sum())
        facts += [("failed projections", failed)] if failed else []
        mean = {name: getattr(self, name).double().mean(dim=1).tolist() for name in ("defects", "residuals")}
        lines = {
            "defect proposed": list(enumerate(mean["defects"])),
            "defect kept": list(enumerate(mean["residuals"])),
        }
        bars = list(enumerate(self.projected.double().mean(dim=1).tolist()))
        note = "<p>Mean over samples; bars: share of the samples that were projected.</p>"
        looked = not math.isnan(sum(mean["defects"]))
        drawing = (
            html.draw(lines if looked else {}, "step", "defect" if looked else "share projected", bars) if n else ""
        )
        return html.panel("Rollout", html.table(facts), drawing + note if drawing else "")

    @property
    def n_steps(self) -> int:
        """T."""
        return len(self.projected)

    @property
    def spent(self) -> Tensor:
        """Corrections spent by each sample, (n,) int64; `spent / n_steps` is the achieved budget.

        They are projections, or iterations where those were counted. A closing projection is among them where the
        budget pays for it, and not where it is apart from the budget.
        """
        on_the_way = self.iterations.sum(dim=0) if self.unit == "iteration" else self.projected.sum(dim=0)
        return on_the_way + self._closing_cost if self.closing_rule == "paid" else on_the_way

    @property
    def paid(self) -> Tensor:
        """What each sample paid for, (n,) int64, in the units of `spent`, the closing projection always included."""
        return self.spent if self.closing_rule == "paid" else self.spent + self._closing_cost

    @property
    def _closing_cost(self) -> Tensor:
        """Of closing projections beside those of the steps, (n,), in the units of `spent`."""
        if self.unit == "iteration" and self.closing_iterations is not None:
            return self.closing_iterations
        return self.closing

    @property
    def all_iterations(self) -> Tensor:
        """Solver iterations of each sample, (n,) int64, those of the closing projection included."""
        closing = 0 if self.closing_iterations is None else self.closing_iterations
        return self.iterations.sum(dim=0) + closing

    def grouped(self) -> Rollout:
        """The record with one column per group, as decisions were made; itself where there are no groups.

        A group takes as many iterations as the row of it that takes most, and has failed where any of its rows has.
        """
        if self.groups is None:
            return self
        together, largest, first = self.groups.together, self.groups.largest, self.groups.first_row
        return replace(
            self,
            defects=together(self.defects),
            residuals=together(self.residuals),
            projected=self.projected[:, first],
            closing=self.closing[first],
            failed=self.groups.any_row(self.failed),
            closing_failed=self.groups.any_row(self.closing_failed),
            iterations=largest(self.iterations),
            closing_iterations=None if self.closing_iterations is None else largest(self.closing_iterations),
            seeds=None if self.seeds is None else self.seeds[first],
            groups=None,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file; the arrays of a tree of states are kept by name."""
        tensors = {name: getattr(self, name) for name in _TENSORS} | _named("final", self.final)
        if self.seeds is not None:
            tensors["seeds"] = self.seeds
        if self.states is not None:
            tensors |= _named("states", self.states)
        if self.closing_iterations is not None:
            tensors["closing_iterations"] = self.closing_iterations
        if self.passes is not None:
            tensors["pass_step"], tensors["pass_defects"], tensors["pass_cost"] = self.passes
        facts: dict[str, Any] = {name: getattr(self, name) for name in _FACTS} | {"unit": self.unit}
        if self.planned_steps is not None:
            facts["planned_steps"] = self.planned_steps
        if self.groups is not None:
            tensors["groups"], facts["group_defect"] = self.groups.labels, self.groups.defect
        save_tensors(path, "rollout", tensors, facts)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Rollout:
        """Read what `save` wrote; a truncated, foreign or inconsistent file is refused.

        A tree of states comes back as a dictionary of its arrays by name.
        """
        tensors, facts = load_tensors(path, "rollout")
        final, states = _unnamed("final", tensors), _unnamed("states", tensors)
        missing = {*_TENSORS} - set(tensors) | set(_FACTS) - set(facts) | (set() if final is not None else {"final"})
        if missing:
            raise ValueError(f"{path}: not a whole rollout, {sorted(missing)} missing")
        if facts["closing_rule"] not in get_args(Closing):
            raise ValueError(f"{path}: closing_rule must be one of {get_args(Closing)}: got {facts['closing_rule']!r}")
        try:
            check_record(tensors, facts)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: not a whole rollout, {error}") from error
        for name, shape in _shapes(tensors["projected"].shape).items():
            if name in tensors and tensors[name].shape[: len(shape)] != shape:
                raise ValueError(f"{path}: not a whole rollout, {name} is {tuple(tensors[name].shape)} and not {shape}")
        groups = Groups(tensors["groups"], facts.get("group_defect", "sum")) if "groups" in tensors else None
        known: dict[str, Any] = {name: tensors[name] for name in _TENSORS} | {name: facts[name] for name in _FACTS}
        known["planned_steps"], known["unit"] = facts.get("planned_steps"), facts.get("unit", "projection")
        if known["unit"] not in get_args(Unit):
            raise ValueError(f"{path}: unit must be one of {get_args(Unit)}: got {known['unit']!r}")
        known["closing_iterations"] = tensors.get("closing_iterations")
        known["passes"] = _passes(path, tensors, *tensors["projected"].shape)
        return cls(final=final, states=states, seeds=tensors.get("seeds"), groups=groups, **known)


_TENSORS = ("defects", "residuals", "projected", "closing", "failed", "closing_failed", "iterations")


def _named(what: str, state: Any) -> dict[str, Tensor]:
    """The arrays of a state by name, as a file keeps them."""
    form = Form(state)
    if form.single:
        return {what: form.leaves(state)[0]}
    return {f"{what}/{name}": leaf for name, leaf in zip(form.names, form.leaves(state), strict=True)}


def _unnamed(what: str, tensors: dict[str, Tensor]) -> Any:
    """What `_named` kept; a tree as a dictionary."""
    if what in tensors:
        return tensors[what]
    tree = {name.partition("/")[2]: leaf for name, leaf in tensors.items() if name.startswith(f"{what}/")}
    return tree or None


def _passes(path: Any, tensors: dict[str, Tensor], n_steps: int, n: int) -> Passes | None:
    """The passes within steps, checked; None where there are none."""
    if "pass_step" not in tensors and "pass_defects" not in tensors:
        return None
    step, defects, cost = (tensors.get(f"pass_{name}") for name in Passes._fields)
    if step is None or defects is None or cost is None:
        raise ValueError(f"{path}: not a whole rollout, its passes within steps lack their step, defects or cost")
    if step.ndim != 1 or defects.ndim != 2 or len(step) != len(defects) or defects.shape[1] > n:
        raise ValueError(f"{path}: not a whole rollout, its passes within steps do not fit together")
    if cost.dtype is not torch.int32 or cost.shape != defects.shape or bool((cost < 0).any()):
        raise ValueError(f"{path}: the costs of passes within steps must be whole numbers of at least 0, one each")
    if not defects.is_floating_point() or bool((defects < 0).any()):
        raise ValueError(f"{path}: the defects of passes within steps must be floats of at least 0, or NaN")
    if (
        step.is_floating_point()
        or step.dtype.itemsize < 4
        or bool(((step < 0) | (step >= n_steps) | (step.diff(prepend=step[:1]) < 0)).any())
    ):
        raise ValueError(f"{path}: the passes within steps must be in the order of steps 0 to {n_steps - 1}")
    return Passes(step, defects, cost)


def _shapes(shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """What tensors of a record of (T, n) decisions begin with."""
    names = ("final", "closing", "closing_failed", "closing_iterations", "seeds", "groups")
    per_sample = dict.fromkeys(names, tuple(shape[1:]))
    return per_sample | dict.fromkeys(("defects", "residuals", "projected", "failed", "iterations"), tuple(shape[:2]))
