"""Rows that are decided on and corrected together."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import trimtab as tt
from cases import Sphere, Walk
from trimtab.core.groups import Groups, as_groups
from trimtab.core.ledger import Ledger
from trimtab.core.replay import replay
from trimtab.prices import Adaptive, Thresholds

LABELS = torch.tensor([7, 3, 7, 3, 9, 9])
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

    def decide(now):
        seen.append(now.defect)
        return now.defect >= 0

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


def test_what_a_run_was_given_follows_its_states_to_their_device():
    form = SimpleNamespace(n=6, device=ELSEWHERE, dtype=torch.float32)
    ledger = Ledger(form, tt.Periodic(torch.full((6,), 3)), 12, "none", torch.arange(6))
    assert ledger.seeds.device == ledger.schedule.budget.device == ELSEWHERE
    groups = Groups(LABELS, "largest")
    assert (groups.to(ELSEWHERE).labels.device, groups.to(ELSEWHERE).defect) == (ELSEWHERE, "largest")
    assert groups.to(LABELS.device) is groups
