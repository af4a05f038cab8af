"""The interactive page of a study of several kinds of dynamics, in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from browsed import LAPTOP, PHONE, Browsed
from report_page_toy import write_toy_run


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = ("so3", "terrain", "pdm", "so3-flow", "terrain-flow", "grid")
    return write_toy_run(tmp_path_factory.mktemp("runs") / "several", names)


def test_one_kind_of_dynamics_needs_no_switch(seen: Browsed) -> None:
    assert seen.page.locator("#dynamics").is_hidden()


def test_the_switch_shows_the_same_domain_with_other_dynamics(tab: Browsed, several: Path) -> None:
    tab.open(several, "#domain=terrain&metric=endpoint&budget=0.40")
    offered = tab.page.locator('input[name="domain"]')
    assert [offered.nth(i).get_attribute("value") for i in range(5)] == [
        "so3",
        "terrain",
        "pdm",
        "grid",
        "reaction-flow",
    ]
    tab.pick("dynamics", "flow")
    assert tab.text("choice") == "Adaptive (paper) on Terrain flow"
    assert tab.page.url.endswith("domain=terrain-flow&schedule=adaptive%3Apaper&budget=0.40&metric=endpoint")
    values = [offered.nth(i).get_attribute("value") for i in range(offered.count())]
    assert values == ["pdm", "so3-flow", "terrain-flow", "grid", "reaction-flow"]
    assert "SO(3) flow" not in tab.text("domains")
    for place in ("table-error", "table-wins"):
        assert "SO(3) flow" in tab.text(place)
        assert "SO(3)\t" not in tab.text(place)
    assert "Terrain (with Langevin dynamics, which alone were swept) is the strong line" in tab.text("sweep-note")
    assert tab.page.locator("#scene canvas").count() == 1
    tab.page.focus('input[name="dynamics"]:checked')
    tab.page.keyboard.press("ArrowLeft")
    assert tab.text("choice") == "Adaptive (paper) on Terrain"
    assert tab.complaints == []


def test_a_domain_of_no_dynamics_stays_where_the_switch_has_none_of_it(tab: Browsed, several: Path) -> None:
    tab.open(several, "#domain=pdm")
    tab.pick("dynamics", "flow")
    assert tab.text("choice") == "Adaptive (paper) on Planning"
    tab.pick("domain", "so3-flow")
    assert tab.text("choice") == "Adaptive (paper) on SO(3) flow"
    tab.open(several, "#domain=terrain-flow")
    assert tab.page.locator('input[name="dynamics"]:checked').get_attribute("value") == "flow"
    assert tab.complaints == []


def test_a_network_is_drawn_with_its_loads(tab: Browsed, several: Path) -> None:
    tab.open(several, "#domain=grid")
    assert tab.text("scene-title") == "The final sample"
    assert tab.page.locator("#scene .edge").count() == 3
    assert tab.page.locator("#scene .node").count() == 3
    colours = [tab.page.locator("#scene .edge").nth(i).evaluate("e => e.style.stroke") for i in range(3)]
    assert len(set(colours)) == 3
    assert "The fullest is at 100%" in tab.text("scene-note")
    middle = tab.page.locator("#scene .edge").nth(1).bounding_box()
    tab.page.mouse.move(middle["x"] + middle["width"] / 2, middle["y"] + middle["height"] / 2)
    assert tab.text("tooltip") == "2 to 3: 55% of its rating\nstepwise 55%"
    tab.pick("domain", "so3")
    assert tab.text("scene-title") == "The path"
    assert tab.complaints == []


@pytest.mark.parametrize("size", [LAPTOP, PHONE])
def test_the_switch_sticks_nowhere_out(tab: Browsed, several: Path, size: tuple[int, int]) -> None:
    tab.open(several, "#domain=so3-flow", size)
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= size[0]
    assert tab.page.locator("#metric").is_visible()
