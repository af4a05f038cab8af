"""Read and write files: atomically, with checksums, and without unpickling anything."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load, save
from torch import Tensor

from trimtab._version import __version__

__all__ = ["UNUSABLE", "as_path", "load_tensors", "read_json", "save_tensors", "tensor_bytes", "write_atomically"]

_FORMAT = "trimtab-2"
_WITHOUT_CHECKSUM = "trimtab"  # of the shipped weights and of older files

UNUSABLE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors that building something from the contents of a file may raise if the contents are wrong."""


def as_path(path: object) -> Path:
    """Return the path of a file; raise if the value cannot be one."""
    if not isinstance(path, str | os.PathLike) or isinstance(os.fspath(path), bytes):
        raise TypeError(f"expected the path of a file, a str or a pathlib.Path: got {path!r:.60}")
    if len(str(path)) > 4000 or "\0" in str(path):
        raise ValueError(f"expected the path of a file: got {len(str(path))} characters, {str(path)[:40]!r} …")
    return Path(path)


def write_atomically(
    path: str | os.PathLike[str], write: Callable[[Path], None] | bytes, temporary: Path | None = None
) -> None:
    """Fill a temporary file in the same folder, wait until the disk has it, then put it in place in one step.

    A reader sees the old file or the new one, never a part of one, even after a power failure. `write` is the bytes, or
    a function that fills the file it is given. `temporary` must be in the same folder and not exist.
    """
    path = as_path(path)
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "there is something that is not an ordinary file", str(path))
    part = temporary or path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except OSError as error:  # report the file that was asked for, not the temporary one
        raise type(error)(error.errno, f"{error.strerror} (no file can be made in {path.parent})", str(path)) from error
    try:
        if isinstance(write, bytes):
            part.write_bytes(write)
        else:
            write(part)
        _sync(part)
        os.replace(part, path)
        with suppress(OSError):  # some systems cannot open folders
            _sync(path.parent)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(part)):
            raise type(error)(error.errno, error.strerror, str(path)) from error
        raise


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_json(path: str | os.PathLike[str]) -> Any:
    """Return the contents of a JSON file; raise a ValueError that names the file if it cannot be read."""
    return _parsed(Path(path).read_bytes(), str(path))


def _parsed(text: str | bytes, source: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise ValueError(f"{source}: not JSON ({error if text else 'it is empty'})") from error


# ------------------------------------------------------------------ tensors


def tensor_bytes(kind: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> bytes:
    """Return tensors and JSON facts as the bytes of one safetensors file; the same bytes for the same arguments."""
    metadata = {"format": _FORMAT, "kind": kind, "version": __version__, "facts": json.dumps(dict(facts))}
    # safetensors raises an error for tensors that share memory
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    data = save(plain, metadata | {"sha256": _checksum(metadata, plain)})
    end = 8 + int.from_bytes(data[:8], "little")  # the library writes the header in an order that varies
    header = json.dumps(json.loads(data[8:end]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # tensors start at a multiple of eight bytes
    return len(header).to_bytes(8, "little") + header + data[end:]


def _checksum(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """Return a hash of the metadata without the checksum, and of the names, dtypes, shapes and bytes of all tensors."""
    digest = hashlib.sha256(json.dumps({k: v for k, v in sorted(metadata.items()) if k != "sha256"}).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def save_tensors(
    path: str | os.PathLike[str], kind: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> None:
    """Write tensors and JSON facts to one safetensors file; `kind` says what it holds and is checked on loading."""
    write_atomically(path, tensor_bytes(kind, tensors, facts))


def load_tensors(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the facts that `save_tensors` wrote; raise a ValueError that says what else a file is."""
    path = as_path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; expected a trimtab {kind} file")
    again = "save it again with trimtab"
    try:
        data = path.read_bytes()  # at once: the library opens a file twice, and another writer may be in between
        metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__") or {}
        written_as, version = metadata.get("format", ""), metadata.get("version", "unknown")
        known = written_as in (_FORMAT, _WITHOUT_CHECKSUM)
        tensors = load(data)
    except Exception as error:  # the reader raises its own error, KeyError or OSError for damaged files
        raise ValueError(f"{path}: not a trimtab {kind} file, or a truncated one ({error}); {again}") from error
    if not known and written_as.startswith("trimtab-"):
        raise ValueError(
            f"{path}: written by trimtab {version} in the format {written_as!r}, which this version, {__version__}, "
            "does not read; install that one, or save the file again with this one"
        )
    if not known:
        raise ValueError(f"{path}: a safetensors file, but not one written by trimtab; expected a {kind} file")
    if metadata.get("kind") != kind:
        raise ValueError(f"{path}: holds {metadata.get('kind')!r}, expected {kind!r}")
    if written_as == _FORMAT and metadata.get("sha256") != _checksum(metadata, tensors):
        raise ValueError(f"{path}: damaged or edited, since its checksum does not match; {again}")
    try:
        return tensors, dict(_parsed(metadata["facts"], "facts")) | {"version": version}
    except (KeyError, ValueError, TypeError) as error:
        raise ValueError(f"{path}: its metadata cannot be read ({error}); {again}") from error


def kind_of(path: str | os.PathLike[str]) -> str:
    """Return the kind of a file of trimtab; "" for any other file, whose loader will say what is wrong."""
    try:
        with safe_open(path, framework="pt") as file:
            return str((file.metadata() or {}).get("kind", ""))
    except Exception:  # the reader raises what it likes for damaged files
        return ""
