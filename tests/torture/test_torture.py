"""A small, seeded part of every attack; `make torture` is the whole."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("part", ["inputs", "mutations", "kills", "power", "projections", "memory"])
def test_trimtab_stands_a_small_part_of(part):
    attacked(part, "--quick", "--seed", "1")


def test_every_public_name_is_attacked_or_spared_for_a_reason():
    """A name that arrives in the API reference needs a target, or a reason in `tools/torture/coverage.py`."""
    pytest.importorskip("griffe", reason="the public names are read from the source by griffe")
    missing = [
        name for name in ("azula", "diffusers", "torchdiffeq", "flow_matching", "diffrax") if not find_spec(name)
    ]
    if missing:
        pytest.skip(f"integrations are attacked only where they are installed: without {', '.join(missing)}")
    attacked("--names")


def attacked(*words: str) -> None:
    """In a process of its own: the attacks fork, kill, and warn about what is deprecated elsewhere."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "tools/torture", *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_a_forgotten_name_is_found(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from torture import coverage

    assert coverage.unattacked(["Periodic", "Forgotten"], ["Periodic", "Forgotten's answer"]) == []
    assert coverage.unattacked(["Periodic", "Forgotten"], ["Periodic", "answer of Forgotten"]) == ["Forgotten"]
    assert coverage.unattacked(["Periodic"], [], spared=["Periodic"]) == []
