"""Run the commands behind docs/evidence.md one after the other, and write there what each took.

    python docs/make_evidence.py                                        all of them
    python docs/make_evidence.py --checkpoint FILE --circles MAP.json   with the parts on a public PDM checkpoint
    python docs/make_evidence.py --parts grid quality                   some of them

A part is left out, and named at the end, once 60 processor minutes are used. Each command keeps what it has made, so
one that was stopped continues. Times are of parts that started from nothing and were not stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from _page import HERE, KEPT, renew

from trimtab._version import __version__
from trimtab.core.files import write_atomically

STORE = HERE / "results" / "evidence.json"
PARTS = {  # the script, and what it keeps
    "reproduction": ("make_reproduction.py", Path("runs") / "main"),
    "future": ("make_future.py", None),
    "maps": ("make_maps.py", None),
    "domains": ("make_domains.py", Path("runs") / "domains"),
    "fidelity": ("make_fidelity.py", None),
    "online": ("make_online.py", Path("runs") / "online"),
    "budgets": ("make_choose.py", KEPT / f"choose-{__version__}.json"),
    "quality": ("make_quality.py", HERE / "results" / "quality.json"),
    "molecules": ("make_molecules.py", KEPT / f"molecules-{__version__}.json"),
    "training": ("make_training.py", KEPT / f"training-{__version__}.json"),
    "pdm": ("make_pdm_readings.py", Path("runs") / "pdm-docs"),
    "grid": ("make_grid.py", Path("runs") / "grid-docs"),
}
PUBLIC = ("pdm", "quality")  # these take a public checkpoint
LIMIT = 60.0  # processor minutes


def used() -> float:
    """Return the processor minutes of all processes that have ended."""
    times = os.times()
    return (times.children_user + times.children_system) / 60


def table(minutes: dict[str, float]) -> str:
    """Return the table of times."""
    lines = ["| part | command | processor minutes |", "|---|---|---|"]
    for name, (script, _) in PARTS.items():
        shown = f"{minutes[name]:.1f}" if name in minutes else "not timed"
        lines.append(f"| {name} | `docs/{script}` | {shown} |")
    return "\n".join(lines)


def main() -> None:
    """Run, note and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--checkpoint", help="a public PDM checkpoint")
    parser.add_argument("--circles", help="its map")
    options = parser.parse_args()
    public = ["--checkpoint", options.checkpoint, "--circles", options.circles] if options.checkpoint else []
    minutes: dict[str, float] = json.loads(STORE.read_text(encoding="utf-8")) if STORE.exists() else {}
    left_out = [] if public else [f"what a public checkpoint adds to {' and '.join(PUBLIC)}"]
    for number, name in enumerate(options.parts, 1):
        script, kept = PARTS[name]
        if used() + minutes.get(name, 0.0) > LIMIT:
            left_out.append(name)
            continue
        whole = kept is None or not kept.exists()
        print(f"part {number} of {len(options.parts)}: {name}", flush=True)
        start = used()
        command = [sys.executable, str(HERE / script), *(public if name in PUBLIC else [])]
        if subprocess.run(command, check=False).returncode:
            raise SystemExit(f"{script} did not finish; run this again to continue")
        if whole:
            minutes[name] = round(used() - start, 1)
            write_atomically(STORE, f"{json.dumps(minutes, indent=1)}\n".encode())
    renew("evidence.md", "times", table(minutes))
    print(f"{used():.0f} processor minutes; left out: {', '.join(left_out) or 'nothing'}")


if __name__ == "__main__":
    main()
