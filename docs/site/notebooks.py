"""Notebooks: Python files with cells marked by `# %%`, run from top to bottom, shown with what they gave.

A Python file can be read, reviewed, linted and searched where a notebook file cannot. The site shows the executed cells
and offers the notebook file for download. What a cell showed is kept in a cache, by the text of the notebook and of
the package, so that only what has changed runs again.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from traitlets.config import Config

__all__ = ["execute", "markdown", "read"]

CELL = re.compile(r"^# %%[^\S\n]*(\[markdown\])?.*\n", re.MULTILINE)
SECONDS = 300  # that a cell may take
CACHE = "TRIMTAB_NOTEBOOK_CACHE"


def read(path: Path) -> NotebookNode:
    """A notebook of a Python file; what stands before the first cell mark is left out."""
    parts = CELL.split(path.read_text(encoding="utf-8"))[1:]
    cells = []
    for kind, text in zip(parts[::2], parts[1::2], strict=True):
        if kind:
            words = "\n".join(line.removeprefix("#").removeprefix(" ") for line in text.strip().splitlines())
            cells.append(new_markdown_cell(words))
        elif text.strip():
            cells.append(new_code_cell(text.strip()))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"  # the same in every build
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return new_notebook(cells=cells, metadata=kernel)


def execute(path: Path, root: Path) -> NotebookNode:
    """Run a notebook file in a fresh kernel, or take what it gave the last time; an error in a cell is an error here.

    Args:
        path: Of the Python file.
        root: Of the project, whose `src` is what the notebook imports.
    """
    place = Path(os.environ.get(CACHE) or root / "build" / "notebooks")
    kept = place / f"{path.stem}-{_key(path, root)}.ipynb"
    if kept.exists():
        return nbformat.read(kept, as_version=4)
    notebook = read(path)
    search = os.pathsep.join([str(root / "src"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": search, "OMP_NUM_THREADS": "1", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    with TemporaryDirectory() as folder:  # nobody else listens on a socket of the file system
        wire = {"transport": "ipc", "ip": f"{folder}/kernel"} if os.name == "posix" else {}
        client = NotebookClient(notebook, timeout=SECONDS, config=Config({"KernelManager": wire}))
        client.execute(cwd=str(path.parent), env=environment)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # the hours of the day
    place.mkdir(parents=True, exist_ok=True)
    half = kept.with_suffix(f".{os.getpid()}")
    nbformat.write(notebook, half)
    half.replace(kept)
    return notebook


def markdown(notebook: NotebookNode, name: str) -> str:
    """A page of an executed notebook: its text, its code, and what each cell showed.

    Args:
        notebook: Executed.
        name: Of the notebook file that the page offers for download.
    """
    first, *rest = notebook.cells
    parts = [first.source, f"[Download this notebook]({name})"]
    for cell in rest:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        else:
            parts += [f"```python\n{cell.source}\n```", *map(_shown, _joined(cell.outputs))]
    return "\n\n".join(part for part in parts if part) + "\n"


def _joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """The outputs of a cell with what it printed in one piece, however it arrived."""
    joined: list[NotebookNode] = []
    for output in outputs:
        if joined and output.output_type == joined[-1].output_type == "stream" and output.name == joined[-1].name:
            joined[-1] = NotebookNode(joined[-1] | {"text": joined[-1].text + output.text})
        else:
            joined.append(output)
    return joined


def _shown(output: NotebookNode) -> str:
    """What one output is on a page."""
    if output.output_type == "stream":
        return f"```{{ .text .output }}\n{output.text.rstrip()}\n```" if output.name == "stdout" else ""
    data = output.get("data", {})
    if "text/html" in data:
        one_block = "\n".join(line for line in data["text/html"].splitlines() if line.strip())
        return f'<div class="output">{one_block}</div>' if one_block else ""  # a bar that has gone leaves nothing
    return f"```{{ .text .output }}\n{data['text/plain'].rstrip()}\n```" if "text/plain" in data else ""


def _key(path: Path, root: Path) -> str:
    """Of the text of the notebook, this file and the package."""
    sources = sorted((root / "src").rglob("*.py"))
    texts = (file.read_bytes() for file in (path, Path(__file__), *sources))
    return hashlib.sha256(b"".join(hashlib.sha256(text).digest() for text in texts)).hexdigest()[:16]
