"""Table 2, the trajectory sampler at a fixed budget; final states judged by their own domain; what rollouts cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trimtab.evaluation.domains import SYNTHETIC, base_of
from trimtab.evaluation.report.final_samples import at_table_budget
from trimtab.evaluation.report.formats import Cell, Table, budget_symbol, closing_is_paid, domain_label
from trimtab.evaluation.studies.config import budget_name
from trimtab.evaluation.studies.paper_values import reported
from trimtab.evaluation.studies.rows import read_timing
from trimtab.schedules.style import label_of

__all__ = ["cost", "projected_diffusion", "quality"]

Summary = Mapping[str, Any]

_OTHER_PROBLEM = (
    "The paper states neither checkpoint nor map, starts or goals, so its numbers are of another problem: what can be "
    "compared is which schedule is ahead, and by how much."
)
_PARTS = ("update", "defect", "projection", "scheduling")


def projected_diffusion(summary: Summary) -> list[Table]:
    """Table 2: each schedule between terminal correction and original PDM, which is stepwise."""
    if "pdm" not in summary["domains"]:
        return []
    content = summary["domains"]["pdm"]
    rows: list[list[str | int | Cell]] = []
    paper = {} if closing_is_paid(summary) else reported()["table2"]["schedules"]
    for key, at in at_table_budget(summary, "pdm").items():
        value = content["schedules"][key][at]["nepe"]
        gain = content["improvement"].get(key, {}).get(at, {}).get("nepe", {"mean": None, "se": None})
        rows.append([label_of(key), "here", at, *_four(value, [gain["mean"], gain["se"]])])
        if key in paper and at in ("0.00", "1.00", reported()["table_budget"]):
            nepe, better = paper[key]["nepe"], paper[key]["improvement"]
            rows.append([label_of(key), "paper", at, *_four({"mean": nepe[0], "se": nepe[1]}, better)])
    return [
        Table(
            "table2",
            f"Projected diffusion: what is kept of stepwise correction at B/T = {_table_budget(summary)}",
            ["Schedule", "Source", "cost B/T", "NEPE", "benefit recovered", "improvement over periodic"],
            rows,
            [
                "Stepwise correction is PDM as published: NEPE 0, all of the benefit, all of the cost. Terminal "
                "correction is NEPE 1. Benefit recovered is 1 - NEPE; ± is the standard error over seeds.",
                *([_OTHER_PROBLEM] if paper else []),
            ],
        )
    ]


def _four(nepe: Mapping[str, Any], gain: Sequence[float | None]) -> list[Cell]:
    recovered = None if nepe["mean"] is None else 1 - nepe["mean"]
    return [Cell(nepe["mean"], nepe["se"]), Cell(recovered, nepe["se"]), Cell(gain[0], gain[1], "percent")]


def quality(summary: Summary) -> list[Table]:
    """How good the final states are in their own right, beside how near they are to those of stepwise correction."""
    tables = []
    for name, content in summary["domains"].items():
        if "quality" not in content:
            continue
        judged = list(next(iter(next(iter(content["quality"].values())).values())))
        rows: list[list[str | int | Cell]] = []
        for key, at in at_table_budget(summary, name).items():
            numbers = [content["quality"][key][at][what] for what in judged]
            numbers += [content["schedules"][key][at][metric] for metric in ("endpoint", "nepe")]
            rows.append([label_of(key), at, *(Cell(value["mean"], value["se"]) for value in numbers)])
        columns = [
            "Schedule",
            budget_symbol(summary),
            *(what.replace("_", " ") for what in judged),
            "distance to stepwise",
            "NEPE",
        ]
        tables.append(
            Table(
                f"quality-{name}",
                f"{domain_label(summary, name)}: final states in their own right",
                columns,
                rows,
                [
                    "Mean ± standard error over seeds, after the closing projection. NEPE says how near a rollout's "
                    "violations are to those of stepwise correction, not whether what comes out is good."
                ],
            )
        )
    return tables


def cost(directory: Path, summary: Summary) -> list[Table]:
    """Projections and seconds by part of the learned samplers, from the timing of a run; none if there is none."""
    learned = [name for name in summary["domains"] if base_of(name) not in SYNTHETIC]
    timing = read_timing(directory) if learned else []
    rows: list[list[str | int | Cell]] = []
    for name in learned:
        for key, at in at_table_budget(summary, name).items():
            mine = [
                task
                for task in timing
                if (task["domain"], task["schedule"]) == (name, key)
                and task.get("rows_projection") is not None
                and task["budget"] is not None
                and budget_name(task["budget"]) == at
            ]
            if not mine:
                continue
            rollouts = sum(task["rollouts"] for task in mine)
            parts = [sum(task[f"seconds_{part}"] for task in mine) / rollouts for part in _PARTS]
            made = sum(task["rows_projection"] for task in mine) / rollouts
            rows.append([domain_label(summary, name), label_of(key), at, Cell(made), *map(Cell, (*parts, sum(parts)))])
    if not rows:
        return []
    heads = [f"s {part}" for part in _PARTS]
    return [
        Table(
            "cost",
            f"What a rollout costs at {budget_symbol(summary)} = {_table_budget(summary)}",
            ["Domain", "Schedule", budget_symbol(summary), "projections", *heads, "s in all"],
            rows,
            [
                "A rollout's share of its batch, one thread a process; seconds differ from run to run and with what "
                "else the machine does. Projections include closing ones and retries."
            ],
        )
    ]


def _table_budget(summary: Summary) -> str:
    return budget_name(summary["config"]["table_budget"])
