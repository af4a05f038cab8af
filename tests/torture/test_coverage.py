"""Nothing public is left out of the attacks: a new name needs a target, or a reason why it has none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytest.importorskip("griffe", reason="public names are read from the source by griffe")


@pytest.fixture(scope="module", autouse=True)
def _tools():
    sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "docs" / "site")]
    yield
    del sys.path[:2]


@pytest.fixture(scope="module")
def public():
    from api import public_names

    return [name.name for name in public_names(ROOT / "src")]


def test_every_public_name_is_attacked_or_spared_for_a_reason(public):
    from torture.inputs import OPTIONAL, all_targets, installed

    from torture import coverage

    if set(OPTIONAL) - set(installed()):
        pytest.skip(f"targets of integrations need {sorted(set(OPTIONAL) - set(installed()))}")
    assert coverage.unattacked(public, all_targets()) == []


def test_nothing_is_spared_that_is_not_there_or_is_attacked_after_all(public):
    from torture.inputs import all_targets

    from torture import coverage

    spared = [name for several in coverage.SPARED.values() for name in several]
    assert len(spared) == len(set(spared))
    assert coverage.needless(public) == []
    assert set(spared) - set(coverage.unattacked(spared, all_targets(), spared=())) == set()


def test_a_forgotten_name_is_found():
    from torture import coverage

    assert coverage.unattacked(["Periodic", "Forgotten"], ["Periodic", "Forgotten's answer x"]) == []
    assert coverage.unattacked(["Periodic", "Forgotten"], ["Periodic", "answer of Forgotten"]) == ["Forgotten"]
