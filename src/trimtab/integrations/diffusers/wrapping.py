"""Projection on schedule inside any diffusers pipeline.

Two ways in. `wrap` gates inside `scheduler.step`: any pipeline that steps its scheduler, nothing else changes, and
the predicted clean sample can be projected too. `ProjectionCallback` goes in as `callback_on_step_end`: for
pipelines that have that hook, next to other callbacks, and where the pipeline stops before its last timestep.

`pipeline_sampler` makes a sampler of a pipeline, for calibration, comparisons and the command line.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_args

import torch
from torch import Tensor

from trimtab.core.constraint import Constraint
from trimtab.core.corrector import Corrector
from trimtab.core.checks import check_callable, check_integer, missing_extra
from trimtab.core.record import Rollout
from trimtab.core.schedule import Schedule
from trimtab.core.view import StepView
from trimtab.integrations.diffusers.calls import check_scheduler, first_call, step_ends
from trimtab.integrations.diffusers.clean import clean_prediction
from trimtab.integrations.diffusers.gate import ExternalSettings, History, Settings, StepHook, Target
from trimtab.integrations.diffusers.history import UNDOING, forget_rows
from trimtab.integrations.loops import Correct, LoopSampler
from trimtab.integrations.options import check_options

try:
    from diffusers.callbacks import PipelineCallback
except ImportError as error:
    raise missing_extra("diffusers", "diffusers", "trimtab.integrations.diffusers") from error

__all__ = ["ProjectionCallback", "pipeline_sampler", "unwrap", "wrap"]

Thing = TypeVar("Thing")


def wrap(
    thing: Thing,
    constraint: Constraint,
    schedule: Schedule | Callable[[StepView], Tensor],
    *,
    target: Target = "state",
    history: History = "keep",
    **options: Any,
) -> Thing:
    """Make a pipeline, or a scheduler, project on schedule.

    The scheduler stays what it was: `isinstance`, config, `save_pretrained`, signatures, copies. Its `rollout`
    is the record of the last complete run, by itself or by any copy a pipeline made of it. T is the number of steps
    of the run (`num_inference_steps`, or fewer in image-to-image pipelines). A single step at a timestep outside
    `timesteps` belongs to no run: it is made, not corrected, and a warning says so. Schedulers of integer tokens are
    refused.

    Args:
        thing: A pipeline, which gets a new `scheduler` and is returned; or a scheduler, which is left alone and of
            which a projecting copy is returned. Some pipelines rebuild the scheduler they are given
            (`DDIMPipeline`), so wrap the pipeline rather than what goes into it.
        constraint: On the latents the scheduler steps, (n, *event); per-sample data has one row for each image,
            images of one prompt next to each other. It may need "timestep", that of the step just made, "sigma", the
            noise level of the latents, with schedulers that keep `sigmas`, and "previous".
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
    _check_unknown("target", target, get_args(Target))
    _check_unknown("history", history, get_args(History))
    check_options(options, "wrap")
    Corrector(constraint, schedule, 1 << 30, **options)  # refuses what cannot work now, not in mid-run
    settings = Settings(constraint, schedule, target, history, options)
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
    if not callable(getattr(thing, "step", None)):
        raise TypeError(f"unwrap takes a pipeline or a scheduler: got {type(thing).__name__}, which has no step")
    plain = copy.deepcopy(thing)
    plain.__class__ = getattr(type(thing), "_trimtab_plain", type(thing))
    plain.__dict__.pop("_trimtab_gate", None)
    return plain


def pipeline_sampler(
    pipe: Any, call: Callable[[Any, list[torch.Generator]], Any], n_steps: int, *, history: History = "keep"
) -> LoopSampler:
    """A pipeline as a sampler, so that calibration, studies and the command line take it; states are projected.

    Args:
        pipe: The pipeline; its scheduler is replaced while it runs.
        call: `call(pipe, generators)` runs it once, with one generator for each sample, as in
            `pipe(batch_size=len(generators), generator=generators, num_inference_steps=…)`.
        n_steps: T, the number of steps it makes.
        history: As in `wrap`.
    """
    _check_unknown("history", history, get_args(History))
    check_callable(call, "call", "call(pipe, generators)")
    check_integer(n_steps, "n_steps")
    if getattr(pipe, "scheduler", None) is None:
        raise TypeError(f"a pipeline with a scheduler was expected: got {type(pipe).__name__}")
    plain, settings = unwrap(pipe.scheduler), ExternalSettings(history)
    check_scheduler(plain)

    def loop(correct: Correct, seeds: Tensor) -> None:
        settings.correct = correct
        own = pipe.scheduler  # by identity: it may be one that projects, or that others hold too
        pipe.scheduler = _projecting(plain, settings)
        try:
            call(pipe, [torch.Generator(pipe.device).manual_seed(int(seed)) for seed in seeds])
        finally:
            pipe.scheduler = own

    return LoopSampler(loop, n_steps)


class ProjectionCallback(PipelineCallback):
    """Projects a pipeline's latents on schedule, as its `callback_on_step_end`.

    Composable: `MultiPipelineCallbacks([projection, another])`. Arguments as in `wrap`; only the state can be
    projected here, and a multistep scheduler keeps its history.
    """

    def __init__(
        self, constraint: Constraint, schedule: Schedule | Callable[[StepView], Tensor], **options: Any
    ) -> None:
        """Arguments as in `wrap`."""
        super().__init__()
        check_options(options, "ProjectionCallback")
        Corrector(constraint, schedule, 1 << 30, **options)
        self._gate = StepHook(Settings(constraint, schedule, "state", "keep", options))

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
            check_scheduler(scheduler)
            first = (
                scheduler.step_index - 1 if hasattr(scheduler, "_init_step_index") else first_call(scheduler, timestep)
            )
            if first is None:
                raise ValueError(
                    f"timestep {timestep} is not one of the {len(scheduler.timesteps)} timesteps of "
                    f"{type(scheduler).__name__}; were they changed by hand after set_timesteps?"
                )
            # a pipeline may stop before its scheduler's last timestep (denoising_end)
            ends = step_ends(scheduler, first)
            self._gate.begin(scheduler, [*ends[: getattr(pipeline, "num_timesteps", len(ends)) - 1], True])
        elif not self._gate.running:
            raise RuntimeError(
                f"{type(pipeline).__name__} called back for step {step_index} of a run whose first step it did not "
                "show; use trimtab.integrations.diffusers.wrap instead"
            )
        if self._gate.ends_step:
            callback_kwargs["latents"] = self._gate.correct(pipeline.scheduler, callback_kwargs["latents"], timestep)
        self._gate.advance()
        return callback_kwargs


# ------------------------------------------------------------------ a scheduler class that projects


def _projecting(scheduler: Any, settings: Settings) -> Any:
    """A copy of the scheduler that projects in `step`."""
    check_scheduler(scheduler)
    twin = unwrap(scheduler)
    twin.__class__ = _projecting_class(type(twin), settings)
    return twin


def _projecting_class(plain: type, settings: Settings) -> type:
    """A subclass under the same name; made for each `wrap`, so that copies *and* rebuilt schedulers project."""
    names = list(inspect.signature(plain.step).parameters)[1:]  # type: ignore[attr-defined]

    @functools.wraps(plain.step)  # type: ignore[attr-defined]
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = _Given(names, args, kwargs)
        gate = _gate_of(self)
        if not gate.running:
            first = first_call(self, given["timestep"])
            if first is None:
                answer = plain.step(self, *args, **kwargs)  # type: ignore[attr-defined]
                settings.warn_outside(self, given["timestep"])
                return answer
            gate.begin(self, step_ends(self, first))
            if settings.target == "state":
                gate.show(given["sample"])
        clean = settings.target == "clean" and not gate.last_call
        if clean:
            given["model_output"] = _rewritten(self, gate, given)
        if gate.stale is not None and settings.history == "restart":
            forget_rows(self, gate.stale, given["model_output"], given["timestep"], given["sample"])
        answer = plain.step(self, *given.args, **given.kwargs)  # type: ignore[attr-defined]
        gate.stale = None
        if gate.ends_step and not clean:
            answer = _replace_state(answer, lambda x: gate.correct(self, x, given["timestep"]))
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


def _gate_of(scheduler: Any) -> StepHook:
    gate = scheduler.__dict__.get("_trimtab_gate")
    if gate is None:  # new, or rebuilt from its config
        gate = scheduler.__dict__["_trimtab_gate"] = StepHook(type(scheduler)._trimtab_settings)
    assert isinstance(gate, StepHook)
    return gate


class _Given:
    """Arguments of a call by name, however they were passed (cheaper than binding a signature at every step)."""

    def __init__(self, names: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.names, self.args, self.kwargs = names, args, kwargs

    def __contains__(self, name: str) -> bool:
        return name in self.kwargs or name in self.names[: len(self.args)]

    def __getitem__(self, name: str) -> Any:
        place = self.names.index(name) if name in self.names else len(self.args)
        if place < len(self.args):
            return self.args[place]
        if name not in self.kwargs:
            raise TypeError(f"step() is missing {name!r}")
        return self.kwargs[name]

    def __setitem__(self, name: str, value: Any) -> None:
        place = self.names.index(name)
        if place < len(self.args):
            self.args = (*self.args[:place], value, *self.args[place + 1 :])
        else:
            self.kwargs = self.kwargs | {name: value}


def _rewritten(scheduler: Any, gate: StepHook, given: _Given) -> Tensor:
    """The model output after the correction of the clean sample it predicts, (n, *event)."""
    if "s_churn" in given and given["s_churn"] > 0:
        raise ValueError("target='clean' cannot follow the extra noise of s_churn > 0; use target='state'")
    output, x = given["model_output"], given["sample"]
    prediction, variance = output, None
    if output.ndim > 1 and output.shape[1] == 2 * x.shape[1]:  # a learned variance rides along
        prediction, variance = output.split(x.shape[1], dim=1)
    relation = clean_prediction(scheduler, given["timestep"])
    assert gate.corrector is not None
    clean = gate.correct(scheduler, relation.clean(prediction, x), given["timestep"])
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


def _check_unknown(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}: got {value!r}")
