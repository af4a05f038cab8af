"""A Ray cluster of three nodes on this machine that loses one in the middle of a study, again and again."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import trimtab
from torture.kills import STUDY, contents
from trimtab.evaluation.studies.config import StudyError
from trimtab.evaluation.studies.engine import run_study
from trimtab.evaluation.studies.rows import write_rows
from trimtab.evaluation.studies.store import Store

LARGER = replace(STUDY, seeds=6, block=1)
UNDISTURBED = 3
"""Studies that lose nothing: what the others took longer is what was lost."""


def run(count: int, seed: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """`count` studies that lose a node, one on a cluster with a node of other code, and some without a cluster."""
    del seed
    folder = Path(tempfile.mkdtemp(prefix="torture-nodes-"))
    try:
        with Store(folder / "here", LARGER) as store:
            run_study(store, "serial")
            write_rows(store)
        lost = _losses(folder, _rows(folder / "here"), count, progress)
        progress("a cluster of other code, and addresses without a cluster")
        return lost | {"a node with other code": _other_code(folder), "an unreachable cluster": _unreachable(folder)}
    finally:
        shutil.rmtree(folder)


def _losses(folder: Path, whole: dict[str, str], count: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """Studies on one cluster of three nodes: undisturbed ones, then ones that lose a node, which is then replaced."""
    import ray
    from ray.cluster_utils import Cluster

    differing = failed = killed = 0
    undisturbed: list[float] = []
    disturbed: list[float] = []
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        for i in range(-1 - UNDISTURBED, count):
            directory = folder / f"run-{i}"
            victim = nodes[i % 2] if i >= 0 else None
            begin = time.monotonic()
            try:
                with _Losing(directory, cluster, victim, after=2 + i) as store:
                    run_study(store, "ray")
                    write_rows(store)
                taken = round(time.monotonic() - begin, 1)
                if i >= -UNDISTURBED:  # the very first one waits for the workers to import everything
                    (undisturbed if i < 0 else disturbed).append(taken)
                differing += _rows(directory) != whole
            except StudyError as error:
                failed += 1
                progress(str(error))
            if victim is not None:
                killed += not victim.any_processes_alive()
                nodes[i % 2] = cluster.add_node(num_cpus=1)
            progress(f"{i + 1} of {count} studies lost a node, {failed} failed, {differing} differ")
    finally:
        ray.shutdown()
        cluster.shutdown()
    return {
        "nodes": 3,
        "studies that lost one": count,
        "nodes killed": killed,
        "differing files": differing,
        "not resumed": failed,
        "seconds undisturbed": undisturbed,
        "seconds with a node lost": disturbed,
    }


def _rows(directory: Path) -> dict[str, str]:
    return {
        name: value
        for name, value in contents(directory).items()
        if name.startswith(("rows/", "thresholds/", "traces/"))
    }


class _Losing(Store):
    """A store whose cluster loses a node, by SIGKILL, once so many tasks are kept."""

    def __init__(self, directory: Path, cluster: Any, node: Any, after: int) -> None:
        super().__init__(directory, LARGER)
        self.cluster, self.node, self.after = cluster, node, after

    def keep(self, task: Any, result: Any) -> None:
        """Keep it, and then perhaps lose the node."""
        super().keep(task, result)
        if self.node is not None and len(list((self.directory / "work").glob("*.json"))) >= self.after:
            self.cluster.remove_node(self.node, allow_graceful=False)
            self.node = None


CHILD = """
import sys
from pathlib import Path
from time import monotonic
import ray
from torture.kills import STUDY
from trimtab.evaluation.studies.engine import run_study
from trimtab.evaluation.studies.config import StudyError
from trimtab.evaluation.studies.store import Store
begin = monotonic()
try:
    with Store(Path(sys.argv[1]), STUDY) as store:
        run_study(store, "ray")
except StudyError as error:
    print(error)
print(monotonic() - begin)
"""


class Told(NamedTuple):
    """What a study said in a process of its own.

    Attributes:
        said: Its last line.
        seconds: From the beginning of the study.
        in_all: The start of the process and its imports included.
    """

    said: str
    seconds: float
    in_all: float


def _child(folder: Path, name: str, address: str, package: Path) -> Told:
    """What a study says that is run in a process of its own, with the package at this place."""
    tools = Path(__file__).parents[1]
    environment = os.environ | {"RAY_ADDRESS": address, "PYTHONPATH": f"{package}{os.pathsep}{tools}"}
    begin = time.monotonic()
    words = [sys.executable, "-W", "ignore", "-c", CHILD, str(folder / name)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    *said, seconds = ["finished, and said nothing", *done.stdout.strip().splitlines()]
    if done.returncode != 0:
        raise RuntimeError(f"the study ended with {done.returncode}: {done.stderr[-500:]}")
    return Told(said[-1][:200], round(float(seconds), 1), round(time.monotonic() - begin, 1))


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
            return _child(folder, "other-run", cluster.address, source).said.replace(str(folder), "DIR")
        finally:
            cluster.shutdown()
    finally:
        os.environ["PYTHONPATH"] = before


_SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_PONG = bytes([0, 0, 8, 6, 1, 0, 0, 0, 0]) + b"trimtab?"
ANSWERS = {
    "nobody answers": None,
    "something that is silent": b"",
    "something that answers": b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    "something that greets like a cluster": _SETTINGS,
    "something that greets like a cluster and answers pings": _SETTINGS + _PONG,
}
"""What may be at an address instead of a cluster; the last two say what an HTTP/2 server says first, and no more."""


def _unreachable(folder: Path) -> dict[str, Any]:
    """Addresses where nobody answers, and where something answers that is no cluster."""
    source = Path(trimtab.__file__).parents[1]
    found = {}
    for name, answer in ANSWERS.items():
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            if answer is not None:
                server.listen()
                threading.Thread(target=_answer, args=(server, answer), daemon=True).start()
            told = _child(folder, name.replace(" ", "-"), f"127.0.0.1:{server.getsockname()[1]}", source)
            found[name] = {"seconds": told.seconds, "with the process's start": told.in_all, "said": told.said[:60]}
    return found


def _answer(server: socket.socket, words: bytes) -> None:
    """Say the same to everybody who calls, until nobody can any more."""
    calls = []
    with suppress(OSError):
        while True:
            calls.append(server.accept()[0])
            calls[-1].sendall(words)
