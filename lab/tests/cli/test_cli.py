from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest

from study_runs import finish, row_hashes
from trimtab import __version__
from trimtab.cli.main import commands, main
from trimtab.core.files import save_tensors
from trimtab_lab.cli.compare import table_of
from trimtab_lab.studies.config import preset
from trimtab_lab.studies.summary import summary_schema

TINY = ("--preset", "tiny", "--only", "terrain-ridge")


def trimtab(*words: str, **options) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-m", "trimtab", *words], env=environment, **pipes | options)


def finished_tasks(run: Path) -> int:
    return len(list((run / "work").glob("*.json")))


def wait_for_tasks(process: subprocess.Popen[str], run: Path, number: int) -> None:
    deadline = time.monotonic() + 120
    while finished_tasks(run) < number and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


# ------------------------------------------------------------------ end to end


@pytest.fixture(scope="module")
def killed_and_resumed(tmp_path_factory):
    """A run that was killed in the middle, then interrupted with Ctrl-C, then finished."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in a shell's background jobs, and in all they start
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run = tmp_path_factory.mktemp("runs") / "tiny"
    killed = trimtab("reproduce", *TINY, "--out", str(run), "--workers", "1")
    wait_for_tasks(killed, run, 3)
    killed.kill()
    killed.communicate()
    at_the_kill = finished_tasks(run)

    stopped = trimtab("reproduce", "--out", str(run), "--resume", "--workers", "1")
    wait_for_tasks(stopped, run, at_the_kill + 2)
    stopped.send_signal(signal.SIGINT)
    _, complaint = stopped.communicate()
    kept = {path.name: path.stat().st_mtime_ns for path in (run / "work").glob("*.json")}

    resumed = trimtab("reproduce", *TINY, "--out", str(run), "--resume", "--workers", "2")
    out, log = resumed.communicate()
    assert resumed.returncode == 0, log
    return {"run": run, "stopped": (stopped.returncode, complaint), "out": out, "kept": kept}


def test_a_killed_run_ends_with_the_rows_of_an_uninterrupted_one(killed_and_resumed, tmp_path):
    study = preset("tiny").only(("terrain-ridge",))
    assert row_hashes(killed_and_resumed["run"]) == row_hashes(finish(tmp_path / "whole", study))
    work = killed_and_resumed["run"] / "work"
    assert len(killed_and_resumed["kept"]) >= 5
    for name, changed in killed_and_resumed["kept"].items():
        assert (work / name).stat().st_mtime_ns == changed  # finished tasks are not run again


def test_ctrl_c_leaves_a_run_that_can_go_on_and_says_how(killed_and_resumed):
    code, complaint = killed_and_resumed["stopped"]
    assert code == 130
    assert complaint.splitlines()[-1].endswith(f"trimtab reproduce --out {killed_and_resumed['run']} --resume")
    assert "Traceback" not in complaint


def test_everything_comes_out(killed_and_resumed):
    run = killed_and_resumed["run"]
    for name in (
        "run.json",
        "summary.json",
        "page.json",
        "report.html",
        "rows/terrain-ridge.parquet",
    ):
        assert (run / name).is_file(), name
    for table in ("table1", "table3", "diagnostics"):
        assert {f"{table}.{ending}" for ending in ("md", "csv", "tex")} <= set(os.listdir(run / "tables"))
    for figure in ("title", "regime", "nepe", "endpoint"):
        for ending in ("png", "svg", "pdf"):
            assert (run / "figures" / f"{figure}.{ending}").stat().st_size > 1000
    assert "report.html" in killed_and_resumed["out"]
    jsonschema.validate(json.loads((run / "summary.json").read_text()), summary_schema())


def test_the_pages_data_is_as_documented(killed_and_resumed):
    page = json.loads((killed_and_resumed["run"] / "page.json").read_text())
    assert page["budgets"] == ["0.00", "0.25", "0.50", "1.00"]
    domain = page["domains"]["terrain-ridge"]
    assert set(domain["examples"]["periodic"]) == set(page["budgets"])
    assert set(domain["examples"]["terminal"]) == {"0.00"}
    assert set(domain["examples"]["stepwise"]) == {"1.00"}
    example = domain["examples"]["adaptive:paper"]["0.25"][0]
    T = domain["n_steps"]
    assert len(example["defects"]) == len(example["state_error"]) == T
    assert len(example["path"]) == T + 1
    assert len(example["projected"]) == T // 4
    assert len(domain["surface"]["z"]) == len(domain["surface"]["y"])
    assert {schedule["key"] for schedule in page["schedules"]} == set(domain["examples"])


def test_the_report_can_be_written_again_from_the_rows(killed_and_resumed, monkeypatch):
    monkeypatch.setattr("trimtab_lab.report.figures.write_figures", lambda *_: [])
    run = killed_and_resumed["run"]
    before = (run / "summary.json").read_text()
    (run / "summary.json").unlink()
    assert main(["report", str(run)]) == 0
    assert (run / "summary.json").read_text() == before


def test_a_finished_run_is_not_replaced_unasked(killed_and_resumed, capsys):
    assert main(["reproduce", *TINY, "--out", str(killed_and_resumed["run"])]) == 2
    assert "--resume" in capsys.readouterr().err


# ------------------------------------------------------------------ the trajectory sampler


@pytest.fixture(scope="module")
def trajectories(tmp_path_factory):
    """A small study of the trajectory sampler, with a map and a number of updates of its own."""
    folder = tmp_path_factory.mktemp("pdm")
    circles = [[0.0, 0.0, 0.3], [0.5, 0.5, 0.2], [-0.5, -0.4, 0.2]]
    (folder / "map.json").write_text(json.dumps(circles))
    options = ("--preset", "tiny", "--only", "pdm", "--inner-steps", "1", "--circles", str(folder / "map.json"))
    options += ("--eligible-from", "0", "--defect", "colliding-segments")
    numbers = ("--seeds", "4", "--calibration-seeds", "6")
    run = trimtab("reproduce", *options, *numbers, "--out", str(folder / "run"))
    out, log = run.communicate()
    assert run.returncode == 0, log
    return {"run": folder / "run", "out": out, "circles": circles}


def test_trajectories_have_their_own_table_and_figure(trajectories):
    run = trajectories["run"]
    assert "| adaptive (paper) | paper | 0.25 | 0.288 ± 0.009 | 0.712 ± 0.009 | 41% |" in trajectories["out"]
    assert {"table2.md", "quality-pdm.md"} <= set(os.listdir(run / "tables"))
    assert (run / "figures" / "trajectories.png").stat().st_size > 1000
    summary = json.loads((run / "summary.json").read_text())
    jsonschema.validate(summary, summary_schema())
    content = summary["domains"]["pdm"]
    assert content["n_steps"] == 10
    assert "hindsight" not in content["schedules"]
    assert content["quality"]["stepwise"]["1.00"]["collision_free"] == {"mean": 1.0, "se": 0.0, "n": 4}
    settings = summary["config"]["samplers"]["pdm"]["settings"]
    assert (settings["inner_steps"], settings["eligible_from"], settings["defect"]) == (1, 0, "colliding-segments")
    assert (summary["config"]["seeds"], summary["config"]["calibration_seeds"]) == (4, 6)


def test_the_page_shows_final_trajectories_among_the_obstacles(trajectories):
    domain = json.loads((trajectories["run"] / "page.json").read_text())["domains"]["pdm"]
    assert domain["obstacles"] == trajectories["circles"]
    assert domain["path"]["labels"] == ["x", "y"]
    for key, budget in (("terminal", "0.00"), ("adaptive:dp", "0.25"), ("stepwise", "1.00")):
        path = domain["examples"][key][budget][0]["path"]
        assert len(path) == 64
        assert all(math.dist(point, (x, y)) > r - 2e-3 for point in path for x, y, r in trajectories["circles"])


# ------------------------------------------------------------------ words


def test_help_and_version_do_not_wait_for_torch():
    code = (
        "import sys; from trimtab.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'numpy', 'pyarrow', 'matplotlib'} & set(sys.modules)"
    )
    for words in (["--help"], ["--version"], ["reproduce", "--help"], []):
        subprocess.run([sys.executable, "-c", code, *words], check=True, capture_output=True)


def test_version_and_help_say_what_they_should(capsys):
    for words, wanted in (
        (["--version"], __version__),
        (["--help"], "reproduce"),
        (["reproduce", "--help"], "examples:"),
    ):
        with pytest.raises(SystemExit) as end:
            main(words)
        assert end.value.code == 0
        assert wanted in capsys.readouterr().out


def test_domains_are_listed(capsys):
    assert main(["domains"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed[:6] == ["so3", "se3", "terrain", "so3-impulse", "se3-lever", "terrain-ridge"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reprodce"], "did you mean 'reproduce'"),
        (["reproduce", "--preset", "papr"], "did you mean 'paper'"),
        (["reproduce", "--only", "terain"], "did you mean 'terrain'"),
        (["reproduce", "--engine", "rai"], "did you mean 'ray'"),
        (["reproduce", "--workers", "0"], "--workers: expected a whole number from 1 to 1000000: got 0"),
        (["reproduce", "--seeds", "0"], "--seeds: expected a whole number from 1 to 1000000: got 0"),
        (["reproduce", "--seeds", "9" * 21], "--seeds: expected a whole number from 1 to 1000000: got 999"),
        (["advise", "--domain", "so3", "--seeds", "9" * 21], "--seeds: expected a whole number"),
        (["reproduce", "--out", "run\udcff"], "--out: expected a name in UTF-8"),
        (["calibrate", "--domain", "so3", "--out", "price\udcff"], "--out: expected a name in UTF-8"),
        (["reproduce", "--workers", "two"], "expected a whole number from 1 to 1000000: got two"),
        (["reproduce", "--resume", "--overwrite"], "not allowed with"),
        (["reproduce", "--only", "so3", "--eligible-from", "6"], "add --only pdm"),
        (["reproduce", "--only", "pdm", "--eligible-from", "10"], "from 0 to 9"),
        (["reproduce", "--only", "pdm", "--checkpoint", "none.pt"], "none.pt"),
        (["reproduce", "--only", "pdm", "--circles", "none.json"], "cannot be read as a map"),
        (["train-pdm", "validate"], "no model file"),
        (["reproduce", "--calibration-seeds", "3"], "give --calibration-seeds of at least 4"),
        (["compare", "--domain", "so3", "--schedules", "hindsight"], "hindsight does not count the closing projection"),
        (["compare", "--domain", "so3", "--seeds", "0"], "--seeds: expected a whole number from 1"),
        (
            ["compare", "--domain", "so3", "--calibration-seeds", "0"],
            "--calibration-seeds: expected a whole number from 1",
        ),
        (["report"], "DIR"),
        (["report", "no-such-directory"], "not a run directory"),
    ],
)
def test_bad_input_is_one_clear_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []


def _price_of_endless_seeds(folder: Path) -> None:
    import torch

    facts = {
        "is": "Thresholds",
        "method": "dp",
        "seeds": [1, math.inf],
        "objective": "path",
        "notes": {},
    }
    save_tensors(folder / "price.safetensors", "price", {"table": torch.ones(2, 2)}, facts)


def _cut_checkpoint(folder: Path) -> None:
    import torch

    torch.save({"a": torch.ones(100)}, folder / "whole.pt")
    data = (folder / "whole.pt").read_bytes()
    (folder / "cut.pt").write_bytes(data[: len(data) // 2])
    (folder / "changed.pt").write_bytes(data.replace(b"torch", b"tOrch"))


@pytest.mark.parametrize(
    ("make", "words", "message"),
    [
        ('{"kappa": "0.4"}', ["advise", "--domain", "so3", "--config"], "cannot be made with the settings"),
        ('{"kappa": [' + "[" * 100_000, ["advise", "--domain", "so3", "--config"], "nested too deeply"),
        ('{"kappa": 1e400}', ["advise", "--domain", "so3", "--config"], "kappa"),
        ('{"n_steps": 2147483648}', ["advise", "--domain", "so3", "--config"], "n_steps"),
        ('{"n_steps": 1e9}', ["advise", "--domain", "so3", "--config"], "n_steps"),
        ("\xff{}", ["advise", "--domain", "so3", "--config"], "not usable as settings"),
        (_price_of_endless_seeds, ["advise", "--domain", "so3", "--price", "price.safetensors"], "not a usable"),
        (_cut_checkpoint, ["reproduce", "--only", "pdm", "--checkpoint", "cut.pt"], "not a PyTorch checkpoint"),
        (_cut_checkpoint, ["reproduce", "--only", "pdm", "--checkpoint", "changed.pt"], "changed.pt"),
    ],
)
def test_a_bad_file_is_one_clear_line(make, words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if callable(make):
        make(tmp_path)
    else:
        (tmp_path / "settings.json").write_text(make, encoding="latin-1")
        words = [*words, "settings.json"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert message in said
    assert "unexpected" not in said


def test_a_disk_that_fills_up_while_figures_are_drawn_is_one_clear_line(killed_and_resumed, monkeypatch, capsys):
    run = killed_and_resumed["run"]
    before = (run / "figures" / "nepe.svg").read_bytes()

    def full(path, *_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("trimtab_lab.studies.store.write_atomically", full)
    assert main(["report", str(run)]) == 2
    said = capsys.readouterr().err
    assert "No space left on device" in said
    assert "make room" in said
    assert said.count("\n") == 1
    assert (run / "figures" / "nepe.svg").read_bytes() == before


def test_a_comparison_of_the_baselines_alone_has_its_report(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.json").write_text('{"n_steps": 12}')
    words = ("compare", "--domain", "terrain-ridge", "--config", "short.json", "--schedules", "periodic")
    few = ("--seeds", "1", "--calibration-seeds", "4", "--budgets", "0.25", "--engine", "serial", "--out", "run")
    assert main([*words, *few]) == 0
    assert (tmp_path / "run" / "report.html").is_file()
    assert (tmp_path / "run" / "figures" / "regime.png").is_file()


def test_a_foreign_directory_is_refused(tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("years of work")
    assert main(["reproduce", "--out", str(tmp_path), "--overwrite"]) == 2
    assert "not a trimtab run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["calibrate", "--domain", "so3", "--out"], "is there already"),
        (["advise", "--domain", "so3", "--save"], "is there already"),
        (["advise", "--domain", "so3", "--out"], "kept in a folder, and this is a link that leads nowhere"),
        (["compare", "--domain", "so3", "--out"], "a file is in the way"),
        (["train-grid", "--points", "4", "--folder"], "a link that leads nowhere, is where a folder was wanted"),
    ],
)
def test_a_link_that_leads_nowhere_is_one_clear_line_and_left_alone(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    link = tmp_path / "link"
    link.symlink_to("nowhere")
    assert main([*words, "link"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert message in said
    assert link.is_symlink()
    assert list(tmp_path.iterdir()) == [link]


def test_what_is_not_permitted_says_what_to_do(tmp_path, monkeypatch, capsys):
    def forbidden(*_):
        raise PermissionError(errno.EACCES, "Permission denied", "price.safetensors")

    monkeypatch.setattr("trimtab.prices.price.load", forbidden)
    assert main(["advise", "--domain", "so3", "--price", "price.safetensors"]) == 2
    assert "'price.safetensors'; get permission, or choose another place" in capsys.readouterr().err


def test_a_missing_extra_is_named_with_the_line_that_installs_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["reproduce", *TINY, "--out", str(tmp_path / "run"), "--engine", "ray"]) == 2
    assert "needs ray: pip install 'trimtab[ray]', or '.[ray]' in a checkout" in capsys.readouterr().err


def test_every_command_teaches_by_example():
    assert all("example" in command.examples for command in commands().values())


def test_long_names_of_schedules_stand_apart_in_a_comparison():
    some = {"0.25": {measure: {"mean": 0.5, "se": 0.1} for measure in ("endpoint", "nepe")}}
    keys = ("periodic", "adaptive:on-policy", "adaptive:paper")
    schedules = {"terminal": {"0.00": some["0.25"]}, **dict.fromkeys(keys, some)}
    shown = table_of({"domains": {"so3": {"schedules": schedules, "degenerate": 0, "failures": 0}}})
    assert "  periodic  adaptive (on-policy)      adaptive (paper)\n" in shown
    assert len({len(line) for line in shown.splitlines() if "±" in line and "," not in line and ":" not in line}) == 1
