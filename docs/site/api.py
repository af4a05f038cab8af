"""The pages of the API reference: one for each room, every public name once.

Names are read from the source, never by importing it. A name is public if it stands in the `__all__` of the package or
of a room, or of a module that a room's `__all__` names. It is described on the page of the room that defines it, and
named on the first page by the shortest way to import it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import griffe

__all__ = ["Name", "api_pages", "public_names"]

PACKAGE = "trimtab"
HIDDEN = ("cli",)  # the command line has a page
FIRST = ("core", "loop", "schedules", "constraints", "prices", "calibration", "advice", "integrations")


@dataclass(frozen=True)
class Name:
    """A public name.

    Attributes:
        path: Where it is defined, such as "trimtab.schedules.basic.Periodic".
        room: The room that defines it, such as "schedules".
        module: Where to import it from, the shortest way.
    """

    path: str
    room: str
    module: str

    @property
    def name(self) -> str:
        """As it is called in code."""
        return self.path.rsplit(".", 1)[1]


def public_names(source: Path) -> list[Name]:
    """Every public name, once, in the order of rooms and of the modules in them.

    Args:
        source: The folder that holds the package.
    """
    package = griffe.load(PACKAGE, search_paths=[source], resolve_aliases=True)
    rooms = [module for module in package.modules.values() if module.is_init_module]
    modules = [package]
    for room in rooms:
        if room.name not in HIDDEN:
            modules += [room, *(room.modules[name] for name in map(str, room.exports or ()) if name in room.modules)]
    found: dict[str, Name] = {}
    for module in modules:
        for export in sorted(map(str, module.exports or ())):
            if export.startswith("__") or export in module.modules:
                continue
            if export not in module.members:
                raise ValueError(f"{module.path} declares {export}, which type checkers cannot find there")
            target = module[export]
            if target.is_alias and not target.target_path.startswith(f"{PACKAGE}."):
                continue  # a name of another library, the lab's too, is described there
            path = target.final_target.path if target.is_alias else target.path
            if path.startswith(f"{PACKAGE}."):
                found.setdefault(path, Name(path, path.split(".")[1], module.path))
    return sorted(found.values(), key=lambda name: (_place(name.room), name.path.rsplit(".", 1)[0], name.name.lower()))


def api_pages(source: Path) -> dict[str, str]:
    """The reference as Markdown by file name: `index.md` and one page for each room that has public names."""
    names = public_names(source)
    package = griffe.load(PACKAGE, search_paths=[source])
    pages = {}
    for room in dict.fromkeys(name.room for name in names):
        here = [name for name in names if name.room == room]
        about = package[room].docstring.value if package[room].docstring else ""
        parts = [f"# {PACKAGE}.{room}", about, *(f"::: {name.path}" for name in here)]
        pages[f"{room}.md"] = "\n\n".join(parts) + "\n"
    pages["index.md"] = _overview(package, names)
    return pages


def _overview(package: griffe.Module, names: list[Name]) -> str:
    lines = ["# API reference", "", "Every public name, by where it is imported from.", ""]
    for module in sorted(dict.fromkeys(name.module for name in names), key=_order):
        about = package if module == PACKAGE else package[module.removeprefix(f"{PACKAGE}.")]
        first = about.docstring.value.splitlines()[0] if about.docstring else ""
        lines += [f"## {module}", "", first, "", "| name | what it is |", "|---|---|"]
        for name in (name for name in names if name.module == module):
            about = package[name.path.removeprefix(f"{PACKAGE}.")]
            words = about.docstring.value.split("\n\n")[0] if about.docstring else ""
            words = " ".join(words.split()).replace("|", "\\|")
            lines.append(f"| [`{name.name}`]({name.room}.md#{name.path}) | {words} |")
        lines.append("")
    return "\n".join(lines)


def _order(module: str) -> tuple[bool, tuple[int, str]]:
    """The package first, then by rooms."""
    return module != PACKAGE, _place(module.removeprefix(f"{PACKAGE}.").split(".")[0])


def _place(room: str) -> tuple[int, str]:
    if room in FIRST:
        return FIRST.index(room), room
    return len(FIRST), room
