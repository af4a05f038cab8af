from __future__ import annotations

import json
import multiprocessing
from dataclasses import replace
from shutil import copytree

import pytest
import torch

from study_runs import SHORT, finish, finished, row_hashes
from trimtab_lab.studies import engine, tasks, work
from trimtab_lab.studies.config import StudyError
from trimtab_lab.studies.engine import run_study
from trimtab_lab.studies.rows import write_rows
from trimtab_lab.studies.store import MANIFEST, Store, read_run
from trimtab_lab.studies.tasks import machine_facts, study_tasks


@pytest.fixture
def whole():
    """An uninterrupted run in this process."""
    return finished(SHORT)


def broken_off(directory, after: int) -> None:
    """A run that fails when it has kept some tasks."""

    class Stops(Store):
        def keep(self, task, result):
            if len(list((self.directory / "work").glob("*.json"))) == after:
                raise KeyboardInterrupt
            super().keep(task, result)

    with pytest.raises(KeyboardInterrupt), Stops(directory, SHORT) as store:
        run_study(store, "serial")


def test_processes_give_the_same_rows_to_the_byte(whole, tmp_path):
    assert row_hashes(finish(tmp_path / "beside", SHORT, "processes", 2)) == row_hashes(whole)


@pytest.mark.parametrize("after", [0, 1, 4])
def test_a_broken_off_run_goes_on_and_ends_with_the_same_rows(whole, tmp_path, after, monkeypatch):
    broken_off(tmp_path / "run", after)
    ran = []

    def counted(task, inputs):
        ran.append(task.name)
        return work.run_task(task, inputs)

    monkeypatch.setattr(engine, "run_task", counted)
    finish(tmp_path / "run", SHORT)
    assert row_hashes(tmp_path / "run") == row_hashes(whole)
    assert len(ran) == len(study_tasks(SHORT)) - after


def test_a_finished_run_is_not_run_again(whole, monkeypatch):
    monkeypatch.setattr(engine, "run_task", lambda *_: pytest.fail("a task ran"))
    before = row_hashes(whole)
    finish(whole, SHORT)
    assert row_hashes(whole) == before


def test_a_damaged_or_missing_result_is_made_again(whole, tmp_path):
    copytree(whole, tmp_path / "run")
    work = sorted((tmp_path / "run" / "work").glob("*.json"))
    damaged = [work[0], next(path for path in (tmp_path / "run" / "work").glob("*.safetensors"))]
    work[0].write_text(work[0].read_text()[:50])
    damaged[1].write_bytes(b"")
    edited = work[-1].read_text().replace('"path_error": ', '"path_error": 1')
    assert edited != work[-1].read_text()
    work[-1].write_text(edited)
    next((tmp_path / "run" / "thresholds").iterdir()).unlink()
    next((tmp_path / "run" / "traces").iterdir()).unlink()
    (tmp_path / "run" / "rows" / "so3.parquet").unlink()
    said: list[str] = []
    with Store(tmp_path / "run", SHORT, "resume", progress=said.append) as store:
        run_study(store, "serial")
        write_rows(store)
    assert row_hashes(tmp_path / "run") == row_hashes(whole)
    assert len(list((tmp_path / "run" / "thresholds").iterdir())) == 1
    for path in (*damaged, work[-1]):  # named, and made again
        assert [line for line in said if line.startswith(f"{path}: damaged, or edited")]
        assert store.files.intact(path.relative_to(tmp_path / "run").as_posix())


# ------------------------------------------------------------------ never the wrong rows


def test_a_changed_study_is_refused_and_says_what_changed(whole):
    with pytest.raises(StudyError, match="seeds was 2, now 1"):
        Store(whole, replace(SHORT, seeds=1), "resume")


def test_changed_code_is_refused(tmp_path, monkeypatch):
    broken_off(tmp_path / "run", 2)
    monkeypatch.setattr("trimtab_lab.studies.store.code_version", lambda: "other")
    with pytest.raises(StudyError, match=r"the code or a library was .*, now other"):
        Store(tmp_path / "run", SHORT, "resume")


def test_settings_that_an_earlier_version_did_not_know_are_not_called_changes(tmp_path, monkeypatch):
    broken_off(tmp_path / "run", 2)
    path = tmp_path / "run" / "run.json"
    facts = json.loads(path.read_text())
    del facts["config"]["closing"]
    path.write_text(json.dumps(facts | {"identity": "of an earlier version"}))
    monkeypatch.setattr("trimtab_lab.studies.store.code_version", lambda: "other")
    with pytest.raises(StudyError, match=r"the code or a library was .*, now other"):
        Store(tmp_path / "run", SHORT, "resume")


def test_a_task_kept_by_other_code_counts_as_unfinished(tmp_path):
    broken_off(tmp_path / "run", 3)
    path = sorted((tmp_path / "run" / "work").glob("*.json"))[0]
    with Store(tmp_path / "run", SHORT, "resume") as store:
        store.files.put(f"work/{path.name}", json.dumps(json.loads(path.read_text()) | {"identity": "other"}))
        assert len(store.finished(study_tasks(SHORT))) == 2


def test_a_worker_with_other_code_is_refused(tmp_path, monkeypatch):
    def foreign(task, inputs):
        return replace(work.run_task(task, inputs), code="other")

    monkeypatch.setattr(engine, "run_task", foreign)
    with pytest.raises(StudyError, match="a worker runs other code"):
        finish(tmp_path / "run", SHORT)


def test_the_code_version_is_that_of_the_whole_package(tmp_path, monkeypatch):
    package = tmp_path / "trimtab"
    (package / "core").mkdir(parents=True)
    (package / "core" / "loop.py").write_text("one")
    monkeypatch.setattr(tasks.trimtab, "__file__", str(package / "__init__.py"))

    def version() -> str:
        return tasks.code_version.__wrapped__()

    first = version()
    (package / "core" / "__pycache__").mkdir()
    (package / "core" / "__pycache__" / "loop.pyc").write_text("compiled")
    assert version() == first
    (package / "core" / "loop.py").write_text("two")
    second = version()
    (package / "core" / "weights.safetensors").write_bytes(b"data counts too")
    assert len({first, second, version()}) == 3


# ------------------------------------------------------------------ the directory


def test_a_directory_with_other_files_is_refused_and_not_touched(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    for mode in ("new", "resume", "overwrite"):
        with pytest.raises(StudyError, match=r"not a trimtab run \(it holds thesis.tex\)"):
            Store(tmp_path, SHORT, mode)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_run_json_of_somebody_elses_is_refused(tmp_path):
    (tmp_path / "run.json").write_text('{"name": "my game"}')
    with pytest.raises(StudyError, match="not written by trimtab"):
        Store(tmp_path, SHORT, "overwrite")


def test_a_file_in_the_way_and_an_unwritable_place_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StudyError, match="in the way"):
            Store(place, SHORT)
    with pytest.raises(StudyError, match="cannot be"):
        Store(tmp_path.__class__("/proc/trimtab"), SHORT)


def test_a_run_that_is_there_is_neither_continued_nor_replaced_unasked(whole, tmp_path):
    with pytest.raises(StudyError, match=r"--resume.*--overwrite"):
        Store(whole, SHORT, "new")
    copytree(whole, tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with Store(tmp_path / "run", replace(SHORT, seeds=1), "overwrite") as store:
        assert store.finished(study_tasks(store.study)) == set()
    assert not (tmp_path / "run" / "rows").exists()
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


def test_a_run_that_finished_no_task_can_be_begun_again_with_something_else(tmp_path):
    broken_off(tmp_path / "run", 0)
    with Store(tmp_path / "run", replace(SHORT, seeds=1), "new") as store:
        assert read_run(tmp_path / "run")["config"]["seeds"] == store.study.seeds == 1
    broken_off(tmp_path / "other", 1)
    (tmp_path / "other" / MANIFEST).unlink()  # who lost the list of files still has the task
    with pytest.raises(StudyError, match="--resume"):
        Store(tmp_path / "other", SHORT, "new")


def test_two_processes_cannot_work_in_one_directory(tmp_path):
    with Store(tmp_path / "run", SHORT), pytest.raises(StudyError, match="another process"):
        Store(tmp_path / "run", SHORT, "resume")


def test_what_a_killed_writer_left_behind_is_cleared(tmp_path):
    broken_off(tmp_path / "run", 1)
    kept = next((tmp_path / "run" / "work").glob("*.json"))
    mine = [tmp_path / "run" / ".git" / ".swap.tmp", tmp_path / "run" / "work" / ".x.json.abc.tmp"]
    mine[0].parent.mkdir()
    for path in mine:
        path.write_text("not of this run")
    kept.with_name(f".{kept.name}.part").write_text("half")
    with Store(tmp_path / "run", SHORT, "resume"):
        assert not list((tmp_path / "run").rglob(".*.part"))
    assert all(path.read_text() == "not of this run" for path in mine)


# ------------------------------------------------------------------ what goes wrong, and what is shown


def test_an_error_in_a_worker_process_arrives_here(tmp_path):
    study = replace(SHORT, domains=("no-such-domain",))
    with Store(tmp_path / "run", study) as store, pytest.raises(ValueError, match="unknown domain"):
        run_study(store, "processes", 1)
    assert not multiprocessing.active_children()


def test_a_worker_process_that_dies_is_reported_and_costs_only_its_own_task(whole, tmp_path):
    class KillsAWorker(Store):
        def keep(self, task, result):
            super().keep(task, result)
            for process in multiprocessing.active_children():
                process.kill()

    with (
        KillsAWorker(tmp_path / "run", SHORT) as store,
        pytest.raises(StudyError, match="a worker died"),
    ):
        run_study(store, "processes", 1)
    with Store(tmp_path / "run", SHORT, "resume") as store:
        assert len(store.finished(study_tasks(SHORT))) >= 1
    assert row_hashes(finish(tmp_path / "run", SHORT)) == row_hashes(whole)


def test_the_wall_clock_of_all_sessions_is_added_up(tmp_path):
    broken_off(tmp_path / "run", 2)
    first = json.loads((tmp_path / "run" / "run.json").read_text())
    assert not first["complete"]
    with Store(tmp_path / "run", SHORT, "resume") as store:
        run_study(store, "serial")
        write_rows(store)
    second = json.loads((tmp_path / "run" / "run.json").read_text())
    assert second["complete"]
    assert second["seconds"] > first["seconds"] > 0


# ------------------------------------------------------------------ other machines


def test_the_record_says_what_the_last_bits_depend_on(whole):
    [machine] = json.loads((whole / "run.json").read_text())["machines"]
    assert machine["torch_instructions"] == torch.backends.cpu.get_cpu_capability()
    assert machine["threads"] == 1
    assert {"processor", "numpy_instructions", "dtype", "torch", "numpy"} <= set(machine)


def test_the_record_lists_the_machines_that_results_are_of(whole, tmp_path, monkeypatch):
    broken_off(tmp_path / "run", 2)
    other = machine_facts() | {"torch_instructions": "of another processor"}
    monkeypatch.setattr("trimtab_lab.studies.work.machine_facts", lambda: other)
    with Store(tmp_path / "run", SHORT, "resume") as store:
        run_study(store, "serial")
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert [machine["torch_instructions"] for machine in facts["machines"]][1:] == ["of another processor"]
    made_by = [json.loads(path.read_text())["machine"] for path in (tmp_path / "run" / "work").glob("*.json")]
    assert (made_by.count(0), made_by.count(1)) == (2, len(study_tasks(SHORT)) - 2)
