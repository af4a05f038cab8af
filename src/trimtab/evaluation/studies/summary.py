"""summary.json: the rows of a run condensed, a stable contract for other programs (docs/summary.md)."""

from __future__ import annotations

import json
import math
from importlib import resources
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab._version import __version__
from trimtab.core.checks import check_type
from trimtab.core.metrics import Summary, check_paired, improvement, summary, win_rate
from trimtab.evaluation.studies.config import budget_name
from trimtab.evaluation.studies.domain_info import read_about
from trimtab.evaluation.studies.fidelity import FIDELITY
from trimtab.evaluation.studies.rows import SWEEP, Rows, read_rows
from trimtab.evaluation.studies.run_files import RunFiles
from trimtab.evaluation.studies.store import read_run, study_of
from trimtab.evaluation.studies.tasks import equivalent_schedule
from trimtab.evaluation.studies.work import GROUP, QUALITY

__all__ = ["METRICS", "relative_improvement", "summarise", "summary_schema", "write_summary"]

VERSION = 3
Q = 0.2
METRICS = ("nepe", "endpoint", "path_error", "state_error", "achieved_budget")
COMPARED = ("nepe", "endpoint")
BASELINE = "periodic"


def write_summary(files: RunFiles) -> dict[str, Any]:
    """Condense the rows of a run directory into its summary.json, and return what it says."""
    result = summarise(files)
    files.put("summary.json", json.dumps(result, indent=1, allow_nan=False) + "\n")
    return result


def summarise(files: RunFiles) -> dict[str, Any]:
    """What summary.json holds, from the rows alone."""
    directory = check_type(
        files, RunFiles, "the files of a run", "trimtab.evaluation.studies.store.open_run opens them"
    ).directory
    run, study = read_run(directory), study_of(directory)
    said = read_about(files, study.domains)
    result: dict[str, Any] = {
        "version": VERSION,
        "trimtab": __version__,
        "config": run["config"] | {"code": run["code"]},
        "domains": {
            name: {"label": said[name]["label"]} | domain_summary(read_rows(directory, name)) for name in study.domains
        },
    }
    if study.kappas and study.kappa_domains:
        result["kappa"] = sweep_summary(read_rows(directory, SWEEP))
    return result


def domain_summary(rows: Rows) -> dict[str, Any]:
    """One domain's part of the summary; of samples that were decided on together, over the means of groups."""
    run, rows = _once(rows), rows.units()
    schedules = {
        key: {
            budget_name(budget): {
                metric: _json(summary(rows.where(schedule=key, budget=budget).tensor(metric))) for metric in METRICS
            }
            for budget in rows.where(schedule=key).values("budget")
        }
        for key in rows.values("schedule")
    }
    compared = [key for key in schedules if key not in ("terminal", "stepwise", BASELINE)]
    judged = {"quality": _qualities(rows)} if rows.qualities else {}
    apart = _distributions(rows)
    grouped = {"groups": len(rows.values(GROUP))} if GROUP in rows.columns else {}
    return (
        {
            "n_steps": int(rows["n_steps"][0]),
            **grouped,
            "schedules": schedules,
            "win_rate": {key: _wins(rows, key) for key in compared},
            "improvement": {key: _improvements(rows, key) for key in compared},
            "concentration": {"q": Q} | _json(summary(rows.where(schedule="terminal").tensor("concentration"))),
            "degenerate": int(run["degenerate"].sum()),
            "failures": int(run["failures"].sum()),
        }
        | judged
        | ({"distribution": apart} if apart else {})
    )


def _once(rows: Rows) -> Rows:
    """The rows of rollouts that were run: those of a terminal or stepwise one stand for other schedules' ends too."""
    pairs = zip(rows["schedule"].tolist(), rows["budget"].tolist(), strict=True)
    run = np.array([equivalent_schedule(key, budget) == key for key, budget in pairs])
    return Rows({name: column[run] for name, column in rows.columns.items()})


def sweep_summary(rows: Rows) -> dict[str, Any]:
    """The kappa sweep's part of the summary, at the table's budget."""
    result: dict[str, Any] = {}
    for name in rows.values("domain"):
        of_domain = rows.where(domain=name)
        for kappa in of_domain.values("kappa"):
            whole = domain_summary(of_domain.where(kappa=kappa))
            budget = next(iter(whole["schedules"][BASELINE]))
            result.setdefault(name, {})[f"{kappa:g}"] = {
                "concentration": whole["concentration"],
                "nepe": {key: by[budget]["nepe"] for key, by in whole["schedules"].items() if budget in by},
                "improvement": {key: by[budget] for key, by in whole["improvement"].items()},
                "win_rate": whole["win_rate"],
                "degenerate": whole["degenerate"],
            }
    return result


def _qualities(rows: Rows) -> dict[str, Any]:
    """The domain's own judgement of its final states, by schedule, budget and name."""
    result: dict[str, Any] = {}
    for key in rows.values("schedule"):
        for budget in rows.where(schedule=key).values("budget"):
            some = rows.where(schedule=key, budget=budget)
            result.setdefault(key, {})[budget_name(budget)] = {
                name: _json(summary(some.tensor(f"{QUALITY}{name}"))) for name in rows.qualities
            }
    return result


def _distributions(rows: Rows) -> dict[str, Any]:
    """How far final samples are from those of full projection on other seeds, by schedule and budget."""
    result: dict[str, Any] = {}
    for key in rows.values("schedule"):
        for budget in rows.where(schedule=key).values("budget"):
            some = rows.where(schedule=key, budget=budget)
            value, floor, p, shift = (float(some[name][0]) for name in FIDELITY)
            if not math.isnan(value):
                numbers = {"value": value, "floor": floor, "p": p, "shift": None if math.isnan(shift) else shift}
                result.setdefault(key, {})[budget_name(budget)] = numbers | {"n": len(some)}
    return result


def _wins(rows: Rows, key: str) -> dict[str, Any]:
    """How often a schedule beats the baseline, over all pairs of budget and seed, with standard errors over seeds."""
    method, baseline = paired(rows, key)
    gains = improvement(method.tensor("nepe"), baseline.tensor("nepe"))
    gains = gains[~gains.isnan()]
    return {
        "endpoint": _json(_won(method, baseline, "endpoint")),
        "pathwise": _json(_won(method, baseline, "nepe")),
        "median_improvement": float(np.median(gains.numpy())) if len(gains) else None,
    }


def _won(method: Rows, baseline: Rows, metric: str) -> Summary:
    """The share of pairs won, with the standard error of a mean over seeds: budgets of one seed share its noise."""
    ours, theirs = method.tensor(metric), baseline.tensor(metric)
    rate = win_rate(ours, theirs)
    seed = torch.from_numpy(np.unique(method["seed"], return_inverse=True)[1])
    tried = seed.bincount((~(ours.isnan() | theirs.isnan())).double())
    won = seed.bincount((ours < theirs).double())
    return Summary(rate.mean, relative_improvement(won[tried > 0], tried[tried > 0]).se, rate.n)


def _improvements(rows: Rows, key: str) -> dict[str, Any]:
    """At each budget, how much lower a schedule's mean is than the baseline's."""
    method, baseline = paired(rows, key)
    return {
        budget_name(budget): {
            metric: _json(
                relative_improvement(
                    method.where(budget=budget).tensor(metric), baseline.where(budget=budget).tensor(metric)
                )
            )
            for metric in COMPARED
        }
        for budget in method.values("budget")
    }


def paired(rows: Rows, key: str) -> tuple[Rows, Rows]:
    """The rows of a schedule and of the baseline, pair by pair: the same budget and seed."""
    method, baseline = rows.where(schedule=key), rows.where(schedule=BASELINE)
    for column in ("budget", "seed"):
        if not np.array_equal(method[column], baseline[column]):
            raise ValueError(f"the rows of {key} and {BASELINE} are not pairs: their {column}s differ")
    return method, baseline


def relative_improvement(method: Tensor, baseline: Tensor) -> Summary:
    """How much lower the mean of `method` is than that of `baseline`, as a share of it.

    Tables compare means, so this is 1 - mean(method) / mean(baseline), not the mean of the pairs' own ratios, which a
    single pair with a tiny baseline would rule. The standard error is that of a ratio of paired means, to first order.

    Args:
        method: (n,).
        baseline: (n,), paired with `method`; pairs with NaN are left out.

    Example:
        >>> import torch
        >>> relative_improvement(torch.tensor([1.0, 1.0]), torch.tensor([2.0, 2.0]))
        Summary(mean=0.5, se=0.0, n=2)
    """
    check_paired(method=method, baseline=baseline)
    valid = ~(method.isnan() | baseline.isnan())
    method, baseline = method[valid].double(), baseline[valid].double()
    n = len(method)
    whole = float(baseline.mean()) if n else 0.0
    if whole == 0.0:
        return Summary(math.nan, math.nan, n)
    ratio = float(method.mean()) / whole
    se = float((method - ratio * baseline).std()) / (abs(whole) * math.sqrt(n)) if n > 1 else math.nan
    return Summary(1 - ratio, se, n)


def summary_schema() -> dict[str, Any]:
    """The JSON schema of summary.json."""
    return dict(
        json.loads(
            resources.files("trimtab.evaluation.studies").joinpath("summary.schema.json").read_text(encoding="utf-8")
        )
    )


def _json(value: Summary) -> dict[str, Any]:
    """A summary as JSON, which has no NaN: what is unknown is null."""
    return {
        "mean": None if math.isnan(value.mean) else value.mean,
        "se": None if math.isnan(value.se) else value.se,
        "n": value.n,
    }
