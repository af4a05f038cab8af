"""Build the site into one folder that opens from disk and can be served: `python docs/site [folder]`.

The generator is zensical, the successor of mkdocs-material by its authors: it is developed, builds these pages in
seconds without a network, and its strict mode knows pages, anchors and API references.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from finish import finish
from navigation import Entry, navigation
from place import clear, mark
from stage import stage

HERE = Path(__file__).parent.resolve()
ROOT = HERE.parents[1]


def main(out: Path) -> Path:
    """Build into `out`, which is replaced if an earlier build made it; returns the first page."""
    staged = out.with_name(f"{out.name}-pages")
    clear(staged, out)
    mark(staged)
    docs = staged / "docs"
    stage(ROOT, docs)
    settings = (HERE / "zensical.toml").read_text(encoding="utf-8")
    places = {"docs_dir": "docs", "site_dir": "site"}
    lines = [f"{name} = {json.dumps(place)}" for name, place in places.items()]
    lines.append(f"nav = {_toml(navigation(docs))}")
    settings = settings.replace("[project]\n", "[project]\n" + "\n".join(lines) + "\n", 1)
    sources = json.dumps([os.path.relpath(ROOT / "src", staged).replace(os.sep, "/")])
    settings = settings.replace("inventories = []", f"inventories = []\npaths = {sources}", 1)
    reading = json.dumps([(HERE / "docstrings.py").as_posix() + ":Examples"])
    settings = settings.replace("extensions = []", f"extensions = {reading}", 1)
    (staged / "zensical.toml").write_text(settings, encoding="utf-8")
    done = subprocess.run([sys.executable, "-m", "zensical", "build", "--clean", "--strict"], cwd=staged, check=False)
    if done.returncode != 0:
        raise SystemExit("The site was not built: see the complaints above.")
    mark(staged / "site")
    shutil.move(staged / "site", out)
    finish(out)
    return out / "index.html"


def _toml(nav: list[Entry]) -> str:
    """The navigation as TOML, on one line."""

    def written(value: str | list[Entry]) -> str:
        return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else _toml(value)

    return "[" + ", ".join(f"{{ {json.dumps(k)} = {written(v)} }}" for entry in nav for k, v in entry.items()) + "]"


if __name__ == "__main__":
    parser = argparse.ArgumentParser("python docs/site", description=(__doc__ or "").split(":")[0] + ".")
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "build" / "site", help="build/site unless told")
    first = main(parser.parse_args().folder.resolve())
    print(f"The site is there: {first}")
