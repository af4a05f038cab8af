"""A study that is killed and resumed gives the same files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torture.scale import TIMES

pytestmark = pytest.mark.release


@pytest.mark.skipif(not hasattr(os, "fork"), reason="runs are killed in forked processes")
def test_a_killed_study_is_resumed_with_the_same_results():
    pytest.importorskip("pyarrow")
    script = Path(__file__).with_name("kills.py")
    command = [sys.executable, "-W", "ignore", str(script), str(2 * TIMES), "1"]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
