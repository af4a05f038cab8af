"""Schedules that look after every few updates: nothing is measured in between, and nothing else is seen."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import trimtab as tt
from cases import Sphere, Walk
from trimtab.core.groups import Groups
from trimtab.loop.replay import replay
from trimtab.core.schedule import Watched, watched
from trimtab.core.stream import Stream
from trimtab.core.view import SparseView, StepView, is_measured_step

T, SEEDS = 12, range(6)
every_closing = pytest.mark.parametrize("closing", ["paid", "free", "none"])


@dataclass(frozen=True, eq=False)
class Seldom(tt.Schedule):
    """Corrects where the defect is large, and every sample blindly at given steps."""

    every: int = 3
    blindly: tuple[int, ...] = ()
    budget: int = 5

    @property
    def measure_every(self) -> int:
        return self.every

    def decide(self, view: StepView) -> Tensor:
        if is_measured_step(view.t, self.every):
            return view.defect > 0.2
        return torch.full((len(view),), view.t in self.blindly)


@dataclass(frozen=True, eq=False)
class Counting(tt.Constraint):
    """The sphere, with the number of rows of each call."""

    looks: list[int] = field(default_factory=list)

    def project(self, x: Tensor) -> Tensor:
        return Sphere().project(x)

    def defect(self, x: Tensor) -> Tensor:
        self.looks.append(len(x))
        return Sphere().defect(x)

    def take(self, rows: Tensor) -> Counting:
        return self


def run(schedule, constraint=None, **options) -> tt.Rollout:
    return tt.rollout(Walk(T), constraint or Sphere(), schedule, SEEDS, **options)


# ------------------------------------------------------------------ the loop


@settings(max_examples=40, deadline=None)
@given(
    st.integers(2, T + 2),
    st.sets(st.integers(0, T - 1), max_size=4),
    st.integers(1, T),
    st.sampled_from(["paid", "free", "none"]),
)
def test_no_defect_is_measured_where_the_schedule_does_not_look(every, blindly, budget, closing):
    constraint, schedule = Counting(), Seldom(every, tuple(blindly), budget)
    record = run(schedule, constraint, closing=closing)
    looked = torch.tensor([is_measured_step(t, every) for t in range(T)])
    assert constraint.looks == [len(SEEDS)] * int(looked.sum())
    assert record.calls["defect"] == len(constraint.looks)
    assert record.rows["defect"] == sum(constraint.looks)
    assert torch.equal(record.defects.isnan(), ~looked[:, None].expand(T, len(SEEDS)))
    assert bool((record.spent <= budget).all())
    assert torch.equal(replay(schedule, record), record.projected)


@every_closing
def test_what_is_measured_for_the_record_changes_no_decision(closing):
    schedule = Seldom(blindly=(3, 4))
    alone, measured = (run(schedule, closing=closing, measure_defects=more) for more in (None, True))
    assert torch.equal(alone.projected, measured.projected)
    assert torch.equal(alone.final, measured.final)
    assert not bool(measured.defects.isnan().any())
    assert torch.equal(replay(schedule, measured), measured.projected)


def test_a_watched_schedule_has_all_its_steps_measured():
    record = run(watched(Seldom()))
    assert torch.equal(record.projected, run(Seldom()).projected)
    assert not bool(record.defects.isnan().any())
    at_every_step = Seldom(1)
    assert watched(at_every_step) is at_every_step
    assert isinstance(watched(tt.Periodic(3)), Watched)


def test_a_schedule_that_does_not_look_makes_no_looks():
    constraint = Counting()
    assert run(tt.Periodic(3), constraint).calls["defect"] == len(constraint.looks) == 0
    assert run(Seldom(5)).calls["defect"] == 2


@pytest.mark.parametrize("how", ["sum", "largest"])
def test_groups_are_seen_together_where_the_schedule_looks(how):
    groups = Groups(torch.tensor([0, 0, 1, 1, 2, 2]), how)
    record = run(Seldom(), groups=groups)
    assert torch.equal(record.projected[:, ::2], record.projected[:, 1::2])
    assert torch.equal(replay(Seldom(), record), record.projected)
    assert torch.equal(run(Seldom(), groups=groups, measure_defects=True).projected, record.projected)


def test_a_bad_defect_is_refused_at_the_first_measured_step():
    bad = tt.as_constraint(Sphere().project, lambda x: torch.full((len(x),), torch.nan))
    with pytest.raises(ValueError, match="at step 2 of 12"):
        run(Seldom(), bad)


def test_a_defect_that_changes_states_is_found_at_the_first_look():
    def defect(x: Tensor) -> Tensor:
        x += 1
        return x.norm(dim=1)

    with pytest.raises(ValueError, match="defect changed the states"):
        run(Seldom(), tt.as_constraint(Sphere().project, defect))


def test_a_record_of_few_looks_is_kept_in_a_file(tmp_path):
    record = run(Seldom())
    record.save(tmp_path / "run.safetensors")
    assert torch.equal(replay(Seldom(), tt.Rollout.load(tmp_path / "run.safetensors")), record.projected)


@pytest.mark.parametrize("every", [0, -1, 1.5, True])
def test_what_is_no_number_of_updates_is_refused(every):
    with pytest.raises((ValueError, TypeError), match="measure_every must be a whole number"):
        tt.Corrector(Sphere(), Seldom(every), T)


def test_it_cannot_be_told_to_look_at_nothing():
    with pytest.raises(ValueError, match="Seldom decides by defects"):
        tt.Corrector(Sphere(), Seldom(), T, measure_defects=False)


def test_a_stream_has_no_steps_between_looks():
    with pytest.raises(ValueError, match="each step of a stream is a run"):
        Stream(Sphere(), Seldom(), rate=0.5)


# ------------------------------------------------------------------ what is seen


@given(st.integers(1, 6), st.integers(0, T - 1))
def test_a_moment_shows_looks_alone(every, t):
    defects = torch.rand(T, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    now = StepView.of_record(t, defects, torch.zeros(T, 2, dtype=torch.bool), 3)
    seen = SparseView(now, every)
    looks = [u for u in range(t + 1) if is_measured_step(u, every)]
    assert seen.defects.isnan().logical_not().all(dim=1).nonzero().squeeze(1).tolist() == looks
    assert seen.steps_measured == every * len(looks)
    by_hand = sum((every * defects[u] for u in looks), torch.zeros(2, dtype=torch.float64))

    def itself(u, defect, last):
        return defect

    torch.testing.assert_close(torch.as_tensor(seen.running_sum(itself)), by_hand)
    some = seen.take(slice(1, 2))
    assert torch.equal(some.defects.isnan(), seen.defects[:, 1:].isnan())
    torch.testing.assert_close(torch.as_tensor(some.running_sum(itself)), by_hand[1:])
    assert torch.equal(torch.as_tensor(now.running_sum(itself)), defects[: t + 1].cumsum(dim=0)[-1])
