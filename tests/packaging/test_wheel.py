"""The distribution, as a stranger gets it: built, checked, installed without the checkout, and used from elsewhere.

The wheel is installed into an empty environment. Its dependencies are not downloaded again: the packages that the wheel
declares, and what they need in turn, are linked from the environment of the tests, and nothing else can be imported
there. So this shows that the wheel is whole and that it declares what it needs; it does not show that an index has
versions that fit.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
BIN = "Scripts" if os.name == "nt" else "bin"

pytest.importorskip("build", reason="the distribution is built with build: pip install 'trimtab[release]'")

pytestmark = pytest.mark.release


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TRIMTAB", "COV"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean | {"OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"} | variables,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def installed(requirement: str) -> bool:
    try:
        return distribution(Requirement(requirement).name).version in Requirement(requirement).specifier
    except PackageNotFoundError:
        return False


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheels and sdists of library and lab, built as a release is; without a network if what builds them is there."""
    out = tmp_path_factory.mktemp("dist")
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    alone = [] if not all(map(installed, needs)) else ["--no-isolation"]
    source = tmp_path_factory.mktemp("source") / "trimtab"  # a build leaves things lying about
    left_out = shutil.ignore_patterns(".*", "build", "dist", "runs", "*.egg-info", "__pycache__", "*.so", "*.pyd")
    shutil.copytree(ROOT, source, ignore=left_out)
    for project in (source, source / "lab"):
        run(sys.executable, "-m", "build", *alone, "--outdir", out, project, cwd=out)
    return out


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("trimtab-*.whl")
    return found


@pytest.fixture(scope="module")
def lab_wheel(dist: Path) -> Path:
    (found,) = dist.glob("trimtab_lab-*.whl")
    return found


def needed(requirements: list[str]) -> set[str]:
    """Distributions that are required, directly or not, without extras."""
    todo, found = [Requirement(text) for text in requirements], set()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        there = distribution(name)
        assert requirement.specifier.contains(there.version, prereleases=True), f"{requirement} and not {there.version}"
        found.add(name)
        todo += map(Requirement, there.requires or ())
    return found


def environment(home: Path, *wheels: Path) -> Path:
    """Make an environment of wheels and what they declare, and nothing else; return its interpreter."""
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=home)
    python = home / BIN / ("python.exe" if os.name == "nt" else "python")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", *wheels, cwd=home)
    place = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home).strip())
    declared = [text for wheel in wheels for text in requirements_of(wheel) if not text.startswith("trimtab")]
    for name in needed(declared):
        there = distribution(name)
        tops = {path.parts[0] for path in there.files or () if path.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            if not (place / top).exists():
                try:
                    (place / top).symlink_to(Path(str(there.locate_file(top))))
                except OSError:
                    pytest.skip("packages cannot be linked here (on Windows, this needs developer mode)")
    return python


def requirements_of(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return re.findall(r"^Requires-Dist: (.*)$", archive.read(metadata).decode(), re.MULTILINE)


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that holds the library's wheel and what it declares."""
    return environment(tmp_path_factory.mktemp("library"), wheel)


@pytest.fixture(scope="module")
def python_with_lab(wheel: Path, lab_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that holds the wheels of library and lab and what they declare."""
    return environment(tmp_path_factory.mktemp("lab"), wheel, lab_wheel)


def test_distribution_passes_the_index_checks(dist: Path) -> None:
    pytest.importorskip("twine", reason="pip install 'trimtab[release]'")
    out = run(sys.executable, "-m", "twine", "check", "--strict", *dist.iterdir(), cwd=dist)
    assert out.count("PASSED") == 4


def test_sdist_holds_what_a_wheel_is_built_from(dist: Path) -> None:
    (sdist,) = dist.glob("trimtab-*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert tracked("src", "README.md", "LICENSE", "pyproject.toml") - names == set()


def test_the_library_wheel_is_pure_python_and_holds_every_file_of_the_package(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name.removeprefix("src/") for name in tracked("src/trimtab")} - names == set()
    assert "trimtab/py.typed" in names
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"trimtab"}


def test_the_lab_wheel_holds_every_file_of_the_lab_and_its_sdist_what_is_compiled(lab_wheel: Path, dist: Path) -> None:
    compiled = (".c", ".h")
    wanted = {name.removeprefix("lab/") for name in tracked("lab/trimtab_lab")}
    with zipfile.ZipFile(lab_wheel) as archive:
        names = set(archive.namelist())
    assert {name for name in wanted if not name.endswith(compiled)} - names == set()
    assert not any(name.endswith(compiled) for name in names)
    (sdist,) = dist.glob("trimtab_lab-*.tar.gz")
    with tarfile.open(sdist) as archive:
        held = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert wanted - held == set()


def test_environment_is_without_the_checkout_and_without_extras(python: Path, tmp_path: Path) -> None:
    where = run(python, "-c", "import trimtab; print(trimtab.__file__)", cwd=tmp_path).strip()
    assert Path(where).is_relative_to(python.parents[1])
    others = ("trimtab_lab", "matplotlib", "pytest", "scipy")
    absent = f"import importlib.util as u; print([name for name in {others} if u.find_spec(name)])"
    assert run(python, "-c", absent, cwd=tmp_path).strip() == "[]"


def test_first_snippet_of_the_readme_runs(python: Path, tmp_path: Path) -> None:
    snippet = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    assert snippet is not None
    script = tmp_path / "snippet.py"
    script.write_text(snippet.group(1), encoding="utf-8")
    run(python, "-W", "error", script, cwd=tmp_path)


def test_commands_work_from_another_folder(python: Path, tmp_path: Path) -> None:
    trimtab = python.with_name("trimtab.exe" if os.name == "nt" else "trimtab")
    assert "usage: trimtab" in run(trimtab, "--help", cwd=tmp_path)
    assert run(python, "-m", "trimtab", "--version", cwd=tmp_path).split()[-1] == version()
    assert not list(tmp_path.iterdir())


def test_the_lab_adds_its_commands_and_domains(python_with_lab: Path, tmp_path: Path) -> None:
    trimtab = python_with_lab.with_name("trimtab.exe" if os.name == "nt" else "trimtab")
    listed = run(trimtab, "domains", cwd=tmp_path)
    assert "so3" in listed
    assert "reaction-flow" in listed
    code = "import trimtab as tt; print(tt.domain('so3').problem(range(2)).rollout(tt.Periodic(7)).spent.tolist())"
    assert run(python_with_lab, "-W", "error", "-c", code, cwd=tmp_path).strip() == "[7, 7]"
    assert not list(tmp_path.iterdir())


def test_the_version_stands_in_one_place(wheel: Path) -> None:
    assert wheel.name.split("-")[1] == version()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "version" not in project
    for page in ("README.md", "CITATION.cff", "CONTRIBUTING.md"):
        assert version() not in (ROOT / page).read_text(encoding="utf-8")
    assert f"## [{version()}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def tracked(*paths: str) -> set[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("what belongs to the package is known from git, and this is no clone")
    return set(run("git", "ls-files", *paths, cwd=ROOT).split())


def version() -> str:
    spec = importlib.util.spec_from_file_location("_version", ROOT / "src" / "trimtab" / "_version.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.__version__)
