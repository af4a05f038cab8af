"""Reading and writing files: atomically and durably, within stated limits, and nothing is ever unpickled.

Every file that the package writes is put in place by `write_atomically`, every JSON text it reads goes through
`parse_json`, and every name that becomes part of a path through `plain_name`; SECURITY.md states what follows.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from trimtab._version import __version__

__all__ = [
    "DEEPEST",
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
_WITHOUT_CHECKSUM = "trimtab"  # as the shipped weights and older files have it

DEEPEST = 64
"""Brackets within brackets in a JSON text."""

LARGEST = 256 * 2**20
"""Bytes of a JSON text."""

UNUSABLE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What building something from the contents of a file raises if the file says what it cannot mean."""

LONGEST_NAME = 120
"""Characters of a name that becomes part of a path."""

_LONGEST_PATH = 4000
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@=+-]*")
_DEVICES = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?")  # Windows takes these for devices in any folder


# ------------------------------------------------------------------ names


def plain_name(name: object, what: str = "a name") -> str:
    """The name itself if it may become part of a path: the one rule for all that come from files or options.

    Letters, digits and `. _ @ = + -`, beginning with a letter or digit, at most 120 characters, none that a system
    takes for a device. So a path made of such names stays where it was begun.

    Example:
        >>> plain_name("so3@kappa=0.3")
        'so3@kappa=0.3'
        >>> plain_name("x/../escaped", "a schedule")
        Traceback (most recent call last):
        ...
        ValueError: a schedule cannot be 'x/../escaped': it becomes part of a file name, so expected letters, digits and . _ @ = + -, a letter or digit first, at most 120 characters; choose another name
    """  # noqa: E501
    good = (
        isinstance(name, str) and len(name) <= LONGEST_NAME and _PLAIN.fullmatch(name) and not _DEVICES.fullmatch(name)
    )
    if not good:
        raise ValueError(
            f"{what} cannot be {str(name)[:80]!r}: it becomes part of a file name, so expected letters, digits and "
            f". _ @ = + -, a letter or digit first, at most {LONGEST_NAME} characters; choose another name"
        )
    return str(name)


# ------------------------------------------------------------------ writing


def sha256(data: bytes) -> str:
    """The checksum of some bytes, as text."""
    return hashlib.sha256(data).hexdigest()


def write_atomically(
    path: str | os.PathLike[str],
    write: Callable[[Path], None] | bytes,
    temporary: Path | None = None,
) -> None:
    """Fill a temporary file beside `path`, wait until the disk has it, then put it in place in one step.

    A reader sees the old file or the new one, never half of one, even after a power failure; when writing fails, the
    old one stays.

    Args:
        path: Where to.
        write: Fills the file it is given, or the bytes to fill it with.
        temporary: The file to fill, which must be in the same folder and not exist; a new name if None.
    """
    path = as_path(path)
    if path.exists() and not path.is_file():  # a directory, a device: nothing to put another file in the place of
        raise FileExistsError(errno.EEXIST, "there is something that is not an ordinary file", str(path))
    part = temporary or path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except OSError as error:  # about the file that was asked for, not the temporary one
        raise type(error)(error.errno, f"{error.strerror} (no file can be made in {path.parent})", str(path)) from error
    try:
        if isinstance(write, bytes):
            part.write_bytes(write)
        else:
            write(part)
        _reach_disk(part)
        os.replace(part, path)
        _reach_disk(path.parent)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(part)):  # say which file it is
            raise type(error)(error.errno, error.strerror, str(path)) from error
        raise


def _reach_disk(path: Path) -> None:
    """Wait until the disk has a file, or the names in a folder."""
    if path.is_dir():
        if not hasattr(os, "O_DIRECTORY"):  # a system whose folders cannot be opened
            return
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    else:
        handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that knows no such thing, as some pipes'
            raise
    finally:
        os.close(handle)


# ------------------------------------------------------------------ reading


def as_path(path: object) -> Path:
    """The path of a file; anything that cannot be one is a TypeError."""
    if not isinstance(path, str | os.PathLike) or isinstance(os.fspath(path), bytes):
        raise TypeError(f"expected the path of a file, a str or a pathlib.Path: got {path!r:.60}")
    if len(str(path)) > _LONGEST_PATH or "\0" in str(path):
        raise ValueError(
            f"expected the path of a file: got {len(str(path))} characters, beginning with {str(path)[:40]!r}"
        )
    return Path(path)


def read_bytes(path: str | os.PathLike[str], largest: int = LARGEST) -> bytes:
    """A file of at most `largest` bytes; a larger one is refused before it is read."""
    path = Path(path)
    size = path.stat().st_size
    if size > largest:
        raise ValueError(f"{path}: has {size} bytes, at most {largest} are read")
    return path.read_bytes()


def read_json(path: str | os.PathLike[str], largest: int = LARGEST) -> Any:
    """What a JSON file says, within the limits; anything else is a ValueError that names the file."""
    return parse_json(read_bytes(path, largest), str(path))


def parse_json(text: str | bytes, source: str = "JSON") -> Any:
    """What a JSON text says; one that is damaged, too large or nested too deeply is a ValueError.

    Args:
        text: UTF-8 if bytes.
        source: What to call it in errors, e.g. the path.

    Example:
        >>> parse_json('{"seeds": [1, 2]}')
        {'seeds': [1, 2]}
        >>> parse_json("[" * 100_000)
        Traceback (most recent call last):
        ...
        ValueError: JSON: nested more than 64 deep; expected JSON as trimtab writes it
    """
    if len(text) > LARGEST:
        raise ValueError(f"{source}: has {len(text)} characters, at most {LARGEST} are read")
    try:
        string = text.decode("utf-8") if isinstance(text, bytes) else text
        if _deepest(string) > DEEPEST:
            raise ValueError(f"nested more than {DEEPEST} deep; expected JSON as trimtab writes it")
        return json.loads(string)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is one
        empty = "it is empty" if not text else str(error)
        raise ValueError(f"{source}: {empty}" if "nested" in empty else f"{source}: not JSON ({empty})") from error


_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)


def _deepest(text: str) -> int:
    """How deep brackets are nested outside of strings; found without recursion."""
    deepest = depth = 0
    for found in _BRACKETS.finditer(text):
        if found[0] in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif found[0] in "]}":
            depth -= 1
    return deepest


# ------------------------------------------------------------------ tensors


def tensor_bytes(kind: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> bytes:
    """Tensors and JSON facts as the bytes of one safetensors file; see `save_tensors`."""
    metadata = {"format": _FORMAT, "kind": kind, "version": __version__, "facts": json.dumps(dict(facts))}
    plain: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        shared = any(own.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() for other in plain.values())
        plain[name] = own.clone() if shared else own  # safetensors refuses tensors that share memory
    return _in_order(save(plain, metadata | {"sha256": _checksum(metadata, plain)}))


def _in_order(data: bytes) -> bytes:
    """A safetensors file with its header in alphabetical order: the library's own order differs from call to call."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8:end]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # tensors begin at a multiple of eight bytes
    return len(header).to_bytes(8, "little") + header + data[end:]


def _checksum(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """Of everything a file says: its metadata but this, and the names, types, shapes and numbers of its tensors."""
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
        path: Where to.
        kind: What the file is, e.g. "thresholds"; checked on loading.
        tensors: By name.
        facts: Anything JSON can hold.
    """
    write_atomically(path, tensor_bytes(kind, tensors, facts))


def load_tensors(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_tensors` wrote; anything else is refused with a ValueError that says what it is.

    Returns:
        The tensors by name, and the facts (with the writing version under "version").
    """
    path = as_path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; expected a trimtab {kind} file")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") in (_FORMAT, _WITHOUT_CHECKSUM):
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
    except Exception as error:  # the reader raises what it likes for damaged files: its own error, KeyError, OSError
        raise ValueError(
            f"{path}: not a trimtab {kind} file, or a truncated one ({error}); save it again with trimtab"
        ) from error
    written_as = metadata.get("format", "")
    if written_as not in (_FORMAT, _WITHOUT_CHECKSUM) and written_as.startswith("trimtab-"):
        raise ValueError(
            f"{path}: written by trimtab {metadata.get('version', 'of another version')} in the format {written_as!r}, "
            f"which this version, {__version__}, does not read; install that one, or save the file again with this one"
        )
    if written_as not in (_FORMAT, _WITHOUT_CHECKSUM):
        raise ValueError(f"{path}: a safetensors file, but not one written by trimtab; expected a {kind} file")
    if metadata.get("kind") != kind:
        raise ValueError(f"{path}: holds {metadata.get('kind')!r}, expected {kind!r}")
    if metadata["format"] == _FORMAT and metadata.get("sha256") != _checksum(metadata, tensors):
        raise ValueError(f"{path}: damaged or edited, its checksum is another; save it again with trimtab")
    try:
        facts = dict(parse_json(metadata["facts"]))
    except (KeyError, ValueError, TypeError) as error:
        raise ValueError(f"{path}: its metadata cannot be read ({error}); save it again with trimtab") from error
    facts["version"] = metadata.get("version", "unknown")
    return tensors, facts


def kind_of(path: str | os.PathLike[str]) -> str:
    """What a file of ours says it holds; "" for a file that is not one of ours, which its reader will refuse."""
    try:
        with safe_open(path, framework="pt") as file:
            return str((file.metadata() or {}).get("kind", ""))
    except Exception:  # the reader raises what it likes for damaged files; whoever loads it says what is wrong
        return ""
