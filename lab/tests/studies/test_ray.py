from __future__ import annotations

import socket
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from study_runs import SHORT, finish, finished, row_hashes
from trimtab_lab.studies.config import StudyError
from trimtab_lab.studies.engine import run_study
from trimtab_lab.studies.rows import write_rows
from trimtab_lab.studies.store import Store
from trimtab_lab.studies.usercode import Source, record_of

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'trimtab[ray]'")
pytestmark = [pytest.mark.release, pytest.mark.filterwarnings("ignore")]  # Ray's own


@pytest.fixture
def cluster():
    """Two nodes on this machine, one core each."""
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes.add_node(num_cpus=1)
    ray.init(address=nodes.address, log_to_driver=False, logging_level="error")
    yield nodes
    ray.shutdown()
    nodes.shutdown()


def test_a_cluster_that_loses_a_node_half_way_ends_with_the_same_rows(cluster, tmp_path):
    node = cluster.list_all_nodes()[1]

    class LosesANode(Store):
        lost = False

        def keep(self, task, result):
            super().keep(task, result)
            if not self.lost and len(list((self.directory / "work").glob("*.json"))) == 4:
                self.lost = True
                cluster.remove_node(node, allow_graceful=False)

    with LosesANode(tmp_path / "ray", SHORT) as store:
        run_study(store, "ray")
        write_rows(store)
    assert store.lost
    assert not node.any_processes_alive()
    assert row_hashes(tmp_path / "ray") == row_hashes(finished(SHORT))


def test_a_sampler_of_ones_own_from_the_working_directory_gives_the_same_rows(tmp_path, monkeypatch):
    example = Path(__file__).parents[3] / "examples" / "my_sampler.py"
    (tmp_path / "sampler_for_ray.py").write_text(example.read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    source = Source.of_user("sampler_for_ray:make", {"radius": 0.4}, "mine")
    study = replace(SHORT, domains=("mine",), samplers={"mine": record_of(source)})
    mine = {"mine": source.factory}
    try:
        here = finish(tmp_path / "here", study, factories=mine)
        assert row_hashes(finish(tmp_path / "ray", study, "ray", 1, mine)) == row_hashes(here)
    finally:
        ray.shutdown()


def test_a_cluster_that_is_not_there_is_a_clear_error(tmp_path, monkeypatch):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        begin = time.monotonic()
        with (
            Store(tmp_path / "run", SHORT) as store,
            pytest.raises(StudyError, match=f"RAY_ADDRESS={address}.*running"),
        ):
            run_study(store, "ray")
        assert time.monotonic() - begin < 60  # Ray itself waits for longer, and then ends the process
