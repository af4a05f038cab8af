"""Gather what the site is made of in one folder, with every link leading to a page of the site.

The Markdown stays as it is read on a code host: links between pages, to source files and to scripts. Here they are
followed: a page to a page, any other file of the project to a page that shows it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

import nbformat
from PIL import Image

from api import api_pages
from notebooks import execute, markdown

__all__ = ["stage"]

PAGES_AT_ROOT = {"README.md": "index.md"}  # other Markdown at the root keeps its name in lower case
SHOWN = {".py": "python", ".c": "c", ".toml": "toml", ".sh": "bash", ".json": "json", ".yml": "yaml", ".cff": "yaml"}
ASSETS = (".png", ".svg", ".html", ".json", ".jpg", ".css")
LONGEST = 200_000  # characters of a file that is shown; what is longer is offered as a file
CODE = re.compile(r"^(?P<fence>```+|~~~+).*?^(?P=fence)[^\S\n]*$|`+[^`\n]*`+", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\()([^)\s]+)((?:\s+\"[^\"]*\")?\))|(\b(?:src|href)=\")([^\"]+)(\")")
ELSEWHERE = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|#|//)", re.IGNORECASE)


def stage(root: Path, out: Path) -> None:
    """Write the site's Markdown and assets.

    Args:
        root: Of the project.
        out: An empty or missing folder.
    """
    Stage(root, out).write()


class Stage:
    """The pages that are to be written, and the files they ask for."""

    def __init__(self, root: Path, out: Path) -> None:
        """`root` and `out` as in `stage`."""
        self.root, self.out = root.resolve(), out
        self.wanted: list[Path] = []  # files of the project that some page links to
        docs = self.root / "docs"
        self.pages = {path: str(path.relative_to(docs).as_posix()) for path in _visible(docs, "*.md")}
        for path in sorted(self.root.glob("*.md")):
            self.pages[path] = PAGES_AT_ROOT.get(path.name, path.name.lower())
        self.notebooks = sorted((self.root / "notebooks").glob("*.py"))
        self.pages |= {path: f"notebooks/{path.stem}.md" for path in self.notebooks}

    def write(self) -> None:
        """Pages, assets, the API reference, and then every file that some page linked to."""
        for path, name in self.pages.items():
            if path.suffix == ".md":
                self._put(name, self._relinked(path.read_text(encoding="utf-8"), path, name))
        for path in self.notebooks:
            done = execute(path, self.root)
            for cell in done.cells:
                if cell.cell_type == "markdown":
                    cell.source = self._relinked(cell.source, path, self.pages[path])
            self._put(self.pages[path], markdown(done, f"{path.stem}.ipynb"))
            self._put(f"notebooks/{path.stem}.ipynb", nbformat.writes(done))
        for path in _visible(self.root / "docs", "*"):
            if path.suffix in ASSETS:
                self._copy(path, self._place(path))
        pages = api_pages(self.root / "src")
        for name, text in pages.items():
            self._put(f"api/{name}", text)
        order = ["index.md", *(name for name in pages if name != "index.md")]
        self._put("api/order.txt", "\n".join(order))
        for name in ("site.css", "logo.svg"):
            self._copy(Path(__file__).with_name(name), name)
        shown: set[Path] = set()
        while self.wanted:
            path = self.wanted.pop()
            if path not in shown:
                shown.add(path)
                self._put(self._place(path), self._listing(path) if path.is_dir() else _shown(path, self.root))

    def _place(self, path: Path) -> str:
        """Where a file of the project is on the site."""
        if path in self.pages:
            return self.pages[path]
        inside = path.relative_to(self.root).as_posix()
        if inside.startswith("docs/") and path.suffix in ASSETS:
            return inside.removeprefix("docs/")
        return f"code/{inside}/index.md" if path.is_dir() else f"code/{inside}.md"

    def _relinked(self, text: str, path: Path, name: str) -> str:
        """The text of a page with its links followed to the site's pages; code is left alone."""
        done, parts = 0, []
        for code in CODE.finditer(text):
            parts += [self._follow(text[done : code.start()], path, name), code.group()]
            done = code.end()
        return "".join([*parts, self._follow(text[done:], path, name)])

    def _follow(self, text: str, path: Path, name: str) -> str:
        def followed(match: re.Match[str]) -> str:
            before, link, after = (match.group(i) or match.group(i + 3) for i in (1, 2, 3))
            if ELSEWHERE.match(link):
                return match.group()
            target, _, anchor = link.partition("#")
            found = (path.parent / target).resolve()
            if not found.exists() or self.root not in (found, *found.parents):
                raise ValueError(f"{path.relative_to(self.root)}: the link {link} leads to no file of the project")
            place = self._place(found)
            if place.startswith("code/"):
                self.wanted.append(found)
            relative = os.path.relpath(place, os.path.dirname(name) or ".").replace(os.sep, "/")
            return f"{before}{relative}{'#' + anchor if anchor else ''}{after}"

        return LINK.sub(followed, text)

    def _listing(self, folder: Path) -> str:
        """A page for a folder: its files, each with a page."""
        lines = [f"# {folder.relative_to(self.root).as_posix()}", ""]
        for path in sorted(folder.iterdir()):
            if path.suffix in SHOWN and not path.name.startswith((".", "_")):
                self.wanted.append(path)
                lines.append(f"- [{path.name}]({path.name}.md)")
        return "\n".join(lines) + "\n"

    def _put(self, name: str, text: str) -> None:
        path = self.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def _copy(self, path: Path, name: str) -> None:
        target = self.out / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(lighter(path.read_bytes()) if path.suffix == ".png" else path.read_bytes())


def lighter(png: bytes) -> bytes:
    """A figure in 256 colours of its own, which the eye does not tell from the original; the original if smaller."""
    image = Image.open(BytesIO(png))
    if "A" in image.getbands() and image.getchannel("A").getextrema() == (255, 255):
        image = image.convert("RGB")
    if image.mode != "RGB":
        return png
    out = BytesIO()
    image.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
    return min(png, out.getvalue(), key=len)


def _visible(folder: Path, pattern: str) -> Iterable[Path]:
    """Files below a folder that belong to pages: not the site's own settings, nothing hidden."""
    own = Path(__file__).parent.resolve()
    for path in sorted(folder.rglob(pattern)):
        parts = path.relative_to(folder).parts
        if path.is_file() and own not in path.resolve().parents and not any(p.startswith((".", "_")) for p in parts):
            yield path


def _shown(path: Path, root: Path) -> str:
    """A page that shows a source file."""
    text = path.read_text(encoding="utf-8")
    if len(text) > LONGEST:
        raise ValueError(f"{path.name} is too long to be shown on a page; link to its folder instead")
    fence = "`" * (max((len(run) for run in re.findall(r"`{3,}", text)), default=2) + 1)
    return (
        f"# {path.relative_to(root).as_posix()}\n\n{fence}{SHOWN.get(path.suffix, 'text')}\n{text.rstrip()}\n{fence}\n"
    )
