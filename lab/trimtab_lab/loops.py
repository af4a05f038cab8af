"""Use any loop as a sampler, so that rollouts, studies and the command line take it.

A sampler returns its next proposal when it is asked; a loop calls back. The loop therefore runs in a thread, and that
thread waits in `correct` while the proposal is looked at. The two never run at the same time.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral
from queue import SimpleQueue
from threading import Thread, current_thread
from typing import Any

import torch
from torch import Tensor

from trimtab.core.arrays import Form
from trimtab.core.checks import check_callable, check_integer
from trimtab.core.noise import Noise
from trimtab.integrations.loops import Correct

__all__ = ["LoopSampler"]


@dataclass(frozen=True, eq=False)
class LoopSampler:
    """A sampler made of a loop with one added line.

    The initial state of the loop is not visible, so a path starts with the first proposal. The loop must take all its
    randomness from the seeds. Only the first run continues after the last step (to decode, for example), to check that
    the loop does not call `correct` once more; later runs end there.

    Attributes:
        loop: `loop(correct, seeds)` samples one batch, one sample for each of the seeds (n,), and calls
            `x = correct(x)` or `x = correct(x, t)` after each of its updates. What it returns is ignored.
        n_steps: T, the number of these calls.

    Example:
        >>> import torch, trimtab as tt
        >>> def loop(correct, seeds):
        ...     x = torch.zeros(len(seeds), 2, dtype=torch.float64)
        ...     for t in range(10):
        ...         x = correct(x + 0.1 * seeds[:, None], t)
        >>> ball = tt.as_constraint(lambda x: x / x.norm(dim=1, keepdim=True).clamp(min=1),
        ...                         lambda x: (x.norm(dim=1) - 1).clamp(min=0))
        >>> tt.rollout(LoopSampler(loop, 10), ball, tt.Periodic(2), range(3)).spent.tolist()
        [2, 2, 2]
    """

    loop: Callable[[Correct, Tensor], Any]
    n_steps: int
    _running: dict[int, _Run] = field(default_factory=dict, init=False, repr=False, metadata={"per_sample": True})
    _checked: list[bool] = field(default_factory=list, init=False, repr=False, metadata={"per_sample": True})

    def __post_init__(self) -> None:
        """Check the arguments."""
        check_callable(self.loop, "the loop of a LoopSampler", "loop(correct, seeds)")
        check_integer(self.n_steps, "n_steps")

    def start(self, noise: Noise) -> Any:
        """Start a run of the loop and return its first proposals, (n, *event), as the initial states."""
        _end(self._running, id(noise))
        run = self._running[id(noise)] = _Run(self.loop, noise.seeds, self.n_steps)
        weakref.finalize(noise, _end, self._running, id(noise))  # an abandoned run must not leave a waiting thread
        return run.first

    def step(self, x: Any, t: int, noise: Noise) -> Any:
        """Give the loop the state `x` and return its next proposals, (n, *event)."""
        run = self._running.get(id(noise))
        if run is None:
            raise RuntimeError("the loop has no run with this noise: it was not started, or is over; call start")
        last = t == self.n_steps - 1
        try:
            proposal = run.at(t, x)
            if last and not self._checked:
                run.finish(proposal)
                self._checked.append(True)
        except BaseException:
            _end(self._running, id(noise))
            raise
        if last:
            _end(self._running, id(noise))
        return proposal


class _Run:
    """One run of a loop, in a thread that waits for answers."""

    def __init__(self, loop: Callable[[Correct, Tensor], Any], seeds: Tensor, n_steps: int) -> None:
        self.n_steps, self.calls = n_steps, 0
        self.proposals: SimpleQueue[Any] = SimpleQueue()
        self.answers: SimpleQueue[Any] = SimpleQueue()
        self.thread = Thread(target=self._work, args=(loop, seeds), name="trimtab loop", daemon=True)
        self.thread.start()
        self.first = self._next()

    def at(self, t: int, x: Any) -> Any:
        """Return the proposal of step t, after the loop has received x; the first one is there already."""
        if t == 0 and self.calls == 1:
            return self.first
        if t != self.calls:
            raise ValueError(f"a loop makes its steps in order: step {self.calls} of {self.n_steps} is next, got {t}")
        self.answers.put(x)
        return self._next()

    def finish(self, x: Any) -> None:
        """Let the loop end; raise an error if it calls `correct` once more."""
        self.answers.put(x)
        if self._received() is not None:
            raise ValueError(
                f"the loop called correct more than n_steps = {self.n_steps} times; is that the number of its updates?"
            )

    def stop(self) -> None:
        """End the loop in its call of `correct` and wait for its thread."""
        self.answers.put(None)
        if self.thread is not current_thread():
            self.thread.join()

    def _next(self) -> Any:
        proposal = self._received()
        if proposal is None:
            raise ValueError(
                f"the loop ended after {self.calls} of n_steps = {self.n_steps} calls of correct; it must call once "
                "after each of its updates"
            )
        return proposal

    def _received(self) -> Any:
        received = self.proposals.get()
        if isinstance(received, BaseException):
            raise received
        return received

    def _work(self, loop: Callable[[Correct, Tensor], Any], seeds: Tensor) -> None:
        try:
            with torch.no_grad():  # this mode is set per thread
                loop(self._correct, seeds)
            self.proposals.put(None)
        except _Stopped:
            pass
        except BaseException as error:
            self.proposals.put(error)

    def _correct(self, x: Any, t: Any = None) -> Any:
        Form(x)  # checks that x can be a state
        if t is not None and not (isinstance(t, Integral | Tensor) and int(t) == self.calls):
            raise ValueError(f"the loop called correct for step {t}, but step {self.calls} of {self.n_steps} is next")
        self.calls += 1
        self.proposals.put(x)
        answer = self.answers.get()
        if answer is None:
            raise _Stopped
        return answer


class _Stopped(BaseException):
    """End a loop that is not needed any more; not an `Exception`, so that loops do not catch it by accident."""


def _end(running: dict[int, _Run], key: int) -> None:
    run = running.pop(key, None)
    if run is not None:
        run.stop()
