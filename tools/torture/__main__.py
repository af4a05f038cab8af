"""Attack trimtab and write down what happened: `python tools/torture [PART …]`; results go to docs/reliability.md."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "reliability.json"
PARTS = {  # how often, in full and with --quick
    "inputs": (26_000, 1_300),
    "mutations": (10_500, 500),
    "kills": (100, 3),
    "power": (100, 3),
    "projections": (20, 4),
    "memory": (1_000_000, 20_000),
    "nodes": (10, 1),
}
"""In the order of the page."""
BAD = (
    *("not resumed", "differing files", "unclear", "crashes", "accepted", "samples lost"),
    *("runs whose failures were counted wrongly", "MB that stay"),
)
"""What must be 0."""


def main() -> int:
    """Run the parts that were asked for, keep their results, and write the page."""
    parser = argparse.ArgumentParser(prog="python tools/torture", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="all of them if none is given")
    parser.add_argument("--quick", action="store_true", help="a small part of each, as in continuous integration")
    parser.add_argument("--count", type=int, help="so often, instead of the usual number")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page", action="store_true", help="only write the page from the results that are there")
    parser.add_argument("--names", action="store_true", help="only say which public names no attack on inputs names")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import torch

    torch.set_num_threads(1)
    if arguments.names:
        return import_module("torture.coverage").main(ROOT)  # type: ignore[no-any-return]
    bad = 0
    for name in [] if arguments.page else arguments.parts or PARTS:
        begin = time.monotonic()
        count = arguments.count or PARTS[name][arguments.quick]
        found = import_module(f"torture.{name}").run(count, arguments.seed, teller(name))
        print(f"{name}: {json.dumps(found, indent=1)}", flush=True)
        bad += any(found.get(word, 0) for word in BAD)
        if not arguments.quick:
            results = kept()  # read now: another part may have ended meanwhile
            results[name] = found | {
                "took": round(time.monotonic() - begin),
                "seed": arguments.seed,
                "machine": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
                "torch": torch.__version__,
            }
            RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if not arguments.quick:
        import_module("torture.page").write_page(kept(), ROOT / "docs" / "reliability.md")
    return 1 if bad else 0


def kept() -> dict[str, Any]:
    """The results that are there, by part."""
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    return {name: found[name] for name in PARTS if name in found}


def teller(name: str) -> Callable[[str], None]:
    """Says at most one line every ten seconds."""
    last = [0.0]

    def progress(text: str) -> None:
        if time.monotonic() - last[0] > 10:
            last[0] = time.monotonic()
            print(f"{name}: {text}", file=sys.stderr, flush=True)

    return progress


if __name__ == "__main__":
    raise SystemExit(main())
