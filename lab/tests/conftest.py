from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def studies_of_the_session(shared: Path) -> None:
    """Keep runs of small studies where all processes of a session find them."""
    import study_runs

    (shared / "studies").mkdir(exist_ok=True)
    study_runs.SHARED[:] = [shared / "studies"]
