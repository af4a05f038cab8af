"""Make everything that docs/evidence.md rests on, part by part, and write on that page what each part took.

    python docs/make_evidence.py                                        every part, as far as it needs no further file
    python docs/make_evidence.py --checkpoint FILE --circles MAP.json   with the parts on a public PDM checkpoint
    python docs/make_evidence.py --parts grid quality                   some of them
    python docs/make_evidence.py --anew                                 what is kept is thrown away first
    python docs/make_evidence.py --parts                                the table of times alone

Every part is a command of its own that keeps what it has made, in runs/ or in a file beside its page, so one that was
stopped goes on where it was. Times are processor seconds of all its processes, before a stop and after it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from _page import HERE, renew
from trimtab.core.files import write_atomically

STORE = HERE / "results" / "evidence.json"
RUNS = Path("runs")
Times = dict[str, dict[str, float]]
KINDS = ("from nothing", "from what is kept")
CLOCK = "by the clock"  # cells that were measured before processor seconds were noted


class Part(NamedTuple):
    """One command.

    Attributes:
        script: Its file.
        kept: The folder in runs/ that it keeps its work in; None if it has --anew and a file beside the page.
        public: Whether it takes a public checkpoint.
    """

    script: str
    kept: str | None = None
    public: bool = False


PARTS = {
    "domains": Part("make_domains.py", "domains"),
    "reproduction": Part("make_reproduction.py", "paper"),
    "grid": Part("make_grid.py", "grid-docs"),
    "pdm": Part("make_pdm_readings.py", "pdm-docs", public=True),
    "effort": Part("make_effort.py"),
    "quality": Part("make_quality.py", public=True),
}


def spent() -> float:
    """Processor seconds of all processes that were waited for."""
    times = os.times()
    return times.children_user + times.children_system


def make(part: Part, files: list[str], anew: bool) -> tuple[str, float] | None:
    """Run one part; from where, and what it took, with what it took before it was stopped; None if that is unknown."""
    clock = RUNS / "evidence" / f"{part.script}.json"
    if anew and part.kept is not None:
        shutil.rmtree(RUNS / part.kept, ignore_errors=True)
    nothing = anew or (part.kept is not None and not (RUNS / part.kept).exists())
    state = {"seconds": 0.0 if nothing else None, "finished": False}
    if not nothing and clock.exists():
        state = json.loads(clock.read_text(encoding="utf-8"))
    options = ["--anew"] if anew and part.kept is None else []
    began = spent()
    answer = subprocess.run([sys.executable, HERE / part.script, *options, *files], check=False)
    kind = KINDS[1] if state["finished"] else KINDS[0]
    before = 0.0 if state["finished"] else state["seconds"]
    total = None if before is None else before + spent() - began
    state = {"seconds": total, "finished": answer.returncode == 0}
    clock.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(clock, json.dumps(state).encode())
    if answer.returncode:
        raise SystemExit(f"{part.script} did not finish; run this again to go on")
    return None if total is None else (kind, total)


def noted(times: Times) -> Times:
    """With what two of the parts have noted for each of their cells, whenever that was made."""
    quality = json.loads((HERE / "results" / "quality.json").read_text(encoding="utf-8"))["cells"]
    effort = json.loads((HERE / "results" / "effort.json").read_text(encoding="utf-8"))
    cells = {"quality": {KINDS[0]: sum(cell["seconds"] for cell in quality.values())}}
    if all("seconds" in cell for cell in effort.values()):
        cells["effort"] = {KINDS[0]: sum(cell["seconds"] for cell in effort.values())}
    else:
        cells["effort"] = {CLOCK: sum(60 * cell.get("minutes", 0.0) for cell in effort.values())}
    return {name: cells.get(name, {}) | times.get(name, {}) for name in PARTS}


def table(times: Times) -> str:
    """Processor minutes by part, of the kinds that were timed."""
    kinds = [kind for kind in KINDS if any(kind in found for found in times.values())]
    head = " | ".join(f"{kind}, min" for kind in kinds)
    lines = [f"| part | command | {head} |", "|---" * (2 + len(kinds)) + "|"]
    for name, part in PARTS.items():
        minutes = [_minutes(times[name], kind) for kind in kinds]
        lines.append(f"| {name} | `docs/{part.script}` | " + " | ".join(minutes) + " |")
    totals = []
    for kind in kinds:
        known = [found[kind] for found in times.values() if kind in found]
        total = f"{sum(known) / 60:.0f}"
        totals.append(total if len(known) == len(PARTS) else f"more than {total}")
    return "\n".join([*lines, f"| all | `make evidence` | {' | '.join(totals)} |"])


def _minutes(found: dict[str, float], kind: str) -> str:
    if kind not in found and kind == KINDS[0] and CLOCK in found:
        return f"{found[CLOCK] / 60:.1f} {CLOCK}"
    return f"{found[kind] / 60:.1f}" if kind in found else "not timed"


def main() -> None:
    """Run, note and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--checkpoint", help="a public PDM checkpoint")
    parser.add_argument("--circles", help="its map")
    parser.add_argument("--anew", action="store_true", help="throw away what is kept of these parts")
    options = parser.parse_args()
    public = ["--checkpoint", options.checkpoint, "--circles", options.circles] if options.checkpoint else []
    times: Times = json.loads(STORE.read_text(encoding="utf-8")) if STORE.exists() else {}
    for number, name in enumerate(options.parts, 1):
        part = PARTS[name]
        print(f"part {number} of {len(options.parts)}: {name}", flush=True)
        found = make(part, public if part.public else [], options.anew)
        if found is not None:
            kind, seconds = found
            times.setdefault(name, {})[kind] = round(seconds, 1)
            write_atomically(STORE, f"{json.dumps(times, indent=1)}\n".encode())
    renew("evidence.md", "times", table(noted(times)))


if __name__ == "__main__":
    main()
