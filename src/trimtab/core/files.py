"""Reading and writing files: atomically, with checked metadata, and nothing is ever unpickled."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from trimtab._version import __version__

__all__ = ["load_tensors", "save_tensors", "write_atomically"]

_FORMAT = "trimtab"


def write_atomically(path: str | os.PathLike[str], write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file beside `path`, then put it in place in one step.

    A reader sees the old file or the new one, never half of one; when writing fails, the old one stays.
    """
    path = Path(path)
    if path.exists() and not path.is_file():  # a directory, a device: nothing to put another file in the place of
        raise FileExistsError(errno.EEXIST, "there is something that is not an ordinary file", str(path))
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    except OSError as error:  # about the file that was asked for, not the temporary one
        raise type(error)(error.errno, f"{error.strerror} (no file can be made in {path.parent})", str(path)) from error
    os.close(handle)
    try:
        write(Path(temporary))
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp makes private files; a result is an ordinary one
        os.replace(temporary, path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename in (None, temporary):  # say which file it is
            raise type(error)(error.errno, error.strerror, str(path)) from error
        raise


def save_tensors(
    path: str | os.PathLike[str], kind: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> None:
    """Write tensors and JSON facts to one safetensors file.

    Args:
        path: Where to.
        kind: What the file is, e.g. "thresholds"; checked on loading.
        tensors: By name.
        facts: Anything JSON can hold.
    """
    metadata = {"format": _FORMAT, "kind": kind, "version": __version__, "facts": json.dumps(dict(facts))}
    flat = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        write_atomically(path, lambda file: save_file(flat, file, metadata))
    except SafetensorError as error:  # a full disk, for one; whatever was there before still is
        raise OSError(f"{path}: could not be written ({error})") from error


def load_tensors(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_tensors` wrote; anything else is refused with a ValueError that says what it is.

    Returns:
        The tensors by name, and the facts (with the writing version under "version").
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; expected a trimtab {kind} file")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
    except SafetensorError as error:
        raise ValueError(
            f"{path}: not a trimtab {kind} file, or a truncated one ({error}); save it again with trimtab"
        ) from error
    if metadata.get("format") != _FORMAT:
        raise ValueError(f"{path}: a safetensors file, but not one written by trimtab; expected a {kind} file")
    if metadata.get("kind") != kind:
        raise ValueError(f"{path}: holds {metadata.get('kind')!r}, expected {kind!r}")
    try:
        facts = dict(json.loads(metadata["facts"]))
    except (KeyError, ValueError, TypeError) as error:
        raise ValueError(f"{path}: its metadata cannot be read ({error}); save it again with trimtab") from error
    facts["version"] = metadata.get("version", "unknown")
    return tensors, facts
