"""The files of a run directory: what this run put there, each with its checksum, and nothing else.

`SHA256SUMS` lists them, in the format that `sha256sum --check` reads. A file is listed before it is written, so that
whatever a killed process left behind is known; what is not listed is somebody else's and is never removed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trimtab.core.files import as_path, parse_json, plain_name, read_bytes, sha256, write_atomically
from trimtab.evaluation.studies.errors import StudyError

__all__ = ["SUMS", "SUMS_PART", "RunFiles"]

SUMS = "SHA256SUMS"
SUMS_PART = f".{SUMS}.part"
"""What the list is filled as, before it is put in place: all that a run killed at its very beginning leaves behind."""

_HEAD = "# trimtab-run: files of this run and their checksums; sha256sum --check reads it"
_LINE = re.compile(r"([0-9a-f]{64})  (\S+)")
_LARGEST = 4 * 2**30  # bytes of one file of a run


def _silently(text: str) -> None:
    del text


class RunFiles:
    """Files of one run directory, by their names relative to it ("rows/so3.parquet").

    A file that differs from what was written is never used and never replaced or removed: it is set aside under another
    name, so that neither damage goes unnoticed nor anybody's edit is lost.

    Attributes:
        directory: Where they are.
        progress: Told of what is set aside, one line each.
    """

    def __init__(self, directory: str | os.PathLike[str], progress: Callable[[str], None] = _silently) -> None:
        """Read the list of files, if there is one."""
        self.directory = as_path(directory)
        self.progress = progress
        self._sums: dict[str, list[str]] = {}  # every checksum since the list was last tidied, the newest last
        self.listed = self._read_sums()

    def _read_sums(self) -> bool:
        path = self.directory / SUMS
        if path.is_symlink():
            raise StudyError(f"{path}: is a link; the list of a run's files is its own: put an ordinary file there")
        if not path.is_file():
            return False
        lines = read_bytes(path).decode("utf-8", errors="replace").splitlines()
        for line in lines:
            found = _LINE.fullmatch(line)  # the last line may be cut short by a power failure: it was not yet in place
            if found and _all_plain(found[2]):
                self._sums.setdefault(found[2], []).append(found[1])
        return bool(lines) and lines[0] == _HEAD

    def tidy(self) -> None:
        """List each file once, and remove what a killed process was about to put in place of one."""
        for name in self._sums:
            _part(self.path(name)).unlink(missing_ok=True)
        self._sums = {name: [self._present(name, sums)] for name, sums in self._sums.items()}
        lines = [_HEAD, *(f"{sums[-1]}  {name}" for name, sums in self._sums.items())]
        part = self.directory / SUMS_PART
        part.unlink(missing_ok=True)
        write_atomically(self.directory / SUMS, ("\n".join(lines) + "\n").encode(), temporary=part)
        self.listed = True

    def _present(self, name: str, sums: list[str]) -> str:
        """The checksum of the file that is there, if it was ever listed; else the newest.

        A process that was killed, or a disk that was full, may have come between the list and the file.
        """
        path = self.path(name)
        if len(sums) == 1 or path.is_symlink() or not path.is_file():
            return sums[-1]
        found = sha256(read_bytes(path, _LARGEST))
        return found if found in sums else sums[-1]

    # -------------------------------------------------------------- one file

    def path(self, name: str) -> Path:
        """Where a file is; a name that would lead out of the directory is refused."""
        folders = [plain_name(part, "a file of a run") for part in name.split("/")][:-1]
        folder = self.directory
        for part in folders:
            folder /= part
            if folder.is_symlink():
                raise StudyError(f"{folder}: is a link; the folders of a run are its own: put an ordinary one there")
        return self.directory / name

    def names(self, folder: str = "") -> list[str]:
        """The files that the run has put into a folder of the directory, by name; all if none is given."""
        return sorted(name for name in self._sums if name.startswith(folder) and self.path(name).is_file())

    def put(self, name: str, data: bytes | str) -> Path:
        """Write a file, atomically and durably; an edited one in its place is set aside first."""
        path = self.path(name)
        data = data.encode() if isinstance(data, str) else data
        if os.path.lexists(path) and not self.intact(name):
            self.set_aside(name)
        if not self.listed:
            self.tidy()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._sums.setdefault(name, []).append(sha256(data))
        with (self.directory / SUMS).open("a", encoding="utf-8") as file:
            file.write(f"{self._sums[name][-1]}  {name}\n")
            file.flush()
            os.fsync(file.fileno())
        _part(path).unlink(missing_ok=True)
        write_atomically(path, data, temporary=_part(path))
        return path

    def intact(self, name: str) -> bool:
        """Whether a file is there, and is what the run wrote."""
        path = self.path(name)
        if path.is_symlink() or not path.is_file():
            return False
        return sha256(read_bytes(path, _LARGEST)) in self._sums.get(name, ())

    def read(self, name: str) -> bytes:
        """What is in a file, which must be what the run wrote."""
        path = self.path(name)
        if not path.is_file():
            raise StudyError(
                f"{path}: no such file; the run is not finished (go on with --resume), or of another version"
            )
        data = read_bytes(path, _LARGEST)
        if sha256(data) not in self._sums.get(name, ()):
            why = (
                "its checksum is not that of what the run wrote"
                if self.listed
                else f"there is no {SUMS} to check it by"
            )
            raise StudyError(f"{path}: {why}; --resume sets it aside and makes it again")
        return data

    def read_json(self, name: str) -> Any:
        """The same of a JSON file."""
        return parse_json(self.read(name), str(self.path(name)))

    def checked(self, name: str) -> Path:
        """Where a file is that must be what the run wrote, for those who read it themselves."""
        self.read(name)
        return self.path(name)

    def set_aside(self, name: str) -> Path:
        """Rename a file that is not what the run wrote, and say so."""
        path = self.path(name)
        number = 1
        while os.path.lexists(aside := path.with_name(f"{path.name}.set-aside-{number}")):
            number += 1
        os.rename(path, aside)
        self.progress(f"{path}: not what the run wrote (damaged, or edited since); kept as {aside.name} and made again")
        return aside

    # -------------------------------------------------------------- all of them

    def remove_all(self, last: str) -> None:
        """Remove what the run wrote, and folders that are empty then; what was edited is set aside instead.

        Args:
            last: The file by which the directory is known to be a run; it goes last.
        """
        folders = {parent for name in self._sums for parent in self.path(name).parents if parent != self.directory}
        for name in sorted(self._sums, key=lambda name: name == last):
            path = self.path(name)
            _part(path).unlink(missing_ok=True)
            if self.intact(name):
                path.unlink()
            elif os.path.lexists(path):
                self.set_aside(name)
        for folder in sorted(folders, reverse=True):
            if folder.is_dir() and folder.is_relative_to(self.directory) and not any(folder.iterdir()):
                folder.rmdir()
        self._sums = {}


def _part(path: Path) -> Path:
    """Where a file is filled before it is put in place."""
    return path.with_name(f".{path.name}.part")


def _all_plain(name: str) -> bool:
    try:
        return all(plain_name(part) for part in name.split("/"))
    except ValueError:
        return False
