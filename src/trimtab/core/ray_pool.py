"""Running work on a Ray cluster."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any

import torch

from trimtab.core.errors import EngineError, missing_extra
from trimtab.core.files import sha256

__all__ = ["JOIN_SECONDS", "RayPool", "check_reachable"]

JOIN_SECONDS = 10.0
"""How long a cluster may take to answer; Ray itself waits for minutes, and then ends the process."""

_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""How every HTTP/2 connection begins (RFC 9113, 3.4), with settings that ask for nothing; Ray speaks it."""
_SETTINGS, _PING = 4, 6
"""The kind of frame that the other side must begin with, and the kind that must be answered in kind (6.7)."""
_PINGED = b"trimtab?"
_PING_FRAME = bytes([0, 0, len(_PINGED), _PING, 0, 0, 0, 0, 0]) + _PINGED
_SETTINGS_SEEN = bytes([0, 0, 0, _SETTINGS, 1, 0, 0, 0, 0])
_LONGEST_FRAME = 2**14


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
            with socket.create_connection((found[1], int(found[2])), timeout=seconds / 3) as connection:
                # with TLS the greeting would have to be encrypted: there only joining can tell
                greets = os.environ.get("RAY_USE_TLS", "0") not in ("", "0") or _speaks_http2(connection)
        except (OSError, OverflowError) as error:
            raise EngineError(f"no Ray cluster answers at RAY_ADDRESS={address} ({error}); {advice}") from error
        if not greets:
            raise EngineError(f"what answers at RAY_ADDRESS={address} is no Ray cluster; {advice}")
    # whoever greets may still be no cluster: another process joins first, since one that waits cannot be called back
    code = "import ray; ray.init(log_to_driver=False, logging_level='error'); ray.shutdown()"
    try:
        joined = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=max(1.0, end - monotonic())
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(
            f"what answers at RAY_ADDRESS={address} did not let this process join within {seconds:.0f} s; {advice}"
        ) from error
    if joined.returncode != 0:
        said = joined.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise EngineError(f"the Ray cluster at RAY_ADDRESS={address} could not be joined ({said[0]}); {advice}")


def _speaks_http2(connection: socket.socket) -> bool:
    """Whether the other side greets in the language of a cluster and then answers, within the connection's limit."""
    end = monotonic() + (connection.gettimeout() or JOIN_SECONDS)
    with suppress(OSError):  # silence, or a connection that is closed, is an answer too
        connection.sendall(_GREETING)
        kind, _, _ = _frame(connection, end)
        if kind != _SETTINGS:
            return False
        connection.sendall(_SETTINGS_SEEN + _PING_FRAME)  # who only greets would be waited for in vain
        while True:
            kind, flags, body = _frame(connection, end)
            if kind == _PING and flags & 1:
                return body == _PINGED
    return False


def _frame(connection: socket.socket, end: float) -> tuple[int, int, bytes]:
    """The next frame: its kind, its flags and what it holds."""
    head = _exactly(connection, 9, end)
    length = int.from_bytes(head[:3], "big")
    if length > _LONGEST_FRAME:
        raise OSError("no frame of HTTP/2 is so long")
    return head[3], head[4], _exactly(connection, length, end)


def _exactly(connection: socket.socket, count: int, end: float) -> bytes:
    answer = b""
    while len(answer) < count:
        connection.settimeout(max(0.01, end - monotonic()))
        more = connection.recv(count - len(answer))
        if not more or monotonic() > end:
            raise OSError("the connection ended, or nothing more came in time")
        answer += more
    return answer


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
        # a lost node is not the work's fault: it is done again elsewhere; work that kills its worker ends everything
        self.remote: Any = ray.remote(num_cpus=1, max_retries=5)(_run_remotely)
        self.running: dict[Any, str] = {}
        self.sent: dict[str, Any] = {}

    def submit(
        self, name: str, function: Callable[[Any, Mapping[str, bytes]], Any], what: Any, shared: Mapping[str, bytes]
    ) -> None:
        """Hand it to the cluster; what several need is sent once."""
        references = []
        for data in shared.values():
            key = sha256(data)
            if key not in self.sent:
                self.sent[key] = self.ray.put(data)
            references.append(self.sent[key])
        self.running[self.remote.remote(function, what, list(sys.path), list(shared), *references)] = name

    def next(self) -> tuple[str, Any]:
        """Whichever is done."""
        done, _ = self.ray.wait(list(self.running), num_returns=1)
        name = self.running.pop(done[0])
        try:
            return name, self.ray.get(done[0])
        except self.ray.exceptions.RayTaskError as error:
            raise error.as_instanceof_cause() from None
        except self.ray.exceptions.RayError as error:
            raise EngineError(f"{name} was lost by the Ray cluster ({type(error).__name__})") from error

    def close(self) -> None:
        """Cancel what is running, and leave a cluster that was joined here."""
        for reference in self.running:
            self.ray.cancel(reference, force=True)
        self.running.clear()
        if self.joined:
            self.ray.shutdown()


def _run_remotely(
    function: Callable[[Any, Mapping[str, bytes]], Any], what: Any, path: list[str], roles: list[str], *shared: bytes
) -> Any:
    torch.set_num_threads(1)
    sys.path += [place for place in path if place not in sys.path]  # modules are looked for where the driver found them
    return function(what, dict(zip(roles, shared, strict=True)))
