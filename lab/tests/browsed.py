"""A page of the report in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

LAPTOP, PHONE = (1280, 800), (390, 844)


class Browsed:
    """A page opened from disk, with everything it complained about and asked for."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def open(self, report: Path, fragment: str = "", size: tuple[int, int] = LAPTOP, scheme: str = "light") -> None:
        self.page.goto("about:blank")  # a change of the fragment alone would not load the page again
        self.page.set_viewport_size({"width": size[0], "height": size[1]})
        self.page.emulate_media(color_scheme=scheme)
        self.complaints.clear()
        self.requests.clear()
        self.page.goto(report.as_uri() + fragment)

    def drawn(self, place: str) -> str:
        return str(self.page.inner_html(f"#{place}"))

    def text(self, place: str) -> str:
        return str(self.page.inner_text(f"#{place}"))

    def pick(self, group: str, value: str) -> None:
        self.page.check(f'input[name="{group}"][value="{value}"]', force=True)
