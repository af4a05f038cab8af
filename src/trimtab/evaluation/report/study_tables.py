"""The paper's tables, ours beside the paper's, as Markdown, CSV and LaTeX."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trimtab.evaluation.report.diagnostics import budget_usage, concentration, degenerate
from trimtab.evaluation.report.final_samples import final_samples
from trimtab.evaluation.report.formats import Cell, Table, budget_symbol, compared_keys, of_groups, sources_by_label
from trimtab.evaluation.report.pdm import cost, projected_diffusion, quality
from trimtab.evaluation.studies.config import budget_name
from trimtab.evaluation.studies.paper_values import reported, reported_beside
from trimtab.evaluation.studies.run_files import RunFiles
from trimtab.schedules.style import label_of

__all__ = ["Cell", "Table", "all_tables", "write_tables"]

Summary = Mapping[str, Any]


# ------------------------------------------------------------------ writing


def write_tables(files: RunFiles, summary: Summary) -> list[Path]:
    """Write every table of a summary into `tables/`, in three formats each."""
    written = []
    for table in [*all_tables(summary), *cost(files.directory, summary)]:
        for ending, text in (("md", table.markdown()), ("csv", table.csv()), ("tex", table.latex())):
            written.append(files.put(f"tables/{table.name}.{ending}", text))
    return written


def all_tables(summary: Summary) -> list[Table]:
    """Every table a summary has the numbers for."""
    tables = []
    for key in compared_keys(summary):
        ending = "" if key == "adaptive:paper" else f"-{key.replace(':', '-')}"
        tables += [fixed_budget(summary, key, f"table1{ending}"), win_rates(summary, key, f"table3{ending}")]
    tables += [*projected_diffusion(summary), *quality(summary), *final_samples(summary)]
    return [*tables, concentration(summary), budget_usage(summary), degenerate(summary)]


# ------------------------------------------------------------------ tables 1 and 3


def fixed_budget(summary: Summary, key: str, name: str) -> Table:
    """Table 1: endpoint distance and NEPE at the table's budget, periodic against one schedule."""
    budget = budget_name(summary["config"]["table_budget"])
    label, at = label_of(key), f"{budget_symbol(summary)} = {budget}"
    beside = _is_in_paper(summary, key, "table1") and budget == reported()["table_budget"]
    rows: list[list[str | int | Cell]] = []
    compared: list[Compared] = []
    for label_of_row, sources in sources_by_label(summary, key).items():
        paper = None
        for source, domain in sources.items():
            ours = _ours_at(summary["domains"][domain], key, budget)
            rows.append([label_of_row, source, *_six(ours)])
            paper = _paper(summary, "table1", domain) if beside else None
            if paper:
                compared += _improvements(label_of_row, source, ours, paper)
        if paper:
            rows.append([label_of_row, "paper", *_six(paper)])
    columns = ["Domain", "Source"]
    for metric in ("endpoint", "NEPE"):
        columns += [f"periodic {metric}", f"{label} {metric}", f"Δ {metric}"]
    opening = [
        f"Mean ± standard error over seeds at {at}; bold is the lower of the two; Δ is 1 - mean({label}) / "
        "mean(periodic), positive where the schedule is better."
    ]
    if beside:
        opening.append(
            "The paper leaves its update rules open, so its absolute numbers are of other samplers; what can be "
            "compared is which schedule is ahead, and by how much. Differences of more than two standard errors:"
        )
    notes = _differences(compared, "improvement") if beside else []
    return Table(
        name,
        f"Periodic and {label} correction at {at}",
        columns,
        rows,
        [*opening, *of_groups(summary), *notes],
    )


def _is_in_paper(summary: Summary, key: str, table: str) -> bool:
    return key == "adaptive:paper" and any(_paper(summary, table, domain) for domain in summary["domains"])


def _paper(summary: Summary, table: str, domain: str) -> dict[str, Any] | None:
    return reported_beside(table, domain, summary["config"])


def _ours_at(content: Mapping[str, Any], key: str, budget: str) -> dict[str, dict[str, list[float | None]]]:
    """Our numbers in the shape of the paper's: metric, then periodic / adaptive / improvement, [mean, se]."""
    return {
        metric: {
            "periodic": _pair(content["schedules"]["periodic"][budget][metric]),
            "adaptive": _pair(content["schedules"][key][budget][metric]),
            "improvement": _pair(content["improvement"][key][budget][metric]),
        }
        for metric in ("endpoint", "nepe")
    }


def _pair(value: Mapping[str, Any]) -> list[float | None]:
    return [value["mean"], value["se"]]


def _percent(value: Sequence[float | None]) -> Cell:
    return Cell(value[0], value[1], "percent")


def _six(numbers: Mapping[str, Mapping[str, Sequence[float | None]]]) -> list[Cell]:
    cells = []
    for metric in ("endpoint", "nepe"):
        if metric not in numbers:
            cells += [Cell(None)] * 3
            continue
        periodic, adaptive, gain = (numbers[metric][part] for part in ("periodic", "adaptive", "improvement"))
        lower = _lower(periodic[0], adaptive[0])
        cells += [
            Cell(periodic[0], periodic[1], bold=lower == 0),
            Cell(adaptive[0], adaptive[1], bold=lower == 1),
            Cell(gain[0], gain[1], "percent", bold=lower == 1),
        ]
    return cells


def _lower(first: float | None, second: float | None) -> int | None:
    return None if first is None or second is None or first == second else int(second < first)


class Compared(NamedTuple):
    """One of our numbers beside the paper's, [mean, standard error] each."""

    domain: str
    source: str
    what: str
    here: Sequence[float | None]
    there: Sequence[float | None]
    difference: str | None


def _improvements(domain: str, source: str, ours: Mapping[str, Any], paper: Mapping[str, Any]) -> list[Compared]:
    pairs = [
        (name, ours[metric]["improvement"], paper[metric]["improvement"])
        for metric, name in (("nepe", "NEPE improvement"), ("endpoint", "Endpoint improvement"))
        if metric in paper
    ]
    return [Compared(domain, source, name, here, there, _difference(here, there)) for name, here, there in pairs]


def _differences(compared: Sequence[Compared], what: str) -> list[str]:
    """Sentences on what differs from the paper's: one for each number, or for each of several dynamics."""
    sources = list(dict.fromkeys(one.source for one in compared))
    if len(sources) > 1:
        return [_of_source(source, [one for one in compared if one.source == source], what) for source in sources]
    sentences = [
        f"{one.domain}: {one.what} is {_percent(one.here)} here, {_percent(one.there)} in the paper: {one.difference}."
        for one in compared
        if one.difference
    ]
    return sentences or [f"No {what} differs from the paper's by more than two standard errors."]


def _of_source(source: str, compared: Sequence[Compared], what: str) -> str:
    apart = [f"{one.domain} ({one.what.split()[0].lower()})" for one in compared if one.difference]
    apart = [text.replace("(nepe)", "(NEPE)") for text in apart]
    words = f"{source}: {len(compared) - len(apart)} of {len(compared)} {what}s within two standard errors"
    return f"{words}; not {', '.join(apart)}." if apart else f"{words}."


def _difference(here: Sequence[float | None], there: Sequence[float | None]) -> str | None:
    """How our improvement differs from the paper's, in words; None where it is within two standard errors."""
    if here[0] is None or there[0] is None:
        return None
    if abs(here[0] - there[0]) <= 2 * math.hypot(here[1] or 0.0, there[1] or 0.0):
        return None
    if here[0] > 0 >= there[0]:
        return "the schedule is ahead of periodic here, and behind it there"
    if here[0] <= 0 < there[0]:
        return "the schedule is behind periodic here, and ahead of it there"
    more = "more" if abs(here[0]) > abs(there[0]) else "less"
    return f"{'ahead' if here[0] > 0 else 'behind'} in both, by {more} here"


def win_rates(summary: Summary, key: str, name: str) -> Table:
    """Table 3: how often a schedule beats periodic over all pairs."""
    label = label_of(key)
    beside = _is_in_paper(summary, key, "win_rates")
    rows: list[list[str | int | Cell]] = []
    compared: list[Compared] = []
    for label_of_row, sources in sources_by_label(summary, key).items():
        paper = None
        for source, domain in sources.items():
            wins = summary["domains"][domain]["win_rate"][key]
            ours = {part: _pair(wins[part]) for part in ("endpoint", "pathwise")} | {
                "median_improvement": wins["median_improvement"],
                "n": wins["endpoint"]["n"],
            }
            rows.append([label_of_row, source, *_four(ours)])
            paper = _paper(summary, "win_rates", domain) if beside else None
            if paper:
                compared += _wins_compared(label_of_row, source, ours, paper)
        if paper:
            rows.append([label_of_row, "paper", *_four(paper)])
    budgets = summary["config"]["budgets"]
    most = sum(0 < budget < 1 for budget in budgets) / len(budgets)
    notes = _differences(compared, "win rate") if beside else []
    if beside and len(budgets) != reported()["budgets"]:
        notes = [
            f"The paper's rates are over {reported()['budgets']} budgets, these over {len(budgets)}: they cannot be "
            "compared."
        ]
    opening = [
        f"Share of pairs (budget and seed) in which {label} is strictly below periodic, ± standard error over seeds"
        + (" (the paper's is binomial, over pairs)" if beside else "")
        + "; the median is of (periodic - schedule) / periodic in NEPE. Bold is above one half.",
        f"At budgets 0 and 1 the two coincide and a tie is no win: {most:.1%} is the highest rate possible here.",
    ]
    columns = ["Domain", "Source", "Endpoint win", "Pathwise win", "Median Δ NEPE", "N"]
    return Table(name, f"How often {label} beats periodic", columns, rows, [*opening, *of_groups(summary), *notes])


def _four(numbers: Mapping[str, Any]) -> list[int | Cell]:
    cells: list[int | Cell] = []
    for part in ("endpoint", "pathwise"):
        mean, se = numbers[part]
        cells.append(Cell(mean, se, "percent", bold=mean is not None and mean > 0.5))
    return [*cells, Cell(numbers["median_improvement"], None, "percent"), int(numbers["n"])]


def _wins_compared(domain: str, source: str, ours: Mapping[str, Any], paper: Mapping[str, Any]) -> list[Compared]:
    compared = []
    for part in ("pathwise", "endpoint"):
        here, there = ours[part], paper[part]
        unknown = here[0] is None or here[1] is None
        near = unknown or abs(here[0] - there[0]) <= 2 * math.hypot(here[1], there[1])
        difference = None if near else "higher here" if here[0] > there[0] else "lower here"
        compared.append(Compared(domain, source, f"{part} win rate", here, there, difference))
    return compared
