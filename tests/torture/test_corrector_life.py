"""A corrector used in any order: started, called, failed, stopped, reset, copied, pickled, called by threads."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import trimtab as tt
from torture.scale import TIMES
from trimtab.core.constraint import Improvement

T, N, BUDGET = 5, 3, 2


class Disc(tt.Constraint):
    """The unit disc, whose projection can be made to raise; it can be copied and pickled."""

    def __init__(self) -> None:
        self.raises = False

    def project(self, x):
        if self.raises:
            raise ArithmeticError("as asked")
        return x / x.norm(dim=1, keepdim=True).clamp(min=1)

    def defect(self, x):
        return (x.norm(dim=1) - 1).clamp(min=0)

    improves = True

    def improve(self, x, state, **context):
        """Half the way to the disc, and the whole way from nearby."""
        whole = self.project(x)
        y = torch.where((self.defect(x) > 0.1)[:, None], (x + whole) / 2, whole)
        return Improvement(y, self.defect(y), self.defect(y) == 0, ())

    def take(self, rows):
        return self


class Life(RuleBasedStateMachine):
    """The corrector and what is expected of it: how many calls the run has had, and whether it is broken."""

    def __init__(self) -> None:
        super().__init__()
        self.disc = Disc()
        self.corrector = self.make()
        self.made, self.broken, self.complete, self.stopped = 0, False, False, False

    def make(self) -> tt.Corrector:
        return tt.Corrector(self.disc, tt.Periodic(BUDGET), T, closing="free")

    def call(self, x: torch.Tensor, t: int | None = None) -> torch.Tensor:
        before = x.clone()
        out = self.corrector(x, t)
        assert torch.equal(x, before)
        if t == 0 or self.complete or self.broken:
            self.made, self.broken, self.stopped = 0, False, False
        self.made += 1
        self.complete = self.made == T
        return out

    @rule(scale=st.floats(0.1, 5), with_t=st.booleans())
    def step(self, scale, with_t):
        """Make the next call of the run, or the first of a new one; a broken run raises an error."""
        x = torch.full((N, 2), scale)
        t = (0 if self.complete else self.made) if with_t else None
        if self.broken and t != 0:
            with pytest.raises(RuntimeError, match="failed half-way"):
                self.corrector(x, t)
            return
        out = self.call(x, t)
        assert out.shape == x.shape
        if self.complete:
            assert float(out.norm(dim=1).max()) <= 1 + 1e-6

    @rule(wrong=st.integers(-3, T + 3))
    def step_out_of_turn(self, wrong):
        """A call with another step number raises an error and changes nothing."""
        expected = 0 if self.complete else self.made
        if wrong in (0, expected) or self.broken:
            return
        with pytest.raises((RuntimeError, ValueError)):
            self.corrector(torch.zeros(N, 2), wrong)

    @rule(kind=st.sampled_from(["shape", "dtype", "nan", "text"]))
    def bad_state(self, kind):
        """An invalid state raises an error, and the step can be made again."""
        if self.broken or self.complete or self.made == 0:
            return
        bad = {
            "shape": torch.zeros(N + 1, 2),
            "dtype": torch.zeros(N, 2, dtype=torch.float64),
            "nan": torch.full((N, 2), torch.nan),
            "text": "x",
        }[kind]
        with pytest.raises((ValueError, TypeError, RuntimeError)):
            self.corrector(bad)
        assert self.corrector.t == self.made

    @precondition(lambda self: not self.broken)
    @rule()
    def failing_projection(self):
        """A projection that raises breaks the run, and the run alone."""
        self.disc.raises = True
        try:
            self.call(torch.full((N, 2), 3.0), 0 if self.complete else self.made)
        except ArithmeticError:
            if self.complete:  # it was the first step of a new run
                self.made, self.stopped = 0, False
            self.broken, self.complete = True, False
        finally:
            self.disc.raises = False

    @rule(scale=st.floats(0.1, 5))
    def stop(self, scale):
        """A run that has started can be ended early, and then has a record."""
        x = torch.full((N, 2), scale)
        if self.made == 0 or self.complete or self.broken:
            with pytest.raises(RuntimeError, match="no run to stop"):
                self.corrector.stop(x)
            return
        corrected = bool(self.corrector.projected.all())  # by the last call: then there is nothing to close
        out = self.corrector.stop(x)
        assert float(out.norm(dim=1).max()) <= 1 + 1e-6 or (corrected and torch.equal(out, x))
        self.complete = self.stopped = True

    @rule()
    def reset(self):
        """Reset drops an unfinished run."""
        self.corrector.reset()
        self.made, self.broken, self.complete, self.stopped = 0, False, False, False

    @rule()
    def begin(self):
        """A run may be started with its initial states, but not in the middle of another."""
        if self.made > 0 and not (self.broken or self.complete):
            with pytest.raises(RuntimeError, match=r"call reset\(\) first"):
                self.corrector.begin(torch.zeros(N, 2))
            return
        self.corrector.begin(torch.zeros(N, 2))
        self.made, self.broken, self.complete, self.stopped = 0, False, False, False

    @rule(how=st.sampled_from([copy.copy, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))]))
    def continue_with_a_copy(self, how):
        """A copy is at the same step, and making it changes nothing."""
        twin = how(self.corrector)
        assert twin.n_steps == T
        assert twin.t == self.corrector.t
        assert self.corrector.t == (0 if self.complete else self.made)

    @precondition(lambda self: 0 < self.made < T and not self.broken and not self.complete)
    @rule()
    def call_from_another_thread(self):
        """A run belongs to the thread that started it."""
        caught = []

        def call() -> None:
            for intrude in (self.corrector, self.corrector.begin, self.corrector.stop):
                try:
                    intrude(torch.zeros(N, 2))
                except RuntimeError as error:
                    caught.append(str(error))

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        assert len(caught) == 3
        assert all("thread" in error for error in caught)

    @invariant()
    def counts(self):
        """The step is right, and only complete runs have a record."""
        if not self.broken:
            assert self.corrector.t == (0 if self.complete else self.made)
        if self.complete:
            self.check_record(self.corrector.rollout)
        else:
            with pytest.raises(RuntimeError, match="called"):
                _ = self.corrector.rollout

    def check_record(self, record):
        """Check the number of steps and the budget."""
        assert record.n_steps == self.made
        assert record.planned_steps == (T if self.stopped else None)
        if not self.stopped:
            assert record.spent.tolist() == [BUDGET] * N


class LifeOfWays(Life):
    """The same, corrected by single iterations of the solver."""

    def make(self) -> tt.Corrector:
        schedule = tt.schedules.By("1 iteration", tt.Periodic(BUDGET))
        return tt.Corrector(self.disc, schedule, T, closing="free", unit="iteration")

    def check_record(self, record):
        """Check that every correction is an iteration, and is paid for."""
        assert record.n_steps == self.made
        assert record.planned_steps == (T if self.stopped else None)
        assert record.unit == "iteration"
        assert torch.equal(record.spent, record.iterations.sum(dim=0))
        assert bool((record.iterations.bool() <= record.projected).all())


Life.TestCase.settings = settings(max_examples=25 * TIMES, stateful_step_count=20)
TestLife = Life.TestCase
LifeOfWays.TestCase.settings = Life.TestCase.settings
TestLifeOfWays = LifeOfWays.TestCase
