"""Running tasks on a Ray cluster."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from time import monotonic
from typing import Any

import torch

from trimtab.core.errors import missing_extra
from trimtab.studies.errors import StudyError
from trimtab.studies.tasks import Task
from trimtab.studies.work import Result, run_task

__all__ = ["JOIN_SECONDS", "RayPool", "check_reachable"]

JOIN_SECONDS = 18.0
"""How long a cluster may take to answer; Ray itself waits for minutes, and then ends the process."""


def check_reachable(address: str, seconds: float = JOIN_SECONDS) -> None:
    """Refuse a cluster that does not answer in time.

    Args:
        address: As `RAY_ADDRESS` has it: "host:port", "ray://host:port", "auto" or "local".
        seconds: In all.
    """
    end = monotonic() + seconds
    found = re.fullmatch(r"(?:ray://)?\[?([^\[\]/]+?)\]?:(\d+)", address)
    advice = "is it running, and RAY_ADDRESS right? Without RAY_ADDRESS the tasks run on this machine"
    if found:
        try:
            socket.create_connection((found[1], int(found[2])), timeout=seconds / 3).close()
        except (OSError, OverflowError) as error:
            raise StudyError(f"no Ray cluster answers at RAY_ADDRESS={address} ({error}); {advice}") from error
    # whoever answers may still be no cluster: another process joins first, since one that waits cannot be called back
    code = "import ray; ray.init(log_to_driver=False, logging_level='error'); ray.shutdown()"
    try:
        joined = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=max(1.0, end - monotonic())
        )
    except subprocess.TimeoutExpired as error:
        raise StudyError(
            f"what answers at RAY_ADDRESS={address} did not let this process join within {seconds:.0f} s; {advice}"
        ) from error
    if joined.returncode != 0:
        said = joined.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise StudyError(f"the Ray cluster at RAY_ADDRESS={address} could not be joined ({said[0]}); {advice}")


class RayPool:
    """A Ray cluster: the one that `RAY_ADDRESS` names or this process has joined, else one on this machine."""

    def __init__(self, workers: int | None = None) -> None:
        """Join the cluster; `workers` limits how many tasks run at once."""
        try:
            import ray
        except ImportError as error:
            raise missing_extra("ray", "ray", "the ray engine") from error
        self.ray: Any = ray
        self.joined = not ray.is_initialized()
        if self.joined:
            address = os.environ.get("RAY_ADDRESS")
            if address:
                check_reachable(address)
            local = {} if address else {"num_cpus": workers, "include_dashboard": False}
            self.ray.init(log_to_driver=False, logging_level="error", **local)
        self.capacity = workers or 2 * max(1, int(self.ray.cluster_resources().get("CPU", 1)))
        # a lost node is not the task's fault: it runs again elsewhere; a task that kills its worker ends the study
        self.remote: Any = ray.remote(num_cpus=1, max_retries=5)(_run_remotely)
        self.running: dict[Any, Task] = {}
        self.inputs: dict[str, Any] = {}

    def submit(self, task: Task, inputs: Mapping[str, bytes]) -> None:
        """Hand it to the cluster; what several tasks need is sent once."""
        references = []
        for role in inputs:
            name = task.needs[role].name
            if name not in self.inputs:
                self.inputs[name] = self.ray.put(inputs[role])
            references.append(self.inputs[name])
        self.running[self.remote.remote(task, list(inputs), *references)] = task

    def next(self) -> tuple[Task, Result]:
        """Whichever is done."""
        done, _ = self.ray.wait(list(self.running), num_returns=1)
        task = self.running.pop(done[0])
        try:
            return task, self.ray.get(done[0])
        except self.ray.exceptions.RayTaskError as error:
            raise error.as_instanceof_cause() from None
        except self.ray.exceptions.RayError as error:
            raise StudyError(f"{task.name} was lost by the Ray cluster ({type(error).__name__})") from error

    def close(self) -> None:
        """Cancel what is running, and leave a cluster that was joined here."""
        for reference in self.running:
            self.ray.cancel(reference, force=True)
        self.running.clear()
        if self.joined:
            self.ray.shutdown()


def _run_remotely(task: Task, roles: list[str], *inputs: bytes) -> Result:
    torch.set_num_threads(1)
    return run_task(task, dict(zip(roles, inputs, strict=True)))
