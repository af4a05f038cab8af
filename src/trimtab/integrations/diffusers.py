"""Projection on schedule inside any diffusers pipeline.

Two ways in. `wrap` gates inside `scheduler.step`: any pipeline that steps its scheduler, nothing else changes, and
the predicted clean sample can be projected too. `ProjectionCallback` goes in as `callback_on_step_end`: for
pipelines that have that hook, next to other callbacks, and where the pipeline stops before its last timestep.
"""

from __future__ import annotations

import copy
import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor

from trimtab.constraint import Constraint
from trimtab.integrations.diffusers_calls import first_call, refuse_unusable, step_ends
from trimtab.integrations.diffusers_clean import clean_prediction
from trimtab.integrations.diffusers_history import UNDOING, forget_rows, remembers, undoes
from trimtab.loop import Corrector
from trimtab.names import missing_extra
from trimtab.record import Rollout
from trimtab.schedule import Moment, Schedule

try:
    from diffusers.callbacks import PipelineCallback
except ImportError as error:
    raise missing_extra("diffusers", "diffusers", "trimtab.integrations.diffusers") from error

__all__ = ["ProjectionCallback", "unwrap", "wrap"]

Target = Literal["state", "clean"]
History = Literal["keep", "restart"]
Thing = TypeVar("Thing")


def wrap(
    thing: Thing,
    constraint: Constraint,
    schedule: Schedule | Callable[[Moment], Tensor],
    *,
    target: Target = "state",
    history: History = "keep",
    **options: Any,
) -> Thing:
    """Make a pipeline, or a scheduler, project on schedule.

    The scheduler stays what it was: `isinstance`, config, `save_pretrained`, signatures, copies. Its `rollout`
    is the record of the last complete run, by itself or by any copy a pipeline made of it. T is the number of steps
    of the run (`num_inference_steps`, or fewer in image-to-image pipelines).

    Args:
        thing: A pipeline, which gets a new `scheduler` and is returned; or a scheduler, which is left alone and of
            which a projecting copy is returned. Some pipelines rebuild the scheduler they are given
            (`DDIMPipeline`), so wrap the pipeline rather than what goes into it.
        constraint: On the latents the scheduler steps, (n, *event); per-sample data has one row for each image,
            images of one prompt next to each other.
        schedule: When to project.
        target: "state" projects what a step returns. "clean" projects the clean sample the model predicts, and
            rewrites the model output to predict the projected one; at the last step, where the two are the same
            thing, the state is projected, so that the result is feasible.
        history: What a multistep scheduler does with model outputs from before a projection: "keep" extrapolates
            from them as a plain loop would (and warns), "restart" begins anew with a first-order step, for the
            projected samples only.
        **options: Of `Corrector`: seeds, on_failure, keep_states, dense, on_step.

    Example:
        >>> import torch, trimtab as tt
        >>> from diffusers import DDIMScheduler
        >>> box = tt.as_constraint(lambda x: x.clamp(-1, 1), lambda x: (x.abs() - 1).clamp(min=0).flatten(1).amax(1))
        >>> scheduler = wrap(DDIMScheduler(clip_sample=False), box, tt.Periodic(0.5))
        >>> scheduler.set_timesteps(10)
        >>> x = torch.full((2, 1, 4, 4), 3.0)
        >>> for t in scheduler.timesteps:
        ...     x = scheduler.step(torch.zeros_like(x), t, x).prev_sample
        >>> scheduler.rollout.spent.tolist(), float(x.abs().max())
        ([5, 5], 1.0)
    """
    _refuse_unknown("target", target, get_args(Target))
    _refuse_unknown("history", history, get_args(History))
    Corrector(constraint, schedule, 1 << 30, **options)  # refuses what cannot work now, not in mid-run
    settings = _Settings(constraint, schedule, target, history, options)
    if hasattr(thing, "components") or (hasattr(thing, "scheduler") and not hasattr(thing, "step")):
        scheduler = getattr(thing, "scheduler", None)
        if scheduler is None:
            parts = ", ".join(getattr(thing, "components", {})) or "none"
            raise ValueError(
                f"{type(thing).__name__} has no scheduler to hook into (its components: {parts}); write the loop "
                "yourself and call trimtab.Corrector in it"
            )
        thing.scheduler = _projecting(scheduler, settings)  # type: ignore[attr-defined]
        return thing
    twin: Thing = _projecting(thing, settings)
    return twin


def unwrap(thing: Thing) -> Thing:
    """Undo `wrap`: a pipeline gets its plain scheduler back, of a scheduler a plain copy is returned."""
    if hasattr(thing, "scheduler") and not hasattr(thing, "step"):
        thing.scheduler = unwrap(thing.scheduler)
        return thing
    plain = copy.deepcopy(thing)
    plain.__class__ = getattr(type(thing), "_trimtab_plain", type(thing))
    plain.__dict__.pop("_trimtab_gate", None)
    return plain


class ProjectionCallback(PipelineCallback):
    """Projects a pipeline's latents on schedule, as its `callback_on_step_end`.

    Composable: `MultiPipelineCallbacks([projection, another])`. Arguments as in `wrap`; only the state can be
    projected here, and a multistep scheduler keeps its history.
    """

    def __init__(self, constraint: Constraint, schedule: Schedule | Callable[[Moment], Tensor], **options: Any) -> None:
        """Arguments as in `wrap`."""
        super().__init__()
        Corrector(constraint, schedule, 1 << 30, **options)
        self._gate = _Gate(_Settings(constraint, schedule, "state", "keep", options))

    @property
    def tensor_inputs(self) -> list[str]:
        """What the pipeline has to hand over."""
        return ["latents"]

    @property
    def rollout(self) -> Rollout:
        """The record of the last complete run."""
        return self._gate.settings.last_rollout()

    def callback_fn(
        self, pipeline: Any, step_index: int, timestep: Any, callback_kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        """Correct the latents if this call of the scheduler ended a step."""
        if "latents" not in callback_kwargs:
            raise ValueError(
                f"{type(pipeline).__name__} did not hand its latents to the callback; pass "
                "callback_on_step_end_tensor_inputs=['latents'], or use trimtab.integrations.diffusers.wrap"
            )
        if step_index == 0:
            self._gate.close()
            scheduler = pipeline.scheduler
            refuse_unusable(scheduler)
            first = (
                scheduler.step_index - 1 if hasattr(scheduler, "_init_step_index") else first_call(scheduler, timestep)
            )
            # a pipeline may stop before its scheduler's last timestep (denoising_end)
            ends = step_ends(scheduler, first)
            self._gate.begin([*ends[: getattr(pipeline, "num_timesteps", len(ends)) - 1], True])
        elif not self._gate.running:
            raise RuntimeError(
                f"{type(pipeline).__name__} called back for step {step_index} of a run whose first step it did not "
                "show; use trimtab.integrations.diffusers.wrap instead"
            )
        if self._gate.ends_step:
            callback_kwargs["latents"] = self._gate.correct(pipeline.scheduler, callback_kwargs["latents"])
        self._gate.advance()
        return callback_kwargs


# ------------------------------------------------------------------ one run of a scheduler


class _Settings:
    """What was asked for, shared by a scheduler and all its copies, and the last complete record."""

    def __init__(
        self, constraint: Constraint, schedule: Any, target: Target, history: History, options: dict[str, Any]
    ) -> None:
        self.constraint, self.schedule, self.options = constraint, schedule, options
        self.target, self.history = target, history
        self.warned = False
        self.record: Rollout | None = None

    def last_rollout(self) -> Rollout:
        if self.record is None:
            raise RuntimeError(
                "there is no complete run yet. If the pipeline did run: it does not call step on this scheduler for "
                "every timestep (it rebuilt its scheduler, stopped early, or has no such hook). Wrap the pipeline "
                "after it is built, or use ProjectionCallback, or your own loop with trimtab.Corrector"
            )
        return self.record


class _Gate:
    """Where one scheduler is in its run."""

    def __init__(self, settings: _Settings) -> None:
        self.settings = settings
        self.corrector: Corrector | None = None
        self.ends: list[bool] = []
        self.call = 0
        self.stale: Tensor | None = None  # rows projected since the last call, (n,) bool

    def __deepcopy__(self, memo: dict[int, Any]) -> _Gate:
        """A copy goes on by itself from here; constraint and schedule are shared (a solver pool cannot be copied)."""
        asked = self.settings
        for shared in (asked, asked.constraint, asked.schedule, *asked.options.values()):
            memo[id(shared)] = shared
        twin = _Gate(asked)
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin

    def begin(self, ends: list[bool]) -> None:
        if self.settings.target == "clean" and not all(ends):
            raise ValueError(
                "target='clean' needs a scheduler of which every call ends a step, and here "
                f"{len(ends) - sum(ends)} of {len(ends)} do not; use target='state', or a first-order or multistep "
                "scheduler (DDIM, Euler, DPMSolverMultistep, …)"
            )
        asked = self.settings
        self.corrector = Corrector(asked.constraint, asked.schedule, sum(ends), **asked.options)
        self.ends, self.call, self.stale = ends, 0, None

    @property
    def running(self) -> bool:
        return self.corrector is not None

    @property
    def ends_step(self) -> bool:
        return self.ends[self.call]

    @property
    def last_call(self) -> bool:
        return self.call == len(self.ends) - 1

    def correct(self, scheduler: Any, x: Tensor) -> Tensor:
        assert self.corrector is not None
        y = self.corrector(x)
        if not self.last_call and remembers(scheduler):
            self.stale = self.corrector.projected
            self.warn_once(scheduler)
        return y

    def warn_once(self, scheduler: Any) -> None:
        asked = self.settings
        budget = getattr(asked.schedule, "budget", 1)
        if asked.warned or asked.history == "restart" or (not isinstance(budget, Tensor) and budget == 0):
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
        self.call += 1
        if self.call == len(self.ends):
            assert self.corrector is not None
            self.settings.record = self.corrector.rollout
            self.corrector = None

    def close(self) -> None:
        """Before a new run: nothing to say if the last one is complete."""
        if self.running:
            warnings.warn(
                f"the last run stopped after {self.call} of {len(self.ends)} calls of the scheduler, so that its "
                "result was not made feasible; a pipeline that stops early on purpose needs ProjectionCallback",
                RuntimeWarning,
                stacklevel=4,
            )
        self.corrector = None


# ------------------------------------------------------------------ a scheduler class that projects


def _projecting(scheduler: Any, settings: _Settings) -> Any:
    """A copy of the scheduler that projects in `step`."""
    refuse_unusable(scheduler)
    twin = unwrap(scheduler)
    twin.__class__ = _projecting_class(type(twin), settings)
    return twin


def _projecting_class(plain: type, settings: _Settings) -> type:
    """A subclass under the same name; made for each `wrap`, so that copies *and* rebuilt schedulers project."""
    step_signature = inspect.signature(plain.step)  # type: ignore[attr-defined]

    @functools.wraps(plain.step)  # type: ignore[attr-defined]
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = step_signature.bind(self, *args, **kwargs)
        gate, given = _gate_of(self), call.arguments
        if not gate.running:
            gate.begin(step_ends(self, first_call(self, given["timestep"])))
        clean = settings.target == "clean" and not gate.last_call
        if clean:
            given["model_output"] = _rewritten(self, gate, given)
        if gate.stale is not None and settings.history == "restart":
            forget_rows(self, gate.stale, given["model_output"], given["timestep"], given["sample"])
        answer = plain.step(*call.args, **call.kwargs)  # type: ignore[attr-defined]
        gate.stale = None
        if gate.ends_step and not clean:
            answer = _replace_state(answer, lambda x: gate.correct(self, x))
        gate.advance()
        return answer

    @functools.wraps(plain.set_timesteps)  # type: ignore[attr-defined]
    def set_timesteps(self: Any, *args: Any, **kwargs: Any) -> Any:
        _gate_of(self).close()
        return plain.set_timesteps(self, *args, **kwargs)  # type: ignore[attr-defined]

    members: dict[str, Any] = {
        "step": step,
        "set_timesteps": set_timesteps,
        "rollout": property(lambda self: settings.last_rollout(), doc="The record of the last complete run."),
        "_trimtab_plain": plain,
        "_trimtab_settings": settings,
        "__module__": plain.__module__,
        "__qualname__": plain.__qualname__,
        "__doc__": plain.__doc__,
    }
    for name in UNDOING:
        if hasattr(plain, name):
            members[name] = _sparing_projected_rows(getattr(plain, name))
    return type(plain.__name__, (plain,), members)


def _gate_of(scheduler: Any) -> _Gate:
    gate = scheduler.__dict__.get("_trimtab_gate")
    if gate is None:  # new, or rebuilt from its config
        gate = scheduler.__dict__["_trimtab_gate"] = _Gate(type(scheduler)._trimtab_settings)
    assert isinstance(gate, _Gate)
    return gate


def _rewritten(scheduler: Any, gate: _Gate, given: dict[str, Any]) -> Tensor:
    """The model output after the correction of the clean sample it predicts, (n, *event)."""
    if given.get("s_churn", 0) > 0:
        raise ValueError("target='clean' cannot follow the extra noise of s_churn > 0; use target='state'")
    output, x = given["model_output"], given["sample"]
    prediction, variance = output, None
    if output.ndim > 1 and output.shape[1] == 2 * x.shape[1]:  # a learned variance rides along
        prediction, variance = output.split(x.shape[1], dim=1)
    relation = clean_prediction(scheduler, given["timestep"])
    assert gate.corrector is not None
    clean = gate.correct(scheduler, relation.clean(prediction, x))
    changed = gate.corrector.projected.reshape(-1, *([1] * (x.ndim - 1)))
    rewritten = torch.where(changed, relation.model_output(clean, x).to(output.dtype), prediction)
    return rewritten if variance is None else torch.cat([rewritten, variance], dim=1)


def _sparing_projected_rows(update: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A solver's correction of the present state, left out for samples that were projected and start anew."""

    @functools.wraps(update)
    def sparing(self: Any, *args: Any, **kwargs: Any) -> Tensor:
        corrected = update(self, *args, **kwargs)
        gate = _gate_of(self)
        if gate.stale is None or gate.settings.history == "keep" or gate.settings.target == "clean":
            return corrected
        given = kwargs["this_sample"]
        return torch.where(gate.stale.reshape(-1, *([1] * (given.ndim - 1))), given, corrected)

    return sparing


def _replace_state(answer: Any, correct: Callable[[Tensor], Tensor]) -> Any:
    """The answer of `step`, tuple or dataclass, with its state corrected wherever it occurs.

    At its last step a consistency scheduler returns one tensor as the state and as the denoised sample, and it is the
    second that its pipeline decodes.
    """
    if isinstance(answer, Tensor):
        return correct(answer)
    if isinstance(answer, tuple):
        before, after = answer[0], correct(answer[0])
        return tuple(after if part is before else part for part in answer)
    before, after = answer.prev_sample, correct(answer.prev_sample)
    for name in [name for name, part in answer.items() if part is before]:
        setattr(answer, name, after)
    return answer


def _refuse_unknown(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}: got {value!r}")
