"""Velocity models as samplers: by Euler's method, or by any method of torchdiffeq.

Only the ends of steps are corrected, never the stages of a Runge-Kutta method.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from trimtab.constraints.states import Wrapper
from trimtab.core.checks import check_callable, check_integer, check_type, unknown
from trimtab.core.constraint import Constraint, Projection
from trimtab.core.noise import Noise
from trimtab.loop.rollout import Sampler

__all__ = ["FlowSampler", "with_target"]


@dataclass(frozen=True, eq=False, kw_only=True)
class FlowSampler:
    """A velocity model stepped by Euler's method, or by any method of torchdiffeq.

    An adaptive method ("dopri5", …) guesses a new step size at the start of each step, which costs evaluations. It uses
    one step size for the whole batch, chosen by the error of the worst sample: every sample meets the tolerances, and
    depends on the others to within them. A fixed-step method ("midpoint", "heun2", "rk4", …) has neither effect.

    Attributes:
        velocity: The model: `velocity(x, t)` as in flow_matching, or `velocity(t, x)` as in torchdiffeq and torchcfm.
        n_steps: T.
        event: Shape of one sample.
        method: "euler", or a method of torchdiffeq.
        arguments: "xt" or "tx"; None reads the order from the names of the model's parameters.
        times: (T + 1,); None is an even grid from 0 to 1.
        start_from: `start_from(noise)` draws the initial states, (n, *event); None draws standard normal ones.
        dtype: Of the states.
        rtol: Relative tolerance of an adaptive method.
        atol: Absolute tolerance.

    Example:
        >>> import torch, trimtab as tt
        >>> sphere = tt.as_constraint(lambda x: x / x.norm(dim=1, keepdim=True), lambda x: (x.norm(dim=1) - 1).abs())
        >>> turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
        >>> flow = FlowSampler(velocity=lambda x, t: x @ turn.T, n_steps=20, event=(2,))
        >>> run = tt.rollout(flow, sphere, tt.Periodic(0.25), range(3))
        >>> bool((run.final.norm(dim=1) - 1).abs().max() < 1e-6)
        True
    """

    velocity: Callable[..., Tensor]
    n_steps: int
    event: tuple[int, ...]
    method: str = "euler"
    arguments: Literal["xt", "tx"] | None = None
    times: Tensor | None = None
    start_from: Callable[[Noise], Tensor] | None = None
    dtype: torch.dtype = torch.float32
    rtol: float = 1e-5
    atol: float = 1e-5

    def __post_init__(self) -> None:
        check_callable(self.velocity, "the velocity of a flow", "velocity(x, t) or velocity(t, x)")
        check_integer(self.n_steps, "n_steps")
        if self.start_from is not None:
            check_callable(self.start_from, "start_from", "start_from(noise)")
        if self.arguments is None:
            object.__setattr__(self, "arguments", _argument_order(self.velocity))
        elif self.arguments not in ("xt", "tx"):
            raise unknown("order of arguments", str(self.arguments), ("xt", "tx"))
        if self.times is None:
            object.__setattr__(self, "times", torch.linspace(0, 1, self.n_steps + 1, dtype=self.dtype))
        elif getattr(self.times, "shape", None) != (self.n_steps + 1,) or not bool((self.times.diff() > 0).all()):
            raise ValueError(
                f"times must be a tensor of {self.n_steps + 1} increasing numbers for {self.n_steps} steps: got "
                f"{self.times!r:.80}"
            )
        if self.method == "heun":
            warnings.warn("method='heun' is torchdiffeq's 'heun2' since 0.4", DeprecationWarning, stacklevel=3)
            object.__setattr__(self, "method", "heun2")
        if self.method != "euler":
            from trimtab.integrations.torchdiffeq import check_solver

            check_solver(self.method, self.rtol, self.atol)

    def start(self, noise: Noise) -> Tensor:
        """Return the initial states, (n, *event)."""
        return noise.start(self.event) if self.start_from is None else self.start_from(noise)

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """Return the proposals of step t, (n, *event)."""
        begin, h = self.interval(t)
        if self.method == "euler":
            return x + h * self.at(x, begin)
        import torchdiffeq

        times = torch.stack([begin, begin + h]).to(x.device)
        solver: dict[str, Any] = {"rtol": self.rtol, "atol": self.atol, "method": self.method}
        if self.method.startswith(("dopri", "bosh", "fehlberg", "adaptive")):
            solver["options"] = {"norm": _worst_sample}
        end: Tensor = torchdiffeq.odeint(lambda time, x: self.at(x, time), x, times, **solver)[-1]
        return end

    def at(self, x: Tensor, time: Tensor) -> Tensor:
        """Return the velocity of `x`, (n, *event), at a time."""
        time = time.to(x.device)
        v = self.velocity(x, time) if self.arguments == "xt" else self.velocity(time, x)
        if not isinstance(v, Tensor) or v.shape != x.shape or not v.is_floating_point():
            got = f"{tuple(v.shape)} of {v.dtype}" if isinstance(v, Tensor) else type(v).__name__
            raise ValueError(
                f"the velocity of states {tuple(x.shape)} must be a float tensor of that shape: got {got}. It was "
                f"called as velocity({'x, t' if self.arguments == 'xt' else 't, x'}); is "
                f"arguments={self.arguments!r} right?"
            )
        return v

    def interval(self, t: int) -> tuple[Tensor, Tensor]:
        """Return the start time of step t and its length."""
        assert self.times is not None
        return self.times[t], self.times[t + 1] - self.times[t]


def _worst_sample(x: Tensor) -> Tensor:
    """Return the largest root mean square of a row, so that other samples cannot hide the error of one."""
    return x.flatten(1).pow(2).mean(dim=1).sqrt().max() if x.ndim > 1 else x.abs().max()


def _argument_order(velocity: Callable[..., Tensor]) -> Literal["xt", "tx"]:
    """Return whether a model takes (x, t) or (t, x), by the names of its parameters."""
    try:
        names = list(inspect.signature(getattr(velocity, "forward", velocity)).parameters)
    except (TypeError, ValueError):
        names = []
    is_time = [name in ("t", "time", "times", "timestep", "timesteps", "ts") for name in names[:2]]
    if is_time not in ([True, False], [False, True]):
        raise ValueError(
            f"the order of the velocity model's arguments cannot be read from their names {names[:2]}; say "
            "arguments='xt' (flow_matching) or arguments='tx' (torchdiffeq, torchcfm)"
        )
    return "tx" if is_time[0] else "xt"


# ------------------------------------------------------------------ projecting the clean sample


def with_target(
    flow: FlowSampler, constraint: Constraint, target: Literal["state", "clean"] = "state"
) -> tuple[Sampler, Constraint, Callable[[Tensor], Tensor]]:
    """Choose what is projected: the state x_t, or the clean sample x_1 that the velocity at x_t points to.

    A projected x_1 replaces the velocity by (x_1 - x_t) / (1 - t). For "clean" the states are pairs of x_t and x_1,
    (n, 2, *event), and the constraint applies to x_1. The last step has x_t = x_1, so the number of steps and
    evaluations stays the same and the result is feasible.

    Args:
        flow: For "clean", with method "euler" and times that end at 1.
        constraint: On (n, *event).
        target: "state" or "clean".

    Returns:
        A sampler, a constraint that goes with it, and a function that returns the samples among the states of a run,
        `samples(run.final)`, (n, *event).

    Example:
        >>> import torch, trimtab as tt
        >>> box = tt.as_constraint(lambda x: x.clamp(-1, 1), lambda x: (x.abs() - 1).clamp(min=0).amax(dim=1))
        >>> flow = FlowSampler(velocity=lambda x, t: 2 * x, n_steps=10, event=(2,))
        >>> sampler, constraint, samples = with_target(flow, box, "clean")
        >>> run = tt.rollout(sampler, constraint, tt.Stepwise(), range(4))
        >>> samples(run.final).shape, bool(samples(run.final).abs().max() <= 1)
        (torch.Size([4, 2]), True)
    """
    check_type(flow, FlowSampler, "the flow of with_target", "make a FlowSampler of the velocity model")
    check_type(constraint, Constraint, "the constraint of with_target", "as_constraint(…) makes one of functions")
    if target == "state":
        return flow, constraint, lambda states: states
    if target != "clean":
        raise ValueError(f"target must be one of 'state', 'clean': got {target!r}")
    if flow.method != "euler":
        raise ValueError("target='clean' needs a FlowSampler with method='euler'; use target='state' with others")
    assert flow.times is not None
    if float(flow.times[-1]) != 1.0:
        raise ValueError(f"target='clean' needs times that end at 1, at the data: got {float(flow.times[-1]):g}")
    return _CleanFlow(flow), _OnClean(constraint), lambda states: states[:, 1]


@dataclass(frozen=True, eq=False)
class _CleanFlow:
    """A flow whose states are pairs of x_t and the x_1 that the velocity points to."""

    flow: FlowSampler

    @property
    def n_steps(self) -> int:
        return self.flow.n_steps

    @property
    def dtype(self) -> torch.dtype:
        return self.flow.dtype

    def start(self, noise: Noise) -> Tensor:
        x = self.flow.start(noise)
        return torch.stack([x, x], dim=1)

    def step(self, pairs: Tensor, t: int, noise: Noise) -> Tensor:
        x, clean = pairs.unbind(dim=1)
        if t > 0:  # finish the last step, towards the clean sample that the corrector returned
            before, h = self.flow.interval(t - 1)
            x = x + h / (1 - before) * (clean - x)
        now, _ = self.flow.interval(t)
        return torch.stack([x, x + (1 - now) * self.flow.at(x, now)], dim=1)


@dataclass(frozen=True, eq=False)
class _OnClean(Wrapper):
    """A constraint on the second of each pair."""

    constraint: Constraint

    def _parts(self) -> tuple[Constraint, ...]:
        return (self.constraint,)

    def project(self, x: Tensor, **context: Any) -> Projection:
        now, clean = x.unbind(dim=1)
        answer = self.constraint.project(clean, **_for_clean(context))
        answer = answer if isinstance(answer, Projection) else Projection(answer)
        return answer._replace(x=torch.stack([now, answer.x], dim=1))

    def defect(self, x: Tensor, **context: Any) -> Tensor:
        defect: Tensor = self.constraint.defect(x[:, 1], **_for_clean(context))
        return defect

    def take(self, rows: Tensor) -> _OnClean:
        return _OnClean(self.constraint.take(rows))


def _for_clean(context: dict[str, Any]) -> dict[str, Any]:
    return {name: value[:, 1] if name == "previous" else value for name, value in context.items()}


def __getattr__(name: str) -> Any:
    if name == "OdeSampler":
        warnings.warn("OdeSampler is now FlowSampler(method='dopri5')", DeprecationWarning, stacklevel=2)
        return partial(FlowSampler, method="dopri5")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
