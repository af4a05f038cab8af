"""Names and texts in the files of runs: within stated limits, whatever somebody else wrote.

Every JSON text of the lab is read by `parse_json`, and every name that becomes part of a path is checked by
`plain_name`; SECURITY.md states what follows.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

__all__ = ["LARGEST", "LONGEST_NAME", "parse_json", "plain_name", "read_bytes", "read_json", "sha256"]

LARGEST = 256 * 2**20
"""Bytes of a JSON text."""

LONGEST_NAME = 120
"""Characters of a name that becomes part of a path."""

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


def sha256(data: bytes) -> str:
    """Return the checksum of some bytes, as text."""
    return hashlib.sha256(data).hexdigest()


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
