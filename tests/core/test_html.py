"""What values show of themselves in a notebook and on a terminal."""

from __future__ import annotations

import math
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

import free
import trimtab as tt
from trimtab.core import html

points = st.lists(st.tuples(st.floats(-1e9, 1e9), st.floats()), max_size=30)


def parsed(html: str) -> ElementTree.Element:
    """The HTML that is made here is well-formed XML, too."""
    return ElementTree.fromstring(f"<body>{html}</body>")


@given(st.dictionaries(st.text("ab<&\"'", min_size=1, max_size=4), points, max_size=4))
def test_any_points_make_a_drawing_within_its_frame(lines):
    drawn = html.draw(lines, "x", "y")
    finite = [p for line in lines.values() for p in line if all(map(math.isfinite, p))]
    assert bool(drawn) == bool(finite)
    if not finite:
        return
    svg = parsed(drawn)[0]
    numbers = [
        float(number)
        for path in svg.iter("path")
        for pair in path.get("d", "").replace("M", " ").replace("L", " ").split()
        if "V" not in pair
        for number in pair.split(",")
    ]
    assert all(0 <= number <= 420 for number in numbers)


def test_a_line_is_broken_where_a_point_is_missing():
    drawn = html.draw({"a": [(0, 1.0), (1, 2.0), (2, math.inf), (3, 1.0), (4, 2.0)]}, "x", "y")
    (path,) = [p.get("d", "") for p in parsed(drawn).iter("path") if p.get("stroke") in html.COLOURS]
    assert path.count("M") == 2
    assert path.count("L") == 2


@given(st.text(), st.text())
def test_text_cannot_become_markup(title, cell):
    tags, words = [], []

    class Read(HTMLParser):
        def handle_starttag(self, tag, attrs):
            tags.append(tag)

        def handle_data(self, data):
            words.append(data)

    reader = Read()
    reader.feed(html.panel(title, html.table([(cell, 1.0)])))
    reader.close()
    assert tags == ["div", "p", "strong", "div", "div", "table", "tbody", "tr", "td", "td"]
    assert "".join(words) == title + cell + "1"


@pytest.fixture(scope="module")
def run():
    problem = tt.domain("so3", n_steps=20).problem(range(8))
    return free.rollout(problem.sampler, problem.constraint, tt.Periodic(0.25), range(8))


def test_a_rollout_shows_what_was_spent_and_when(run):
    shown = run._repr_html_()
    body = parsed(shown)
    cells = [cell.text for cell in body.iter("td")]
    assert cells[cells.index("steps") + 1] == "20"
    assert cells[cells.index("samples") + 1] == "8"
    assert cells[cells.index("projections per sample") + 1] == html.figure_of(float(run.paid.double().mean()))
    assert len(list(body.iter("rect"))) == int(run.projected.any(dim=1).sum())
    assert "script" not in shown
    assert "iterations per sample" in replace(run, unit="iteration")._repr_html_()


def test_a_rollout_whose_defects_were_not_looked_at_shows_when_it_was_projected():
    problem = tt.domain("so3", n_steps=20).problem(range(8))
    run = tt.rollout(problem.sampler, problem.constraint, tt.Periodic(0.25), range(8), measure_defects=False)
    body = parsed(run._repr_html_())
    assert not [p for p in body.iter("path") if p.get("stroke") in html.COLOURS]
    assert len(list(body.iter("rect"))) == int(run.projected.any(dim=1).sum())


def test_a_comparison_shows_its_table_and_its_first_measure():
    domain = tt.domain("so3", n_steps=12)
    found = tt.compare(domain.problem(range(6)), {}, [2, 4])
    body = parsed(found._repr_html_())
    rows = list(body.iter("tr"))[1:]
    assert [row[0].text for row in rows] == [row.name for row in found.rows]
    assert len({len(row) for row in rows}) == 1
    assert len(rows[0]) == 3 + len(found.measures)  # nothing was compared as a distribution
    lines = [p.get("d", "") for p in body.iter("path") if p.get("stroke") in html.COLOURS]
    assert [line.count("L") for line in lines] == [1, 1]
