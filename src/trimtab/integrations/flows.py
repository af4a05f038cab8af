"""Velocity models: flow matching by Euler, Heun or RK4, and by torchdiffeq in segments.

Both samplers go through the one loop (`rollout`, `calibrate`, studies); a step ends where its solver's step ends, so
that a Runge-Kutta stage is never projected.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from trimtab.core.constraint import Constraint, Projection
from trimtab.core.checks import check_callable, check_integer, check_type, unknown
from trimtab.core.noise import Noise
from trimtab.core.rollout import Sampler

__all__ = ["Evaluations", "FlowSampler", "OdeSampler", "Targeted", "with_target"]

Arguments = Literal["xt", "tx"]
Method = Literal["euler", "heun", "rk4"]
_STAGES = {"euler": 1, "heun": 2, "rk4": 4}


@dataclass(frozen=True, eq=False, kw_only=True)
class _Flow:
    """What both samplers share: the model, its arguments and the times.

    Attributes:
        velocity: The model: `velocity(x, t)` as in flow_matching, or `velocity(t, x)` as in torchdiffeq and torchcfm.
        n_steps: T.
        event: Shape of one sample.
        arguments: "xt" or "tx"; by default told from the names of the model's parameters.
        batched_time: Hand the time over as (n,) instead of a number of no dimension.
        times: (T + 1,), by default even from 0 to 1.
        start_from: `start_from(noise)` draws the initial states, (n, *event); standard normal by default.
        dtype: Of the states.
    """

    velocity: Callable[..., Tensor]
    n_steps: int
    event: tuple[int, ...]
    arguments: Arguments | None = None
    batched_time: bool = False
    times: Tensor | None = None
    start_from: Callable[[Noise], Tensor] | None = None
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        """Settle the order of arguments and the times."""
        check_callable(self.velocity, "the velocity of a flow", "velocity(x, t) or velocity(t, x)")
        check_integer(self.n_steps, "n_steps")
        if not isinstance(self.dtype, torch.dtype) or not self.dtype.is_floating_point:
            raise TypeError(f"the dtype of a flow is a floating-point one, such as torch.float32: got {self.dtype!r}")
        check_type(self.batched_time, bool, "batched_time", "say whether the model takes one time for each sample")
        if self.start_from is not None:
            check_callable(self.start_from, "start_from", "start_from(noise)")
        if self.arguments is None:
            object.__setattr__(self, "arguments", argument_order(self.velocity))
        elif self.arguments not in get_args(Arguments):
            raise unknown("order of arguments", str(self.arguments), get_args(Arguments))
        if self.times is None:
            object.__setattr__(self, "times", torch.linspace(0, 1, self.n_steps + 1, dtype=self.dtype))
        else:
            check_type(self.times, Tensor, "the times of a flow", f"give {self.n_steps + 1} increasing numbers")
            usable = self.times.shape == (self.n_steps + 1,) and self.times.is_floating_point()
            if not usable or not bool((self.times.diff() > 0).all() & self.times.isfinite().all()):
                raise ValueError(
                    f"times must be {self.n_steps + 1} increasing numbers for {self.n_steps} steps, finite floats: got "
                    f"{tuple(self.times.shape)} of {self.times.dtype}"
                )

    def start(self, noise: Noise) -> Tensor:
        """Initial states, (n, *event)."""
        return noise.normal(-1, self.event) if self.start_from is None else self.start_from(noise)

    def at(self, x: Tensor, time: Tensor) -> Tensor:
        """The velocity of `x`, (n, *event), at a time."""
        time = time.to(x.device)
        if self.batched_time:
            time = time.expand(len(x))
        v = self.velocity(x, time) if self.arguments == "xt" else self.velocity(time, x)
        if not isinstance(v, Tensor) or v.shape != x.shape or not v.is_floating_point() or v.device != x.device:
            got = f"{tuple(v.shape)} of {v.dtype} on {v.device}" if isinstance(v, Tensor) else type(v).__name__
            raise ValueError(
                f"the velocity of states {tuple(x.shape)} must be floats of their shape: got {got}. It was called as "
                f"velocity({'x, t' if self.arguments == 'xt' else 't, x'}); is arguments={self.arguments!r} right?"
            )
        return v

    def interval(self, t: int) -> tuple[Tensor, Tensor]:
        """Beginning of step t and its length."""
        assert self.times is not None
        return self.times[t], self.times[t + 1] - self.times[t]


@dataclass(frozen=True, eq=False, kw_only=True)
class FlowSampler(_Flow):
    """A velocity model stepped by a fixed-step solver.

    Attributes:
        method: "euler" (1 evaluation per step), "heun" (2) or "rk4" (4).

    Example:
        >>> import torch, trimtab as tt
        >>> sphere = tt.as_constraint(lambda x: x / x.norm(dim=1, keepdim=True), lambda x: (x.norm(dim=1) - 1).abs())
        >>> turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
        >>> flow = FlowSampler(velocity=lambda x, t: x @ turn.T, n_steps=20, event=(2,))
        >>> run = tt.rollout(flow, sphere, tt.Periodic(0.25), range(3))
        >>> bool((run.final.norm(dim=1) - 1).abs().max() < 1e-6)
        True
    """

    method: Method = "euler"

    def __post_init__(self) -> None:
        """Check the method."""
        super().__post_init__()
        if not isinstance(self.method, str) or self.method not in _STAGES:
            raise unknown("method", self.method, _STAGES)

    @property
    def evaluations(self) -> int:
        """Evaluations of the model in a whole run."""
        return _STAGES[self.method] * self.n_steps

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """Proposals after step t, (n, *event)."""
        begin, h = self.interval(t)
        k1 = self.at(x, begin)
        if self.method == "euler":
            return x + h * k1
        if self.method == "heun":
            return x + h / 2 * (k1 + self.at(x + h * k1, begin + h))
        k2 = self.at(x + h / 2 * k1, begin + h / 2)
        k3 = self.at(x + h / 2 * k2, begin + h / 2)
        k4 = self.at(x + h * k3, begin + h)
        return x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


class Evaluations(NamedTuple):
    """Evaluations of the model by an adaptive solver: in one go, and restarted at every step."""

    whole: int
    segments: int

    @property
    def extra(self) -> int:
        """What the restarts cost."""
        return self.segments - self.whole


@dataclass(frozen=True, eq=False, kw_only=True)
class OdeSampler(_Flow):
    """A velocity model integrated by torchdiffeq, one segment per step.

    An adaptive solver begins each segment with a new guess of its step size; `count_evaluations` tells what that
    costs. It also takes one step size for the whole batch: here the error of the worst sample rules, so that every
    sample meets the tolerances, but to within them a sample's result depends on its batch-mates. A fixed-step method
    ("rk4", "midpoint", …) takes one step a segment and has neither cost.

    Attributes:
        method: A method of torchdiffeq.
        rtol: Relative tolerance of an adaptive method.
        atol: Absolute tolerance.
    """

    method: str = "dopri5"
    rtol: float = 1e-5
    atol: float = 1e-5

    def __post_init__(self) -> None:
        """Refuse methods and tolerances that torchdiffeq does not have."""
        from trimtab.integrations.torchdiffeq import check_solver

        super().__post_init__()
        check_solver(self.method, self.rtol, self.atol)

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """Proposals after step t, (n, *event)."""
        begin, h = self.interval(t)
        return self._integrate(self._by_time, x, torch.stack([begin, begin + h]).to(x.device))

    def count_evaluations(self, x: Tensor) -> Evaluations:
        """Integrate `x`, (n, *event), in one go and in segments, and count what the model was asked."""
        asked = 0

        def counted(time: Tensor, x: Tensor) -> Tensor:
            nonlocal asked
            asked += 1
            return self._by_time(time, x)

        assert self.times is not None
        times = self.times.to(x.device)
        with torch.no_grad():
            self._integrate(counted, x, times)
            whole = asked
            for t in range(self.n_steps):
                x = self._integrate(counted, x, times[t : t + 2])
        return Evaluations(whole, asked - whole)

    def _by_time(self, time: Tensor, x: Tensor) -> Tensor:
        return self.at(x, time)

    def _integrate(self, velocity: Callable[[Tensor, Tensor], Tensor], x: Tensor, times: Tensor) -> Tensor:
        from torchdiffeq import odeint

        from trimtab.integrations.torchdiffeq import ADAPTIVE

        options: dict[str, Any] = {"norm": _worst_sample} if self.method in ADAPTIVE else {}
        x = odeint(velocity, x, times, rtol=self.rtol, atol=self.atol, method=self.method, options=options)[-1]
        assert isinstance(x, Tensor)
        return x


def _worst_sample(x: Tensor) -> Tensor:
    """The largest root mean square of a row: no sample's error is averaged away among its batch-mates."""
    return x.flatten(1).pow(2).mean(dim=1).sqrt().max() if x.ndim > 1 else x.abs().max()


def argument_order(velocity: Callable[..., Tensor]) -> Arguments:
    """Whether a model takes (x, t) or (t, x), from the names of its parameters."""
    call = getattr(velocity, "forward", velocity)
    try:
        names = [p.name for p in inspect.signature(call).parameters.values() if p.kind is not p.VAR_KEYWORD]
    except (TypeError, ValueError):
        names = []
    is_time = [name in ("t", "time", "times", "timestep", "timesteps", "ts") for name in names[:2]]
    if is_time == [True, False]:
        return "tx"
    if is_time == [False, True]:
        return "xt"
    raise ValueError(
        f"cannot tell the order of the velocity model's arguments from their names {names[:2]}; say "
        "arguments='xt' (flow_matching) or arguments='tx' (torchdiffeq, torchcfm)"
    )


# ------------------------------------------------------------------ what is projected


class Targeted(NamedTuple):
    """A flow made ready for `rollout`, `calibrate` and studies.

    Attributes:
        sampler: Goes with `constraint`.
        constraint: Goes with `sampler`.
        samples: The samples among the states of a run: `samples(run.final)`, (n, *event).
    """

    sampler: Sampler
    constraint: Constraint
    samples: Callable[[Tensor], Tensor]


def with_target(flow: FlowSampler, constraint: Constraint, target: Literal["state", "clean"] = "state") -> Targeted:
    """Choose what is projected: the state x_t, or the clean sample x_1 that the velocity at x_t points to.

    A projected x_1 stands for the velocity that points to it, (x_1 - x_t) / (1 - t). For "clean" the loop's states
    are pairs of x_t and x_1, (n, 2, *event), the constraint is on x_1, and step T has x_t = x_1: as many steps and
    evaluations as before, and the result is feasible.

    Args:
        flow: For "clean", by Euler and up to time 1.
        constraint: On (n, *event).
        target: "state" or "clean".

    Example:
        >>> import torch, trimtab as tt
        >>> box = tt.as_constraint(lambda x: x.clamp(-1, 1), lambda x: (x.abs() - 1).clamp(min=0).amax(dim=1))
        >>> flow = FlowSampler(velocity=lambda x, t: 2 * x, n_steps=10, event=(2,))
        >>> sampler, constraint, samples = with_target(flow, box, "clean")
        >>> run = tt.rollout(sampler, constraint, tt.Stepwise(), range(4))
        >>> samples(run.final).shape, bool(samples(run.final).abs().max() <= 1)
        (torch.Size([4, 2]), True)
    """
    check_type(flow, _Flow, "what with_target takes", "make a FlowSampler of the velocity model")
    check_type(constraint, Constraint, "the constraint of with_target", "as_constraint(…) makes one of functions")
    if target == "state":
        return Targeted(flow, constraint, lambda states: states)
    if target != "clean":
        raise ValueError(f"target must be one of 'state', 'clean': got {target!r}")
    if not isinstance(flow, FlowSampler) or flow.method != "euler":
        raise ValueError(
            "target='clean' needs FlowSampler with method='euler', where a step goes along one velocity; use "
            "target='state' with other solvers"
        )
    assert flow.times is not None
    if float(flow.times[-1]) != 1.0:
        raise ValueError(f"target='clean' needs times that end at 1, where the data is: got {float(flow.times[-1]):g}")
    return Targeted(_CleanFlow(flow), _OnClean(constraint), lambda states: states[:, 1])


@dataclass(frozen=True, eq=False)
class _CleanFlow:
    """A flow whose states are pairs of x_t and the x_1 it points to; step t looks where x_t points."""

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
        if t > 0:  # go on from the last step, towards the clean sample that the corrector left
            before, h = self.flow.interval(t - 1)
            x = x + h / (1 - before) * (clean - x)
        now, _ = self.flow.interval(t)
        return torch.stack([x, x + (1 - now) * self.flow.at(x, now)], dim=1)


@dataclass(frozen=True, eq=False)
class _OnClean(Constraint):
    """A constraint on the second of each pair."""

    constraint: Constraint

    @property
    def defect_is_projection(self) -> bool:  # type: ignore[override]
        return self.constraint.defect_is_projection

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.constraint.needs

    @property
    def is_projection(self) -> bool:  # type: ignore[override]
        return self.constraint.is_projection

    def project(self, x: Tensor, **context: Any) -> Tensor | Projection:
        now, clean = x.unbind(dim=1)
        answer = self.constraint.project(clean, **_of_clean(context))
        if isinstance(answer, Projection):
            return answer._replace(x=torch.stack([now, answer.x], dim=1))
        return torch.stack([now, answer], dim=1)

    def defect(self, x: Tensor, **context: Any) -> Tensor:
        defect: Tensor = self.constraint.defect(x[:, 1], **_of_clean(context))
        return defect

    def take(self, rows: Tensor) -> _OnClean:
        return _OnClean(self.constraint.take(rows))


def _of_clean(context: dict[str, Any]) -> dict[str, Any]:
    """The state before the update is a pair, too."""
    return {name: value[:, 1] if name == "previous" else value for name, value in context.items()}
