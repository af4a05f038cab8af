"""A Ray cluster of three nodes on this machine that loses one in the middle of a study, again and again."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import trimtab
from torture.kills import STUDY, contents
from trimtab.studies.engine import run_study
from trimtab.studies.errors import StudyError
from trimtab.studies.rows import write_rows
from trimtab.studies.store import Store

LARGER = replace(STUDY, seeds=6, block=1)


def run(count: int, seed: int, say: Callable[[str], None]) -> dict[str, Any]:
    """`count` studies that lose a node, one on a cluster with a node of other code, and one without a cluster."""
    del seed
    import ray
    from ray.cluster_utils import Cluster

    folder = Path(tempfile.mkdtemp(prefix="torture-nodes-"))
    differing = failed = 0
    undisturbed: list[float] = []
    disturbed: list[float] = []
    try:
        with Store(folder / "here", LARGER) as store:
            run_study(store, "serial")
            write_rows(store)
        whole = _rows(folder / "here")
        for i in range(-1, count):  # the first one loses nothing: what the others took longer is what was lost
            cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
            victims = [cluster.add_node(num_cpus=1) for _ in range(2)]
            ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
            directory = folder / f"run-{i}"
            begin = time.monotonic()
            try:
                store_kind = Store if i < 0 else _losing(cluster, victims[i % 2], after=2 + i)
                with store_kind(directory, LARGER) as store:
                    run_study(store, "ray")
                    write_rows(store)
                (undisturbed if i < 0 else disturbed).append(round(time.monotonic() - begin, 1))
                differing += _rows(directory) != whole
            except StudyError as error:
                failed += 1
                say(str(error))
            finally:
                ray.shutdown()
                cluster.shutdown()
            say(f"{i + 1} of {count} studies lost a node, {failed} failed, {differing} differ")
        return {
            "nodes": 3,
            "studies that lost one": count,
            "differing files": differing,
            "not resumed": failed,
            "seconds undisturbed": undisturbed,
            "seconds with a node lost": disturbed,
            "a node with other code": _other_code(folder),
            "an unreachable cluster": _unreachable(folder),
        }
    finally:
        shutil.rmtree(folder)


def _rows(directory: Path) -> dict[str, str]:
    return {
        name: value
        for name, value in contents(directory).items()
        if name.startswith(("rows/", "thresholds/", "traces/"))
    }


def _losing(cluster: Any, node: Any, after: int) -> type[Store]:
    class LosesANode(Store):
        """A store that takes a node away when it has kept some tasks."""

        lost = False

        def keep(self, task: Any, result: Any) -> None:
            super().keep(task, result)
            if not self.lost and len(list((self.directory / "work").glob("*.json"))) >= after:
                self.lost = True
                cluster.remove_node(node, allow_graceful=False)

    return LosesANode


CHILD = """
import sys
from pathlib import Path
from torture.kills import STUDY
from trimtab.studies.engine import run_study
from trimtab.studies.errors import StudyError
from trimtab.studies.store import Store
try:
    with Store(Path(sys.argv[1]), STUDY) as store:
        run_study(store, "ray")
except StudyError as error:
    print(error)
"""


def _child(folder: Path, name: str, address: str, package: Path) -> tuple[str, float]:
    """What a study says that is run in a process of its own, with the package at this place."""
    tools = Path(__file__).parents[1]
    environment = os.environ | {"RAY_ADDRESS": address, "PYTHONPATH": f"{package}{os.pathsep}{tools}"}
    begin = time.monotonic()
    words = [sys.executable, "-W", "ignore", "-c", CHILD, str(folder / name)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    said = done.stdout.strip().splitlines() or done.stderr.strip().splitlines()[-1:] or ["finished, and said nothing"]
    return said[-1][:200], round(time.monotonic() - begin, 1)


def _other_code(folder: Path) -> str:
    """A cluster whose workers import another version of the package than the process that decides."""
    from ray.cluster_utils import Cluster

    source = Path(trimtab.__file__).parents[1]
    other = folder / "other"
    shutil.copytree(source, other, ignore=shutil.ignore_patterns("__pycache__"))
    with (other / "trimtab" / "core" / "metrics.py").open("a") as file:
        file.write("\n# changed\n")
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = str(other)
    try:
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        try:
            return _child(folder, "other-run", cluster.address, source)[0].replace(str(folder), "DIR")
        finally:
            cluster.shutdown()
    finally:
        os.environ["PYTHONPATH"] = before


def _unreachable(folder: Path) -> dict[str, Any]:
    """Addresses where nobody answers, and where something answers that is no cluster."""
    source = Path(trimtab.__file__).parents[1]
    found = {}
    for name, listens in (("nobody answers", False), ("no cluster", True)):
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            if listens:
                server.listen()
            said, seconds = _child(folder, name.replace(" ", "-"), f"127.0.0.1:{server.getsockname()[1]}", source)
            found[name] = {"seconds, start of the process included": seconds, "said": said[:60]}
    return found
