"""What stands around the code agrees with the code."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read(path: str) -> Any:
    yaml = pytest.importorskip("yaml", reason="pip install 'trimtab[site]'")
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def recipe(target: str) -> list[str]:
    """The commands of a target of the Makefile, without the folder they are in."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return [line.strip().replace("$(BIN)/", "") for line in found.group(1).splitlines()]


def test_hooks_before_a_commit_run_the_linters_of_ci():
    hooks = read(".pre-commit-config.yaml")["repos"][0]["hooks"]
    entries = {hook["entry"].removeprefix(".venv/bin/").replace(" --force-exclude", "") for hook in hooks}
    assert entries == {command.removesuffix(" .") for command in recipe("lint")}


def test_hosted_ci_does_what_the_makefile_does():
    job = read(".github/workflows/ci.yml")["jobs"]["test"]
    done = "\n".join(step.get("run", "") for step in job["steps"])
    targets = re.findall(r"^make ([\w-]+)", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)
    assert targets == ["install", "lint", "test", "wheel-test", "site", "dist"]
    for target in targets[1:]:
        for command in recipe(target):
            assert command in done, command


def test_no_python_is_a_classifier_that_is_not_tested():
    named = {c.rsplit(" ", 1)[1] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)}
    assert named <= set(read(".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"])
    assert PROJECT["requires-python"] == ">=" + min(named, key=lambda v: int(v.split(".")[1]))


def test_the_makefile_installs_extras_that_exist():
    extras = re.search(r"^EXTRAS := (\S+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert extras is not None
    # azula and the lab are installed by words of their own: without torchvision, and from its folder
    assert set(extras.group(1).split(",")) == set(PROJECT["optional-dependencies"]) - {"azula", "lab"}
    known = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lab = re.search(r"^LAB := (\S+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert lab is not None
    assert set(lab.group(1).split(",")) <= set(known["optional-dependencies"])
    assert "--no-deps azula" in (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda p: p.stem)
def test_issue_templates_ask_for_something(path):
    template = read(str(path.relative_to(ROOT)))
    if path.stem == "config":
        assert "blank_issues_enabled" in template
        return
    assert template["name"]
    assert any(field.get("validations", {}).get("required") for field in template["body"])
    assert len({field["id"] for field in template["body"]}) == len(template["body"])


def test_citation_names_the_software_and_the_paper():
    cited = read("CITATION.cff")
    assert cited["cff-version"] == "1.2.0"
    assert cited["license"] == PROJECT["license"]
    (paper,) = cited["references"]
    assert [author["family-names"] for author in paper["authors"]] == ["Trupin", "Xue"]
    assert paper["url"] == PROJECT["urls"]["Paper"]
