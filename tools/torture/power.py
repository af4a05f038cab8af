"""Power failures: after a kill, files are torn, empty, full of zeros, lost or from an earlier moment; then --resume."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torture.kills import contents, counted, in_child, work


def run(count: int, seed: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """`count` runs, each killed at some moment, damaged in one to four places, and resumed."""
    folder = Path(tempfile.mkdtemp(prefix="torture-power-"))
    chance = random.Random(seed)
    try:
        return _run(folder, count, chance, progress)
    finally:
        shutil.rmtree(folder)


def _run(folder: Path, count: int, chance: random.Random, progress: Callable[[str], None]) -> dict[str, Any]:
    def tell_operations() -> None:
        seen = [0]
        with counted(lambda number: seen.__setitem__(0, number)):
            work(folder / "whole", report=False)
        (folder / "operations").write_text(str(seen[0]))

    assert in_child(tell_operations) == 0
    operations = int((folder / "operations").read_text())
    whole = contents(folder / "whole")
    damage: Counter[str] = Counter()
    differing: list[str] = []
    failed = aside = 0
    for i in range(count):
        directory = folder / f"run-{i}"
        target = chance.randint(operations // 10, operations)

        def die(number: int, target: int = target) -> None:
            if number == target:
                os.kill(os.getpid(), signal.SIGKILL)

        def until_killed(directory: Path = directory, die: Callable[[int], None] = die) -> None:
            with counted(die):
                work(directory, report=False)

        in_child(until_killed)
        for _ in range(chance.randint(1, 4)):
            kind = hurt(directory, chance)
            damage[kind] += 1
        failed += in_child(lambda directory=directory: work(directory, report=False)) != 0
        aside += len(list(directory.rglob("*.set-aside-*")))
        now = contents(directory)
        differing += [f"run {i}: {name}" for name in whole if now.get(name) != whole[name]]
        shutil.rmtree(directory)
        progress(f"{i + 1} of {count} power failures, {failed} not resumed, {len(differing)} differing files")
    return {
        "failures": count,
        "damage": dict(sorted(damage.items())),
        "files set aside": aside,
        "files compared": len(whole),
        "not resumed": failed,
        "differing files": len(differing),
        "examples": differing[:5],
    }


def hurt(directory: Path, chance: random.Random) -> str:
    """Damage one file of a run directory as a power failure could; the kind of damage."""
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != ".lock")
    if not files:
        return "nothing there yet"
    path = chance.choice(files)
    data = path.read_bytes()
    kind = chance.choice(["torn", "empty", "zeros", "lost", "earlier"])
    if kind == "torn":
        path.write_bytes(data[: chance.randint(0, len(data))])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "zeros":
        path.write_bytes(bytes(len(data)))
    elif kind == "lost":
        path.unlink()
    else:  # the list of files is from before the last writes, as if they had reached the disk in another order
        sums = directory / "files.jsonl"
        if sums.is_file():
            lines = sums.read_text(errors="replace").splitlines(keepends=True)
            sums.write_text("".join(lines[: max(1, len(lines) - chance.randint(1, 4))]))
    return kind
