"""Imports point one way: a room may use those before it, never those after it, not even inside a function."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import trimtab

ROOT = Path(trimtab.__file__).parent
ORDER = (
    ("core",),
    ("constraints",),
    ("schedules",),
    ("prices",),
    ("loop",),
    ("calibration",),
    ("advice", "integrations"),
    ("cli",),
)
LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in rooms}
ANYWHERE = {"_version"}  # no room of its own, and imports nothing
LAZY = {  # the only imports that point the other way, inside a function or for type checkers
    ("prices/price.py", "trimtab.prices.schedule"),  # a price makes its schedule
}


def room_of(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0].removesuffix(".py")
    return first if first in LEVEL else ""


def imports_of(path: Path) -> list[tuple[int, str]]:
    """The rooms a file imports from, with the lines; lazy imports and those for type checkers count too."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            module = node.module or "" if node.level == 0 else ""  # a relative one stays in its room
            assert node.level <= len(path.relative_to(ROOT).parts) - 1, f"{path}:{node.lineno}: leaves its room"
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "trimtab" else [module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        names = [name for name in names if (path.relative_to(ROOT).as_posix(), name) not in LAZY]
        found += [(node.lineno, name.split(".")[1]) for name in names if name.startswith("trimtab.")]
    return found


def test_every_room_has_its_place():
    rooms = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms == set(LEVEL)


def test_the_library_does_not_know_the_lab():
    for path in ROOT.rglob("*.py"):
        front_door = path in (ROOT / "__init__.py", ROOT / "core" / "checks.py")  # for names that moved, and tt.domain
        assert front_door or "trimtab_lab" not in path.read_text(encoding="utf-8"), path


def test_imports_point_one_way():
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        room = room_of(path)
        for line, other in imports_of(path):
            if not room or other == room or other in ANYWHERE:  # the package's front door may lead anywhere
                continue
            if other not in LEVEL or LEVEL[other] >= LEVEL[room]:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {room} imports {other}")
    assert not wrong, "\n".join(wrong)


def test_commands_know_nothing_of_the_command_line_s_entrance():
    for path in (ROOT / "cli").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert path.name == "main.py" or "trimtab.cli.main" not in text, path


def test_no_module_imports_one_that_imports_it():
    """Not by a longer way either; lazy imports and those for type checkers count too."""
    modules = {
        path: ".".join(("trimtab", *path.relative_to(ROOT).with_suffix("").parts)) for path in ROOT.rglob("*.py")
    }
    modules = {path: name.removesuffix(".__init__") for path, name in modules.items()}
    uses = {name: _modules_of(path, name, set(modules.values())) - {name} for path, name in modules.items()}
    while True:  # take away what depends on nothing that is left: a cycle is what cannot be taken away
        free = {name for name, others in uses.items() if not others & set(uses)}
        if not free:
            break
        uses = {name: others for name, others in uses.items() if name not in free}
    assert not uses, f"in cycles, or above one: {sorted(uses)}"


FIRST_LINE = """
import sys
import torch
import trimtab as tt

ball = tt.as_constraint(
    lambda x: x / x.norm(dim=1, keepdim=True).clamp(min=1), lambda x: (x.norm(dim=1) - 1).clamp(min=0)
)
corrector, x = tt.Corrector(ball, 0.25, n_steps=100), torch.zeros(4, 3)
for _ in range(3):
    for t in range(100):
        x = corrector(x + 0.3 * torch.randn(4, 3), t)
print(*sorted(name for name in sys.modules if name.split(".")[0] == "trimtab"))
"""


def test_the_first_line_of_the_readme_loads_a_small_part_of_the_library():
    done = subprocess.run([sys.executable, "-c", FIRST_LINE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.split()
    assert "trimtab.loop.corrector" in loaded
    assert len(loaded) <= 30, loaded


def _modules_of(path: Path, name: str, known: set[str]) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & known
        elif isinstance(node, ast.ImportFrom):
            package = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            if (path.relative_to(ROOT).as_posix(), module) in LAZY:
                continue
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                found |= {inner if inner in known else module} & known
    return found
