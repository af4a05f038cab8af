"""The record of a rollout, and its file."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from trimtab.core.arrays import Form
from trimtab.core.budget import Unit
from trimtab.core.checks import check_integer, missing_extra
from trimtab.core.files import load_tensors, save_tensors
from trimtab.core.groups import Groups

__all__ = ["Closing", "InfeasibleWarning", "Passes", "Rollout"]

Closing = Literal["paid", "free", "none"]
"""How a run ends: with a projection that the budget pays for, with one outside it (as the paper counts), or none."""

_FAR = 10.0  # times the usual landing


class InfeasibleWarning(UserWarning):
    """Some final samples of a run are not feasible."""


class Passes(NamedTuple):
    """What a schedule saw when it was asked again within a step, pass by pass.

    Attributes:
        step: The step of each pass, (p,) int64.
        defects: Of the samples (or groups) that it was asked about, (p, n); NaN for those that had finished.
        cost: Of the iteration before it, (p, n) int32; 0 for those that had none.
    """

    step: Tensor
    defects: Tensor
    cost: Tensor


@dataclass(frozen=True, eq=False)
class Rollout:
    """The record of one run of n samples over T steps.

    Attributes:
        final: Final states, (n, *event); see `feasible`.
        defects: Of the proposals, before the decision, (T, n); NaN if not measured.
        residuals: Of the states kept, after the decision, (T, n); path error is their sum. A closing projection outside
            the steps is not credited here, so that no schedule gains by leaving the last step to it.
        projected: Which samples were projected after which step, (T, n) bool.
        closing: Which samples had a closing projection outside those of the steps, (n,) bool.
        failed: Which projections of the steps failed, (T, n) bool.
        closing_failed: Which closing projections failed, (n,) bool.
        iterations: Solver iterations, (T, n), 0 if nothing was projected or the solver does not count.
        seeds: (n,), if known.
        states: States along the path, (T + 1, n, *event) with the initial one first (T if the loop did not call
            `begin`), or None.
        seconds: Wall clock by kind: update, defect, projection, scheduling.
        calls: Calls by kind: update, defect, projection.
        rows: Samples handled by kind; `rows["projection"]` counts every row that was projected.
        closing_rule: How the run ended: "paid", "free" or "none"; see `Corrector`.
        groups: Which samples were decided on together, if any were.
        planned_steps: How many steps were planned, if the run was stopped early; None otherwise.
        unit: What a budget counted: "projection" or "iteration".
        closing_iterations: Solver iterations of the closing projection, (n,), if counted.
        passes: What was measured within steps, if iterations were counted; None otherwise.
        extra: Projections of each sample that no decision asked for, (n,) int32: retries of failed ones, and defects
            that cost a projection.
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
    extra: Tensor | None = None

    def __repr__(self) -> str:
        """Return a one-line summary."""
        T, n = self.projected.shape
        early = "" if self.planned_steps is None else f" of {self.planned_steps}"
        paid = f"{self.paid.double().mean().item():.4g}"
        unit = self.unit if paid == "1" else f"{self.unit}s"
        bad = int((~self.feasible).sum()) if self.closing_rule != "none" else 0
        infeasible = f", {bad} NOT FEASIBLE" if bad else ""
        seconds = f"{sum(self.seconds.values()):.3g} s"
        return f"Rollout(T={T}{early}, n={n}, {paid} {unit} per sample{infeasible}, {seconds})"

    @property
    def n_steps(self) -> int:
        """T."""
        return len(self.projected)

    # -------------------------------------------------------------- what it cost

    @property
    def spent(self) -> Tensor:
        """What each sample spent of its budget, (n,) int64, in projections, or iterations if those were counted."""
        on_the_way = self.iterations.sum(dim=0) if self.unit == "iteration" else self.projected.sum(dim=0)
        return on_the_way + self._closing_cost if self.closing_rule == "paid" else on_the_way

    @property
    def paid(self) -> Tensor:
        """What each sample cost in all, (n,) int64: `spent`, the closing projection, retries, defects that project."""
        free_closing = 0 if self.closing_rule == "paid" else self._closing_cost
        extra = 0 if self.extra is None or self.unit == "iteration" else self.extra
        return self.spent + free_closing + extra

    @property
    def _closing_cost(self) -> Tensor:
        """The cost of the closing projection outside the steps, (n,), in the units of `spent`."""
        if self.unit == "iteration" and self.closing_iterations is not None:
            return self.closing_iterations
        return self.closing.long()

    @property
    def all_iterations(self) -> Tensor:
        """Solver iterations of each sample, (n,) int64, the closing projection included."""
        closing = 0 if self.closing_iterations is None else self.closing_iterations
        return self.iterations.sum(dim=0) + closing

    # -------------------------------------------------------------- how it ended

    @property
    def feasible(self) -> Tensor:
        """Which final samples come from a projection that did not fail, (n,) bool."""
        projected = self.projected[-1] & ~self.failed[-1]
        return projected | (self.closing & ~self.closing_failed)

    @property
    def landing(self) -> Tensor:
        """The defect of the last proposal, (n,): how far the closing projection had to move each sample."""
        return self.defects[-1]

    @property
    def redraw(self) -> Tensor:
        """The rows to draw again, (k,) int64: infeasible, or landed ten times farther from feasible than usual."""
        far = self.landing > _FAR * self.landing.median()
        if self.closing_rule != "none":
            far = far | ~self.feasible
        return far.nonzero().squeeze(1)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw where the corrections went: samples by steps, with the mean defect above.

        Args:
            path: Where to write the figure; it is only returned if not given.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise missing_extra("matplotlib", "studies", "Rollout.plot") from error
        figure = Figure(figsize=(7.0, 4.2), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1, 2))
        steps = range(self.n_steps)
        above.plot(steps, self.defects.double().mean(dim=1).tolist(), color="0.6", label="proposed")
        above.plot(steps, self.residuals.double().mean(dim=1).tolist(), color="tab:blue", label="kept")
        above.set_ylabel("mean defect")
        above.legend(frameon=False, fontsize="small")
        order = self.projected.sum(dim=0).argsort(descending=True)
        below.imshow(self.projected[:, order].T.tolist(), aspect="auto", cmap="Blues", interpolation="nearest")
        below.set(xlabel="step", ylabel="sample, most corrected first")
        if path is not None:
            figure.savefig(path, dpi=150)
        return figure

    def grouped(self) -> Rollout:
        """Return the record with one column per group, as decisions were made; itself if there are no groups.

        A group takes as many iterations as the row of it that takes most, and has failed if any of its rows has.
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
            extra=None if self.extra is None else largest(self.extra),
            seeds=None if self.seeds is None else self.seeds[first],
            groups=None,
        )

    # -------------------------------------------------------------- the file

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file; the arrays of a tree of states are kept by name."""
        tensors = {name: getattr(self, name) for name in _TENSORS} | _named("final", self.final)
        tensors |= {} if self.states is None else _named("states", self.states)
        optional = {name: getattr(self, name) for name in ("seeds", "closing_iterations", "extra")}
        tensors |= {name: value for name, value in optional.items() if value is not None}
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
        """Read what `save` wrote; raise if the file is truncated, foreign or inconsistent.

        A tree of states comes back as a dictionary of its arrays by name.
        """
        tensors, facts = load_tensors(path, "rollout")
        final, states = _unnamed("final", tensors), _unnamed("states", tensors)
        missing = {*_TENSORS} - set(tensors) | set(_FACTS) - set(facts) | (set() if final is not None else {"final"})
        if missing:
            raise ValueError(f"{path}: not a whole rollout, {sorted(missing)} missing")
        try:
            _check_record(tensors, facts)
            groups = Groups(tensors["groups"], facts.get("group_defect", "sum")) if "groups" in tensors else None
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: not a whole rollout, {error}") from error
        known: dict[str, Any] = {name: tensors[name] for name in _TENSORS} | {name: facts[name] for name in _FACTS}
        known |= {name: tensors.get(name) for name in ("seeds", "closing_iterations", "extra")}
        known |= {"planned_steps": facts.get("planned_steps"), "unit": facts.get("unit", "projection")}
        passes = Passes(*(tensors[name] for name in _PASSES)) if _PASSES[0] in tensors else None
        return cls(final=final, states=states, groups=groups, passes=passes, **known)


_TENSORS = ("defects", "residuals", "projected", "closing", "failed", "closing_failed", "iterations")
_FACTS = ("seconds", "calls", "rows", "closing_rule")
_PASSES = ("pass_step", "pass_defects", "pass_cost")
_BOOL, _INTEGER, _FLOAT = "bool", "integers of at least 0", "floats of at least 0 or NaN"
_LAYOUT = {  # what a file holds: kind, and leading shape in terms of T steps, n samples and p passes
    "defects": (_FLOAT, "Tn"),
    "residuals": (_FLOAT, "Tn"),
    "projected": (_BOOL, "Tn"),
    "failed": (_BOOL, "Tn"),
    "iterations": (_INTEGER, "Tn"),
    "closing": (_BOOL, "n"),
    "closing_failed": (_BOOL, "n"),
    "closing_iterations": (_INTEGER, "n"),
    "extra": (_INTEGER, "n"),
    "seeds": ("integers", "n"),
    "groups": ("integers", "n"),
    "pass_step": (_INTEGER, "p"),
    "pass_defects": (_FLOAT, "p"),
    "pass_cost": (_INTEGER, "p"),
}


def _check_record(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Raise if no run could have written these tensors and facts."""
    projected = tensors["projected"]
    if projected.ndim != 2 or projected.numel() == 0:
        raise ValueError(f"projected must be (T, n) with at least one of each: got {tuple(projected.shape)}")
    sizes = {"T": projected.shape[0], "n": projected.shape[1], "p": len(tensors.get("pass_step", ()))}
    for name, (kind, dimensions) in _LAYOUT.items():
        if name in tensors:
            shape = tuple(sizes[dimension] for dimension in dimensions)
            if tuple(tensors[name].shape[: len(shape)]) != shape or not _is_kind(tensors[name], kind):
                got = f"{tuple(tensors[name].shape)} of {tensors[name].dtype}"
                raise ValueError(f"{name} must be {shape} {kind}: got {got}")
    for name, values in tensors.items():
        what, n = name.partition("/")[0], sizes["n"]
        if what == "final" and values.shape[:1] != (n,):
            raise ValueError(f"{name} must hold {n} samples: got {tuple(values.shape)}")
        if what == "states" and (values.ndim < 2 or values.shape[0] - sizes["T"] not in (0, 1) or values.shape[1] != n):
            raise ValueError(f"{name} must be ({sizes['T']} or {sizes['T'] + 1}, {n}, …): got {tuple(values.shape)}")
    passes = [name in tensors for name in _PASSES]
    if any(passes):
        if not all(passes) or tensors["pass_defects"].shape != tensors["pass_cost"].shape:
            raise ValueError("the tensors pass_step, pass_defects and pass_cost must come together, with one shape")
        step = tensors["pass_step"]
        if bool(((step >= sizes["T"]) | (step.diff(prepend=step[:1]) < 0)).any()):
            raise ValueError(f"its passes must be in the order of steps 0 to {sizes['T'] - 1}")
    for name in ("seconds", "calls", "rows"):
        numbers = list(facts[name].values()) if isinstance(facts[name], Mapping) else [None]
        if not all(isinstance(v, int | float) and not isinstance(v, bool) and 0 <= v < math.inf for v in numbers):
            raise ValueError(f"{name} must be a dict of finite numbers of at least 0: got {facts[name]!r:.80}")
    if facts.get("planned_steps") is not None:
        check_integer(facts["planned_steps"], "planned_steps", sizes["T"])
    for name, value, allowed in (
        ("closing_rule", facts["closing_rule"], get_args(Closing)),
        ("unit", facts.get("unit", "projection"), get_args(Unit)),
    ):
        if value not in allowed:
            raise ValueError(f"{name} must be one of {allowed}: got {value!r}")


def _is_kind(values: Tensor, kind: str) -> bool:
    if kind == _BOOL:
        return values.dtype == torch.bool
    if kind == _FLOAT:
        return values.is_floating_point() and not bool(((values < 0) | (values == math.inf)).any())
    integer = not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)
    return integer and (kind != _INTEGER or not bool((values < 0).any()))


def _named(what: str, state: Any) -> dict[str, Tensor]:
    """Return the arrays of a state by their names in a file."""
    form = Form(state)
    if form.single:
        return {what: form.leaves(state)[0]}
    return {f"{what}/{name}": leaf for name, leaf in zip(form.names, form.leaves(state), strict=True)}


def _unnamed(what: str, tensors: dict[str, Tensor]) -> Any:
    """Return the state from the arrays that `_named` made, a tree as a dictionary; None if there are none."""
    if what in tensors:
        return tensors[what]
    tree = {name.partition("/")[2]: leaf for name, leaf in tensors.items() if name.startswith(f"{what}/")}
    return tree or None
