"""The record of a rollout, and its file."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from trimtab.core.arrays import Form
from trimtab.core.budget import COST, Cost, Unit
from trimtab.core.checks import check_integer, missing_extra
from trimtab.core.files import load_tensors, save_tensors

__all__ = ["Closing", "InfeasibleWarning", "Rollout", "Trials"]

Closing = Literal["paid", "free", "none"]
"""How a run ends: with a projection that the budget pays for, with one outside it (as the paper counts), or none."""

_FAR = 10.0  # times the usual landing


class InfeasibleWarning(UserWarning):
    """Some final samples of a run are not feasible."""


class Trials(NamedTuple):
    """What was tried beside a run, without using it: q outcomes, and how each of m + 1 ways adds up over the steps.

    Attributes:
        step: The step of each outcome, (q,) int64.
        way: Its way, a number as in `Rollout.ways`, (q,) int64.
        defect: Of the proposal, (q,).
        residual: The defect after it, (q,).
        work: Its solver iterations, (q,).
        kinds: The ways of the sums below, (m + 1,); 0 is to stay.
        drift: Length of the sum over all steps of the vectors from where a way leads to the whole projection, (m + 1,).
        length: Sum of the lengths of these vectors, (m + 1,).
        rows: The samples that were tried on, (k,) int64; each of them was projected whole at every step.
    """

    step: Tensor
    way: Tensor
    defect: Tensor
    residual: Tensor
    work: Tensor
    kinds: Tensor
    drift: Tensor
    length: Tensor
    rows: Tensor


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
        planned_steps: How many steps were planned, if the run was stopped early; None otherwise.
        unit: What a budget counted: "projection", "iteration" or "second".
        closing_iterations: Solver iterations of the closing projection, (n,), if counted.
        cost: What a call, a row and an iteration cost, in that unit.
        ways: Which way each sample was corrected, (T, n) int8: 0 is not at all, i is `way_names[i - 1]`. None if all
            corrections are whole projections.
        way_names: The names of the ways.
        trials: What was tried beside the run; None if nothing was.
        call_log: Seconds, rows and iterations of each call of the solver.
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
    planned_steps: int | None = None
    unit: Unit = "projection"
    closing_iterations: Tensor | None = None
    extra: Tensor | None = None
    cost: Cost = COST["projection"]
    ways: Tensor | None = None
    way_names: tuple[str, ...] = ("whole",)
    trials: Trials | None = None
    call_log: Any = ()

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
        """What each sample spent of its budget, (n,), in the unit of the budget; a shared call counts in shares."""
        on_the_way = work_of(self.cost, self.projected, self.iterations, self.ways).sum(dim=0)
        return on_the_way + self._closing_cost if self.closing_rule == "paid" else on_the_way

    @property
    def paid(self) -> Tensor:
        """What each sample cost in all, (n,): `spent`, the closing projection, retries, defects that project."""
        free_closing = 0 if self.closing_rule == "paid" else self._closing_cost
        extra = 0 if self.extra is None or self.unit != "projection" else self.extra
        return self.spent + free_closing + extra

    @property
    def _closing_cost(self) -> Tensor:
        """The cost of the closing projection outside the steps, (n,), in the units of `spent`."""
        taken = self.closing_iterations
        return work_of(self.cost, self.closing, torch.zeros_like(self.closing.long()) if taken is None else taken)

    @property
    def all_iterations(self) -> Tensor:
        """Solver iterations of each sample, (n,) int64, the closing projection and trials included."""
        total = self.iterations.sum(dim=0)
        if self.closing_iterations is not None:
            total = total + self.closing_iterations
        if self.trials is not None and len(rows := self.trials.rows):
            total = total.index_add(0, rows, (self.trials.work.sum() / len(rows)).round().long().expand(len(rows)))
        return total

    # -------------------------------------------------------------- how it ended

    @property
    def feasible(self) -> Tensor:
        """Which final samples come from a projection that did not fail, (n,) bool."""
        last = self.projected[-1] if self.ways is None else self.ways[-1] == self.way_names.index("whole") + 1
        return (last & ~self.failed[-1]) | (self.closing & ~self.closing_failed)

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
            raise missing_extra("matplotlib", "plot", "Rollout.plot") from error
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

    # -------------------------------------------------------------- the file

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file; the arrays of a tree of states are kept by name."""
        tensors = {name: getattr(self, name) for name in _TENSORS} | _named("final", self.final)
        tensors |= {} if self.states is None else _named("states", self.states)
        optional = {name: getattr(self, name) for name in _OPTIONAL}
        tensors |= {name: value for name, value in optional.items() if value is not None}
        facts: dict[str, Any] = {name: getattr(self, name) for name in _FACTS}
        facts |= {"unit": self.unit, "cost": list(self.cost), "way_names": list(self.way_names)}
        if self.planned_steps is not None:
            facts["planned_steps"] = self.planned_steps
        save_tensors(path, "rollout", tensors, facts)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Rollout:
        """Read what `save` wrote; raise if the file is truncated, foreign or inconsistent.

        A tree of states comes back as a dictionary of its arrays by name. What was tried beside the run, and the log
        of calls, are not kept.
        """
        tensors, facts = load_tensors(path, "rollout")
        final, states = _unnamed("final", tensors), _unnamed("states", tensors)
        missing = {*_TENSORS} - set(tensors) | set(_FACTS) - set(facts) | (set() if final is not None else {"final"})
        if missing:
            raise ValueError(f"{path}: not a whole rollout, {sorted(missing)} missing")
        try:
            _check_record(tensors, facts)
            unit = facts.get("unit", "projection")
            cost = Cost(*facts["cost"]) if "cost" in facts else COST[unit]
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: not a whole rollout, {error}") from error
        known: dict[str, Any] = {name: tensors[name] for name in _TENSORS} | {name: facts[name] for name in _FACTS}
        known |= {name: tensors.get(name) for name in _OPTIONAL}
        known |= {"planned_steps": facts.get("planned_steps"), "unit": unit, "cost": cost}
        known["way_names"] = tuple(facts.get("way_names", ("whole",)))
        return cls(final=final, states=states, **known)


def work_of(cost: Cost, projected: Tensor, iterations: Tensor, ways: Tensor | None = None) -> Tensor:
    """Return what corrections cost, like `projected`, (…, n); the rows of a call share its cost.

    Args:
        cost: Of a call, a row and an iteration.
        projected: Which samples were corrected, (…, n) bool.
        iterations: Of the solver, (…, n).
        ways: Which way each sample took, (…, n); each way that is taken is a call. All the same by default.
    """
    if cost == COST["projection"]:
        return projected.long()
    if cost == COST["iteration"]:
        return iterations.long()
    paid = cost.row * projected.double() + cost.iteration * iterations
    if cost.call:
        kinds = projected.long() if ways is None else ways.long()
        for way in range(1, int(kinds.max()) + 1):
            rows = kinds == way
            paid = paid + cost.call * rows / rows.sum(dim=-1, keepdim=True).clamp(min=1)
    return paid


_TENSORS = ("defects", "residuals", "projected", "closing", "failed", "closing_failed", "iterations")
_FACTS = ("seconds", "calls", "rows", "closing_rule")
_OPTIONAL = ("seeds", "closing_iterations", "extra", "ways")
_BOOL, _INTEGER, _FLOAT = "bool", "integers of at least 0", "floats of at least 0 or NaN"
_LAYOUT = {  # what a file holds: kind, and leading shape in terms of T steps and n samples
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
    "ways": (_INTEGER, "Tn"),
}


def _check_record(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Raise if no run could have written these tensors and facts."""
    projected = tensors["projected"]
    if projected.ndim != 2 or projected.numel() == 0:
        raise ValueError(f"projected must be (T, n) with at least one of each: got {tuple(projected.shape)}")
    sizes = {"T": projected.shape[0], "n": projected.shape[1]}
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
