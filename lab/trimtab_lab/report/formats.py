"""One table as Markdown, CSV and LaTeX, with every text escaped."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from trimtab_lab.files import plain_name

__all__ = ["Cell", "Table", "csv_text", "latex_text", "markdown_text", "small_number"]

_TEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "%": r"\%",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
    "κ": r"$\kappa$",
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_MARKDOWN = re.compile(r"([\\`*\[\]|<>~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|&(?=#?\w+;))")
_FORMULA = re.compile(r"\s*[=+\-@]")


def latex_text(text: str) -> str:
    r"""Return text for LaTeX, in which no character is a command.

    Example:
        >>> print(latex_text(r"\input{/etc/passwd} 5% ± 1"))
        \textbackslash{}input\{/etc/passwd\} 5\% $\pm$ 1
    """
    return "".join(_TEX.get(letter, letter) for letter in _one_line(text))


def markdown_text(text: str) -> str:
    r"""Return text for a cell or line of Markdown, without markup, links or HTML.

    Example:
        >>> print(markdown_text("a_b | <img> [x](y)"))
        a_b \| \<img\> \[x\](y)
    """
    return _MARKDOWN.sub(r"\\\1", _one_line(text))


def csv_text(value: object) -> object:
    """Return a cell for CSV; text that a spreadsheet would take for a formula gets an apostrophe.

    Example:
        >>> csv_text("=1+1"), csv_text(-1.5), csv_text("-1.5"), csv_text("periodic")
        ("'=1+1", -1.5, "'-1.5", 'periodic')
    """
    if not isinstance(value, str):
        return value
    text = _one_line(value)
    return f"'{text}" if _FORMULA.match(text) else text


def _one_line(text: str) -> str:
    return _CONTROL.sub(" ", text)


def small_number(value: float, like: float | None = None) -> str:
    """Return a number with three digits after the point; below 0.01, with three significant digits.

    `like` is the number whose digits are used, for an error beside its mean.

    Example:
        >>> small_number(0.509), small_number(0.0088), small_number(0.0005, like=0.0088), small_number(2.3e-6)
        ('0.509', '0.00880', '0.00050', '2.3e-06')
    """
    size = abs(value if like is None else like)
    if 0 < size < 1e-4:
        return f"{value:.1e}"
    return f"{value:.{3 if size >= 0.01 or size == 0 else 2 - math.floor(math.log10(size))}f}"


@dataclass(frozen=True)
class Cell:
    """A number with its standard error or its 95% interval, any of which may be unknown.

    Attributes:
        mean: The number; None shows "n/a".
        se: Its standard error.
        kind: How it is written.
        bold: Whether it is emphasised.
        interval: Lower and upper end; (None, None) says that a few samples decide the number, so that no interval can
            be given.

    Example:
        >>> str(Cell(0.5, 0.0123)), str(Cell(0.5, 0.01, "percent")), str(Cell(None))
        ('0.500 ± 0.012', '50% ± 1%', 'n/a')
        >>> str(Cell(0.5, kind="percent", interval=(0.4, 0.6))), str(Cell(0.5, kind="percent", interval=(None, None)))
        ('50% (40 to 60)', '50% (undecided)')
    """

    mean: float | None
    se: float | None = None
    kind: Literal["number", "percent"] = "number"
    bold: bool = False
    interval: tuple[float | None, float | None] | None = None

    def __str__(self) -> str:
        """Return the number as in the paper's tables."""
        if self.mean is None:
            return "n/a"
        text = self._one(self.mean)
        if self.interval is not None:
            low, high = self.interval
            if low is None or high is None:
                return f"{text} (undecided)"
            return f"{text} ({self._one(low)} to {self._one(high)})".replace("% to", " to").replace("%)", ")")
        return text + ("" if self.se is None else f" ± {self._one(self.se)}")

    def _one(self, value: float) -> str:
        if self.kind == "percent":
            return f"{100 * value:.0f}%".replace("-0%", "0%")
        return small_number(value, self.mean)


@dataclass(frozen=True)
class Table:
    """A table with its notes.

    Attributes:
        name: The name of its files.
        title: One line.
        columns: Headings.
        rows: Strings, whole numbers and cells.
        notes: Plain sentences below it.
    """

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | int | Cell]]
    notes: Sequence[str] = ()

    def markdown(self) -> str:
        """Return Markdown."""
        head = [markdown_text(column) for column in self.columns]
        lines = [f"## {markdown_text(self.title)}", "", _pipes(head), _pipes(["---"] * len(self.columns))]
        lines += [_pipes([_marked(cell, "**{}**", markdown_text) for cell in row]) for row in self.rows]
        return "\n".join([*lines, "", *(f"- {markdown_text(note)}" for note in self.notes)]).rstrip() + "\n"

    def csv(self) -> str:
        """Return CSV: numbers in full, standard errors and interval ends in columns of their own."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        more = [self._csv_parts(i) for i in range(len(self.columns))]
        heads = [
            h for name, parts in zip(self.columns, more, strict=True) for h in (name, *(f"{name} {p}" for p in parts))
        ]
        writer.writerow([csv_text(head) for head in heads])
        for row in self.rows:
            line: list[object] = []
            for cell, parts in zip(row, more, strict=True):
                if isinstance(cell, Cell):
                    low, high = cell.interval or (None, None)
                    line += [cell.mean, *({"SE": cell.se, "low": low, "high": high}[part] for part in parts)]
                else:
                    line += [cell, *(None for _ in parts)]
            writer.writerow(["" if value is None else csv_text(value) for value in line])
        return out.getvalue()

    def _csv_parts(self, column: int) -> list[str]:
        cells = [row[column] for row in self.rows if isinstance(row[column], Cell)]
        ends = ["low", "high"] if any(isinstance(cell, Cell) and cell.interval for cell in cells) else []
        return ["SE", *ends] if cells else []

    def latex(self) -> str:
        """Return LaTeX for the booktabs package."""
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
