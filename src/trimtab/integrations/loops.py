"""A loop that is not ours as a sampler, so that everything made for samplers takes it: rollouts, studies, the CLI.

A sampler is asked for its next proposal; a loop wants to be called once and to call back. The loop therefore runs in a
thread of its own and waits in its call of `correct` while we look at the proposal. The two never run at the same time.
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

__all__ = ["Correct", "LoopSampler"]

Correct = Callable[..., Any]
"""`correct(x)` or `correct(x, t)`: the state to go on with, (n, *event) to (n, *event), or a tree of such arrays."""


@dataclass(frozen=True, eq=False)
class LoopSampler:
    """A sampler made of a loop with one added line.

    Its initial state is not shown, so that a path begins with the first proposal. The loop must take all its
    randomness from the seeds. What it does after its last step (decoding) is done in the first run only, to see that it
    does not call once more.

    Attributes:
        loop: `loop(correct, seeds)` samples one batch, one sample for each of the seeds (n,), and calls
            `x = correct(x)`, or `correct(x, t)`, after each of its updates. What it returns is of no interest.
        n_steps: T, how many times it calls.

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
    _running: dict[int, _Running] = field(default_factory=dict, init=False, repr=False, metadata={"per_sample": True})
    _checked: list[bool] = field(default_factory=list, init=False, repr=False, metadata={"per_sample": True})

    def __post_init__(self) -> None:
        """Refuse what is no loop, or no number of calls."""
        check_callable(self.loop, "the loop of a LoopSampler", "loop(correct, seeds)")
        check_integer(self.n_steps, "n_steps")

    def start(self, noise: Noise) -> Any:
        """Begin a run of the loop; its first proposals stand for the initial states, (n, *event)."""
        _give_up(self._running, id(noise))  # one that was begun before, and is not wanted any more
        running = _Running(self.loop, noise.seeds, self.n_steps)
        self._running[id(noise)] = running
        # a run that is given up, by an error elsewhere, must not leave its thread waiting
        weakref.finalize(noise, _give_up, self._running, id(noise))
        return running.first

    def step(self, x: Any, t: int, noise: Noise) -> Any:
        """Let the loop go on with `x` to its next call, (n, *event)."""
        running = self._running.get(id(noise))
        if running is None:
            raise RuntimeError(
                "no run of the loop is going on with this noise: it was not begun, or is over; call start"
            )
        try:
            proposal = running.at(t, x)
            if t == self.n_steps - 1 and not self._checked:
                running.run_out(proposal)
                self._checked.append(True)
        except BaseException:  # nobody answers any more
            _give_up(self._running, id(noise))
            raise
        if t == self.n_steps - 1:
            _give_up(self._running, id(noise))
        return proposal


class _Running:
    """One run of a loop, in a thread that waits while we do not."""

    def __init__(self, loop: Callable[[Correct, Tensor], Any], seeds: Tensor, n_steps: int) -> None:
        """Run the loop to its first call."""
        self.n_steps, self.calls = n_steps, 0
        self.proposals: SimpleQueue[Any] = SimpleQueue()
        self.answers: SimpleQueue[Any] = SimpleQueue()
        self.thread = Thread(target=self._work, args=(loop, seeds), name="trimtab loop", daemon=True)
        self.thread.start()
        self.first = self._next()

    def at(self, t: int, x: Any) -> Any:
        """The proposal of step t; for all but the first, the loop is given its state and goes on."""
        if t == 0 and self.calls == 1:
            return self.first
        if t != self.calls:
            raise ValueError(f"a loop makes its steps in order: step {self.calls} of {self.n_steps} is next, got {t}")
        self.answers.put(x)
        return self._next()

    def run_out(self, x: Any) -> None:
        """Let the loop come to its end, which must be without another call."""
        self.answers.put(x)
        if self._received() is not None:
            raise ValueError(
                f"the loop called correct more than n_steps = {self.n_steps} times; is that the number of its updates?"
            )

    def stop(self) -> None:
        """End the loop where it waits, and wait until it has tidied up after itself."""
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
            with torch.no_grad():  # such modes belong to a thread
                loop(self._correct, seeds)
            self.proposals.put(None)
        except _Stopped:
            pass
        except BaseException as error:
            self.proposals.put(error)

    def _correct(self, x: Any, t: Any = None) -> Any:
        Form(x)  # refuses what can be no state
        if t is not None and not (isinstance(t, Integral | Tensor) and int(t) == self.calls):
            raise ValueError(f"the loop called correct for step {t}, but step {self.calls} of {self.n_steps} is next")
        self.calls += 1
        self.proposals.put(x)
        answer = self.answers.get()
        if answer is None:
            raise _Stopped
        return answer


class _Stopped(BaseException):
    """Ends a loop that nobody waits for; not an `Exception`, so that loops do not catch it by accident."""


def _give_up(running: dict[int, _Running], key: int) -> None:
    gone = running.pop(key, None)
    if gone is not None:
        gone.stop()
