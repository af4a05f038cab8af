"""One table with its words, as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trimtab.core.files import plain_name
from trimtab.evaluation.domains import base_of, dynamics_of
from trimtab.evaluation.report.escape import csv_text, latex_text, markdown_text

__all__ = [
    "Cell",
    "Table",
    "budget_symbol",
    "closing_is_paid",
    "compared_keys",
    "domain_label",
    "in_iterations",
    "of_groups",
    "sources_by_label",
]


def closing_is_paid(summary: Mapping[str, Any]) -> bool:
    """Whether the budgets of a study count the closing projection."""
    return bool(summary["config"].get("closing") == "paid")


def in_iterations(summary: Mapping[str, Any]) -> bool:
    """Whether the budgets of a run count iterations."""
    return bool(summary["config"].get("unit") == "iteration")


def budget_symbol(summary: Mapping[str, Any]) -> str:
    """What a budget is a fraction of, as tables and figures say it.

    Example:
        >>> budget_symbol({"config": {}}), budget_symbol({"config": {"unit": "iteration"}})
        ('B/T', 'share of full iterations')
    """
    return "share of full iterations" if in_iterations(summary) else "B/T"


def compared_keys(summary: Mapping[str, Any]) -> list[str]:
    """The schedules that are compared with periodic, on any of the domains: some are run on cheap ones alone.

    Example:
        >>> compared_keys({"domains": {"so3": {"win_rate": {"planned": {}, "hindsight": {}}}, "pdm": {"win_rate": {}}}})
        ['planned', 'hindsight']
    """
    return list(dict.fromkeys(key for content in summary["domains"].values() for key in content["win_rate"]))


def domain_label(summary: Mapping[str, Any], domain: str) -> str:
    """A domain as tables and figures name it.

    Example:
        >>> domain_label({"domains": {"so3": {"label": "SO(3)"}}}, "so3")
        'SO(3)'
    """
    return str(summary["domains"].get(domain, {}).get("label", domain))


def of_groups(summary: Mapping[str, Any]) -> list[str]:
    """A note for each domain whose samples are decided on together, since its numbers are over groups.

    Example:
        >>> of_groups({"domains": {"robots": {"label": "Robots", "groups": 8}, "so3": {"label": "SO(3)"}}})
        ['Robots: samples are decided on together; its numbers are over 8 groups, each by the mean of its samples.']
    """
    return [
        f"{domain_label(summary, name)}: samples are decided on together; its numbers are over {content['groups']} "
        "groups, each by the mean of its samples."
        for name, content in summary["domains"].items()
        if "groups" in content
    ]


_DYNAMICS = {"langevin": "Langevin", "flow": "flow", "ramp": "ramp", "replica": "replica"}


def sources_by_label(summary: Mapping[str, Any], key: str | None = None) -> dict[str, dict[str, str]]:
    """The domains of a run by the label of a row and its source: "here", or the dynamics where a run has several.

    Args:
        summary: Of the run.
        key: A schedule; only domains that were run with it are wanted then.

    Example:
        >>> sources_by_label({"domains": {"so3": {"label": "SO(3)"}, "so3-ramp": {"label": "SO(3) ramp"}}})
        {'SO(3)': {'Langevin': 'so3', 'ramp': 'so3-ramp'}}
        >>> sources_by_label({"domains": {"so3": {"label": "SO(3)"}, "pdm": {"label": "PDM"}}})
        {'SO(3)': {'here': 'so3'}, 'PDM': {'here': 'pdm'}}
    """
    several = len({dynamics_of(name) for name in summary["domains"]} - {None}) > 1
    groups: dict[str, dict[str, str]] = {}
    for name, content in summary["domains"].items():
        if key is not None and key not in content["schedules"]:
            continue
        dynamics = dynamics_of(name) if several else None
        label = domain_label(summary, name)
        if dynamics and base_of(name) != name:
            label = label.removesuffix(f" {dynamics}")
        groups.setdefault(label, {})[_DYNAMICS[dynamics] if dynamics else "here"] = name
    return groups


@dataclass(frozen=True)
class Cell:
    """A number with its standard error, either of which may be unknown.

    Example:
        >>> str(Cell(0.5, 0.0123)), str(Cell(0.5, 0.01, "percent")), str(Cell(None))
        ('0.500 ± 0.012', '50% ± 1%', 'n/a')
    """

    mean: float | None
    se: float | None = None
    kind: Literal["number", "percent"] = "number"
    bold: bool = False

    def __str__(self) -> str:
        """As in the paper's tables."""
        if self.mean is None:
            return "n/a"
        return self._one(self.mean) + ("" if self.se is None else f" ± {self._one(self.se)}")

    def _one(self, value: float) -> str:
        if self.kind == "percent":
            return f"{100 * value:.0f}%".replace("-0%", "0%")
        digits = (
            3 if abs(self.mean or 0) >= 0.01 or not self.mean else min(8, 2 - math.floor(math.log10(abs(self.mean))))
        )
        return f"{value:.{digits}f}"


@dataclass(frozen=True)
class Table:
    """A table with its words.

    Attributes:
        name: Of its files.
        title: One line.
        columns: Headings.
        rows: Of strings, whole numbers and cells.
        notes: Plain sentences below it.
    """

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | int | Cell]]
    notes: Sequence[str] = ()

    def markdown(self) -> str:
        """As Markdown."""
        head = [markdown_text(column) for column in self.columns]
        lines = [f"## {markdown_text(self.title)}", "", _pipes(head), _pipes(["---"] * len(self.columns))]
        lines += [_pipes([_marked(cell, "**{}**", markdown_text) for cell in row]) for row in self.rows]
        return "\n".join([*lines, "", *(f"- {markdown_text(note)}" for note in self.notes)]).rstrip() + "\n"

    def csv(self) -> str:
        """As CSV: numbers in full, each standard error in a column of its own."""
        wide = [any(isinstance(row[i], Cell) for row in self.rows) for i in range(len(self.columns))]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(
            [
                csv_text(head)
                for name, two in zip(self.columns, wide, strict=True)
                for head in ([name, f"{name} SE"] if two else [name])
            ]
        )
        for row in self.rows:
            line: list[object] = []
            for cell, two in zip(row, wide, strict=True):
                line += [cell.mean, cell.se] if isinstance(cell, Cell) else [cell, None] if two else [cell]
            writer.writerow(["" if value is None else csv_text(value) for value in line])
        return out.getvalue()

    def latex(self) -> str:
        """As LaTeX, for the booktabs package."""
        head = " & ".join(latex_text(column) for column in self.columns)
        body = [" & ".join(_marked(cell, "\\textbf{{{}}}", latex_text) for cell in row) + r" \\" for row in self.rows]
        lines = [
            r"\begin{table}",
            r"\centering",
            r"\small",
            rf"\begin{{tabular}}{{l{'c' * (len(self.columns) - 1)}}}",
            r"\toprule",
            head + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            rf"\caption{{{latex_text(self.title)}. {latex_text(' '.join(self.notes))}}}",
            rf"\label{{tab:{plain_name(self.name, 'the name of a table')}}}",
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"


def _pipes(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _marked(cell: str | int | Cell, bold: str, escape: Callable[[str], str]) -> str:
    text = escape(str(cell))
    return bold.format(text) if isinstance(cell, Cell) and cell.bold else text
