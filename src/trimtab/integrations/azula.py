"""Any sampler of azula, corrected at the ends of its steps, multistep samplers included."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trimtab.core.checks import missing_extra
from trimtab.core.constraint import Constraint
from trimtab.core.record import Rollout
from trimtab.integrations.loops import check_options
from trimtab.loop.corrector import Corrector

try:
    import azula.sample
    from azula.sample import Sampler
except ImportError as error:
    raise missing_extra("azula", "azula", "trimtab.integrations.azula") from error

__all__ = ["ProjectedSampler", "wrap"]


def wrap(sampler: Sampler, constraint: Constraint, schedule: Any, **options: Any) -> ProjectedSampler:
    """Return a sampler that projects on schedule; the given one does not change.

    T is the sampler's `steps`, and a multistep sampler keeps its history of predictions. azula draws its noise from
    torch's global generator: call `torch.manual_seed` before each run that must be reproducible.

    Args:
        sampler: Any sampler of `azula.sample`, or a subclass with another `step`. If it is wrapped already, its plain
            sampler is wrapped again.
        constraint: On the states, (n, *event). It may need "time", "alpha" and "sigma", those of the states, and
            "previous".
        schedule: When to project.
        **options: Options of `Corrector`, such as seeds, on_failure, keep_states and on_step.

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
    if type(sampler).__call__.__module__ != azula.sample.__name__:
        raise ValueError(
            f"{type(sampler).__name__} defines its own loop (__call__), whose ends of steps are not visible from "
            "outside; add the line x = corrector(x, t) to it, with corrector = trimtab.Corrector(constraint, "
            "schedule, n_steps)"
        )
    check_options(options, "wrap")
    return ProjectedSampler(sampler, constraint, schedule, **options)


class ProjectedSampler(Sampler):  # type: ignore[misc]
    """The sampler that `wrap` returns: azula's own, with a corrector at the ends of its steps."""

    def __init__(self, plain: Sampler, constraint: Constraint, schedule: Any, **options: Any) -> None:
        """Take the arguments of `wrap`."""
        names = ("start", "stop", "steps", "silent", "dtype", "device")
        super().__init__(**{name: getattr(plain, name) for name in names})
        self.plain = plain
        self.denoiser = plain.denoiser
        self.corrector = Corrector(constraint, schedule, len(plain.timesteps) - 1, **options)

    def __repr__(self) -> str:
        """Return a one-line summary."""
        return f"ProjectedSampler({type(self.plain).__name__}, T={self.corrector.n_steps}, {self.corrector.schedule!r})"

    @property
    def timesteps(self) -> Tensor:
        """Return the times of the states, (T + 1,)."""
        times: Tensor = self.plain.timesteps
        return times

    @property
    def rollout(self) -> Rollout:
        """Return the record of the last complete run."""
        return self.corrector.rollout

    def step(self, x_t: Tensor, t: Tensor, s: Tensor, **kwargs: Any) -> Tensor:
        """Make one step of the plain sampler without a correction; only whole runs are corrected."""
        x_s: Tensor = self.plain.step(x_t, t, s, **kwargs)
        return x_s

    @torch.no_grad()
    def __call__(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Run from the states `x`, (n, *event), at `start` to feasible ones at `stop`."""
        loop = copy.copy(self.plain)
        with self.corrector:
            self.corrector.begin(x)
            if type(loop).__call__ is Sampler.__call__:  # this loop calls self.step
                loop.step = lambda x_t, t, s, **more: self._correct(self.plain.step(x_t, t, s, **more), s)
                return loop(x, **kwargs)  # type: ignore[no-any-return]
            loop.denoiser = _StepEnds(loop.denoiser, self._correct)
            return self._correct(loop(x, **kwargs), self.timesteps[-1])

    def _correct(self, x: Tensor, time: Tensor) -> Tensor:
        """Correct the states of a time, (n, *event)."""
        alpha, sigma = self.denoiser.schedule(time)
        corrected: Tensor = self.corrector(x, time=time, alpha=alpha, sigma=sigma)
        return corrected


class _StepEnds:
    """A denoiser that corrects the state it is called with.

    azula's multistep samplers have closed loops, but each step starts with one call of the denoiser, with the tensor
    that the loop continues with. Overwriting that tensor corrects the end of the step before.
    """

    def __init__(self, denoiser: Any, correct: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.denoiser, self.correct, self.calls = denoiser, correct, 0
        self.schedule = denoiser.schedule

    def __call__(self, x: Tensor, t: Tensor, **kwargs: Any) -> Any:
        if self.calls > 0:  # the first call has the caller's initial state
            x.copy_(self.correct(x, t))
        self.calls += 1
        return self.denoiser(x, t, **kwargs)
