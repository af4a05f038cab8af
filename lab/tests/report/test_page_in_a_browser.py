"""The interactive page in a real browser: its controls, drawings and words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from browsed import LAPTOP, PHONE, Browsed
from report_page_toy import KEYS, T, write_toy_run


def test_opens_at_the_table_budget_with_the_paper_rule(seen: Browsed) -> None:
    assert seen.text("choice") == "Adaptive (paper) on SO(3)"
    assert seen.text("budget-out") == "25%"
    nepe = 0.75**2.2
    figures = seen.text("figures")
    assert f"{100 * (1 - nepe):.0f}%" in figures
    assert f"{nepe:.3f}" in figures
    assert seen.page.locator("#frontier .curve").count() == len(KEYS)
    assert seen.page.locator("#frontier .band").count() == len(KEYS)
    assert seen.page.title() != "broken"


def test_final_samples_are_told_in_words(seen: Browsed) -> None:
    words = seen.text("final-samples")
    assert "from those of full projection with the same noise" in words
    assert "cannot be told from those of full projection on other seeds, p = 0.400" in words
    assert "with 16 samples a shift of 0.300 of their spread would have been seen" in words
    assert "own measures" not in words
    seen.pick("schedule", "periodic")
    assert "they differ from those of full projection on other seeds, p = 0.010" in seen.text("final-samples")
    assert "So do those" not in seen.text("final-samples")
    seen.pick("domain", "pdm")
    assert "So do those of full projection on the same seeds" in seen.text("final-samples")
    assert "length 2.250 ± 0.100" in seen.text("final-samples")


@pytest.mark.parametrize("domain", ["terrain", "pdm"])
def test_domain_changes_everything_drawn(seen: Browsed, domain: str) -> None:
    before = {place: seen.drawn(place) for place in ("scene", "made", "choice")}
    seen.pick("domain", domain)
    assert all(seen.drawn(place) != drawing for place, drawing in before.items())


def test_every_kind_of_picture_is_drawn(seen: Browsed) -> None:
    assert seen.page.locator("#scene .globe").count() == 1
    seen.pick("domain", "terrain")
    assert seen.page.locator("#scene canvas").count() == 1
    seen.pick("domain", "pdm")
    assert seen.page.locator("#scene .obstacle").count() == 3
    assert seen.page.locator("#scene canvas").count() == 0
    seen.pick("domain", "reaction-flow")
    assert seen.page.locator("#scene-card").is_hidden()


def test_schedule_changes_the_numbers_and_the_trace(seen: Browsed) -> None:
    drawings = {place: {seen.drawn(place)} for place in ("figures", "trace", "frontier", "made")}
    for key in KEYS:
        if key != "adaptive:paper":
            seen.pick("schedule", key)
            assert seen.page.locator("#frontier .curve.chosen").get_attribute("data-key") == key
            for place, others in drawings.items():
                assert seen.drawn(place) not in others or place == "figures", (key, place)
                others.add(seen.drawn(place))
    assert len(drawings["figures"]) > 3


def test_budget_slider_obeys_the_keyboard(seen: Browsed) -> None:
    before = {place: seen.drawn(place) for place in ("figures", "trace", "frontier", "made", "table-error")}
    seen.page.focus("#budget")
    seen.page.keyboard.press("ArrowRight")
    assert seen.text("budget-out") == "30%"
    assert all(seen.drawn(place) != drawing for place, drawing in before.items())
    seen.page.keyboard.press("End")
    assert seen.text("budget-out") == "100%"
    assert "budget=1.00" in seen.page.url


def test_frontier_handle_obeys_keyboard_and_pointer(seen: Browsed) -> None:
    seen.page.focus("#frontier [role=slider]")
    seen.page.keyboard.press("ArrowLeft")
    seen.page.keyboard.press("ArrowLeft")
    assert seen.text("budget-out") == "15%"
    assert seen.page.evaluate("document.activeElement.getAttribute('aria-valuetext')") == "15% of the steps"
    assert seen.page.input_value("#budget") == "15"
    area = seen.page.locator("#frontier .hit").bounding_box()
    seen.page.mouse.move(area["x"] + 0.15 * area["width"], area["y"] + 60)
    seen.page.mouse.down()
    seen.page.mouse.move(area["x"] + 0.8 * area["width"], area["y"] + 60, steps=4)
    seen.page.mouse.up()
    assert seen.text("budget-out") == "80%"
    seen.page.mouse.move(area["x"] + 0.4 * area["width"], area["y"] + 60)
    assert seen.text("budget-out") == "80%"


def test_radio_groups_obey_the_keyboard(seen: Browsed) -> None:
    seen.page.focus('input[name="domain"]:checked')
    seen.page.keyboard.press("ArrowDown")
    seen.page.keyboard.press("ArrowDown")
    assert seen.text("choice") == "Adaptive (paper) on Planning"
    seen.page.focus('input[name="schedule"]:checked')
    seen.page.keyboard.press("ArrowUp")
    assert seen.text("choice") == "Periodic on Planning"


def test_trace_marks_every_projection_and_reads_out_steps(seen: Browsed) -> None:
    count = round(0.25 * T)
    assert seen.page.locator("#trace line.removed").count() == count
    assert seen.page.locator("#trace .rug.chosen").get_attribute("d").count("M") == count
    picture = seen.drawn("scene")
    seen.page.focus("#trace [role=slider]")
    seen.page.keyboard.press("Home")
    assert seen.text("tooltip").startswith("step 0")
    assert seen.drawn("scene") != picture
    seen.page.select_option("#trace-kind", "state_error")
    assert seen.page.locator("#trace line.removed").count() == 0
    seen.page.select_option("#seed", "1")
    assert seen.text("trace-note").startswith("Seed 1")


def test_tooltip_tells_a_point_of_the_frontier(seen: Browsed) -> None:
    dot = seen.page.locator("#frontier .dot").last.bounding_box()
    seen.page.mouse.move(dot["x"] + dot["width"] / 2, dot["y"] + dot["height"] / 2)
    assert re.search(r"at 25%\nNEPE 0\.\d{3} ± 0\.\d{3}, n = 16", seen.text("tooltip"))


def test_globe_turns(seen: Browsed) -> None:
    before = seen.drawn("scene")
    seen.page.focus("#scene [data-keep=turn]")
    seen.page.keyboard.press("ArrowLeft")
    turned = seen.drawn("scene")
    assert turned != before
    box = seen.page.locator("#scene .spin").bounding_box()
    seen.page.mouse.move(box["x"] + 100, box["y"] + 100)
    seen.page.mouse.down()
    seen.page.mouse.move(box["x"] + 160, box["y"] + 120)
    seen.page.mouse.up()
    assert seen.drawn("scene") != turned


def test_other_metrics_are_offered_where_they_were_recorded(seen: Browsed) -> None:
    seen.page.select_option("#metric", "endpoint")
    assert seen.text("made").startswith("Endpoint distance 0.150 ± 0.010")
    seen.page.select_option("#metric", "state_error")
    assert "No state error was recorded" in seen.text("frontier")
    seen.pick("domain", "reaction-flow")
    assert seen.text("choice").endswith("on reaction-flow")
    assert not seen.page.locator("#metric").is_visible()


def test_the_measure_changes_headline_frontier_and_sweep(seen: Browsed) -> None:
    before = {place: seen.drawn(place) for place in ("figures", "frontier", "made", "sweep", "schedules")}
    assert "improvement over periodic in NEPE" in seen.drawn("sweep")
    seen.page.select_option("#metric", "endpoint")
    assert all(seen.drawn(place) != drawing for place, drawing in before.items())
    figures = seen.text("figures")
    assert "0.150" in figures
    assert "distance of the final state" in figures
    assert "60%" in figures  # of the endpoints won, not of the paths
    assert "improvement over periodic in endpoint distance" in seen.drawn("sweep")
    assert "metric=endpoint" in seen.page.url


def test_a_domains_own_judgement_is_a_measure(seen: Browsed) -> None:
    assert "length" not in seen.text("metric")
    seen.pick("domain", "pdm")
    seen.page.select_option("#metric", "length")
    assert seen.text("made").startswith("Length 2.250 ± 0.100")
    assert "2.250" in seen.text("figures")
    assert seen.page.locator("#frontier .curve").count() == len(KEYS)


def test_how_the_number_was_made_can_be_redone(seen: Browsed) -> None:
    made = seen.text("made")
    assert "n = 16" in made
    assert "rows/so3.parquet" in made
    top_bottom = seen.page.evaluate(
        "Array.from([...document.querySelectorAll('#made math')].at(-1).querySelectorAll('mn'), (n) => n.textContent)"
    )
    mine, stepwise, terminal, _, result = (float(text) for text in top_bottom)
    assert result == pytest.approx((mine - stepwise) / (terminal - stepwise), abs=2e-3)


def test_missing_values_break_nothing(seen: Browsed) -> None:
    seen.pick("domain", "reaction-flow")
    assert "NEPE is degenerate here" in seen.text("figures")
    seen.pick("schedule", "own-rule")
    seen.page.focus("#budget")
    seen.page.keyboard.press("End")
    assert seen.text("budget-out") == "50%"
    assert "60%" in seen.text("figures")
    assert "No example rollout" in seen.text("trace")


def test_the_papers_numbers_stand_at_the_papers_budget_whatever_the_tables_have(tab: Browsed, tmp_path: Path) -> None:
    tab.open(write_toy_run(tmp_path / "run", ("so3",), table_budget="0.10"))
    assert tab.text("budget-out") == "10%"
    assert "in the paper" not in tab.text("table-error").lower()
    tab.open(tmp_path / "run" / "report.html", "#budget=0.25")
    assert "in the paper" in tab.text("table-error").lower()
    assert "45%" in tab.text("table-error")
    assert tab.complaints == []


def test_schedules_are_named_and_explained_as_the_study_does(seen: Browsed) -> None:
    assert "adaptive:dp in one sentence." in seen.text("about")


def test_theme_follows_the_system_and_the_button(tab: Browsed, report: Path) -> None:
    colours = []
    for scheme in ("light", "dark"):
        tab.open(report, scheme=scheme)
        colours.append(tab.page.evaluate("getComputedStyle(document.body).backgroundColor"))
        tab.page.click("#theme")
        assert tab.text("theme") == "Theme: light"
        assert tab.page.evaluate("getComputedStyle(document.body).backgroundColor") == colours[0]
        tab.page.click("#theme")
        assert tab.page.evaluate("getComputedStyle(document.body).backgroundColor") != colours[0]
    assert colours[0] != colours[1]
    assert tab.complaints == []


@pytest.mark.parametrize("size", [LAPTOP, PHONE])
@pytest.mark.parametrize("domain", ["so3", "terrain", "pdm", "reaction-flow"])
def test_nothing_sticks_out(tab: Browsed, report: Path, size: tuple[int, int], domain: str) -> None:
    tab.open(report, f"#domain={domain}", size)
    assert tab.text("choice") != ""
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= size[0]
    assert tab.page.locator("#budget").is_visible()
    assert tab.complaints == []


def test_every_control_has_a_name(seen: Browsed) -> None:
    nameless = seen.page.evaluate("""
        [...document.querySelectorAll('input, select, button, [role], svg:not([aria-hidden])')]
          .filter((e) => !e.labels?.length && !e.ariaLabel && !e.getAttribute('aria-labelledby'))
          .filter((e) => !e.textContent.trim() && e.id !== 'tooltip')
          .map((e) => e.outerHTML.slice(0, 80))
    """)
    assert nameless == []


def test_address_restores_the_view(tab: Browsed, report: Path) -> None:
    tab.open(report, "#domain=terrain&schedule=planned&budget=0.40")
    assert tab.text("choice") == "Planned on Terrain"
    assert tab.text("budget-out") == "40%"
    tab.open(report, "#domain=nowhere&schedule=nothing&budget=much&metric=none")
    assert tab.text("choice") == "Adaptive (paper) on SO(3)"
    assert tab.complaints == []
