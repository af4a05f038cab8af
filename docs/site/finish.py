"""Finish the built pages: formulas without scripts, figures that can be opened, search that works from disk.

And no link that leads nowhere.
"""

from __future__ import annotations

import html
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from latex2mathml.converter import convert

__all__ = ["broken_links", "finish", "hosts_asked"]

FORMULA = re.compile(r'<(span|div) class="arithmatex">(\\\(|\\\[)(.*?)(\\\)|\\\])</\1>', re.DOTALL)
FIGURE = re.compile(r'<p><img alt="[^"]*" src="([^"]+)" */?></p>')
SHIM = re.compile(r'<script src="https://unpkg\.com/iframe-worker/shim"[^>]*></script>')
FOLDER = re.compile(r'href="((?:\.{1,2}/)*\.{1,2})/?"')  # the logo's: from disk it would show a list of files
LOADS = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}
NEEDLESS_LINKS = {"canonical", "next", "prev", "alternate"}  # these tell of a page and load nothing


def finish(site: Path) -> None:
    """Finish all pages in place; a link that leads nowhere or a page that asks another host is an error."""
    workers = list((site / "assets" / "javascripts" / "workers").glob("search*.js"))
    if len(workers) != 1:
        raise ValueError(f"expected one search worker, found {[path.name for path in workers]}")
    shim = Path(__file__).with_name("worker.js").read_text(encoding="utf-8")
    text = json.dumps(workers[0].read_text(encoding="utf-8")).replace("</", "<\\/")
    (site / "assets" / "javascripts" / "worker.js").write_text(shim.replace("@@worker@@", text), encoding="utf-8")
    for page in _pages(site):
        content = page.read_text(encoding="utf-8")
        up = os.path.relpath(site, page.parent).replace(os.sep, "/")
        content = SHIM.sub(f'<script src="{up}/assets/javascripts/worker.js"></script>', content)
        content = FOLDER.sub(r'href="\1/index.html"', content)
        content = FIGURE.sub(_opened, content)
        page.write_text(FORMULA.sub(_mathml, content), encoding="utf-8")
    lost = site / "404.html"  # for servers; it needs no search from disk
    lost.write_text(SHIM.sub("", lost.read_text(encoding="utf-8")), encoding="utf-8")
    complaints = broken_links(site) + hosts_asked(site)
    if complaints:
        raise ValueError("\n".join(complaints))


def broken_links(site: Path) -> list[str]:
    """Links and images of built pages that lead to no file of the site, or to no place on the page."""
    seen = {page: _Read.of(page) for page in _pages(site)}
    complaints = []
    for page, read in seen.items():
        for link in read.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = page if not parts.path else Path(os.path.normpath(page.parent / unquote(parts.path)))
            if parts.path.startswith("/") or not target.is_file():
                complaints.append(f"{page.relative_to(site)}: {link} leads to no file")
            elif parts.fragment and target in seen and unquote(parts.fragment) not in seen[target].places:
                complaints.append(f"{page.relative_to(site)}: {link} leads to no place on that page")
    return complaints


def hosts_asked(site: Path) -> list[str]:
    """Things that a page would load from elsewhere."""
    complaints = []
    for page in _pages(site):
        for link in _Read.of(page).loads:
            if urlsplit(link).netloc:
                complaints.append(f"{page.relative_to(site)}: {link} would be loaded from another host")
    for sheet in site.rglob("*.css"):
        for link in re.findall(r"url\(\s*['\"]?((?:https?:)?//[^)'\"]+)", sheet.read_text(encoding="utf-8")):
            complaints.append(f"{sheet.relative_to(site)}: {link} would be loaded from another host")
    return complaints


def _pages(site: Path) -> list[Path]:
    """The generator's pages; 404.html is for servers, and links from the root."""
    return sorted(page for page in site.rglob("*.html") if page.name != "404.html")


def _opened(match: re.Match[str]) -> str:
    """A figure that leads to itself: on a phone it can be opened and enlarged."""
    image = match.group(0).removeprefix("<p>").removesuffix("</p>")
    return f'<p><a class="figure" href="{match.group(1)}">{image}</a></p>'


def _mathml(match: re.Match[str]) -> str:
    formula = html.unescape(match.group(3)).strip()
    return convert(formula, display="block" if match.group(2) == "\\[" else "inline")


class _Read(HTMLParser):
    """What a page links to, what it loads, and the places in it that can be linked to."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.places: set[str] = {"", "__top"}

    @classmethod
    def of(cls, page: Path) -> _Read:
        read = cls()
        read.feed(page.read_text(encoding="utf-8"))
        return read

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        link = given.get(LOADS.get(tag, "href"))
        if link is None or given.get("rel", "").lower() in NEEDLESS_LINKS:
            return
        self.links.append(link)
        if tag in LOADS:
            self.loads.append(link)
