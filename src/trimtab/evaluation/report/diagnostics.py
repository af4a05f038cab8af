"""Tables about a run rather than about its schedules: concentration, budgets spent, values left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trimtab.evaluation.report.formats import (
    Cell,
    Table,
    budget_symbol,
    closing_is_paid,
    compared_keys,
    domain_label,
    in_iterations,
    of_groups,
)
from trimtab.evaluation.studies.config import budget_name
from trimtab.evaluation.studies.schedules import STUDY_SCHEDULES
from trimtab.schedules.style import label_of

__all__ = ["budget_usage", "concentration", "degenerate"]

Summary = Mapping[str, Any]


def concentration(summary: Summary) -> Table:
    """C_q of each domain beside the improvement it should explain."""
    budget = budget_name(summary["config"]["table_budget"])
    keys = compared_keys(summary)
    rows: list[list[str | int | Cell]] = []
    for domain, content in summary["domains"].items():
        c = content["concentration"]
        gains = [_gain(content["improvement"], key, budget) for key in keys]
        rows.append([domain_label(summary, domain), Cell(c["mean"], c["se"]), *gains])
    q = next(iter(summary["domains"].values()))["concentration"]["q"]
    return Table(
        "concentration",
        f"Defect concentration C_{q}",
        ["Domain", f"C_{q}", *(f"Δ NEPE of {label_of(key)} at {budget}" for key in keys)],
        rows,
        [
            f"C_{q} is the share of an uncorrected rollout's defect held by its largest {q:.0%} of steps; were all "
            f"defects alike it would be {q}."
        ],
    )


def budget_usage(summary: Summary) -> Table:
    """What each schedule was given and what it spent."""
    rows: list[list[str | int | Cell]] = []
    off, symbol = 0.0, budget_symbol(summary)
    for domain, content in summary["domains"].items():
        for key, by_budget in content["schedules"].items():
            for budget, metrics in by_budget.items():
                spent = metrics["achieved_budget"]
                off = max(off, abs(spent["mean"] - float(budget)))
                rows.append(
                    [domain_label(summary, domain), label_of(key), budget, Cell(spent["mean"], spent["se"]), spent["n"]]
                )
    return Table(
        "budget-usage",
        "Budget asked for and spent",
        ["Domain", "Schedule", symbol, f"spent, {symbol}" if in_iterations(summary) else f"spent {symbol}", "N"],
        rows,
        [
            f"Every task checks that no rollout spent more than its budget of iterations. Most spend less, as a solver "
            f"that is done takes no more; on average up to {off:.4f} of full projection's. The closing projection is "
            "apart."
        ]
        if in_iterations(summary)
        else [
            "Every task checks that each of its rollouts spent its budget exactly, rounded to whole corrections"
            f"{_may_spend_less(summary)}; the largest difference from the fraction asked for is {off:.4f}. The closing "
            f"projection is {'one of them' if closing_is_paid(summary) else 'apart'}."
        ],
    )


def _may_spend_less(summary: Summary) -> str:
    """Which schedules are only held to spend no more than their budget, in words."""
    keys = dict.fromkeys(key for content in summary["domains"].values() for key in content["schedules"])
    names = [label_of(key) for key in keys if key in STUDY_SCHEDULES and not STUDY_SCHEDULES[key].exact]
    if not names:
        return ""
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f", but for {listed}, which may spend less and are checked to spend no more"


def degenerate(summary: Summary) -> Table:
    """How many values were left out, and how many projections failed."""
    rows: list[list[str | int | Cell]] = [
        [
            domain_label(summary, domain),
            int(content["degenerate"]),
            _left_out(content["schedules"]["terminal"]["0.00"]),
            int(content["failures"]),
        ]
        for domain, content in summary["domains"].items()
    ]
    return Table(
        "degenerate",
        "Degenerate values and failed projections",
        ["Domain", "rollouts left out", "seeds left out", "failed projections"],
        rows,
        [
            "A seed is degenerate where terminal and stepwise path errors differ by less than 1e-9; its NEPE is "
            "left out.",
            *of_groups(summary),
        ],
    )


def _left_out(terminal: Mapping[str, Any]) -> int:
    """Seeds, or groups, without a NEPE."""
    return int(terminal["achieved_budget"]["n"]) - int(terminal["nepe"]["n"])


def _gain(improvement: Mapping[str, Any], key: str, budget: str) -> Cell:
    """In NEPE; unknown where a domain was not run with the schedule."""
    if key not in improvement:
        return Cell(None)
    value = improvement[key][budget]["nepe"]
    return Cell(value["mean"], value["se"], "percent")
