from __future__ import annotations

import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from study_runs import SHORT, finish, finished, row_hashes
from trimtab.core.errors import EngineError
from trimtab.core.ray_pool import check_reachable
from trimtab.evaluation.studies.config import StudyError
from trimtab.evaluation.studies.engine import run_study
from trimtab.evaluation.studies.rows import write_rows
from trimtab.evaluation.studies.store import Store
from trimtab.evaluation.studies.usercode import Source, record_of

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'trimtab[ray]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


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


ANSWERS = {
    "nobody": None,
    "silence": b"",
    "another protocol": b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    "the first words of a cluster, and no more": bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]),
    "the first words of a cluster and another's": bytes([0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 8, 6, 1, 0, 0, 0, 0])
    + b"somebody",
    "a frame without an end": bytes([0, 0, 0, 4, 0, 0, 0, 0, 0, 255, 255, 255, 6, 1, 0, 0, 0, 0]),
}


@pytest.fixture(params=ANSWERS)
def no_cluster(request):
    """The address of something that is no Ray cluster."""
    words, calls = ANSWERS[request.param], []

    def answer() -> None:
        with suppress(OSError):
            while True:
                calls.append(server.accept()[0])
                calls[-1].sendall(words)

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if words is not None:
            server.listen()
            threading.Thread(target=answer, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.close()
    for call in calls:
        call.close()


def test_a_cluster_that_cannot_be_reached_is_a_clear_error(no_cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", no_cluster)
    begin = time.monotonic()
    with Store(tmp_path / "run", SHORT) as store, pytest.raises(StudyError, match=f"RAY_ADDRESS={no_cluster}.*running"):
        run_study(store, "ray")
    assert time.monotonic() - begin < 120  # Ray itself waits for longer, and then ends the process


def test_what_only_greets_is_refused_without_waiting_for_ray(no_cluster, monkeypatch):
    """Joining is what takes long; whoever does not answer a ping is not asked."""
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("Ray was asked to join"))
    with pytest.raises(EngineError, match="RAY_ADDRESS"):
        check_reachable(no_cluster, 3.0)


def test_a_cluster_that_is_there_is_reached(cluster, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    check_reachable(cluster.address, 60)
