"""The way into compiled code: nothing unchecked comes through, with sanitizers watching where they are to be had."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from trimtab_lab.obstacles import batched as compiled

ROOM = Path(compiled.__file__).parent
WHOLE, REAL = (8, 5, 5, 10), (1e-4, 0.0, 0.15, 0.05, 3.0, 1.3, 0.03, 1e-3, 0.7)


def arguments(n: int = 3, waypoints: int = 6, circles: int = 2, boxes: int = 2) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    corner = generator.uniform(-0.8, 0.3, (boxes, 2))
    return [
        np.column_stack([generator.uniform(-0.8, 0.8, (circles, 2)), np.full(circles, 0.2)]),
        np.concatenate([corner, corner + 0.3], axis=1),
        generator.normal(size=(2, n, waypoints)),
        generator.uniform(-1, 1, (2, n, waypoints)),
        np.empty(n),
        np.empty(n, dtype=np.int64),
    ]


def frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


needs_build = pytest.mark.skipif(
    compiled.compiled_search() is None, reason="the package was built without a C compiler"
)


@needs_build
def test_what_fits_is_searched():
    given = arguments()
    compiled.compiled_search().nearest_paths(*given, WHOLE, REAL)
    assert np.isfinite(given[3]).all()
    assert (given[4] >= 0).all()


@needs_build
@pytest.mark.parametrize("which", range(6))
@pytest.mark.parametrize(
    "spoil",
    [
        lambda a: a[..., :-1].copy(),
        lambda a: a[None],
        lambda a: a.astype(np.float32),
        lambda a: a.astype(">f8"),
        lambda a: a.astype(np.complex128),
        lambda a: np.concatenate([a, a])[::2],
        lambda a: a.tolist(),
        lambda a: None,
        lambda a: a.tobytes(),
        lambda a: np.zeros((0,) * a.ndim, a.dtype),
    ],
    ids=["shorter", "deeper", "single", "swapped", "complex", "strided", "list", "none", "bytes", "empty"],
)
def test_an_array_that_does_not_fit_is_refused(which, spoil):
    given = arguments()
    given[which] = spoil(given[which])
    with pytest.raises((ValueError, TypeError, BufferError)):
        compiled.compiled_search().nearest_paths(*given, WHOLE, REAL)


@needs_build
@pytest.mark.parametrize("which", [3, 4, 5])
def test_memory_that_may_not_be_written_is_refused(which):
    given = arguments()
    given[which] = frozen(given[which])
    with pytest.raises((ValueError, BufferError)):
        compiled.compiled_search().nearest_paths(*given, WHOLE, REAL)


@needs_build
@pytest.mark.parametrize("whole", [(-1, 5, 5, 10), (8, 5, 5), (8.5, 5, 5, 10), (2**70, 5, 5, 10), 8])
def test_limits_that_are_none_are_refused(whole):
    with pytest.raises((ValueError, TypeError, OverflowError)):
        compiled.compiled_search().nearest_paths(*arguments(), whole, REAL)


FUZZ = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
import _search

generator = np.random.default_rng(int(sys.argv[2]))
REAL = [1e-4, 0.0, 0.15, 0.05, 3.0, 1.3, 0.03, 1e-3, 0.7]
taken = refused = 0
for _ in range(4000):
    n, w, m, k = (int(x) for x in generator.integers(0, 7, 4))
    size = 10.0 ** generator.uniform(-3, 8)
    corner = generator.normal(size=(k, 2))
    given = [generator.normal(size=(m, 3)), np.concatenate([corner, corner + 0.4], axis=1),
             size * generator.normal(size=(2, n, w)), generator.uniform(-1, 1, (2, n, w)), np.empty(n),
             np.empty(n, dtype=np.int64)]
    if generator.random() < 0.2 and given[2].size:
        given[2].flat[generator.integers(given[2].size)] = generator.choice([np.nan, np.inf, -np.inf])
    real = [float(generator.choice([r, 0.0, np.nan, np.inf, -1.0, r])) for r in REAL]
    if generator.random() < 0.5:  # one array of another shape, type or layout
        which = int(generator.integers(6))
        shape = tuple(int(x) for x in generator.integers(0, 5, generator.integers(0, 5)))
        others = [np.zeros(shape), np.zeros(shape, np.int64), np.zeros(shape, np.float32), given[which][..., ::-1],
                  given[which][..., :-1].copy(), None]
        given[which] = others[int(generator.integers(6))]
    try:
        _search.nearest_paths(*given, tuple(int(x) for x in generator.integers(-1, 9, 4)), tuple(real))
        taken += 1
    except (ValueError, TypeError, BufferError):
        refused += 1
assert taken > 300 and refused > 300, (taken, refused)
print("clean", taken, refused)
"""


@pytest.mark.release
def test_a_fuzz_under_sanitizers_finds_nothing(tmp_path):
    compiler = shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("this needs gcc with its sanitizers, on Linux")
    found = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    library = Path(found.stdout.strip())
    if not library.is_absolute():
        pytest.skip("gcc has no AddressSanitizer here")
    built = tmp_path / "_search.abi3.so"
    command = [compiler, "-O1", "-g", "-std=c11", "-fPIC", "-shared", "-fsanitize=address,undefined"]
    command += ["-fno-sanitize-recover=all", "-Wall", "-Wextra", f"-I{sysconfig.get_paths()['include']}"]
    command += [str(ROOM / "module.c"), str(ROOM / "search.c"), "-o", str(built), "-lm"]
    made = subprocess.run(command, capture_output=True, text=True)
    if "Python.h: No such file" in made.stderr:
        pytest.skip("the headers of Python are not installed")
    assert made.returncode == 0, made.stderr
    assert not made.stderr  # no warning
    environment = {"LD_PRELOAD": str(library), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
    run = subprocess.run(
        [sys.executable, "-c", FUZZ, str(tmp_path), "0"], env=environment, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.startswith("clean")
