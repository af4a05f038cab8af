"""Where one diffusers scheduler is in its run: which call, which corrector, which rows it projected."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from trimtab.core.constraint import Constraint, as_constraint
from trimtab.core.corrector import Corrector
from trimtab.core.record import Rollout
from trimtab.integrations.diffusers.history import remembers, undoes

__all__ = ["ExternalSettings", "History", "Settings", "StepHook", "Target"]

Target = Literal["state", "clean"]
History = Literal["keep", "restart"]


class Settings:
    """What was asked for, shared by a scheduler and all its copies, and the last complete record."""

    def __init__(
        self, constraint: Constraint, schedule: Any, target: Target, history: History, options: dict[str, Any]
    ) -> None:
        """Arguments as in `wrap`."""
        self.constraint, self.schedule, self.options = constraint, schedule, options
        self.target, self.history = target, history
        self.warned = self.warned_outside = False
        self.record: Rollout | None = None

    def corrector(self, n_steps: int) -> Corrector | Handed:
        """What corrects the states of one run."""
        return Corrector(self.constraint, self.schedule, n_steps, **self.options)

    def warn_outside(self, scheduler: Any, timestep: Any) -> None:
        """Say once that a step outside the scheduler's timesteps is not corrected."""
        if self.warned_outside:
            return
        self.warned_outside = True
        warnings.warn(
            f"timestep {timestep} is not one of the {len(scheduler.timesteps)} timesteps of "
            f"{type(scheduler).__name__}: such a step belongs to no run and is not corrected. If a whole loop runs "
            "like this, give its timesteps to set_timesteps, or write trimtab.Corrector into the loop",
            RuntimeWarning,
            stacklevel=4,
        )

    def last_rollout(self) -> Rollout:
        """The record, or why there is none."""
        if self.record is None:
            raise RuntimeError(
                "there is no complete run yet. If the pipeline did run: it does not call step on this scheduler for "
                "every timestep (it rebuilt its scheduler, stopped early, or has no such hook). Wrap the pipeline "
                "after it is built, or use ProjectionCallback, or your own loop with trimtab.Corrector"
            )
        return self.record


class Handed:
    """States are handed to somebody else's `correct`, who keeps the books."""

    rollout = None

    def __init__(self, correct: Callable[[Tensor], Tensor]) -> None:
        """Before a run."""
        self.correct = correct

    def __call__(self, x: Tensor, **context: Any) -> Tensor:
        """The states to go on with, (n, *event); which of them were projected is told from the outside."""
        y = self.correct(x)
        self.projected = (y != x).flatten(1).any(dim=1)
        return y


class ExternalSettings(Settings):
    """Settings of a pipeline whose states are corrected elsewhere: `correct` is set before each run."""

    correct: Callable[[Tensor], Tensor]

    def __init__(self, history: History) -> None:
        """Nothing is known of constraint and schedule here."""
        super().__init__(_ELSEWHERE, None, "state", history, {})

    def corrector(self, n_steps: int) -> Handed:
        """For one run."""
        return Handed(self.correct)


_ELSEWHERE = as_constraint(lambda x: x)


class StepHook:
    """Where one scheduler is in its run."""

    def __init__(self, settings: Settings) -> None:
        """Before a run."""
        self.settings = settings
        self.corrector: Corrector | Handed | None = None
        self.ends: list[bool] = []
        self.call = 0
        self.has_history = False
        self.stale: Tensor | None = None  # rows projected since the last call, (n,) bool

    def __deepcopy__(self, memo: dict[int, Any]) -> StepHook:
        """A copy goes on by itself from here; constraint and schedule are shared (a solver pool cannot be copied)."""
        asked = self.settings
        for shared in (asked, asked.constraint, asked.schedule, *asked.options.values()):
            memo[id(shared)] = shared
        twin = StepHook(asked)
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin

    def begin(self, scheduler: Any, ends: list[bool]) -> None:
        """Begin a run of which `ends` tells, call by call, whether it ends a step."""
        if self.settings.target == "clean" and not all(ends):
            raise ValueError(
                "target='clean' needs a scheduler of which every call ends a step, and here "
                f"{len(ends) - sum(ends)} of {len(ends)} do not; use target='state', or a first-order or multistep "
                "scheduler (DDIM, Euler, DPMSolverMultistep, …)"
            )
        self.corrector = self.settings.corrector(sum(ends))
        self.ends, self.call, self.stale = ends, 0, None
        self.has_history = remembers(scheduler)

    @property
    def running(self) -> bool:
        """Whether a run has begun and is not complete."""
        return self.corrector is not None

    @property
    def ends_step(self) -> bool:
        """Whether the present call ends a step."""
        return self.ends[self.call]

    @property
    def last_call(self) -> bool:
        """Whether the present call is the run's last."""
        return self.call == len(self.ends) - 1

    def show(self, x: Tensor) -> None:
        """Show the initial states, (n, *event), where the constraint wants to know what was before an update."""
        if isinstance(self.corrector, Corrector) and "previous" in self.settings.constraint.needs:
            self.corrector.begin(x)

    def correct(self, scheduler: Any, x: Tensor, timestep: Any) -> Tensor:
        """The states, or clean samples, to go on with, (n, *event); the constraint may ask for the noise level."""
        assert self.corrector is not None
        context: dict[str, Any] = {"timestep": torch.as_tensor(timestep).flatten()[0]}
        step_index = getattr(scheduler, "step_index", None)
        if step_index is not None and hasattr(scheduler, "sigmas"):
            context["sigma"] = scheduler.sigmas[min(int(step_index), len(scheduler.sigmas) - 1)]
        y = self.corrector(x, **context)
        if self.has_history and not self.last_call:
            self.stale = self.corrector.projected
            self.warn_once(scheduler)
        return y

    def warn_once(self, scheduler: Any) -> None:
        """Say that the scheduler's history is stale, if it will be."""
        asked = self.settings
        if asked.warned or asked.history == "restart" or self.stale is None or not bool(self.stale.any()):
            return
        asked.warned = True
        what = (
            "recomputes the state from the one before, which undoes the projection of a step that is not the last"
            if undoes(scheduler) and asked.target == "state"
            else "extrapolates from model outputs before the projection"
        )
        warnings.warn(
            f"{type(scheduler).__name__} {what}; wrap(…, history='restart') restarts it for projected samples, and "
            "a one-step scheduler (DDIM, Euler) has no such history",
            stacklevel=6,
        )

    def advance(self) -> None:
        """On to the next call; after the last one, keep the record."""
        self.call += 1
        if self.call == len(self.ends):
            assert self.corrector is not None
            self.settings.record = self.corrector.rollout
            self.corrector = None

    def close(self) -> None:
        """Before a new run: nothing to do if the last one is complete."""
        if self.running:
            warnings.warn(
                f"the last run stopped after {self.call} of {len(self.ends)} calls of the scheduler, so that its "
                "result was not made feasible; a pipeline that stops early on purpose needs ProjectionCallback",
                RuntimeWarning,
                stacklevel=4,
            )
        self.corrector = None
