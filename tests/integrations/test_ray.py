"""Batches on a real Ray cluster on this machine."""

from __future__ import annotations

import os
import time
from concurrent.futures import BrokenExecutor

import pytest
import torch

import trimtab as tt
from engine_cases import Loop, problem
from trimtab.loop.runner import BatchRunner

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'trimtab[ray]'")
pytestmark = [pytest.mark.release, pytest.mark.filterwarnings("ignore")]  # Ray's own


def test_a_cluster_runs_batches_with_the_same_numbers_and_says_what_went_wrong(tmp_path):
    from trimtab.integrations.ray import RayExecutor

    here = tt.calibrate(problem(), method="dp")
    with RayExecutor(1) as cluster:
        assert cluster.submit(torch.get_num_threads).result() == 1
        with BatchRunner(cluster, tmp_path, "on ray") as shop:
            there = tt.calibrate(problem(), method="dp", engine=shop)
            assert torch.equal(shop.runs(Loop(1))(tt.Periodic(3)).final, Loop(1)(tt.Periodic(3)).final)
        assert torch.equal(here.table, there.table)
        assert len(list(tmp_path.glob("*.json"))) > 3

        with pytest.raises(ZeroDivisionError):
            cluster.submit(divmod, 1, 0).result()

        long = cluster.submit(time.sleep, 600.0)  # it has the only core until it is cancelled
        assert long.cancel()
        assert cluster.submit(int, "7").result(60) == 7

        lost = cluster.ray.remote(max_retries=0)(lambda: os._exit(1)).remote()
        cluster.remote = type("Remote", (), {"remote": staticmethod(lambda *_: lost)})
        with pytest.raises(BrokenExecutor, match="lost by the Ray cluster"):
            cluster.submit(int).result(60)
    assert not ray.is_initialized()
