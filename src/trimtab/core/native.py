"""C sources compiled when first needed, where there is a compiler.

Compiling takes under a second, and the library is kept in the user's cache directory. Without a compiler or a cache to
write to, or with `TRIMTAB_NATIVE=0` in the environment, there is none, and whoever asked does it in torch or numpy.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["compiled_function"]

# No contraction to fused operations: the same bits on all processors of a kind. Nobody reads errno, and setting it
# would keep square roots out of vector instructions.
_FLAGS = ("-O3", "-std=c11", "-fPIC", "-shared", "-ffp-contract=off", "-fno-math-errno")


def compiled_function(source: Path, name: str, arguments: Sequence[Any]) -> Any:
    """A function of a C source that returns an int, or None where it cannot be had or is not wanted.

    Args:
        source: The C file.
        name: Of the function.
        arguments: Their ctypes.
    """
    compiler, *options = shlex.split(os.environ.get("CC") or "cc")  # CC may hold options too
    found = shutil.which(compiler)
    if found is None or os.environ.get("TRIMTAB_NATIVE") == "0" or platform.system() == "Windows":
        return None
    try:
        function = getattr(ctypes.CDLL(str(_library(source, [found, *options]))), name)
    except (OSError, RuntimeError, subprocess.SubprocessError):  # RuntimeError: a user without a home
        return None
    function.argtypes, function.restype = list(arguments), ctypes.c_int
    return function


def _library(source: Path, compiler: list[str]) -> Path:
    """The library's file, compiled if the cache does not have it for this compiler."""
    program = Path(compiler[0]).resolve()
    facts = [program, program.stat().st_mtime_ns, program.stat().st_size, *compiler[1:], platform.machine(), *_FLAGS]
    key = hashlib.sha256("\0".join(map(str, facts)).encode() + source.read_bytes()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trimtab"
    library = cache / f"{source.stem}-{key}.so"
    if not library.is_file():
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as directory:
            built = Path(directory) / library.name
            command = [*compiler, *_FLAGS, str(source), "-o", str(built), "-lm"]
            subprocess.run(command, capture_output=True, check=True, timeout=60)
            os.replace(built, library)
    return library
