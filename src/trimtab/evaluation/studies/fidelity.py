"""Final samples as distributions: those of a schedule at a budget against full projection on other seeds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from trimtab.core.distributions import compare_samples, minimum_detectable_shift
from trimtab.evaluation.studies.store import Store
from trimtab.evaluation.studies.tasks import Task, study_tasks
from trimtab.evaluation.studies.work import GROUP, finals_in

__all__ = ["FIDELITY", "fidelities"]

FIDELITY = ("distribution", "distribution_floor", "distribution_p", "distribution_shift")
"""Columns of the rows, the same in all rows of a schedule at a budget: the energy distance to full projection on other
seeds, its 95% quantile where nothing differs, the p-value by relabelling, and the smallest shift that would have been
seen. Missing in the kappa sweep, where a final state is not finite, and of samples that are decided on together, which
are not independent of each other."""


def fidelities(store: Store) -> dict[tuple[str, str, float], dict[str, float | None]]:
    """By domain, schedule and budget, what the columns of `FIDELITY` hold."""
    found: dict[tuple[str, str, float], dict[str, float | None]] = {}
    tasks = [task for task in study_tasks(store.study) if task.kappa is None]
    references = {task.domain: finals_in(store.shared(task), False) for task in tasks if task.kind == "reference"}
    for domain, reference in references.items():
        mine = [task for task in tasks if task.domain == domain and task.kind == "rollout"]
        if len(reference) < 2 or not bool(reference.isfinite().all()):  # one sample is no distribution
            continue
        if any(GROUP in row for row in store.rows(mine[0])):
            continue
        shift = minimum_detectable_shift(reference, len(reference))
        for (schedule, budget), samples in _final_states(store, mine):
            if not bool(samples.isfinite().all()):
                continue
            fidelity = compare_samples(samples, reference, shift=shift)
            numbers = (fidelity.value, fidelity.floor_high, fidelity.p, fidelity.shift)
            found[domain, schedule, budget] = {
                name: value if math.isfinite(value) else None for name, value in zip(FIDELITY, numbers, strict=True)
            }
    return found


def _final_states(store: Store, tasks: list[Task]) -> Iterator[tuple[tuple[str, float], Tensor]]:
    """The final states of each schedule and budget, all seeds."""
    parts: dict[Any, list[Tensor]] = {}
    for task in sorted(tasks, key=lambda task: task.first):
        rows = finals_in(store.shared(task), task.schedule == "stepwise")
        for budget, some in zip(task.budgets, torch.tensor_split(rows, len(task.budgets)), strict=True):
            parts.setdefault((task.schedule, budget), []).append(some)
    for key, blocks in parts.items():
        yield key, torch.cat(blocks)
