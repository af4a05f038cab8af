"""Replace the parts of a page that a command prints."""

from __future__ import annotations

from pathlib import Path

__all__ = ["renew"]

HERE = Path(__file__).parent


def renew(page: str, name: str, text: str) -> None:
    """Put `text` between the markers `<!-- name -->` and `<!-- end name -->` of a page, and print it."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end {name} -->\n"
    path = HERE / page
    head, rest = path.read_text(encoding="utf-8").split(begin)
    tail = rest.split(end)[1]
    path.write_text(f"{head}{begin}{text.rstrip()}\n{end}{tail}", encoding="utf-8")
    print(text, flush=True)
