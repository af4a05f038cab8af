"""Replace the parts of a page that a command prints, and keep what a stopped command has finished."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trimtab._version import __version__
from trimtab.core.files import write_atomically

__all__ = ["HERE", "KEPT", "kept", "renew"]

HERE = Path(__file__).parent
KEPT = Path("runs") / "evidence"


def renew(page: str, name: str, text: str) -> None:
    """Put `text` between the markers `<!-- name -->` and `<!-- end name -->` of a page, and print it."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end {name} -->\n"
    path = HERE / page
    head, rest = path.read_text(encoding="utf-8").split(begin)
    tail = rest.split(end)[1]
    path.write_text(f"{head}{begin}{text.rstrip()}\n{end}{tail}", encoding="utf-8")
    print(text, flush=True)


def kept(script: str, part: str, make: Callable[[], Any]) -> Any:
    """Return what this version has made of a part of a script, as JSON keeps it; make it if it is not there.

    Parts are in `runs/evidence`; a script that was stopped continues with the part it was at.
    """
    path = KEPT / f"{script}-{__version__}.json"
    done: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if part not in done:
        done[part] = json.loads(json.dumps(make()))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, f"{json.dumps(done)}\n".encode())
    return done[part]
