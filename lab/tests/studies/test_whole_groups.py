from __future__ import annotations

import pytest
import torch

from pairs_on_a_lead import make, make_threes
from trimtab.core.metrics import euclidean
from trimtab.loop.rollout import Problem
from trimtab_lab.domains import domain
from trimtab_lab.domains.base import Domain
from trimtab_lab.studies.batches import check_whole_groups, ends_of_groups, seed_ranges, whole_groups
from trimtab_lab.studies.config import Study
from trimtab_lab.studies.tasks import study_tasks


def uneven(seeds):
    """Groups of 1 to 40 samples: one begins at every triangular number of tens."""
    problem = make(seeds)
    begins = torch.tensor([i * (i + 1) // 2 * 10 for i in range(1000)])
    return Problem(problem.sampler, problem.constraint, seeds, groups=torch.searchsorted(begins, seeds, right=True))


THREES = Domain("threes", "three at a time", make_threes, euclidean)
UNEVEN = Domain("uneven", "more and more at a time", uneven, euclidean)


def test_seeds_begin_with_the_next_whole_group():
    assert whole_groups(THREES, 1_000_000, 9) == range(1_000_002, 1_000_011)
    assert whole_groups(THREES, 3_000_000, 9) == range(3_000_000, 3_000_009)
    assert whole_groups(domain("so3"), 1_000_000, 5) == range(1_000_000, 1_000_005)
    assert whole_groups(UNEVEN, 200, 70) == range(210, 280)
    assert ends_of_groups(UNEVEN, 0, 60) == [0, 10, 30, 60]


def test_a_number_that_cuts_a_group_is_refused_and_those_beside_it_named():
    with pytest.raises(ValueError, match=r"16 seeds from 1000002 on cut a group in two.* such as 15 or 18$"):
        whole_groups(THREES, 1_000_000, 16)
    with pytest.raises(ValueError, match=r"such as 3$"):
        whole_groups(THREES, 0, 2)
    with pytest.raises(ValueError, match="as 999999 and 1000000 are of one group"):
        check_whole_groups(THREES, range(1_000_000, 1_000_006))


def test_a_group_of_everything_is_refused():
    everything = Domain("all", "one group", lambda seeds: Problem(*_parts(seeds), groups=seeds * 0), euclidean)
    with pytest.raises(ValueError, match=r"more than 4096 samples; make groups of a few"):
        whole_groups(everything, 1_000_000, 8)


def _parts(seeds):
    problem = make(seeds)
    return problem.sampler, problem.constraint, seeds


@pytest.mark.parametrize(("made", "seeds"), [(THREES, 33), (UNEVEN, 100)])
def test_no_task_of_a_study_cuts_a_group(made, seeds):
    calibration = whole_groups(made, 1_000_000, 9) if made is THREES else range(10, 30)
    said = seed_ranges(made, calibration, seeds, 3_000_000 if made is THREES else 205, block=16)
    study = Study(
        "groups",
        domains=(made.name,),
        seeds=seeds,
        calibration_seeds=len(calibration),
        schedules=("terminal", "stepwise", "periodic", "adaptive:dp"),
        example_seeds=0,
        kappa_domains=(),
        samplers={made.name: {"factory": "a:b", **said}},
    )
    tasks = study_tasks(Study.from_facts(study.facts()))
    assert {task.kind for task in tasks} == {"calibrate", "reference", "rollout"}
    for task in tasks:
        check_whole_groups(made, task.seeds)
        assert task.kind != "calibrate" or task.seeds == calibration
        assert task.kind != "reference" or len(task.seeds) >= seeds
    run = [list(task.seeds) for task in tasks if task.schedule == "terminal"]
    assert sorted(seed for several in run for seed in several) == list(range(seeds))
    assert len(run) > 1


def test_samples_that_stand_alone_leave_the_record_as_it_is():
    assert seed_ranges(domain("so3"), range(4), 16, 3_000_000, 16) == {}
