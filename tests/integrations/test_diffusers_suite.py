"""The command that runs diffusers' own scheduler tests bare and wrapped, on a checkout of four tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("diffusers", reason="needs the diffusers extra")

pytestmark = pytest.mark.release

ROOT = Path(__file__).parents[2]
TESTS = """
import unittest

import torch
from diffusers import DDIMScheduler, VQDiffusionScheduler


class Tests(unittest.TestCase):
    def test_a_loop(self):
        scheduler = DDIMScheduler.from_config(DDIMScheduler().config)
        scheduler.set_timesteps(4)
        x = torch.ones(2, 3)
        for t in scheduler.timesteps:
            x = scheduler.step(0.1 * x, t, x).prev_sample
        self.assertEqual(x.shape, (2, 3))

    def test_of_tokens(self):
        VQDiffusionScheduler(num_vec_classes=5)

    def test_that_fails_anyhow(self):
        raise RuntimeError

    def test_that_looks_for_the_wrapping(self):
        self.assertFalse(hasattr(type(DDIMScheduler()), "_trimtab_plain"))
"""


def test_the_figures_of_a_checkout(tmp_path):
    tests = tmp_path / "tests" / "schedulers"
    tests.mkdir(parents=True)
    (tests / "test_toy.py").write_text(TESTS)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "tools/diffusers_suite.py", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    told = " ".join(done.stdout.split())
    assert "4 tests, 3 schedulers wrapped in them" in told, done.stderr
    assert "pass bare: 3 refused by name when wrapped: 1 1 VQDiffusionScheduler steps integer tokens" in told
    assert "pass wrapped, of the other 2: 1 pass bare and fail wrapped: 1 tests/schedulers/test_toy.py::Tests::" in told
    assert told.endswith("test_that_looks_for_the_wrapping")
    assert done.returncode == 1


def test_a_folder_without_the_tests_is_refused(tmp_path):
    words = [sys.executable, "tools/diffusers_suite.py", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "has no test files: give the folder of a clone of huggingface/diffusers" in done.stderr
