"""Engines for the user's own sampler: killed, gone on with, and the same numbers whatever the engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trimtab.cli.main import main
from trimtab.loop.rollout import rollout

EXAMPLE = Path(__file__).parents[3] / "examples" / "my_sampler.py"
SHORT = EXAMPLE.read_text().replace("n_steps = 60", "n_steps = 20").replace("t % 15 == 9", "t % 5 == 3")
SLOW = SHORT + (
    "\nimport os\nimport time\n\nclass SlowWalk(Walk):\n    def step(self, x, t, noise):\n"
    "        time.sleep(float(os.environ.get('PAUSE', 0.015)))\n        return super().step(x, t, noise)\n\n"
    "def make_slow():\n    return SlowWalk(), make()[1]\n"
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of the user's, with a sampler in it."""
    (tmp_path / "sampler_of_mine.py").write_text(SLOW)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("sampler_of_mine", None)


CALIBRATE = ("calibrate", "--sampler", "sampler_of_mine:make_slow", "--seeds", "8")


def test_a_killed_calibration_goes_on_and_ends_with_the_same_price_file(folder):
    assert main([*CALIBRATE, "--out", "whole.safetensors"]) == 0
    command = [sys.executable, "-m", "trimtab", *CALIBRATE, "--out", "price.safetensors"]
    options = ["--engine", "processes", "--workers", "1"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    killed = subprocess.Popen([*command, *options], env=environment, stderr=subprocess.PIPE, text=True)
    work = folder / "price.safetensors.work"
    deadline = time.monotonic() + 120
    while len(list(work.glob("*.json"))) < 3 and time.monotonic() < deadline:
        assert killed.poll() is None, killed.communicate()
        time.sleep(0.01)
    killed.kill()
    killed.communicate()
    kept = {path.name: path.stat().st_mtime_ns for path in work.glob("*.json")}
    assert 3 <= len(kept) < 8
    assert not (folder / "price.safetensors").exists()

    asked = subprocess.run([*command, *options], env=environment, capture_output=True, text=True)
    assert asked.returncode == 2
    assert "continue with --resume" in asked.stderr
    assert {path.name: path.stat().st_mtime_ns for path in work.glob("*.json")} == kept

    assert main([*CALIBRATE, "--out", "price.safetensors", "--resume"]) == 0  # by another engine, even
    assert (folder / "price.safetensors").read_bytes() == (folder / "whole.safetensors").read_bytes()
    assert not work.exists()


def test_advice_is_the_same_by_any_engine_and_goes_on_from_its_folder(folder, capsys):
    advise = ["advise", "--sampler", "sampler_of_mine:make", "--seeds", "16", "--cost", "projections", "--json"]
    engines = ([], ["--engine", "processes", "--workers", "2", "--out", "kept"], ["--out", "kept", "--resume"])
    told = []
    for options in engines:
        assert main([*advise, *options]) == 0
        facts = json.loads(capsys.readouterr().out)
        told.append((facts["recommended"]["schedule"], facts["recommended"]["budget"], facts["loss"]))
    assert told[0] == told[1] == told[2]
    before = len(list((folder / "kept").glob("*.json")))
    assert before > 12
    assert main([*advise, "--tolerance", "0.4", "--out", "kept", "--resume"]) == 0  # another question, the same batches
    assert len(list((folder / "kept").glob("*.json"))) < 1.5 * before


def test_every_batch_of_advice_is_kept_those_on_the_projection_itself_too(folder, monkeypatch, capsys):
    (folder / "short.json").write_text('{"n_steps": 16}')
    source = ["advise", "--domain", "linkage", "--config", "short.json", "--seeds", "16", "--cost", "projections"]
    assert main([*source, "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert main([*source, "--json", "--engine", "processes", "--workers", "2", "--out", "kept"]) == 0
    beside = json.loads(capsys.readouterr().out)

    ran = []

    def counted(*arguments, **options):
        ran.append(arguments)
        return rollout(*arguments, **options)

    monkeypatch.setattr("trimtab.loop.rollout.rollout", counted)
    assert main([*source, "--json", "--out", "kept", "--resume"]) == 0
    assert 1 <= len(ran) <= 4  # of more than a dozen: kept batches that are run again, to compare
    again = json.loads(capsys.readouterr().out)
    for facts in (plain, beside, again):
        for trial in facts["trials"]:
            del trial["seconds"]  # those are measured
        facts["findings"] = [one["name"] for one in facts["findings"]]
    assert plain == beside == again


STOPPED = {
    "advise": ("--seeds", "16", "--cost", "projections", "--out", "kept"),
    "calibrate": ("--seeds", "8", "--engine", "serial", "--out", "kept"),
    "compare": (
        *("--seeds", "2", "--calibration-seeds", "4", "--budgets", "0.25", "--schedules", "adaptive:paper"),
        *("--workers", "1", "--out", "kept"),
    ),
}


@pytest.mark.parametrize(("command", "options"), STOPPED.items(), ids=STOPPED)
def test_ctrl_c_says_how_to_go_on_and_so_it_goes(command, options, folder, monkeypatch):
    words = [command, "--sampler", "sampler_of_mine:make_slow", *options]
    where = {"advise": "kept", "calibrate": "kept.work", "compare": "kept/work"}[command]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    # background jobs ignore Ctrl-C; and no function before exec, which would fork where JAX may have threads
    heeding = "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    run_it = heeding + "runpy.run_module('trimtab', run_name='__main__', alter_sys=True)"
    begun = subprocess.Popen([sys.executable, "-c", run_it, *words], env=environment, **pipes)
    deadline = time.monotonic() + 120
    while len(list((folder / where).glob("*.json"))) < 2 and time.monotonic() < deadline:
        assert begun.poll() is None, begun.communicate()
        time.sleep(0.01)
    begun.send_signal(signal.SIGINT)
    _, said = begun.communicate()
    assert begun.returncode == 130
    assert said.splitlines()[-1].startswith("trimtab: stopped; ")
    assert said.splitlines()[-1].endswith("Continue with the same command and --resume")
    kept = {path.name: path.stat().st_mtime_ns for path in (folder / where).glob("*.json")}
    monkeypatch.setenv("PAUSE", "0")
    monkeypatch.setattr("trimtab_lab.cli.advise.remove_batches", lambda work: None)
    if command == "compare":  # a process of its own, as the one that was stopped
        subprocess.run([sys.executable, "-m", "trimtab", *words, "--resume"], check=True, capture_output=True)
    else:
        assert main([*words, "--resume"]) == 0
    assert kept.items() <= {path.name: path.stat().st_mtime_ns for path in (folder / where).glob("*.json")}.items()


def test_a_folder_that_holds_no_batches_is_used_and_one_that_does_is_not_said_to_be_unfinished(folder, capsys):
    advise = ["advise", "--sampler", "sampler_of_mine:make", "--seeds", "16", "--cost", "projections", "--out", "kept"]
    (folder / "kept").mkdir()
    (folder / "kept" / "notes.txt").write_text("mine")
    assert main(advise) == 0
    assert (folder / "kept" / "notes.txt").read_text() == "mine"
    capsys.readouterr()
    assert main(advise) == 2
    said = capsys.readouterr().err
    assert said == "trimtab: kept holds batches of an earlier run: continue with --resume, or --overwrite them\n"


HIDDEN = """
import sys
from my_walk import Walk, make as make_walk

REGISTRY = {}

class Hidden(Walk):
    def step(self, x, t, noise):
        return getattr(sys.modules["hidden_settings"], "REGIS" + "TRY")["gain"] * super().step(x, t, noise)

def make(gain=1.0):
    REGISTRY["gain"] = gain
    return Hidden(), make_walk()[1]
"""


def test_other_settings_of_the_command_are_another_problem_however_a_sampler_hides_them(folder, capsys):
    (folder / "my_walk.py").write_text(SHORT)
    (folder / "hidden_settings.py").write_text(HIDDEN)
    answers = {}
    for name, gain, folders in (("a", 1.0, "kept"), ("b", 1.2, "kept"), ("b alone", 1.2, "other")):
        (folder / "settings.json").write_text(json.dumps({"gain": gain}))
        words = ["advise", "--sampler", "hidden_settings:make", "--config", "settings.json", "--seeds", "16", "--json"]
        words += ["--cost", "projections", "--out", folders, *(["--resume"] if name == "b" else [])]
        code = "import sys; from trimtab.cli.main import main; sys.exit(main(sys.argv[1:]))"
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        answers[name] = [trial["projections"] for trial in json.loads(done.stdout)["trials"]]
    assert answers["b"] == answers["b alone"]


def test_a_sampler_that_has_changed_is_run_again(folder):
    advise = ["advise", "--sampler", "sampler_of_mine:make", "--seeds", "16", "--cost", "projections", "--out", "kept"]
    assert main(advise) == 0
    before = {path.name for path in (folder / "kept").glob("*.json")}
    (folder / "sampler_of_mine.py").write_text(SLOW.replace("0.95 * x", "0.90 * x"))
    code = "import sys; from trimtab.cli.main import main; sys.exit(main(sys.argv[1:]))"
    subprocess.run([sys.executable, "-c", code, *advise, "--resume"], check=True, capture_output=True)
    assert len({path.name for path in (folder / "kept").glob("*.json")}) > 1.5 * len(before)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*CALIBRATE, "--engine", "procesess"), "did you mean 'processes'"),
        ((*CALIBRATE, "--workers", "2"), "--workers needs --engine"),
        ((*CALIBRATE, "--engine", "processes", "--workers", "0"), "expected a whole number from 1"),
        (("advise", "--domain", "so3", "--seeds", "16", "--resume"), "--resume needs the folder"),
    ],
)
def test_options_that_cannot_be_meant_are_one_clear_line(words, message, folder, capsys):
    assert main(list(words)) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert message in said[-1]
    assert not (folder / "sampler_of_mine.safetensors").exists()


def test_overwriting_removes_what_was_kept_and_nothing_else(folder):
    kept = folder / "kept"
    advise = ["advise", "--sampler", "sampler_of_mine:make", "--seeds", "16", "--cost", "projections", "--out", "kept"]
    assert main(advise) == 0
    for name in ("notes.txt", "my-notes.json", "0.safetensors"):
        (kept / name).write_text("mine")
    first = {path.name: path.stat().st_mtime_ns for path in kept.glob("*.json")}
    assert main(advise) == 2
    assert main([*advise, "--overwrite"]) == 0
    again = {path.name: path.stat().st_mtime_ns for path in kept.glob("*.json")}
    assert again.keys() == first.keys()
    assert all(again[name] > first[name] for name in first if name != "my-notes.json")
    for name in ("notes.txt", "my-notes.json", "0.safetensors"):
        assert (kept / name).read_text() == "mine"


@pytest.mark.parametrize("kept", [".", "link"])
def test_a_folder_that_is_there_is_used_as_it_is(kept, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to("mine")
    (tmp_path / "short.json").write_text('{"n_steps": 12}')
    monkeypatch.chdir(tmp_path / "mine" if kept == "." else tmp_path)
    short = ("--domain", "so3", "--config", str(tmp_path / "short.json"), "--seeds", "16", "--cost", "projections")
    assert main(["advise", *short, "--out", kept]) == 0
    assert list((tmp_path / "mine").glob("*.json"))
    assert (tmp_path / "link").is_symlink()


def test_a_calibration_keeps_its_batches_behind_a_link_and_leaves_the_link(folder):
    (folder / "elsewhere").mkdir()
    (folder / "price.work").symlink_to("elsewhere")
    assert main([*CALIBRATE, "--method", "paper", "--engine", "serial", "--out", "price"]) == 0
    assert (folder / "price").is_file()
    assert (folder / "price.work").is_symlink()
    assert list((folder / "elsewhere").iterdir()) == []
