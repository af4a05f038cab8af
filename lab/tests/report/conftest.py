from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browsed import Browsed
from report_page_toy import write_toy_run


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a toy run."""
    return write_toy_run(tmp_path_factory.mktemp("runs") / "toy")


@pytest.fixture(scope="module")
def tab(browser: Any) -> Browsed:
    """A tab to open pages in."""
    return Browsed(browser.new_page())


@pytest.fixture
def seen(tab: Browsed, report: Path) -> Iterator[Browsed]:
    """The page, just opened. Afterwards: no complaint on the console, and no request but for the page itself."""
    tab.open(report)
    yield tab
    assert tab.complaints == []
    assert [url.split("#")[0] for url in tab.requests] == [report.as_uri()]
