"""Read and write files: atomically, within stated limits, and without unpickling anything.

Every file of the package is put in place by `write_atomically`, every JSON text is read by `parse_json`, and every name
that becomes part of a path is checked by `plain_name`; SECURITY.md states what follows.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from trimtab._version import __version__

__all__ = [
    "LARGEST",
    "UNUSABLE",
    "as_path",
    "kind_of",
    "load_tensors",
    "parse_json",
    "plain_name",
    "read_bytes",
    "read_json",
    "save_tensors",
    "sha256",
    "tensor_bytes",
    "write_atomically",
]

_FORMAT = "trimtab-2"
_WITHOUT_CHECKSUM = "trimtab"  # of the shipped weights and of older files

LARGEST = 256 * 2**20
"""Bytes of a JSON text."""

UNUSABLE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors that building something from the contents of a file may raise if the contents are wrong."""

LONGEST_NAME = 120
"""Characters of a name that becomes part of a path."""

_LONGEST_PATH = 4000
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@=+-]*")


def plain_name(name: object, what: str = "a name") -> str:
    """Return a name that may become part of a path: a path made of such names cannot leave its folder.

    Example:
        >>> plain_name("so3@kappa=0.3")
        'so3@kappa=0.3'
        >>> plain_name("x/../escaped", "a schedule")
        Traceback (most recent call last):
        ...
        ValueError: a schedule cannot be 'x/../escaped': it becomes part of a file name, so expected letters, digits and . _ @ = + -, a letter or digit first, at most 120 characters; choose another name
    """  # noqa: E501
    if not isinstance(name, str) or len(name) > LONGEST_NAME or not _PLAIN.fullmatch(name):
        raise ValueError(
            f"{what} cannot be {str(name)[:80]!r}: it becomes part of a file name, so expected letters, digits and "
            f". _ @ = + -, a letter or digit first, at most {LONGEST_NAME} characters; choose another name"
        )
    return name


def as_path(path: object) -> Path:
    """Return the path of a file; raise if the value cannot be one."""
    if not isinstance(path, str | os.PathLike) or isinstance(os.fspath(path), bytes):
        raise TypeError(f"expected the path of a file, a str or a pathlib.Path: got {path!r:.60}")
    if len(str(path)) > _LONGEST_PATH or "\0" in str(path):
        raise ValueError(
            f"expected the path of a file: got {len(str(path))} characters that start with {str(path)[:40]!r}"
        )
    return Path(path)


def sha256(data: bytes) -> str:
    """Return the checksum of some bytes, as text."""
    return hashlib.sha256(data).hexdigest()


def write_atomically(
    path: str | os.PathLike[str],
    write: Callable[[Path], None] | bytes,
    temporary: Path | None = None,
) -> None:
    """Fill a temporary file in the same folder, wait until the disk has it, then put it in place in one step.

    A reader sees the old file or the new one, never a part of one, even after a power failure.

    Args:
        path: Of the file.
        write: Fills the file it is given; or the bytes to write.
        temporary: The file to fill, which must be in the same folder and not exist; a new name by default.
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


def read_bytes(path: str | os.PathLike[str], largest: int = LARGEST) -> bytes:
    """Return the contents of a file; raise before reading if it has more than `largest` bytes."""
    path = Path(path)
    size = path.stat().st_size
    if size > largest:
        raise ValueError(f"{path}: has {size} bytes, at most {largest} are read")
    return path.read_bytes()


def read_json(path: str | os.PathLike[str], largest: int = LARGEST) -> Any:
    """Return the contents of a JSON file; raise a ValueError that names the file if it cannot be read."""
    return parse_json(read_bytes(path, largest), str(path))


def parse_json(text: str | bytes, source: str = "JSON") -> Any:
    """Return what a JSON text says; raise a ValueError if it is damaged, too large or nested too deeply.

    Args:
        text: UTF-8 if bytes.
        source: The name of the text in errors, e.g. the path.

    Example:
        >>> parse_json('{"seeds": [1, 2]}')
        {'seeds': [1, 2]}
        >>> parse_json("[" * 100_000)
        Traceback (most recent call last):
        ...
        ValueError: JSON: nested too deeply; expected JSON as trimtab writes it
    """
    if len(text) > LARGEST:
        raise ValueError(f"{source}: has {len(text)} characters, at most {LARGEST} are read")
    try:
        return json.loads(text.decode("utf-8") if isinstance(text, bytes) else text)
    except RecursionError as error:
        raise ValueError(f"{source}: nested too deeply; expected JSON as trimtab writes it") from error
    except ValueError as error:  # UnicodeDecodeError is one
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
    """Write tensors and JSON facts to one safetensors file.

    Args:
        path: Of the file.
        kind: What the file holds, e.g. "thresholds"; checked on loading.
        tensors: By name.
        facts: Anything JSON can hold.
    """
    write_atomically(path, tensor_bytes(kind, tensors, facts))


def load_tensors(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_tensors` wrote; raise a ValueError that says what is wrong with any other file.

    Returns:
        The tensors by name, and the facts (with the writing version under "version").
    """
    path = as_path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; expected a trimtab {kind} file")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            written_as = metadata.get("format", "")
            known = written_as in (_FORMAT, _WITHOUT_CHECKSUM)
            tensors = {name: file.get_tensor(name) for name in file.keys()} if known else {}  # noqa: SIM118
    except Exception as error:  # the reader raises its own error, KeyError or OSError for damaged files
        raise ValueError(
            f"{path}: not a trimtab {kind} file, or a truncated one ({error}); save it again with trimtab"
        ) from error
    if not known and written_as.startswith("trimtab-"):
        raise ValueError(
            f"{path}: written by trimtab {metadata.get('version', 'of another version')} in the format {written_as!r}, "
            f"which this version, {__version__}, does not read; install that one, or save the file again with this one"
        )
    if not known:
        raise ValueError(f"{path}: a safetensors file, but not one written by trimtab; expected a {kind} file")
    if metadata.get("kind") != kind:
        raise ValueError(f"{path}: holds {metadata.get('kind')!r}, expected {kind!r}")
    if written_as == _FORMAT and metadata.get("sha256") != _checksum(metadata, tensors):
        raise ValueError(f"{path}: damaged or edited, since its checksum does not match; save it again with trimtab")
    try:
        facts = dict(parse_json(metadata["facts"]))
    except (KeyError, ValueError, TypeError) as error:
        raise ValueError(f"{path}: its metadata cannot be read ({error}); save it again with trimtab") from error
    return tensors, facts | {"version": metadata.get("version", "unknown")}


def kind_of(path: str | os.PathLike[str]) -> str:
    """Return the kind of a file of trimtab; "" for any other file, whose loader will say what is wrong."""
    try:
        with safe_open(path, framework="pt") as file:
            return str((file.metadata() or {}).get("kind", ""))
    except Exception:  # the reader raises what it likes for damaged files
        return ""
