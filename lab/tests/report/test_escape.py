"""Text from files, in formats that would take some of it for commands."""

from __future__ import annotations

import csv
import io
import re

from hypothesis import given
from hypothesis import strategies as st

from trimtab_lab.report.formats import Cell, Table, latex_text

NASTY = st.text() | st.sampled_from(
    ["=cmd|' /C calc'!A0", "+1", "-2+3", "@SUM(A1)", "\t=1", " =1", "\\input{/etc/passwd}", "a | b", "x\ny",
     "<img src=x>", "[a](http://b)", "$x^2$", "~#%&_{}", "\u2028", "**b**", "`code`"]
)  # fmt: skip


def table_of(text: str) -> Table:
    return Table("t", text, ["Domain", text], [[text, Cell(0.5, 0.1)], ["so3", Cell(-0.5)]], [text])


@given(NASTY)
def test_no_cell_of_a_spreadsheet_is_a_formula(text):
    lines = list(csv.reader(io.StringIO(table_of(text).csv())))
    assert {len(line) for line in lines} == {3}
    for cell in (cell for line in lines for cell in line):
        assert not re.match(r"\s*[=+@-]", cell) or re.fullmatch(r"-?\d+(\.\d+)?", cell)


@given(NASTY)
def test_no_text_becomes_a_command_of_latex(text):
    written = latex_text(text)
    known = r"\\(textbackslash|textasciicircum|textasciitilde|textless|textgreater|textbar)\{\}|\\[{}$%&#_]"
    left = re.sub(known + r"|\$\\(pm|Delta|kappa)\$", "", written)
    assert not set(left) & set("\\{}$%&#_^~")
    assert "\n" not in written


@given(NASTY)
def test_markdown_keeps_its_cells_and_shows_text_as_text(text):
    lines = table_of(text).markdown().splitlines()
    rows = [line for line in lines if line.startswith("| ")]
    assert len(rows) == 4
    assert {len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) for row in rows} == {3}
    for line in lines:
        assert not re.search(r"(?<!\\)(?:\\\\)*[<`\[]", line)
