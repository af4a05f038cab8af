"""What a run directory may do to whoever points trimtab at it: nothing but be read, and lose nothing."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from shutil import copytree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study_runs import SHORT, finish, finished, row_hashes
from trimtab import __version__
from trimtab.cli.main import main
from trimtab_lab.files import parse_json, plain_name
from trimtab_lab.studies.config import StudyError
from trimtab_lab.studies.rows import COLUMNS, parquet_bytes, read_rows
from trimtab_lab.studies.store import MANIFEST, RunFiles, Store, open_run, read_run
from trimtab_lab.studies.tasks import study_tasks


@pytest.fixture
def run(tmp_path):
    """A finished run that may be damaged."""
    return copytree(finished(SHORT), tmp_path / "run")


def forge(run: Path, **changes) -> None:
    """Change run.json as somebody would who also mends the checksums."""
    facts = json.loads((run / "run.json").read_text())
    facts["config"] |= changes
    RunFiles(run).put("run.json", json.dumps(facts))


# ------------------------------------------------------------------ data never names code


@pytest.mark.parametrize("command", ["report", "resume"])
def test_a_factory_named_in_a_file_is_not_called(run, tmp_path, monkeypatch, capsys, command):
    monkeypatch.setattr("trimtab_lab.report.figures.FORMATS", {"svg": {"Date": None}})
    trap = tmp_path / "ran"
    evil = {"factory": "os:system", "settings": {"command": f"touch {trap}"}, "code": "x"}
    forge(run, domains=["evil"] if command == "resume" else ["so3"], samplers={"evil": evil, "so3": evil})
    words = ["report", str(run)] if command == "report" else ["reproduce", "--out", str(run), "--resume"]
    assert main(words) == (0 if command == "report" else 2)
    assert not trap.exists()
    if command == "resume":
        said = capsys.readouterr().err
        assert "trimtab compare --sampler" in said
        assert said.count("\n") == 1


def test_a_study_read_from_a_file_has_tasks_that_run_nothing(tmp_path):
    from dataclasses import replace

    from trimtab_lab.studies.config import Study
    from trimtab_lab.studies.work import run_task

    evil = {"factory": "os:system", "settings": {"command": f"touch {tmp_path / 'ran'}"}, "code": "x"}
    facts = json.loads(json.dumps(replace(SHORT, domains=("evil",), samplers={"evil": evil}).facts()))
    for task in study_tasks(Study.from_facts(facts)):
        with pytest.raises(StudyError, match="only if this very call names it"):
            run_task(task, {})
    assert not (tmp_path / "ran").exists()


def test_a_report_makes_no_domain(run, monkeypatch):
    monkeypatch.setattr("trimtab_lab.report.figures.FORMATS", {"svg": {"Date": None}})
    for place in (
        "trimtab_lab.domains.domain",
        "trimtab_lab.studies.tasks.domain",
        "trimtab_lab.studies.usercode.domain",
    ):
        monkeypatch.setattr(place, lambda *_, **__: pytest.fail("a domain was made"))
    assert main(["report", str(run)]) == 0
    assert json.loads((run / "page.json").read_text())["domains"]["so3"]["label"] == "SO(3)"


# ------------------------------------------------------------------ only its own files


def test_a_directory_of_hidden_files_is_not_empty(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".config").write_text("mine")
    for mode in ("new", "resume", "overwrite"):
        with pytest.raises(StudyError, match=r"not a trimtab run \(it holds \.config, \.git\)"):
            Store(tmp_path, SHORT, mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".config", ".git"]


def test_a_run_killed_at_its_very_beginning_can_begin_again(tmp_path):
    (tmp_path / ".lock").touch()
    with Store(tmp_path, SHORT, "resume"):
        assert (tmp_path / "run.json").is_file()


def test_overwriting_removes_what_the_run_wrote_and_nothing_else(run):
    mine = {"notes.txt": "a", "rows/mine.csv": "b", ".git/.swap.tmp": "c", "tables/.draft.tmp": "d", "work/x.json": "e"}
    for name, text in mine.items():
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text(text)
    kept = next((run / "thresholds").iterdir())
    kept.write_bytes(b"edited")
    with Store(run, SHORT, "overwrite") as store:
        assert store.finished(study_tasks(SHORT)) == set()
    assert {name: (run / name).read_text() for name in mine} == mine
    assert kept.read_bytes() == b"edited"
    left = {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()} - {".lock"}
    assert left == {*mine, f"thresholds/{kept.name}", "run.json", MANIFEST}


@pytest.mark.parametrize("name", ["../thesis.tex", "rows/../../thesis.tex", "/etc/thesis.tex", "rows/.hidden"])
def test_a_list_that_names_other_peoples_files_removes_none(tmp_path, name):
    (tmp_path / "thesis.tex").write_text("years of work")
    run = finish(tmp_path / "run", SHORT)
    (run / "rows" / ".hidden").write_text("mine")
    digest = RunFiles(run)._sums["run.json"]
    with (run / MANIFEST).open("a") as file:
        file.write("\n" + json.dumps({"file": name, "sha256": digest}))
    with Store(run, SHORT, "overwrite"):
        pass
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    assert (run / "rows" / ".hidden").read_text() == "mine"


def test_links_are_not_followed_out_of_the_directory(run, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (run / "tables").symlink_to(tmp_path / "elsewhere")
    assert main(["report", str(run)]) == 2
    assert not list((tmp_path / "elsewhere").iterdir())
    (run / "run.json").rename(run / "moved.json")
    (tmp_path / "victim").write_text("mine")
    (run / MANIFEST).unlink()
    (run / MANIFEST).symlink_to(tmp_path / "victim")
    (run / "moved.json").rename(run / "run.json")
    assert main(["report", str(run)]) == 2
    assert (tmp_path / "victim").read_text() == "mine"


# ------------------------------------------------------------------ names


def test_a_schedule_that_would_lead_out_of_the_directory_is_refused(run, tmp_path, capsys):
    rows = read_rows(run, "so3")
    listed = [dict(zip(rows.columns, values, strict=True)) for values in zip(*rows.columns.values(), strict=True)]
    for row in listed:
        for column in ("closing", "degenerate"):
            row[column] = bool(row[column])
        if row["schedule"] == "adaptive:paper":
            row["schedule"] = "x/../../../ESCAPED"
    with open_run(run) as files:
        files.put("rows/so3.parquet", parquet_bytes(listed, COLUMNS))
    before = {path for path in tmp_path.rglob("*") if not path.is_relative_to(run)}
    assert main(["report", str(run)]) == 2
    assert {path for path in tmp_path.rglob("*") if not path.is_relative_to(run)} == before
    assert "becomes part of a file name" in capsys.readouterr().err


@given(st.text(max_size=140))
def test_a_plain_name_stays_in_its_folder(name):
    with suppress(ValueError):
        name = plain_name(name)
        assert os.path.normpath(os.path.join("folder", name)) == os.path.join("folder", name)
        assert not {"/", "\\", ":", "\0"} & set(name)
        assert not name.startswith(".")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a b", "a\n", "é", "x" * 121, None, 3])
def test_names_that_could_be_anything_else_are_refused(name):
    with pytest.raises(ValueError, match="expected letters, digits"):
        plain_name(name, "a name")


# ------------------------------------------------------------------ damage


@pytest.mark.parametrize("words", [["report"], ["reproduce", "--resume", "--out"]])
def test_a_run_of_another_version_says_which_and_what_to_do(words, run, capsys):
    forge(run, setting_of_the_future=1)
    assert main([*words, str(run)]) == 2
    said = capsys.readouterr().err
    assert "unknown settings ['setting_of_the_future']" in said
    assert f"the trimtab that wrote it ({__version__}), or run it again with --overwrite" in said


@pytest.mark.parametrize("text", ["", "{half", "[]", "null", '{"format": "trimtab-run"}', "\x00" * 50, "[" * 100_000])
def test_a_damaged_run_json_is_one_line_and_healed_by_the_command_that_made_it(run, text, capsys):
    (run / "run.json").write_text(text)
    assert main(["report", str(run)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "run.json" in said
    finish(run, SHORT)
    assert read_run(run)["complete"]
    assert row_hashes(run) == row_hashes(finished(SHORT))


def test_a_list_that_was_lost_or_cut_short_costs_time_and_not_rows(run):
    whole = row_hashes(finished(SHORT))
    text = (run / MANIFEST).read_text()
    for left in (text[: len(text) // 2], "", None):
        if left is None:
            (run / MANIFEST).unlink()
        else:
            (run / MANIFEST).write_text(left)
        finish(run, SHORT)
        assert row_hashes(run) == whole


def test_damaged_rows_are_named_and_not_reported_on(run, capsys):
    path = run / "rows" / "so3.parquet"
    path.write_bytes(path.read_bytes()[:-3])
    assert main(["report", str(run)]) == 2
    assert "so3.parquet: its checksum is not that of what the run wrote" in capsys.readouterr().err
    finish(run, SHORT)
    assert row_hashes(run)["so3.parquet"] == row_hashes(finished(SHORT))["so3.parquet"]
    (run / MANIFEST).unlink()
    assert main(["report", str(run)]) == 2
    assert f"no {MANIFEST} to check it by; --resume makes it again" in capsys.readouterr().err


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":'])
def test_nesting_is_limited(opening):
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(opening * 100_000)
    deep = 64 // max(1, opening.count("[") + opening.count("{")) - 1
    closing = "".join({"[": "]", "{": "}"}.get(c, "") for c in reversed(opening))
    assert parse_json(opening * deep + "1" + closing * deep)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_what_json_holds_comes_back(value):
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value).encode()) == value


# ------------------------------------------------------------------ a disk that is full, a process that is killed


def test_a_file_that_could_not_be_written_is_not_taken_for_a_finished_one(run, monkeypatch):
    """Its new checksum is listed before it is written: a full disk may come between."""
    before = (run / "run.json").read_bytes()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with open_run(run) as files, monkeypatch.context() as disk:
        disk.setattr("trimtab_lab.studies.store.write_atomically", full)
        with pytest.raises(OSError, match="No space"):
            files.put("run.json", "something new")
    assert not RunFiles(run).intact("run.json")
    assert (run / "run.json").read_bytes() == before
    finish(run, SHORT)
    assert RunFiles(run).intact("run.json")
