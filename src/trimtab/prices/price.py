"""What a correction is worth: one frozen value with its rule, how it was made, and its file.

A price has one of three rules, and `price.at(budget)` makes a schedule of it:

- `Thresholds`: a table lambda[t, b]. Correct where the defect is at least the entry of the step and the budget left.
- `Plan`: fixed steps for every budget. No defect is looked at.
- `Allowance`: a number of solver iterations for every step and budget. No defect is looked at.

`Raced` says which of several prices serves which budget.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, get_args

import torch
from torch import Tensor

from trimtab._version import __version__
from trimtab.core import html
from trimtab.core.budget import Budget, PerBatch, PerSample, Unit, units
from trimtab.core.checks import check_integer, check_type
from trimtab.core.files import UNUSABLE, as_path, kind_of, load_tensors, save_tensors
from trimtab.core.record import Closing, Rollout
from trimtab.core.replay import replay
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
        fingerprint: Of the sampler and the constraint that it was calibrated on, "" if unknown. It is information only:
            nothing is checked against it.
        closing: The accounting that it was made for, "paid", "free" or "none"; "" for any.
        version: Of the library that made it.
        notes: Anything else worth keeping, JSON only.
        made_for: The problem that it was calibrated on, as far as the runs show it: "event", the shape of a state;
            "constraint", the name of its class; "defect", the median defect of the first step. See `check_fits`.
    """

    method: str = "by hand"
    seeds: tuple[int, ...] = ()
    objective: str = "path"
    fingerprint: str = ""
    closing: str = ""
    version: str = __version__
    notes: Mapping[str, Any] = field(default_factory=dict)
    made_for: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the fields that files store and runs use."""
        for name in ("method", "objective", "fingerprint", "version", "closing"):
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

    def _repr_html_(self) -> str:
        """Return how it was made, and a drawing or a table of its rule, for a notebook."""
        facts = [("method", self.method), ("objective", self.objective), ("steps", self.n_steps)]
        facts += [("largest budget", self.budget), ("calibration seeds", len(self.seeds))]
        known = {"projections": "calibration projections", "pays_back_after": "samples until paid back"}
        facts += [(name, self.notes[key]) for key, name in known.items() if self.notes.get(key) is not None]
        title, rule = self._shown()
        return html.panel(title, html.table(facts), rule)

    def _shown(self) -> tuple[str, str]:
        return type(self).__name__, ""

    @property
    def _size(self) -> tuple[int, int]:
        raise NotImplementedError

    @property
    def unit(self) -> Unit:
        """What its budgets count."""
        return "projection"

    @property
    def closing_reserve(self) -> int:
        """Units of a budget that are kept for a closing projection."""
        return 1

    @property
    def n_steps(self) -> int:
        """T."""
        return self._size[0]

    @property
    def budget(self) -> int:
        """The largest budget that it serves."""
        return self._size[1]

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
        check_integer(n_steps, "n_steps", most=MOST_STEPS)
        if keep not in get_args(Keep):
            raise ValueError(f"resample keeps the 'count' or the 'share' of a budget: got {keep!r}")
        if self.unit == "iteration":
            raise ValueError(f"prices of iterations serve the steps they were calibrated for; calibrate for {n_steps}")
        notes = {**self.notes, "resampled_from": self.n_steps}
        return replace(self, fingerprint="", notes=notes, **self._resampled(n_steps, keep))

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
        table: (T, B + 1), +inf in column 0, no NaN.
        sample_scale: Estimates a scale per sample, by which thresholds are multiplied. None if all share one scale.
        unit: What is bought at this price: a whole "projection", or one "iteration" of the solver.
        closing_reserve: Units of a budget that are kept for a closing projection; 1 if projections are counted.
        onward: Thresholds for the second and later iterations within a step, (T, B + 1). They are lower than `table`
            if starting the solver has a set-up cost. None if they are the same.
        interval: Lower and upper ends of a 90% interval for every entry of the table, (2, T, B + 1), from resampled
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
    closing_reserve: int = 1
    onward: Tensor | None = None
    interval: Tensor | None = None

    def __post_init__(self) -> None:
        """Check the table."""
        super().__post_init__()
        _check_table(self.table)
        T, columns = self.table.shape
        if self.unit not in get_args(Unit):
            raise ValueError(f"the unit of prices must be 'projection' or 'iteration': got {self.unit!r}")
        check_integer(self.closing_reserve, "closing_reserve of prices", 1)
        if self.unit == "projection" and columns - 1 > T:
            raise ValueError(f"a table for B = {columns - 1} corrections does not fit T = {T} steps")
        if self.sample_scale is not None:
            hint = "how prices were made is given by name, as in method='dp'"
            known = check_type(self.sample_scale, SampleScale, "sample_scale of prices", hint).typical.shape[1]
            if known != T:
                raise ValueError(f"typical defects must be of T = {T} steps, as the prices: got {known}")
        if self.onward is not None:
            _check_table(self.onward)
            if self.onward.shape != self.table.shape or self.unit != "iteration":
                raise ValueError(
                    "`onward` requires unit='iteration' and the same shape as `table`: got "
                    f"unit={self.unit!r} and {tuple(self.onward.shape)}"
                )

        if self.interval is not None and self.interval.shape != (2, T, columns):
            raise ValueError(f"interval must have shape {(2, T, columns)}: got {tuple(self.interval.shape)}")

    @property
    def _size(self) -> tuple[int, int]:
        return self.table.shape[0], self.table.shape[1] - 1

    def threshold(self, view: StepView, left: Any) -> Any:
        """Return the defect from which on a correction pays now, lambda[t, b] times the scale of the sample, (n,).

        Args:
            view: The step.
            left: What each sample has left, (n,) int64, at most the table's budget; or the mean of what the samples of
                its pool have left, (n,) floats.
        """
        row = (self.table if self.onward is None or not view.iteration else self.onward)[view.t]
        price = _between_columns(row, left) if left.is_floating_point() else row[left]
        return price if self.sample_scale is None else price * self.sample_scale.now(view)

    def keep_last(self, steps: int) -> Thresholds:
        """Return the same prices with one correction kept back for each of the last steps.

        A sample that spends its budget early lands far from feasible. Here these prices spend all but k corrections,
        and the sample is corrected at each of the k steps before a paid closing projection. Budgets stay exact; a
        budget of k or less is spent on the last steps alone.

        Args:
            steps: k, the number of last steps; 0 changes nothing.

        Example:
            >>> import trimtab as tt
            >>> from trimtab.examples import problem
            >>> price = tt.calibrate(problem(range(1000, 1016), n_steps=20), method="paper").keep_last(2)
            >>> problem(range(4), n_steps=20).rollout(price.at(6)).projected[-3:].all().item()
            True
        """
        T, most = self._size
        closing = int(self.closing == "paid")
        k = check_integer(steps, "the last steps to keep corrections for", 0, T - closing)
        if self.unit == "iteration":
            raise ValueError("keep_last is for prices that count projections")
        b = torch.arange(most + 1, device=self.table.device)
        to_go = torch.arange(T - closing, 0, -1, device=b.device)[:, None]
        table = self.table[:, (b - k).clamp(min=0)]
        table[T - closing :, 1:] = -torch.inf
        before = torch.where(to_go > k, table[: T - closing], torch.inf)
        table[: T - closing] = torch.where(
            b - closing >= to_go, -torch.inf, before
        )  # a correction for every step to go
        return replace(self, table=table, interval=None, notes={**self.notes, "kept_for_last_steps": k})

    def _resampled(self, n_steps: int, keep: Keep) -> dict[str, Any]:
        scale, ends = self.sample_scale and resample_scale(self.sample_scale, n_steps), self.interval
        ends = None if ends is None else torch.stack([resample_table(end, n_steps, keep) for end in ends])
        return {"table": resample_table(self.table, n_steps, keep), "sample_scale": scale, "interval": ends}

    def close_calls(self, run: Rollout, budget: Budget | PerBatch | PerSample | None = None) -> Tensor:
        """Return the decisions whose defect lay within the interval of their price, (T, n) bool.

        More calibration rollouts might have decided these otherwise. Nothing is run: views are built from the record.

        Args:
            run: A record of a run under this price, with its defects.
            budget: What it was run with; by default what each sample spent, since a table spends its budget exactly.

        Example:
            >>> import trimtab as tt
            >>> from trimtab.examples import problem
            >>> price = tt.calibrate(problem(range(1000, 1032), n_steps=20), method="paper", uncertainty=True)
            >>> run = problem(range(8), n_steps=20).rollout(price.at(5))
            >>> bool(price.close_calls(run).double().mean() < 0.5)
            True
        """
        from trimtab.prices.schedule import CloseCalls

        if self.interval is None:
            raise ValueError("this price has no interval: make it with calibrate(…, uncertainty=True)")
        spent = run.spent if budget is None else budget
        watching = CloseCalls(self.at(spent), torch.zeros_like(run.projected))
        if not torch.equal(replay(watching, run), run.projected):
            raise ValueError(
                "these are not the decisions of this price with this budget: give the record of a run under it, and "
                "its budget if samples shared it, as in PerBatch(10)"
            )
        return watching.found

    def _shown(self) -> tuple[str, str]:
        lefts = dict.fromkeys(max(1, round(share * self.budget)) for share in (0.0, 0.05, 0.1, 0.25))
        lines = {f"{b} left": list(enumerate(self.table[:, b].tolist())) for b in lefts if b <= self.budget}
        note = "<p>Project where the defect is at least the price; no line: always, or never.</p>"
        bands = {}
        if self.interval is not None:
            note += "<p>Bands: 90% intervals from resampled calibration rollouts.</p>"
            ends = {b: self.interval[:, :, b].tolist() for b in lefts if b <= self.budget}
            bands = {f"{b} left": [list(enumerate(end)) for end in both] for b, both in ends.items()}
        drawing = html.draw(lines, "step", "price", bands=bands)
        return "Prices of a correction", drawing + note if drawing else ""


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Price):
    """The steps to project at, for every budget up to B.

    Attributes:
        masks: Row b holds exactly b of the T steps, (B + 1, T) bool.
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
    def _size(self) -> tuple[int, int]:
        return self.masks.shape[1], len(self.masks) - 1

    def due(self, view: StepView) -> Tensor:
        """Return which budgets correct now, (B + 1,) bool."""
        return self.masks[:, view.t]

    def _resampled(self, n_steps: int, keep: Keep) -> dict[str, Any]:
        return {"masks": resample_masks(self.masks, n_steps, keep)}

    def _shown(self) -> tuple[str, str]:
        budgets = dict.fromkeys(max(1, round(share * self.budget)) for share in (0.1, 0.25, 0.5))
        times = {b: self.masks[b].nonzero().flatten().tolist() for b in budgets if b <= self.budget}
        rows = [(b, ", ".join(map(str, steps))) for b, steps in times.items()]
        return "Planned times", html.table(rows, ("budget", "projects after steps"))


@dataclass(frozen=True, eq=False, repr=False)
class Allowance(Price):
    """The largest number of solver iterations at each step, for every budget up to B.

    Attributes:
        counts: (B + 1, T) int16. What a sample has left limits them further.
        closing_reserve: Units of a budget that are kept for a closing projection.
    """

    counts: Tensor
    closing_reserve: int = 1
    method: str = field(default="evenly", kw_only=True)

    @property
    def unit(self) -> Unit:
        """What its budgets count."""
        return "iteration"

    @property
    def _size(self) -> tuple[int, int]:
        return self.counts.shape[1], len(self.counts) - 1

    def due(self, view: StepView) -> Tensor:
        """Return which budgets buy one more iteration now, (B + 1,) bool."""
        return self.counts[:, view.t] > view.iteration


@dataclass(frozen=True, eq=False, repr=False)
class Raced(Price):
    """The winner of a race for every budget.

    Its notes hold the ranges of budgets with their winners and margins, and the names of all candidates.

    Attributes:
        parts: The prices that won some budget.
        winner: The index of the part that serves each budget from 0 to B, (B + 1,) int64.
        looks: What all defect evaluations of a rollout cost, in whole units. A part that looks at defects has that much
            less to spend; it serves no budget that looking would use up, also when resampled: there the first part that
            does not look takes its place.
        spend: What is spent of each budget from 0 to B, (B + 1,) int64: less than all where a projection at the end
            does better. None if every budget is spent.
    """

    parts: tuple[Thresholds | Plan | Allowance, ...]
    winner: Tensor
    looks: int = 0
    spend: Tensor | None = None
    objective: str = field(default="endpoint", kw_only=True)
    method: str = field(default="race", kw_only=True)

    def __post_init__(self) -> None:
        """Check that the parts belong together."""
        super().__post_init__()
        winner = check_type(self.winner, Tensor, "winner")
        kinds = {(part.n_steps, part.unit, part.closing_reserve) for part in self.parts}
        if len(kinds) != 1:
            raise ValueError(
                "the winners of a race must be one or more prices of the same number of steps, unit and "
                f"closing_reserve: got {sorted(kinds)}"
            )
        known, served = set(range(len(self.parts))), min(part.budget for part in self.parts)
        if len(winner) - 1 > served or not set(winner.tolist()) <= known:
            raise ValueError(f"winner must name one of {len(self.parts)} parts for every budget up to {served} at most")
        if self.spend is not None and self.spend.shape != winner.shape:
            raise ValueError(f"spend must have the shape of winner: got {tuple(self.spend.shape)}")

    def __repr__(self) -> str:
        """Return a one-line summary."""
        names = ", ".join(dict.fromkeys(part.method for part in self.parts))
        return f"Raced(T={self.n_steps}, budgets up to {self.budget}, by {self.objective!r}: {names}{self._cost()})"

    def _shown(self) -> tuple[str, str]:
        rows = []
        for part in self.notes.get("ranges", ()):
            ahead, se = part["ahead_of_even_spacing"]
            rows.append((f"{part['from']} to {part['to']}", part["winner"], f"{ahead:.0%} ± {se:.0%}"))
        return "Prices by a race", html.table(rows, ("budgets", "winner", "ahead of even spacing")) if rows else ""

    @property
    def _size(self) -> tuple[int, int]:
        return self.parts[0].n_steps, len(self.winner) - 1

    @property
    def unit(self) -> Unit:
        """What its budgets count."""
        return self.parts[0].unit

    @property
    def closing_reserve(self) -> int:
        """Units of a budget that are kept for a closing projection."""
        return self.parts[0].closing_reserve

    def at(self, budget: Budget | PerBatch | PerSample) -> PricedSchedule:
        """Return the schedule of the winner for a budget; samples with different budgets may have different winners."""
        from trimtab.prices.schedule import Mixed

        b = budget_within(budget, self.n_steps, self.budget, self.unit)
        if isinstance(b, Tensor):
            return Mixed(self, b)
        own = self.part_at(int(self.winner[b]), b)
        return own.price.at(replace(budget, budget=own.budget)) if isinstance(budget, PerBatch) else own

    def part_at(self, i: int, budget: int | Tensor) -> PricedSchedule:
        """Return the schedule of part i for a budget.

        The part may spend less than the budget: `spend` says how much. If it measures defects, it also pays for those.
        """
        if self.spend is not None:
            budget = self.spend[budget] if isinstance(budget, Tensor) else int(self.spend[budget])
        known: dict[str, Any] = {
            "seeds": self.seeds,
            "closing": self.closing,
            "made_for": self.made_for,
            "objective": self.objective,
        }
        part = replace(self.parts[i], **known)
        less = self.looks if isinstance(part, Thresholds) else 0
        return part.at((budget - less).clamp(min=0) if isinstance(budget, Tensor) else max(0, budget - less))

    def to(self, device: torch.device) -> Self:
        """Return the same price on `device`."""
        moved = super().to(device)
        return replace(moved, parts=tuple(part.to(device) for part in self.parts))

    def _resampled(self, n_steps: int, keep: Keep) -> dict[str, Any]:
        stands_for = _old_budgets(n_steps, self.n_steps, self.budget, keep).round().long()
        stands_for = stands_for.to(self.winner.device)
        looks = math.ceil(self.looks * n_steps / self.n_steps)
        spend = None
        if self.spend is not None:
            less, every = self.spend[stands_for], torch.arange(len(stands_for), device=stands_for.device)
            spend = torch.where(less < stands_for, less, every)
        return {
            "parts": tuple(part.resample(n_steps, keep) for part in self.parts),
            "winner": self._affordable(looks, self.winner[stands_for]),
            "looks": looks,
            "spend": spend,
        }

    def _affordable(self, looks: int, winner: Tensor) -> Tensor:
        """Return the winners, (B' + 1,), with fixed times at budgets that measuring defects would use up."""
        blind = [i for i, part in enumerate(self.parts) if not isinstance(part, Thresholds)]
        if not looks or not blind:
            return winner
        held = 0 if self.closing in ("free", "none") else self.closing_reserve
        looking = torch.tensor([isinstance(part, Thresholds) for part in self.parts]).to(winner.device)[winner]
        used_up = torch.arange(len(winner), device=winner.device) <= looks + held
        return torch.where(looking & used_up, blind[0], winner)


# ------------------------------------------------------------------ budgets


def budget_within(
    budget: Budget | PerBatch | PerSample, n_steps: int, largest: int, unit: Unit = "projection"
) -> int | Tensor:
    """Return the budget in units; raise if it is above the largest that a price serves."""
    b = units(budget, n_steps, unit)
    if (int(b.max()) if isinstance(b, Tensor) else b) > largest:
        what = ("correction" if unit == "projection" else "iteration") + "s" * (largest != 1)
        raise ValueError(
            f"a budget of {b} is more than the {largest} {what} that these prices go up to; calibrate with a larger one"
        )
    return b


def inner_size(n_steps: int, budget: int, closing: str) -> tuple[int, int]:
    """Return the number of steps with a free decision and the budget for them, after a paid closing projection."""
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


def with_closing(table: Tensor, closing_reserve: int) -> Tensor:
    """Add a last step to a table, at which every sample is corrected from the budget reserved for it.

    Args:
        table: (T, B + 1).
        closing_reserve: k, the units that a paid closing projection takes, 1 in projections; 0 changes nothing.

    Returns:
        (T + 1, B + k + 1): column b has the prices with b - k to spend before the last step.
    """
    if not closing_reserve:
        return table
    whole = torch.full((table.shape[0] + 1, table.shape[1] + closing_reserve), torch.inf, dtype=table.dtype)
    whole[:-1, closing_reserve:] = table
    whole[-1, 1:] = -torch.inf
    return whole


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
_OLD_KINDS = ("thresholds", "plan", "race", "mean prices", "seconds", "stationary price", "value")


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
    if holds in _OLD_KINDS:
        raise ValueError(
            f"{path}: holds {holds!r} in a format that trimtab {__version__} does not read; calibrate again, or use "
            "the version that wrote it"
        )
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
        elif name == "parts":
            facts[name] = [_packed(one, f"{prefix}{name}.{i}.", tensors) for i, one in enumerate(part)]
        elif is_dataclass(part):
            facts[name] = _packed(part, f"{prefix}{name}.", tensors)
        elif name != "version":  # every file has it anyway
            facts[name] = dict(part) if isinstance(part, Mapping) else part
    return facts


def _unpacked(facts: dict[str, Any], prefix: str, tensors: dict[str, Tensor]) -> Any:
    """Build the dataclass that `_packed` took apart."""
    from trimtab.prices.rates import StationaryPrice

    known = (Thresholds, Plan, Allowance, Raced, SampleScale, StationaryPrice)
    kind = {cls.__name__: cls for cls in known}[facts["is"]]
    parts: dict[str, Any] = {}
    for each in fields(kind):
        name = each.name
        if prefix + name in tensors:
            parts[name] = tensors[prefix + name]
        elif name == "parts" and name in facts:
            made = enumerate(facts[name])
            parts[name] = tuple(_unpacked(one, f"{prefix}{name}.{i}.", tensors) for i, one in made)
        elif name in facts:
            part = facts[name]
            nested = isinstance(part, dict) and "is" in part
            whole = _unpacked(part, f"{prefix}{name}.", tensors) if nested else part
            parts[name] = tuple(whole) if isinstance(whole, list) else whole
    return kind(**parts)
