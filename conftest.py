from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
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

# `make check` leaves these out: they run whole samplers, processes or the command line
SLOW_ROOMS = {"advice", "benchmarks", "docs", "lab", "integrations", "packaging", "torture"}
SLOW_FILES = {
    *(
        "test_distributions",
        "test_laws_of_the_loop",
        "test_progress",
        "test_runner",
        "test_statistics",
    ),
    *("test_laws_of_constraints", "test_live_processes", "test_solvers", "test_time_limit", "test_obstacles_avoid"),
    *("test_obstacles_compiled", "test_obstacles_ipopt", "test_calibration", "test_dynamic", "test_early_runs"),
    *("test_objective", "test_learner", "test_planned", "test_prices"),
    *("test_resample", "test_transitions"),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow tests, by their folder or file; examples in docstrings are among them."""
    for item in items:
        parts = item.path.relative_to(item.config.rootpath).parts
        if SLOW_ROOMS & set(parts) or item.path.stem in SLOW_FILES or "src" in parts:
            item.add_marker(pytest.mark.slow)


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
