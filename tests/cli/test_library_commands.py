"""The command line where the lab is not installed."""

from __future__ import annotations

import sys

import pytest

import trimtab as tt
from trimtab.cli import main as cli


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    monkeypatch.setattr(cli, "entry_points", lambda group: ())
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    cli.commands.cache_clear()
    yield
    cli.commands.cache_clear()


SAMPLER = ("--sampler", "trimtab.examples:problem")


def test_help_names_the_commands_and_how_to_get_the_others(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    said = capsys.readouterr().out
    assert all(name in said for name in ("advise", "calibrate", "compare", "pip install trimtab-lab"))
    assert cli.main(["reproduce"]) == 2
    assert "pip install trimtab-lab" in capsys.readouterr().err


def test_a_price_is_calibrated_kept_and_compared(capsys, tmp_path):
    assert cli.main(["calibrate", *SAMPLER, "--seeds", "8", "--method", "paper", "--out", "p.safetensors"]) == 0
    assert tt.load(tmp_path / "p.safetensors").method == "paper"
    assert cli.main(["compare", *SAMPLER, "--seeds", "8", "--price", "p.safetensors"]) == 0
    assert "\np " in capsys.readouterr().out
    assert cli.main(["calibrate", *SAMPLER, "--out", "p.safetensors"]) == 2
    assert "exists" in capsys.readouterr().err


def test_advice_is_printed(capsys):
    assert cli.main(["advise", *SAMPLER, "--seeds", "16", "--cost", "projections"]) == 0
    assert "project" in capsys.readouterr().out.lower()


@pytest.mark.parametrize("spec", ["nothing", "trimtab.examples:ellipsoid"])
def test_what_makes_no_sampler_is_refused(spec, capsys):
    assert cli.main(["compare", "--sampler", spec]) == 2
    assert spec in capsys.readouterr().err
