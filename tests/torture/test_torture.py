"""A small, seeded part of every attack; `make torture` is the whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("part", ["inputs", "mutations", "kills", "power", "projections", "memory"])
def test_trimtab_stands_a_small_part_of(part):
    """In a process of its own: the attacks fork, kill, and warn about what is deprecated elsewhere."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-W", "ignore", "tools/torture", part, "--quick", "--seed", "1"]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
