"""What a correction is worth: one frozen value with its rule, how it was made, and its file.

A price has one of two rules, and `price.at(budget)` makes a schedule of it:

- `Thresholds`: a table lambda[t, b]. Correct where the defect is at least the entry of the step and the budget left.
- `Plan`: fixed steps for every budget. No defect is looked at.

Both hold the decisions that are free. With closing="paid" the last step corrects every sample, so they have a step and
a correction less than a run (`Price.closings`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, get_args

import torch
from torch import Tensor

from trimtab._version import __version__
from trimtab.core.budget import Budget, PerBatch, PerSample, Unit, units
from trimtab.core.checks import check_integer, check_type
from trimtab.core.files import UNUSABLE, as_path, kind_of, load_tensors, save_tensors
from trimtab.core.record import Closing
from trimtab.core.view import StepView
from trimtab.prices.sample_scale import SampleScale
from trimtab.schedules.basic import MOST_STEPS

if TYPE_CHECKING:
    from trimtab.prices.schedule import PricedSchedule

Keep = Literal["count", "share"]
"""What part of a budget stays the same when the number of steps changes."""

_FAR = 100.0  # a first defect that differs by this factor belongs to another constraint


@dataclass(frozen=True, eq=False, kw_only=True)
class Price:
    """Everything that all prices have in common: how they were made, and their file.

    Attributes:
        method: How the price was estimated.
        seeds: The calibration seeds. Evaluation on any of them raises.
        objective: What the price is meant to lower.
        closing: The accounting that it was made for, "paid", "free" or "none"; "" for any.
        version: Of the library that made it.
        notes: Anything else worth keeping, JSON only.
        made_for: The problem that it was calibrated on, as far as the runs show it: "event", the shape of a state;
            "constraint", the name of its class; "defect", the median defect of the first step. See `check_fits`.
    """

    method: str = "by hand"
    seeds: tuple[int, ...] = ()
    objective: str = "path"
    closing: str = ""
    version: str = __version__
    notes: Mapping[str, Any] = field(default_factory=dict)
    made_for: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the fields that files store and runs use."""
        for name in ("method", "objective", "version", "closing"):
            check_type(getattr(self, name), str, f"{name} of prices")
        if self.closing not in ("", *get_args(Closing)):
            raise ValueError(f"closing of prices must be 'paid', 'free', 'none' or '' for any: got {self.closing!r}")
        if not isinstance(self.seeds, tuple) or not all(isinstance(seed, int) for seed in self.seeds):
            raise ValueError(f"the seeds of prices must be a tuple of whole numbers: got {self.seeds!r:.60}")
        for name in ("notes", "made_for"):
            check_type(getattr(self, name), Mapping, f"{name} of prices")  # type: ignore[type-abstract]

    def __repr__(self) -> str:
        """Return a one-line summary."""
        return (
            f"{type(self).__name__}(T={self.n_steps}, budgets up to {self.budget}, method={self.method!r}, "
            f"objective={self.objective!r}, {len(self.seeds)} calibration seeds{self._cost()})"
        )

    def _cost(self) -> str:
        spent = self.notes.get("projections")
        return "" if spent is None else f"; {spent:,} projections to calibrate"

    @property
    def _free(self) -> tuple[int, int]:
        """The number of steps at which there is a choice, and the largest number of corrections to spend at them."""
        raise NotImplementedError

    @property
    def closings(self) -> int:
        """How many corrections of a budget, and steps of a run, belong to the closing projection: 1 if it is paid."""
        return int(self.closing == "paid")

    @property
    def unit(self) -> Unit:
        """What its budgets count."""
        return "projection"

    @property
    def n_steps(self) -> int:
        """T."""
        return self._free[0] + self.closings

    @property
    def budget(self) -> int:
        """The largest budget that it serves, the closing projection included."""
        return self._free[1] + self.closings

    def at(self, budget: Budget | PerBatch | PerSample) -> PricedSchedule:
        """Return the schedule for a budget, at most the largest; `PerBatch(…)` is shared by the batch."""
        from trimtab.prices.schedule import Planned, PricedSchedule

        return PricedSchedule(self, budget) if isinstance(self, Thresholds) else Planned(self, budget)

    def resample(self, n_steps: int, keep: Keep = "count") -> Self:
        """Return the price for another number of steps; it is a little worse than one calibrated for them.

        Step t of S takes the price of the step of T that ends at the same share of the run.

        Args:
            n_steps: S.
            keep: What a budget of S steps stands for. "count" keeps the number of corrections, for runs in which a
                number of events need one. "share" keeps the share of the steps, for steps that each add their noise.

        Example:
            >>> import trimtab as tt
            >>> from trimtab.examples import problem
            >>> price = tt.calibrate(problem(range(1000, 1016)), 0.5, "dp", objective="path")
            >>> price.resample(50).n_steps, price.resample(50).budget
            (50, 20)
        """
        check_integer(n_steps, "n_steps", 1 + self.closings, MOST_STEPS)
        if keep not in get_args(Keep):
            raise ValueError(f"resample keeps the 'count' or the 'share' of a budget: got {keep!r}")
        if self.unit == "iteration":
            raise ValueError(f"prices of iterations serve the steps they were calibrated for; calibrate for {n_steps}")
        notes = {**self.notes, "resampled_from": self.n_steps}
        return replace(self, notes=notes, **self._resampled(n_steps - self.closings, keep))

    def _resampled(self, n_steps: int, keep: Keep) -> dict[str, Any]:
        raise NotImplementedError

    def to(self, device: torch.device) -> Self:
        """Return the same price on `device`."""
        parts: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        if all(part.device == device for part in parts.values() if isinstance(part, Tensor)):
            return self
        moved: dict[str, Any] = {
            name: part.to(device) for name, part in parts.items() if isinstance(part, Tensor | SampleScale)
        }
        return replace(self, **moved)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file."""
        save_value(path, self)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote."""
        return load_value(path, cls)

    def check_fits(self, event: tuple[int, ...] | None = None, constraint: str = "", defect: float = 0.0) -> None:
        """Raise if the price was made for another problem than the one of a run.

        Only what is both known of the price and given here is compared.

        Args:
            event: Shape of one state of the run.
            constraint: Name of the class of its constraint.
            defect: Median defect of its first step; it may differ by a factor of 100 either way.
        """
        known, words = self.made_for, ""
        if event is not None and known.get("event") is not None and tuple(known["event"]) != tuple(event):
            words = f"states of shape {tuple(known['event'])}, and these have {tuple(event)}"
        elif constraint and known.get("constraint") not in (None, "", constraint):
            words = f"the constraint {known['constraint']}, and this one is {constraint}"
        elif defect > 0 and known.get("defect", 0) > 0 and not 1 / _FAR <= defect / known["defect"] <= _FAR:
            words = f"defects of about {known['defect']:.3g} at the first step, and these are {defect:.3g}"
        if words:
            raise ValueError(f"the price was made for {words}: calibrate on the problem that it is used for")


@dataclass(frozen=True, eq=False, repr=False)
class Thresholds(Price):
    """Prices lambda[t, b]: at step t with b corrections left, correct where the defect is at least this.

    Attributes:
        table: (T, B + 1), +inf in column 0, no NaN. With closing="paid" it is (T - 1, B): of the steps before the
            closing projection, and of what may be spent before it.
        sample_scale: Estimates a scale per sample, by which thresholds are multiplied. None if all share one scale.
        unit: What is bought at this price: a "projection", or one "iteration" of the solver.
        interval: Lower and upper ends of a 90% interval for every entry of the table, (2, *table.shape), from resampled
            calibration rollouts. None unless `calibrate(…, uncertainty=True)` made the price.

    Example:
        >>> import torch
        >>> prices = Thresholds(torch.tensor([[torch.inf, 0.5], [torch.inf, -torch.inf]]))
        >>> prices.n_steps, prices.budget
        (2, 1)
    """

    table: Tensor
    sample_scale: SampleScale | None = None
    unit: Unit = "projection"
    interval: Tensor | None = None

    def __post_init__(self) -> None:
        """Check the table."""
        super().__post_init__()
        _check_table(self.table)
        rows, columns = self.table.shape
        if self.unit not in get_args(Unit):
            raise ValueError(f"the unit of prices must be one of {get_args(Unit)}: got {self.unit!r}")
        if self.unit == "projection" and columns - 1 > rows:
            raise ValueError(f"a table for B = {columns - 1} corrections does not fit T = {rows} steps")
        if self.sample_scale is not None:
            hint = "how prices were made is given by name, as in method='dp'"
            known = check_type(self.sample_scale, SampleScale, "sample_scale of prices", hint).typical.shape[1]
            if known != rows:
                raise ValueError(f"typical defects must be of T = {rows} steps, as the prices: got {known}")
        if self.interval is not None and self.interval.shape != (2, rows, columns):
            raise ValueError(f"interval must have shape {(2, rows, columns)}: got {tuple(self.interval.shape)}")

    @property
    def _free(self) -> tuple[int, int]:
        return self.table.shape[0], self.table.shape[1] - 1

    def threshold(self, view: StepView, left: Any) -> Any:
        """Return the defect from which on a correction pays now, lambda[t, b] times the scale of the sample, (n,).

        Args:
            view: The step.
            left: What each sample has left, the closing projection included, (n,) int64, at most `budget`; or the mean
                of what the samples of its pool have left, (n,) floats.
        """
        row, free = self.table[view.t], (left - self.closings).clip(0) if self.closings else left
        price = _between_columns(row, free) if free.is_floating_point() else row[free]
        return price if self.sample_scale is None else price * self.sample_scale.now(view)

    def _resampled(self, n_steps: int, keep: Keep) -> dict[str, Any]:
        scale, ends = self.sample_scale and resample_scale(self.sample_scale, n_steps), self.interval
        ends = None if ends is None else torch.stack([resample_table(end, n_steps, keep) for end in ends])
        return {"table": resample_table(self.table, n_steps, keep), "sample_scale": scale, "interval": ends}


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Price):
    """The steps to project at, for every budget up to B.

    Attributes:
        masks: Row b holds exactly b of the T steps, (B + 1, T) bool. With closing="paid" they are (B, T - 1): of the
            steps before the closing projection, and of what may be spent before it.
    """

    masks: Tensor
    method: str = field(default="planned", kw_only=True)

    def __post_init__(self) -> None:
        """Check that every row keeps its budget."""
        super().__post_init__()
        masks = check_type(self.masks, Tensor, "the masks of a plan")
        if masks.dtype != torch.bool or masks.ndim != 2 or 0 in masks.shape or len(masks) - 1 > masks.shape[1]:
            raise ValueError(f"a plan must be (B + 1, T) bool with B <= T: got {tuple(masks.shape)} of {masks.dtype}")
        if not torch.equal(masks.sum(dim=1).cpu(), torch.arange(len(masks))):
            raise ValueError(f"row b of a plan must hold exactly b steps: got {masks.sum(dim=1).tolist()} steps")

    @property
    def _free(self) -> tuple[int, int]:
        return self.masks.shape[1], len(self.masks) - 1

    def due(self, t: int, budget: int | Tensor) -> Tensor:
        """Return whether each budget corrects at step t, a bool, or (n,) for budgets (n,)."""
        return self.masks[torch.as_tensor(budget - self.closings, device=self.masks.device).clamp(min=0), t]

    def _resampled(self, n_steps: int, keep: Keep) -> dict[str, Any]:
        return {"masks": resample_masks(self.masks, n_steps, keep)}


# ------------------------------------------------------------------ budgets


def budget_within(
    budget: Budget | PerBatch | PerSample, n_steps: int, largest: int, unit: Unit = "projection"
) -> int | Tensor:
    """Return the budget in units; raise if it is above the largest that a price serves."""
    found = units(budget, n_steps, unit)
    b = found if isinstance(found, Tensor) else int(found)
    if (int(b.max()) if isinstance(b, Tensor) else b) > largest:
        what = ("correction" if unit == "projection" else "iteration") + "s" * (largest != 1)
        raise ValueError(
            f"a budget of {b} is more than the {largest} {what} that these prices go up to; calibrate with a larger one"
        )
    return b


def free_size(n_steps: int, budget: int, closing: str) -> tuple[int, int]:
    """Return the number of steps with a free decision and the budget for them, without a paid closing projection."""
    reserve = int(closing == "paid")
    if n_steps == reserve:
        raise ValueError(
            "there is one step, which the closing projection corrects: there is nothing to choose, and Terminal() does "
            "all that can be done"
        )
    if budget < reserve:
        raise ValueError(
            f"a budget of {budget} leaves nothing for the closing projection, which is one; give at least 1"
        )
    return n_steps - reserve, budget - reserve


def _check_table(table: object) -> None:
    if not isinstance(table, Tensor):
        raise ValueError(f"a threshold table must be a (T, B + 1) tensor of floats: got {type(table).__name__}")
    if table.ndim != 2 or 0 in table.shape or not table.is_floating_point():
        raise ValueError(
            f"a threshold table must be (T, B + 1) floats with T >= 1: got {tuple(table.shape)} of {table.dtype}"
        )
    if bool(table.isnan().any()):
        t, b = table.isnan().nonzero()[0].tolist()
        raise ValueError(f"the threshold table has NaN, first at t = {t}, b = {b}; use inf for 'never'")
    if bool((table[:, 0] != torch.inf).any()):
        raise ValueError("column 0 of a threshold table must be +inf: with no budget left nothing can be spent")


def _between_columns(row: Tensor, left: Tensor) -> Tensor:
    """Return the entries of a table's row, (B + 1,), at budgets between columns, (n,) floats to (n,).

    Below one unit to spend it is the price of one unit divided by what is left: dear, but not closed.
    """
    low = left.long().clamp(max=len(row) - 1)
    a, b, share = row[low], row[(low + 1).clamp(max=len(row) - 1)], left - low
    nearest = torch.where(share <= 0.5, a, b)
    mixed = torch.where(a.isfinite() & b.isfinite(), a + share * (b - a), nearest)
    scarce = (a == torch.inf) & (share > 0)
    return torch.where(scarce, b / share.clamp(min=1e-9), mixed)


# ------------------------------------------------------------------ other numbers of steps


def resample_table(table: Tensor, n_steps: int, keep: Keep) -> Tensor:
    """Return a price table (T, B + 1) for S steps, (S, B' + 1)."""
    old, most = table.shape[0], table.shape[1] - 1
    rows = interpolate_rows(table, _step_positions(n_steps, old).to(table.device))
    stands_for = _old_budgets(n_steps, old, most, keep).to(table.device)
    new = interpolate_rows(rows.T, stands_for).T.contiguous()
    new[:, 0] = torch.inf
    if most > 0 and float(table[-1, 1]) == -torch.inf:  # a correction for every step to go: spend it
        to_go = n_steps - torch.arange(n_steps, device=table.device)
        new[torch.arange(len(stands_for), device=table.device) >= to_go[:, None]] = -torch.inf
    return new


def resample_scale(scale: SampleScale, n_steps: int) -> SampleScale:
    """Return the scale for S steps; the prior stays the same share of the run."""
    old = scale.typical.shape[1]
    at = _step_positions(n_steps, old).to(scale.typical.device)
    by_step = interpolate_rows(scale.typical.T, at).T
    typical = torch.cat([by_step[:1], interpolate_rows(by_step[1:], at)])
    return SampleScale(typical, scale.prior * n_steps / old)


def resample_masks(masks: Tensor, n_steps: int, keep: Keep) -> Tensor:
    """Return planned times (B + 1, T) bool for S steps, (B' + 1, S): each share of the run spends as much as before.

    Corrections that do not fit, since a step takes only one, move to the next steps.
    """
    old, most, device = masks.shape[1], len(masks) - 1, masks.device
    counts = torch.nn.functional.pad(masks.double().cumsum(dim=1), (1, 0))  # by the end of each step, (B + 1, T + 1)
    ends = torch.arange(n_steps + 1, dtype=torch.float64, device=device) * old / n_steps
    stands_for = _old_budgets(n_steps, old, most, keep).to(device)
    done = interpolate_rows(interpolate_rows(counts, stands_for).T, ends).T  # (B' + 1, S + 1)
    budgets = torch.arange(len(done), dtype=torch.float64, device=device)
    due = (done / stands_for.clamp(min=1e-9)[:, None] * budgets[:, None] + 0.5 - 1e-9).floor()
    due[:, -1] = budgets
    new = torch.zeros(len(done), n_steps, dtype=torch.bool, device=device)
    spent = torch.zeros_like(budgets)
    for t in range(n_steps):
        new[:, t] = (spent < due[:, t + 1]) | (budgets - spent > n_steps - t - 1)  # the rest cannot wait any longer
        spent += new[:, t]
    return new


def interpolate_rows(rows: Tensor, at: Tensor) -> Tensor:
    """Return the rows (m, k) at fractional positions (s,), (s, k); the nearest row if a neighbour is infinite."""
    low, high = at.floor().long(), at.ceil().long().clamp(max=len(rows) - 1)
    share = (at - low)[:, None].to(rows)
    a, b = rows[low], rows[high]
    mixed = a + share * (b - a)
    return torch.where(a.isfinite() & b.isfinite(), mixed, torch.where(share <= 0.5, a, b))


def _step_positions(n_steps: int, old_steps: int) -> Tensor:
    """Return, for each of `n_steps` steps, which of `old_steps` steps is as far along the run, (n_steps,) floats."""
    ends = torch.arange(1, n_steps + 1, dtype=torch.float64) * old_steps / n_steps
    return (ends - 1).clamp(min=0)


def _old_budgets(n_steps: int, old_steps: int, most: int, keep: Keep) -> Tensor:
    """Return the budget of T steps that each of 0, 1, … corrections of S steps stands for, as a fraction."""
    if keep == "count":
        return torch.arange(min(most, n_steps) + 1, dtype=torch.float64)
    return torch.arange(most * n_steps // old_steps + 1, dtype=torch.float64) * old_steps / n_steps


# ------------------------------------------------------------------ files

Kind = TypeVar("Kind")
_KIND = "price"


def load(path: str | os.PathLike[str]) -> Any:
    """Read a price that `save` wrote, of any kind.

    Example:
        >>> import tempfile, torch, trimtab as tt
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     tt.prices.Thresholds(torch.tensor([[torch.inf, 0.5]])).save(f"{folder}/price.safetensors")
        ...     load(f"{folder}/price.safetensors").budget
        1
    """
    return load_value(path, object)


def save_value(path: str | os.PathLike[str], value: Any) -> None:
    """Write a price: a frozen dataclass of tensors, JSON values and other such dataclasses."""
    tensors: dict[str, Tensor] = {}
    save_tensors(path, _KIND, tensors, _packed(value, "", tensors))


def load_value(path: str | os.PathLike[str], kind: type[Kind]) -> Kind:
    """Read what `save_value` wrote; raise if it is not of that kind."""
    holds = kind_of(as_path(path))
    if holds == "rollout":
        raise ValueError(f"{path}: holds the record of a run; read it with trimtab.Rollout.load")
    if holds == "learner":
        raise ValueError(f"{path}: holds a learner; read it with trimtab.prices.Learner.load")
    tensors, facts = load_tensors(path, _KIND)
    try:
        value = _unpacked(facts, "", tensors)
    except UNUSABLE as error:
        raise ValueError(f"{path}: not a usable price: {error}") from error
    if not isinstance(value, kind):
        raise ValueError(f"{path}: holds {type(value).__name__}, expected {kind.__name__}; trimtab.load reads any")
    return value


def _packed(value: Any, prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Return the JSON part of a dataclass, and add its tensors by name."""
    facts: dict[str, Any] = {"is": type(value).__name__}
    for each in fields(value):
        name, part = each.name, getattr(value, each.name)
        if isinstance(part, Tensor):
            tensors[prefix + name] = part
        elif is_dataclass(part):
            facts[name] = _packed(part, f"{prefix}{name}.", tensors)
        elif name != "version":  # every file has it anyway
            facts[name] = dict(part) if isinstance(part, Mapping) else part
    return facts


def _unpacked(facts: dict[str, Any], prefix: str, tensors: dict[str, Tensor]) -> Any:
    """Build the dataclass that `_packed` took apart."""
    kind = {cls.__name__: cls for cls in (Thresholds, Plan, SampleScale)}[facts["is"]]
    parts: dict[str, Any] = {}
    for each in fields(kind):
        name = each.name
        if prefix + name in tensors:
            parts[name] = tensors[prefix + name]
        elif name in facts:
            part = facts[name]
            nested = isinstance(part, dict) and "is" in part
            whole = _unpacked(part, f"{prefix}{name}.", tensors) if nested else part
            parts[name] = tuple(whole) if isinstance(whole, list) else whole
    return kind(**parts)
