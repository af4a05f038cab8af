"""Final samples at the budget of the tables: how near those of full projection, one by one and as a distribution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trimtab.evaluation.report.formats import Cell, Table, budget_symbol, domain_label
from trimtab.evaluation.studies.config import budget_name
from trimtab.schedules.style import label_of

__all__ = ["final_samples"]

_LEVEL = 0.05


def final_samples(summary: Mapping[str, Any]) -> list[Table]:
    """One table for all domains; none if the summary has no distributions."""
    rows: list[list[str | int | Cell]] = []
    notes = []
    for name, content in summary["domains"].items():
        if "distribution" not in content:
            continue
        label, apart, seen = domain_label(summary, name), [], None
        for key, budget in at_table_budget(summary, name).items():
            told = content["distribution"].get(key, {}).get(budget)
            if told is None:
                continue
            end = content["schedules"][key][budget]["endpoint"]
            numbers = [Cell(end["mean"], end["se"]), Cell(told["value"]), Cell(told["floor"]), Cell(told["p"])]
            rows.append([label, label_of(key), budget, *numbers, "yes" if told["p"] <= _LEVEL else "no"])
            apart += [label_of(key)] if told["p"] <= _LEVEL else []
            seen = told
        if seen is not None:
            notes.append(f"{label}: {_words(apart)}; {_power(seen)}.")
    if not rows:
        return []
    columns = ["Domain", "Schedule", budget_symbol(summary), "distance to stepwise", "energy distance"]
    columns += ["noise, 95%", "p", "told apart"]
    opening = [
        "Distance to stepwise is that of final states with the same noise, mean ± standard error. Energy distance is "
        "that of all final samples of a schedule to those of full projection on other seeds; noise is what it would be "
        f"below in 95% of cases if nothing differed. Told apart: p at most {_LEVEL:g}, which chance alone gives one "
        "comparison in twenty."
    ]
    return [Table("final-samples", "Final samples against those of full projection", columns, rows, [*opening, *notes])]


def _words(apart: list[str]) -> str:
    if not apart:
        return "no schedule's final samples can be told from those of full projection"
    return f"the final samples of {', '.join(apart)} can be told from those of full projection"


def _power(told: Mapping[str, Any]) -> str:
    if told["shift"] is None:
        return f"{told['n']} samples are too few to see any shift"
    return f"with {told['n']} samples a shift of {told['shift']:.2g} of their spread would have been seen"


def at_table_budget(summary: Mapping[str, Any], name: str) -> dict[str, str]:
    """The schedules of a domain, with the budget of the tables or, where they have only one, their own."""
    wanted = budget_name(summary["config"]["table_budget"])
    return {
        key: wanted if wanted in by_budget else next(iter(by_budget))
        for key, by_budget in summary["domains"][name]["schedules"].items()
    }
