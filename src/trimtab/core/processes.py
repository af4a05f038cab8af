"""Processes on this machine that use one thread each, and end when whoever started them does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import wait
from typing import Any

import torch

__all__ = ["Processes"]


class Processes(ProcessPoolExecutor):
    """A pool of processes; leaving `with` ends them, even in the middle of a call."""

    def __init__(self, workers: int, context: Any = None) -> None:
        """Start so many processes when they are needed; `context` says how, None is by spawning."""
        super().__init__(workers, context or multiprocessing.get_context("spawn"), _start_worker)

    def __exit__(self, *error: object) -> bool | None:
        """Drop what is waiting and end the processes."""
        for process in list((self._processes or {}).values()):  # Python 3.14 has terminate_workers()
            process.terminate()
        self.shutdown(wait=True, cancel_futures=True)
        return None


def _start_worker() -> None:
    torch.set_num_threads(1)  # sums may be split, and so rounded, differently with more
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that hands out the work
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End a worker whose parent was killed: it holds both ends of its queue, and would wait for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
