"""Samplers of azula, corrected at the ends of their steps: all of them, the multistep ones too."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trimtab.core.constraint import Constraint
from trimtab.core.corrector import Corrector
from trimtab.core.checks import missing_extra
from trimtab.core.record import Rollout
from trimtab.core.schedule import Schedule
from trimtab.core.view import StepView
from trimtab.integrations.options import check_options

try:
    import azula.sample
    from azula.sample import Sampler
except ImportError as error:
    raise missing_extra("azula", "azula", "trimtab.integrations.azula") from error

__all__ = ["ProjectedSampler", "wrap"]


def wrap(
    sampler: Sampler, constraint: Constraint, schedule: Schedule | Callable[[StepView], Tensor], **options: Any
) -> ProjectedSampler:
    """A sampler of azula that projects on schedule; the one given is left alone.

    T is the sampler's `steps`, and a multistep sampler keeps its history of predictions, as a plain loop would. azula
    draws its noise from torch's global generator: seed it (`torch.manual_seed`) before each run that is to be
    repeatable.

    Args:
        sampler: Any sampler of `azula.sample`, or a subclass with a `step` of its own. Of one that is wrapped already,
            the plain one is wrapped anew.
        constraint: On the states, (n, *event). It may need "time", "alpha" and "sigma", those of the states, and
            "previous".
        schedule: When to project.
        **options: Of `Corrector`: seeds, on_failure, keep_states, dense, on_step, ….

    Example:
        >>> import torch, trimtab as tt
        >>> from azula.denoise import GaussianDenoiser
        >>> from azula.linalg.covariance import IsotropicCovariance
        >>> from azula.noise import VPSchedule
        >>> from azula.sample import zABSampler
        >>> denoiser = GaussianDenoiser(torch.zeros(3), IsotropicCovariance(torch.ones(())), VPSchedule())
        >>> sphere = tt.as_constraint(lambda x: x / x.norm(dim=1, keepdim=True), lambda x: (x.norm(dim=1) - 1).abs())
        >>> sampler = wrap(zABSampler(denoiser, steps=8, silent=True), sphere, tt.Periodic(2))
        >>> x = sampler(sampler.init((5, 3)))
        >>> sampler.rollout.spent.tolist(), bool((x.norm(dim=1) - 1).abs().max() < 1e-6)
        ([2, 2, 2, 2, 2], True)
    """
    if not isinstance(sampler, Sampler):
        raise TypeError(f"wrap takes a sampler of azula (azula.sample.Sampler): got {type(sampler).__name__}")
    if isinstance(sampler, ProjectedSampler):
        sampler = sampler.plain
    if _loop_of(sampler).__module__ != azula.sample.__name__:
        raise ValueError(
            f"{type(sampler).__name__} has a loop (__call__) of its own, whose step ends cannot be told from outside; "
            "add the line x = corrector(x, t) to it, with corrector = trimtab.Corrector(constraint, schedule, n_steps)"
        )
    check_options(options, "wrap")
    return ProjectedSampler(sampler, constraint, schedule, **options)


class ProjectedSampler(Sampler):  # type: ignore[misc]
    """What `wrap` returns: azula's own sampler, with a corrector at the ends of its steps."""

    def __init__(
        self, plain: Sampler, constraint: Constraint, schedule: Schedule | Callable[[StepView], Tensor], **options: Any
    ) -> None:
        """Arguments as in `wrap`."""
        names = ("start", "stop", "steps", "silent", "dtype", "device")
        super().__init__(**{name: getattr(plain, name) for name in names})
        self.plain = plain
        self.denoiser = plain.denoiser
        self.corrector = Corrector(constraint, schedule, len(plain.timesteps) - 1, **options)

    def __repr__(self) -> str:
        """One line."""
        return f"ProjectedSampler({type(self.plain).__name__}, T={self.corrector.n_steps}, {self.corrector.schedule!r})"

    @property
    def timesteps(self) -> Tensor:
        """The times of the states, (T + 1,)."""
        times: Tensor = self.plain.timesteps
        return times

    @property
    def rollout(self) -> Rollout:
        """The record of the last complete run."""
        return self.corrector.rollout

    def step(self, x_t: Tensor, t: Tensor, s: Tensor, **kwargs: Any) -> Tensor:
        """One step of the plain sampler, not corrected: only a whole run is."""
        x_s: Tensor = self.plain.step(x_t, t, s, **kwargs)
        return x_s

    @torch.no_grad()
    def __call__(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Run from the states `x`, (n, *event), at `start` to feasible ones at `stop`."""
        loop = copy.copy(self.plain)
        with self.corrector:
            self.corrector.begin(x)
            if _loop_of(loop) is Sampler.__call__:
                # azula's plain loop looks its step up on the sampler
                loop.step = self._step
                x = loop(x, **kwargs)
            else:
                ends = loop.denoiser = _StepEnds(loop.denoiser, self._correct)
                x = self._correct(loop(x, **kwargs), self.timesteps[-1])
                assert ends.calls == self.corrector.n_steps
        return x

    def _step(self, x_t: Tensor, t: Tensor, s: Tensor, **kwargs: Any) -> Tensor:
        return self._correct(self.plain.step(x_t, t, s, **kwargs), s)

    def _correct(self, x: Tensor, time: Tensor) -> Tensor:
        """Correct the states (n, *event) of a time; the constraint may ask for it and for its noise level."""
        alpha, sigma = self.denoiser.schedule(time)
        corrected: Tensor = self.corrector(x, time=time, alpha=alpha, sigma=sigma)
        return corrected


class _StepEnds:
    """A denoiser that corrects the state it is asked about.

    azula's multistep samplers keep their loop to themselves, but each of their steps begins with one question to the
    denoiser, about the very tensor the loop goes on with: overwriting it is correcting the end of the step before.
    """

    def __init__(self, denoiser: Any, correct: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.denoiser, self.correct, self.calls = denoiser, correct, 0
        self.schedule = denoiser.schedule

    def __call__(self, x: Tensor, t: Tensor, **kwargs: Any) -> Any:
        if self.calls > 0:  # the first question is about the initial state, which belongs to the caller
            x.copy_(self.correct(x, t))
        self.calls += 1
        return self.denoiser(x, t, **kwargs)


def _loop_of(sampler: Sampler) -> Any:
    return type(sampler).__call__
