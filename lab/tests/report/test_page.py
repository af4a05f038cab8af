"""The interactive page: what is written; what it does in a browser is tested beside this."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from report_page_toy import BUDGETS, write_toy_run
from trimtab_lab.report import page as module
from trimtab_lab.report.page import page_html

LAPTOP, PHONE = (1280, 800), (390, 844)


def embedded(html: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    return json.loads(found.group(1))


# ------------------------------------------------------------------ what is written


def test_page_holds_the_summary_with_null_for_nan(report: Path) -> None:
    data = embedded(report.read_text(encoding="utf-8"))
    written = json.loads((report.parent / "summary.json").read_text(encoding="utf-8"))
    nepe = data["summary"]["domains"]["so3"]["schedules"]["periodic"]["0.25"]["nepe"]
    assert nepe == pytest.approx(written["domains"]["so3"]["schedules"]["periodic"]["0.25"]["nepe"], rel=1e-6)
    assert data["summary"]["domains"]["so3"]["schedules"]["periodic"]["0.25"]["state_error"]["mean"] is None
    assert data["links"]["files"][:3] == ["rows/pdm.parquet", "rows/so3.parquet", "rows/terrain.parquet"]


def test_page_fetches_nothing_and_forbids_fetching(report: Path) -> None:
    html = report.read_text(encoding="utf-8")
    assert "default-src 'none'" in html
    markup = html.split('id="data"', 1)[0]
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#)""", markup)
    assert not re.search(r"@import|url\(", markup)


def test_page_is_small(report: Path) -> None:
    assert report.stat().st_size < 3_000_000


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.floats()
        | st.text()
        | st.sampled_from(["</script>", "<!--", "\u2028", "@@data@@"]),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    )
)
def test_any_text_survives_and_cannot_leave_its_element(value: Any) -> None:
    html = page_html({"domains": {"so3": {"schedules": {}}}, "config": {"any": value}}, {})
    assert same(embedded(html)["summary"]["config"]["any"], value)
    inside = html.split('id="data">', 1)[1].split("</script>", 1)[0]
    assert not set(inside) & set("<>&\u2028\u2029")


def same(read: Any, given: Any) -> bool:
    if isinstance(given, float) and not math.isfinite(given):
        return read is None
    if isinstance(given, float):
        return bool(read == pytest.approx(given, rel=1e-6))  # the page holds seven digits
    if isinstance(given, list):
        return len(read) == len(given) and all(map(same, read, given))
    if isinstance(given, dict):
        return read.keys() == given.keys() and all(same(read[k], given[k]) for k in given)
    return bool(read == given)


def test_large_pages_lose_example_rollouts_not_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def written() -> Path:
        return write_toy_run(tmp_path / str(len(list(tmp_path.iterdir()))), ("so3",))

    whole = embedded(written().read_text(encoding="utf-8"))
    assert whole["page"]["domains"]["so3"]["seeds"] == [0, 1]
    monkeypatch.setattr(module, "LIMIT", written().stat().st_size - 1000)
    less = embedded(written().read_text(encoding="utf-8"))
    assert less["page"]["domains"]["so3"]["seeds"] == [0]
    assert len(less["page"]["domains"]["so3"]["examples"]["periodic"]["0.25"]) == 1
    assert less["summary"] == whole["summary"]
    monkeypatch.setattr(module, "LIMIT", written().stat().st_size * 2 // 3)
    least = embedded(written().read_text(encoding="utf-8"))
    kept = list(least["page"]["domains"]["so3"]["examples"]["periodic"])
    assert "0.25" in kept
    assert 1 < len(kept) < len(BUDGETS)


def test_a_summary_without_domains_is_refused() -> None:
    with pytest.raises(ValueError, match='no "domains"'):
        page_html({"version": 1}, {})
