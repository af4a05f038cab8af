"""Scheduled projections inside any diffusers pipeline.

- `wrap` projects inside `scheduler.step`. It works for any pipeline that steps its scheduler, and it can project the
  predicted clean sample instead of the state.
- `ProjectionCallback` is a `callback_on_step_end`. It works next to other callbacks, and in pipelines that stop before
  their last timestep.
- `correcting` passes every step of a scheduler through a function.
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

from trimtab.core.checks import check_callable, missing_extra, moved_to_lab
from trimtab.core.constraint import Constraint
from trimtab.core.record import Rollout
from trimtab.integrations import diffusers_schedulers as rules
from trimtab.integrations.loops import Correct, corrector_maker
from trimtab.loop.corrector import Corrector

try:
    from diffusers.callbacks import PipelineCallback
except ImportError as error:
    raise missing_extra("diffusers", "diffusers", "trimtab.integrations.diffusers") from error

__all__ = ["ProjectionCallback", "correcting", "unwrap", "wrap"]

Target = Literal["state", "clean"]
History = Literal["keep", "restart"]
Thing = TypeVar("Thing")


def wrap(
    thing: Thing,
    constraint: Constraint,
    schedule: Any,
    *,
    target: Target = "state",
    history: History = "keep",
    **options: Any,
) -> Thing:
    """Make a pipeline or a scheduler project on schedule.

    The scheduler keeps its class, config, `save_pretrained` and signatures. Its `rollout` is the record of the last
    complete run, made by itself or by any copy of it. T is the number of steps of the run (`num_inference_steps`, or
    fewer in image-to-image pipelines). A step at a timestep that is not in `timesteps` is not part of a run: it is not
    corrected, and a warning says so. Schedulers of integer tokens raise an error.

    Args:
        thing: A pipeline, which gets a new `scheduler` and is returned; or a scheduler, of which a projecting copy is
            returned. Some pipelines (`DDIMPipeline`) rebuild the scheduler they are given: wrap the pipeline then.
        constraint: On the latents that the scheduler steps, (n, *event). Per-sample data has one row for each image;
            the images of one prompt are adjacent. The constraint may need "timestep", that of the step just made;
            "sigma", the noise level of the latents, for schedulers that have `sigmas`; and "previous".
        schedule: When to project.
        target: "state" projects what a step returns. "clean" projects the predicted clean sample and changes the model
            output so that it predicts the projected one; the last step projects the state, so the result is feasible.
        history: What a multistep scheduler does with model outputs from before a projection. "keep" uses them (and
            warns); "restart" makes the next step of the projected samples a first-order step.
        **options: Options of `Corrector`, such as seeds, on_failure, keep_states and on_step.

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
    _check_choices(target, history)
    settings = _Settings(corrector_maker("wrap", constraint, schedule, options), target, history, constraint)
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
    """Undo `wrap`: put the plain scheduler back into a pipeline, or return a plain copy of a scheduler."""
    if hasattr(thing, "scheduler") and not hasattr(thing, "step"):
        thing.scheduler = unwrap(thing.scheduler)
        return thing
    if not callable(getattr(thing, "step", None)):
        raise TypeError(f"unwrap takes a pipeline or a scheduler: got {type(thing).__name__}, which has no step")
    plain = copy.deepcopy(thing)
    plain.__class__ = getattr(type(thing), "_trimtab_plain", type(thing))
    plain.__dict__.pop("_trimtab_hook", None)
    return plain


def correcting(scheduler: Any, correct: Correct, *, history: History = "keep") -> Any:
    """Return a copy of a scheduler that passes what each step returns through `correct(x)`, as `wrap` would.

    Args:
        scheduler: It stays as it is.
        correct: Returns the states to continue with, (n, *event).
        history: As in `wrap`.
    """
    _check_choices("state", history)
    check_callable(correct, "correct", "correct(x)")
    plain = unwrap(scheduler)
    rules.check_scheduler(plain)
    return _projecting(plain, _Settings(lambda n_steps: _External(correct), "state", history))


class ProjectionCallback(PipelineCallback):
    """Project a pipeline's latents on schedule, as its `callback_on_step_end`.

    Use `MultiPipelineCallbacks([projection, another])` to combine callbacks. Arguments are those of `wrap`; only the
    state can be projected here, and a multistep scheduler keeps its history.
    """

    def __init__(self, constraint: Constraint, schedule: Any, **options: Any) -> None:
        """Take the arguments of `wrap`."""
        super().__init__()
        make = corrector_maker("ProjectionCallback", constraint, schedule, options)
        self._hook = _StepHook(_Settings(make, constraint=constraint))

    @property
    def tensor_inputs(self) -> list[str]:
        """Name what the pipeline passes to the callback."""
        return ["latents"]

    @property
    def rollout(self) -> Rollout:
        """Return the record of the last complete run."""
        return self._hook.settings.last_rollout()

    def callback_fn(
        self, pipeline: Any, step_index: int, timestep: Any, callback_kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        """Correct the latents if this call of the scheduler ended a step."""
        hook, scheduler = self._hook, pipeline.scheduler
        if "latents" not in callback_kwargs:
            raise ValueError(
                f"{type(pipeline).__name__} did not pass its latents to the callback; use "
                "callback_on_step_end_tensor_inputs=['latents'], or trimtab.integrations.diffusers.wrap"
            )
        if step_index == 0:
            hook.close()
            rules.check_scheduler(scheduler)
            started = hasattr(scheduler, "_init_step_index")  # then step has counted already
            first = scheduler.step_index - 1 if started else rules.first_call(scheduler, timestep)
            if first is None:
                raise ValueError(
                    f"timestep {timestep} is not one of the {len(scheduler.timesteps)} timesteps of "
                    f"{type(scheduler).__name__}; were they changed by hand after set_timesteps?"
                )
            # a pipeline may stop before its scheduler's last timestep (denoising_end)
            ends = rules.step_ends(scheduler, first)
            hook.start(scheduler, [*ends[: getattr(pipeline, "num_timesteps", len(ends)) - 1], True])
        elif hook.corrector is None:
            raise RuntimeError(
                f"{type(pipeline).__name__} called back for step {step_index}, but not for step 0 of this run; use "
                "trimtab.integrations.diffusers.wrap instead"
            )
        if hook.ends_step:
            callback_kwargs["latents"] = hook.correct(scheduler, callback_kwargs["latents"], timestep)
        hook.advance()
        return callback_kwargs


# ------------------------------------------------------------------ one run of one scheduler


class _External:
    """Pass states to the `correct` of a loop that runs elsewhere and has the record."""

    rollout = None

    def __init__(self, correct: Correct) -> None:
        self.correct = correct

    def __call__(self, x: Tensor, **context: Any) -> Tensor:
        y: Tensor = self.correct(x)
        self.projected = (y != x).flatten(1).any(dim=1)
        return y


class _Settings:
    """The arguments of `wrap`, shared by a scheduler and all its copies, and the last complete record."""

    def __init__(
        self,
        make: Callable[[int], Corrector | _External],
        target: Target = "state",
        history: History = "keep",
        constraint: Constraint | None = None,
    ) -> None:
        self.make, self.target, self.history = make, target, history
        self.needs_previous = constraint is not None and "previous" in constraint.needs
        self.warned = self.warned_outside = False
        self.record: Rollout | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> _Settings:
        return self

    def warn_outside(self, scheduler: Any, timestep: Any) -> None:
        """Warn once that a step outside the scheduler's timesteps is not corrected."""
        if self.warned_outside:
            return
        self.warned_outside = True
        warnings.warn(
            f"timestep {timestep} is not one of the {len(scheduler.timesteps)} timesteps of "
            f"{type(scheduler).__name__}: such a step is not part of a run and is not corrected. If a whole loop runs "
            "like this, pass its timesteps to set_timesteps, or call trimtab.Corrector in the loop",
            RuntimeWarning,
            stacklevel=4,
        )

    def last_rollout(self) -> Rollout:
        """Return the record, or raise an error that says why there is none."""
        if self.record is None:
            raise RuntimeError(
                "there is no complete run yet. If the pipeline did run, it does not call step on this scheduler for "
                "every timestep (it rebuilt its scheduler, stopped early, or has no such hook). Wrap the pipeline "
                "after it is built, or use ProjectionCallback, or your own loop with trimtab.Corrector"
            )
        return self.record


class _StepHook:
    """Follow one scheduler through its run: the number of the call, the corrector, the rows it projected."""

    def __init__(self, settings: _Settings) -> None:
        self.settings = settings
        self.corrector: Corrector | _External | None = None  # None between runs
        self.ends: list[bool] = []
        self.call = 0
        self.has_history = False
        self.stale: Tensor | None = None  # rows projected since the last call, (n,) bool

    def __deepcopy__(self, memo: dict[int, Any]) -> _StepHook:
        """Copy the run; share constraint, schedule and options (a solver's processes cannot be copied)."""
        if isinstance(self.corrector, Corrector):
            for shared in (self.corrector.constraint, self.corrector.schedule, self.corrector.on_step):
                memo[id(shared)] = shared
        twin = _StepHook(self.settings)
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin

    def start(self, scheduler: Any, ends: list[bool], x: Tensor | None = None) -> None:
        """Start a run from the states x, (n, *event), if they are known; `ends` says which calls end a step."""
        if self.settings.target == "clean" and not all(ends):
            raise ValueError(
                "target='clean' needs a scheduler of which every call ends a step, but "
                f"{len(ends) - sum(ends)} of {len(ends)} calls do not; use target='state', or a first-order or "
                "multistep scheduler (DDIM, Euler, DPMSolverMultistep, …)"
            )
        self.corrector = self.settings.make(sum(ends))
        self.ends, self.call, self.stale = ends, 0, None
        self.has_history = rules.remembers(scheduler)
        if x is not None and self.settings.needs_previous and isinstance(self.corrector, Corrector):
            self.corrector.begin(x)

    @property
    def ends_step(self) -> bool:
        return self.ends[self.call]

    @property
    def last_call(self) -> bool:
        return self.call == len(self.ends) - 1

    def correct(self, scheduler: Any, x: Tensor, timestep: Any) -> Tensor:
        """Return the corrected states or clean samples, (n, *event)."""
        assert self.corrector is not None
        context: dict[str, Any] = {"timestep": torch.as_tensor(timestep).flatten()[0]}
        step_index = getattr(scheduler, "step_index", None)
        if step_index is not None and hasattr(scheduler, "sigmas"):
            context["sigma"] = scheduler.sigmas[min(int(step_index), len(scheduler.sigmas) - 1)]
        y: Tensor = self.corrector(x, **context)
        if self.has_history and not self.last_call:
            self.stale = self.corrector.projected
            if self.settings.history == "keep" and not self.settings.warned and bool(self.stale.any()):
                self._warn_stale(scheduler)
        return y

    def _warn_stale(self, scheduler: Any) -> None:
        self.settings.warned = True
        what = (
            "recomputes the state from the previous one, which undoes every projection but the last"
            if rules.undoes(scheduler) and self.settings.target == "state"
            else "extrapolates from model outputs before the projection"
        )
        warnings.warn(
            f"{type(scheduler).__name__} {what}; wrap(…, history='restart') restarts it for projected samples, and "
            "a one-step scheduler (DDIM, Euler) has no such history",
            stacklevel=6,
        )

    def advance(self) -> None:
        """Move to the next call; keep the record after the last one."""
        self.call += 1
        if self.call == len(self.ends):
            assert self.corrector is not None
            self.settings.record = self.corrector.rollout
            self.corrector = None

    def close(self) -> None:
        """Drop a run that is not complete, with a warning."""
        if self.corrector is not None:
            warnings.warn(
                f"the last run stopped after {self.call} of {len(self.ends)} calls of the scheduler, so its result "
                "was not made feasible; a pipeline that stops early on purpose needs ProjectionCallback",
                RuntimeWarning,
                stacklevel=4,
            )
        self.corrector = None


# ------------------------------------------------------------------ a scheduler class that projects


def _projecting(scheduler: Any, settings: _Settings) -> Any:
    """Return a copy of the scheduler that projects in `step`."""
    rules.check_scheduler(scheduler)
    twin = unwrap(scheduler)
    twin.__class__ = _projecting_class(type(twin), settings)
    return twin


def _projecting_class(plain: type, settings: _Settings) -> type:
    """Make a subclass under the same name, one per `wrap`, so that copies and rebuilt schedulers project too."""
    signature = inspect.signature(plain.step)  # type: ignore[attr-defined]

    @functools.wraps(plain.step)  # type: ignore[attr-defined]
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = signature.bind(self, *args, **kwargs)
        given, hook = call.arguments, _hook_of(self)
        timestep = given["timestep"]
        if hook.corrector is None:
            first = rules.first_call(self, timestep)
            if first is None:
                answer = plain.step(self, *args, **kwargs)  # type: ignore[attr-defined]
                settings.warn_outside(self, timestep)
                return answer
            hook.start(self, rules.step_ends(self, first), given["sample"] if settings.target == "state" else None)
        clean = settings.target == "clean" and not hook.last_call
        if clean:
            given["model_output"] = _rewritten(self, hook, given)
        if hook.stale is not None and settings.history == "restart":
            rules.forget_rows(self, hook.stale, given["model_output"], timestep, given["sample"])
        answer = plain.step(*call.args, **call.kwargs)  # type: ignore[attr-defined]
        hook.stale = None
        if hook.ends_step and not clean:
            answer = _replace_state(answer, lambda x: hook.correct(self, x, timestep))
        hook.advance()
        return answer

    @functools.wraps(plain.set_timesteps)  # type: ignore[attr-defined]
    def set_timesteps(self: Any, *args: Any, **kwargs: Any) -> Any:
        _hook_of(self).close()
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
    for name in rules.UNDOING:
        if hasattr(plain, name):
            members[name] = _sparing_projected_rows(getattr(plain, name))
    return type(plain.__name__, (plain,), members)


def _hook_of(scheduler: Any) -> _StepHook:
    hook = scheduler.__dict__.get("_trimtab_hook")
    if hook is None:  # new, or rebuilt from its config
        hook = scheduler.__dict__["_trimtab_hook"] = _StepHook(type(scheduler)._trimtab_settings)
    assert isinstance(hook, _StepHook)
    return hook


def _rewritten(scheduler: Any, hook: _StepHook, given: dict[str, Any]) -> Tensor:
    """Correct the predicted clean sample; return the model output, (n, *event), that predicts the corrected one."""
    if given.get("s_churn", 0) > 0:
        raise ValueError("target='clean' cannot follow the extra noise of s_churn > 0; use target='state'")
    output, x = given["model_output"], given["sample"]
    prediction, variance = output, None
    if output.ndim > 1 and output.shape[1] == 2 * x.shape[1]:  # the second half is a learned variance
        prediction, variance = output.split(x.shape[1], dim=1)
    relation = rules.clean_prediction(scheduler, given["timestep"])
    assert hook.corrector is not None
    clean = hook.correct(scheduler, relation.clean(prediction, x), given["timestep"])
    changed = hook.corrector.projected.reshape(-1, *([1] * (x.ndim - 1)))
    rewritten = torch.where(changed, relation.model_output(clean, x).to(output.dtype), prediction)
    return rewritten if variance is None else torch.cat([rewritten, variance], dim=1)


def _sparing_projected_rows(update: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Skip a solver's correction of the current state for samples that were projected and start without history."""

    @functools.wraps(update)
    def sparing(self: Any, *args: Any, **kwargs: Any) -> Tensor:
        corrected = update(self, *args, **kwargs)
        hook = _hook_of(self)
        if hook.stale is None or hook.settings.history == "keep" or hook.settings.target == "clean":
            return corrected
        given = kwargs["this_sample"]
        return torch.where(hook.stale.reshape(-1, *([1] * (given.ndim - 1))), given, corrected)

    return sparing


def _replace_state(answer: Any, correct: Callable[[Tensor], Tensor]) -> Any:
    """Correct the state in the answer of `step`, wherever it occurs.

    At its last step a consistency scheduler returns one tensor both as the state and as the denoised sample, and its
    pipeline decodes the second.
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


def _check_choices(target: object, history: object) -> None:
    for name, value, known in (("target", target, get_args(Target)), ("history", history, get_args(History))):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}: got {value!r}")


def __getattr__(name: str) -> Any:
    if name == "pipeline_sampler":
        return moved_to_lab(__name__, name, "pipelines")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
