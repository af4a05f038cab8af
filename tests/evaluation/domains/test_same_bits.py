"""A sample's rollout is the same, to the last bit, in any batch, any order, on any instruction set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

_DISPATCHED = [
    name for name in np._core._multiarray_umath.__cpu_dispatch__ if np._core._multiarray_umath.__cpu_features__[name]
]
_WIDE = [name for name in _DISPATCHED if "512" in name or name == "X86_V4"]

INSTRUCTIONS = {
    "the machine's own": {},
    "no vectors": {
        "ATEN_CPU_CAPABILITY": "default",
        "DNNL_MAX_CPU_ISA": "SSE41",
        "NPY_DISABLE_CPU_FEATURES": " ".join(_DISPATCHED),
    },
    "AVX2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "DNNL_MAX_CPU_ISA": "AVX2",
        "NPY_DISABLE_CPU_FEATURES": " ".join(_WIDE),
    },
    "numpy without vectors": {"NPY_DISABLE_CPU_FEATURES": " ".join(_DISPATCHED)},
}


@pytest.fixture(scope="module")
def answers():
    """What `same_bits` says, by the instructions allowed; the processes run side by side."""
    script = Path(__file__).with_name("same_bits.py")
    running = {
        name: subprocess.Popen(
            [sys.executable, "-W", "error", script],
            env=os.environ | {"OMP_NUM_THREADS": "2"} | {key: value for key, value in settings.items() if value},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name, settings in INSTRUCTIONS.items()
    }
    answers = {}
    for name, process in running.items():
        out, errors = process.communicate()
        assert process.returncode == 0, errors
        answers[name] = json.loads(out)
    return answers


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_a_sample_does_not_notice_its_batch(answers, name):
    assert answers[name]["differing"] == []


def test_every_instruction_set_gives_the_same_bits(answers):
    assert len({answer["digest"] for answer in answers.values()}) == 1, answers
