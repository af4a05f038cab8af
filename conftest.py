from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)  # tests run side by side; results must not depend on threads anyway

# Whether a change passes must not be luck: the same examples every time (HYPOTHESIS_PROFILE=search tries more, and new
# ones), and no limit on the time of one, which belongs to the machine.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=40)
settings.register_profile("search", print_blob=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# What `make check` leaves out beside files that are marked: rooms that run whole samplers, processes or other libraries
SLOW_ROOMS = {"advice", "benchmarks", "docs", "lab", "integrations", "src", "torture"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what runs in a browser as part of a release, and the tests of slow rooms as slow."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.release)
        if SLOW_ROOMS & set(item.path.relative_to(item.config.rootpath).parts):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of a test run share; what is made in it once is guarded by a file lock."""
    here = tmp_path_factory.getbasetemp()
    return here if "PYTEST_XDIST_WORKER" not in os.environ else here.parent


@pytest.fixture
def stable():
    """A Stable Diffusion pipeline with small models, anew for each test."""
    from diffusers_cases import stable_pipeline

    return stable_pipeline()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real browser; tests that need one skip where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="pages are tested with playwright")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium on the path (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()
