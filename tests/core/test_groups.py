"""Rows that are decided on and corrected together."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import trimtab as tt
from cases import Sphere, Walk
from trimtab.core.constraint import Improvement
from trimtab.core.groups import Groups, as_groups
from trimtab.loop.replay import replay
from trimtab.prices import Adaptive, Thresholds

LABELS = torch.tensor([7, 3, 7, 3, 9, 9])
PAIRS = torch.tensor([0, 1, 0, 1])
ELSEWHERE = torch.device("meta")


def prices(n_steps: int = 12, budget: int = 5) -> Thresholds:
    table = torch.full((n_steps, budget + 1), 1.0, dtype=torch.float64)
    table[:, 0] = torch.inf
    return Thresholds(table)


@pytest.mark.parametrize("closing", ["paid", "free", "none"])
@pytest.mark.parametrize("defect", ["sum", "largest"])
def test_a_group_is_corrected_whole_or_not_at_all_and_has_one_budget(closing, defect):
    groups = Groups(LABELS, defect)
    run = tt.rollout(Walk(), Sphere(), Adaptive(prices(), 5), range(6), groups=groups, closing=closing)
    for label in (3, 7, 9):
        rows = (label == LABELS).nonzero().squeeze(1)
        assert torch.equal(run.projected[:, rows[0]], run.projected[:, rows[1]])
    assert (run.spent <= 5).all()
    assert len(run.projected.T.unique(dim=0)) > 1  # groups do decide apart from each other
    assert torch.equal(replay(Adaptive(prices(), 5), run), run.projected)


def test_the_defect_of_a_group_is_what_the_schedule_sees():
    seen = []

    def decide(view):
        seen.append(view.defect)
        return view.defect >= 0

    run = tt.rollout(Walk(), Sphere(), decide, range(6), groups=Groups(LABELS, "largest"))
    together = torch.stack([run.defects[:, [1, 3]], run.defects[:, [0, 2]], run.defects[:, [4, 5]]]).amax(dim=2).T
    torch.testing.assert_close(torch.stack(seen), together[: len(seen)])


def test_a_group_alone_is_the_group_in_a_batch():
    whole = tt.rollout(Walk(), Sphere(), Adaptive(prices(), 5), range(6), groups=LABELS)
    rows = torch.tensor([1, 3])
    alone = tt.rollout(Walk(), Sphere(), Adaptive(prices(), 5), [1, 3], groups=LABELS[rows])
    assert torch.equal(alone.projected, whole.projected[:, rows])
    assert torch.equal(alone.final, whole.final[rows])


def test_groups_survive_the_file_and_are_counted_as_one_when_calibrated(tmp_path):
    problem = tt.Problem(Walk(), Sphere(), range(100, 132), groups=torch.arange(32) // 2)
    run = problem.rollout(tt.Periodic(3))
    run.save(tmp_path / "run.safetensors")
    again = tt.Rollout.load(tmp_path / "run.safetensors")
    assert torch.equal(again.groups.labels, run.groups.labels)
    price = tt.calibrate(problem, method="dp", objective="path")
    assert price.notes["rollouts"] == 16
    fresh = tt.Problem(Walk(), Sphere(), range(8), groups=torch.arange(8) // 2)
    assert (fresh.rollout(price.at(4)).spent == 4).all()


def test_halves_keep_groups_whole_and_rows_that_split_one_are_refused():
    problem = tt.Problem(Walk(), Sphere(), range(6), groups=LABELS)
    one, other = problem.halves()
    assert set(one.groups.labels.tolist()).isdisjoint(other.groups.labels.tolist())
    with pytest.raises(ValueError, match="whole groups"):
        problem.take(torch.tensor([0, 1]))


@pytest.mark.parametrize(
    "labels", [torch.ones(3), torch.ones(2, 2, dtype=torch.int64), torch.ones(0, dtype=torch.int64)]
)
def test_labels_that_are_none_are_refused(labels):
    with pytest.raises(ValueError, match="one whole number per row"):
        as_groups(labels)
    with pytest.raises(ValueError, match="5 group labels were given for a batch of 6"):
        tt.rollout(Walk(), Sphere(), tt.Periodic(2), range(6), groups=torch.zeros(5, dtype=torch.int64))


def test_a_problem_has_one_label_for_each_of_its_seeds():
    with pytest.raises(ValueError, match="2 group labels were given for 8 seeds; give each sample one label"):
        tt.Problem(Walk(), Sphere(), range(8), groups=[0, 0])


def test_what_a_run_was_given_follows_its_states_to_their_device():
    assert tt.Periodic(torch.full((6,), 3)).to(ELSEWHERE).budget.device == ELSEWHERE
    groups = Groups(LABELS, "largest")
    assert (groups.to(ELSEWHERE).labels.device, groups.to(ELSEWHERE).defect) == (ELSEWHERE, "largest")
    assert groups.to(LABELS.device) is groups


class Pairs(tt.Constraint):
    """Two points on a line that are 1 apart, of which the second fails; half a pair is not to be had."""

    improves = True

    def __init__(self, failures: int = 0, worse: bool = False) -> None:
        self.failures, self.worse, self.sizes = failures, worse, []

    def seen(self, x):
        self.sizes.append(len(x))
        return x.reshape(2, -1)  # the first points of all pairs, then the second ones

    def project(self, x):
        first, second = self.seen(x)
        middle, apart = (first + second) / 2, 9.0 if self.worse else 1.0
        y = torch.cat([middle - apart / 2, middle + apart / 2])[:, None]
        self.failures -= 1
        return tt.Projection(y, torch.arange(len(x)) < (len(x) // 2 if self.failures >= 0 else len(x)))

    def defect(self, x):
        first, second = self.seen(x)
        return (second - first - 1).abs().repeat(2) / 2

    def improve(self, x, state, **context):
        y = self.project(x).x
        done = torch.arange(len(x)) >= len(x) // 2  # of each pair the second
        return Improvement((x + y) / 2, self.defect((x + y) / 2), done)


@pytest.mark.parametrize("schedule", [tt.Stepwise(), tt.schedules.Fixed(torch.tensor([[True, False]]))])
@pytest.mark.parametrize(
    "policy", ["keep", "revert", tt.core.bound_constraint.Retry(1), tt.core.bound_constraint.Retry(2)]
)
def test_a_group_whose_projection_fails_for_one_row_is_dealt_with_whole(policy, schedule):
    pairs = Pairs(failures=2)
    corrector = tt.Corrector(pairs, schedule, 1, groups=PAIRS, on_failure=policy, closing="none", measure_defects=True)
    x = torch.tensor([[0.0], [5.0], [3.0], [9.0]])
    y = corrector(x, 0)
    chosen = corrector.projected
    corrected = policy != "revert"
    assert torch.equal(y, torch.where(chosen[:, None] & corrected, torch.tensor([[1.0], [6.5], [2.0], [7.5]]), x))
    assert all(size % 2 == 0 for size in pairs.sizes)
    assert torch.equal(corrector.rollout.failed[0], chosen & (policy != tt.core.bound_constraint.Retry(2)))
    assert torch.equal(corrector.rollout.grouped().failed[0], corrector.rollout.failed[0, :2])


def test_a_group_that_a_failed_projection_makes_worse_keeps_its_proposals():
    x = torch.tensor([[0.0], [5.0], [3.0], [9.0]])
    corrector = tt.Corrector(Pairs(1, worse=True), tt.Stepwise(), 1, groups=PAIRS, measure_defects=True)
    assert torch.equal(corrector(x, 0), x)
    assert corrector.rollout.failed.all()


@pytest.mark.parametrize("stop", [False, True])
def test_a_group_of_which_one_row_is_done_is_closed_whole(stop):
    pairs = Pairs()
    corrector = tt.Corrector(
        pairs, tt.Periodic(1.0), 1 + stop, groups=PAIRS, unit="iteration", closing="free", measure_defects=True
    )
    y = corrector(torch.tensor([[0.0], [5.0], [3.0], [9.0]]), 0)
    if stop:
        y = corrector.stop(y)
    assert y.flatten().tolist() == [1.0, 6.5, 2.0, 7.5]
    assert set(pairs.sizes) == {4}
    assert corrector.rollout.closing.all()


def test_a_group_has_failed_where_any_of_its_rows_has():
    run = tt.rollout(Walk(), Sphere(), tt.Periodic(2), range(4), groups=PAIRS)
    second = torch.tensor([False, False, False, True])
    run = replace(run, failed=run.projected & second, closing_failed=second)
    assert torch.equal(run.grouped().failed, run.projected[:, :2] & torch.tensor([False, True]))
    assert run.grouped().closing_failed.tolist() == [False, True]
