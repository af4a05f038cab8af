"""summary.json: the rows of a run condensed, in a stable format for other programs; and the paper's own numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab._version import __version__
from trimtab.core import statistics
from trimtab.core.metrics import check_paired
from trimtab_lab.domains import base_of
from trimtab_lab.metrics import MeanError, improvement, summary, win_rate
from trimtab_lab.studies.config import budget_name
from trimtab_lab.studies.rows import FIDELITY, SWEEP, Rows, read_rows
from trimtab_lab.studies.store import RunFiles, read_run, study_of
from trimtab_lab.studies.tasks import equivalent_schedule
from trimtab_lab.studies.traces import read_about
from trimtab_lab.studies.work import QUALITY

__all__ = ["relative_improvement", "reported", "reported_beside", "summarise", "summary_schema", "write_summary"]

VERSION = 4
Q = 0.2
METRICS = ("nepe", "endpoint", "path_error", "achieved_budget")
ITERATIONS = "iterations"
"""Solver iterations of a sample, closing included; a metric where the solver reports any."""
COMPARED = ("nepe", "endpoint")
BASELINE = "periodic"


def write_summary(files: RunFiles) -> dict[str, Any]:
    """Condense the rows of a run directory into its summary.json, and return its contents."""
    result = summarise(files)
    files.put("summary.json", json.dumps(result, indent=1, allow_nan=False) + "\n")
    return result


def summarise(files: RunFiles) -> dict[str, Any]:
    """Return the contents of summary.json, made from the rows."""
    directory = files.directory
    run, study = read_run(directory), study_of(directory)
    facts = read_about(files, study.domains)
    result: dict[str, Any] = {
        "version": VERSION,
        "trimtab": __version__,
        "config": run["config"] | {"code": run["code"]},
        "domains": {
            name: {"label": facts[name]["label"]} | domain_summary(read_rows(directory, name), study.table_budget)
            for name in study.domains
        },
    }
    if study.kappas and study.kappa_domains:
        result["kappa"] = sweep_summary(read_rows(directory, SWEEP))
    return result


def domain_summary(rows: Rows, table_budget: float | None = None) -> dict[str, Any]:
    """Return one domain's part of the summary.

    At the table's budget improvements have 95% intervals, and "tails" says how much a few samples decide each mean.
    """
    run = _once(rows)
    metrics = (*METRICS, ITERATIONS) if (run[ITERATIONS] > run["projections"]).any() else METRICS
    schedules = _by_budget(rows, lambda some: {name: _json(summary(some.tensor(name))) for name in metrics})
    compared = [key for key in schedules if key not in ("terminal", "stepwise", BASELINE)]
    judged = {}
    if names := rows.qualities:
        judged["quality"] = _by_budget(
            rows, lambda some: {name: _json(summary(some.tensor(f"{QUALITY}{name}"))) for name in names}
        )
    apart = _by_budget(rows, _distribution)
    tails = {} if table_budget is None else {"tails": _tails(rows, ["periodic", *compared], table_budget)}
    return (
        {
            "n_steps": int(rows["n_steps"][0]),
            "schedules": schedules,
            "win_rate": {key: _wins(rows, key) for key in compared},
            "improvement": {key: _improvements(rows, key, table_budget) for key in compared},
            "concentration": {"q": Q} | _json(summary(rows.where(schedule="terminal").tensor("concentration"))),
            "degenerate": int(run["degenerate"].sum()),
            "failures": int(run["failures"].sum()),
        }
        | judged
        | tails
        | ({"distribution": apart} if apart else {})
    )


def _once(rows: Rows) -> Rows:
    """Return the rows of rollouts that were run, without the copies of terminal and stepwise rows."""
    pairs = zip(rows["schedule"].tolist(), rows["budget"].tolist(), strict=True)
    run = np.array([equivalent_schedule(key, budget) == key for key, budget in pairs])
    return Rows({name: column[run] for name, column in rows.columns.items()})


def sweep_summary(rows: Rows) -> dict[str, Any]:
    """Return the kappa sweep's part of the summary, at the table's budget."""
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


def _by_budget(rows: Rows, numbers: Callable[[Rows], dict[str, Any] | None]) -> dict[str, Any]:
    """Return the numbers of each schedule's rows at each budget, where there are any."""
    result: dict[str, Any] = {}
    for key in rows.values("schedule"):
        mine = rows.where(schedule=key)
        for budget in mine.values("budget"):
            if (found := numbers(mine.where(budget=budget))) is not None:
                result.setdefault(key, {})[budget_name(budget)] = found
    return result


def _distribution(some: Rows) -> dict[str, Any] | None:
    """Return the distance of final samples to full projection on other seeds; None if it is not known."""
    value, floor, p, shift = (float(some[name][0]) for name in FIDELITY)
    if math.isnan(value):
        return None
    return {"value": value, "floor": floor, "p": p, "shift": None if math.isnan(shift) else shift, "n": len(some)}


def _wins(rows: Rows, key: str) -> dict[str, Any]:
    """Return how often a schedule beats the baseline over all pairs of budget and seed, with errors over seeds."""
    method, baseline = paired(rows, key)
    gains = improvement(method.tensor("nepe"), baseline.tensor("nepe"))
    gains = gains[~gains.isnan()]
    return {
        "endpoint": _json(_won(method, baseline, "endpoint")),
        "pathwise": _json(_won(method, baseline, "nepe")),
        "median_improvement": float(np.median(gains.numpy())) if len(gains) else None,
    }


def _won(method: Rows, baseline: Rows, metric: str) -> MeanError:
    """Return the share of pairs won; its standard error is over seeds, as the budgets of a seed share its noise."""
    ours, theirs = method.tensor(metric), baseline.tensor(metric)
    rate = win_rate(ours, theirs)
    seed = torch.from_numpy(np.unique(method["seed"], return_inverse=True)[1])
    tried = seed.bincount((~(ours.isnan() | theirs.isnan())).double())
    won = seed.bincount((ours < theirs).double())
    return MeanError(rate.mean, relative_improvement(won[tried > 0], tried[tried > 0]).se, rate.n)


def _improvements(rows: Rows, key: str, table_budget: float | None) -> dict[str, Any]:
    """Return how much lower a schedule's mean is than the baseline's, at each budget."""
    method, baseline = paired(rows, key)
    result: dict[str, Any] = {}
    for budget in method.values("budget"):
        ours, theirs = method.where(budget=budget), baseline.where(budget=budget)
        found = result.setdefault(budget_name(budget), {})
        for metric in COMPARED:
            found[metric] = _json(relative_improvement(ours.tensor(metric), theirs.tensor(metric)))
            if budget == table_budget and 0 < budget < 1:
                share = statistics.ratio(ours.tensor(metric), theirs.tensor(metric)).facts()
                ends = (share["high"], share["low"])  # an improvement is 1 - the share
                found[metric] |= dict(zip(("low", "high"), (e if e is None else 1 - e for e in ends), strict=True))
    return result


def _tails(rows: Rows, keys: list[str], budget: float) -> dict[str, Any]:
    """Return mean, median, share of the largest 1% and effective number of samples, by schedule and metric."""
    result: dict[str, Any] = {}
    for key in keys:
        for metric in COMPARED:
            values = rows.where(schedule=key, budget=budget).tensor(metric)
            numbers = {"mean": float(values.nanmean()), "median": float(values.nanmedian())}
            numbers |= {"top": statistics.tail_share(values), "effective_n": statistics.effective_n(values)}
            cleaned = {name: None if math.isnan(value) else value for name, value in numbers.items()}
            result.setdefault(key, {})[metric] = cleaned
    return result


def paired(rows: Rows, key: str) -> tuple[Rows, Rows]:
    """Return the rows of a schedule and of the baseline, paired by budget and seed."""
    method, baseline = rows.where(schedule=key), rows.where(schedule=BASELINE)
    for column in ("budget", "seed"):
        if not np.array_equal(method[column], baseline[column]):
            raise ValueError(f"the rows of {key} and {BASELINE} are not pairs: their {column}s differ")
    return method, baseline


def relative_improvement(method: Tensor, baseline: Tensor) -> MeanError:
    """Return 1 - mean(method) / mean(baseline), with the standard error of a ratio of paired means.

    The mean of the ratios of pairs would be dominated by pairs with a tiny baseline.

    Args:
        method: (n,).
        baseline: (n,), paired with `method`; pairs with NaN are left out.

    Example:
        >>> import torch
        >>> relative_improvement(torch.tensor([1.0, 1.0]), torch.tensor([2.0, 2.0]))
        MeanError(mean=0.5, se=0.0, n=2)
    """
    check_paired(method=method, baseline=baseline)
    valid = ~(method.isnan() | baseline.isnan())
    method, baseline = method[valid].double(), baseline[valid].double()
    n = len(method)
    whole = float(baseline.mean()) if n else 0.0
    if whole == 0.0:
        return MeanError(math.nan, math.nan, n)
    ratio = float(method.mean()) / whole
    se = float((method - ratio * baseline).std()) / (abs(whole) * math.sqrt(n)) if n > 1 else math.nan
    return MeanError(1 - ratio, se, n)


def summary_schema() -> dict[str, Any]:
    """Return the JSON schema of summary.json."""
    return _packaged("summary.schema.json")


def _json(value: MeanError) -> dict[str, Any]:
    """Return a summary as JSON, with null for NaN."""
    return {
        "mean": None if math.isnan(value.mean) else value.mean,
        "se": None if math.isnan(value.se) else value.se,
        "n": value.n,
    }


# ------------------------------------------------------------------ the paper


@lru_cache(maxsize=1)
def reported() -> dict[str, Any]:
    """Return the paper's tables by our names of domains; each number is [mean, standard error].

    Example:
        >>> reported()["table1"]["so3"]["nepe"]["adaptive"]
        [0.13, 0.0016]
    """
    return _packaged("reported.json")


def reported_beside(table: str, domain: str, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the paper's numbers for a domain; None if it has none, or if the run is of another problem.

    That is so if the run changed the domain's settings, or if its budgets include the closing projection, which the
    paper's do not.

    Args:
        table: "table1" or "win_rates".
        domain: By our name; the variants of a synthetic domain are compared with the same numbers.
        config: The settings of the run, as in `Study.facts`.

    Example:
        >>> reported_beside("table1", "so3", {"samplers": {"so3": {"settings": {"kappa": 0.0}}}}) is None
        True
        >>> reported_beside("table1", "so3", {"closing": "paid"}) is None
        True
    """
    if config.get("closing") == "paid" or config.get("samplers", {}).get(domain, {}).get("settings"):
        return None
    found: dict[str, Any] | None = reported()[table].get(base_of(domain))
    return found


def _packaged(name: str) -> dict[str, Any]:
    text = resources.files("trimtab_lab.studies").joinpath(name).read_text(encoding="utf-8")
    return dict(json.loads(text))
