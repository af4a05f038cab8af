"""Damaged files of prices and records: reading one gives a clear error or what the whole file says."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import trimtab as tt
from torture.calls import BALL, PRICES, T, Walk
from torture.scale import TIMES
from torture.test_bad_arguments import is_clear


def record() -> Any:
    return tt.rollout(Walk(), BALL, tt.Periodic(2), range(4), keep_states=True, measure_defects=True)


FORMATS = {
    "prices": (lambda: PRICES, tt.load, lambda price: price.table),
    "plan": (
        lambda: tt.prices.Plan(torch.eye(T).cumsum(0).bool().roll(1, 0).tril(-1)),
        tt.load,
        lambda plan: plan.masks,
    ),
    "record": (record, tt.Rollout.load, lambda run: run.defects),
}


def damaged(data: bytes, r: random.Random) -> bytes:
    """Return other bytes: cut, flipped, with some inserted, removed or set to zero, or something else altogether."""
    at = r.randrange(len(data))
    return r.choice(
        [
            data[:at],
            data[:at] + bytes([data[at] ^ (1 << r.randrange(8))]) + data[at + 1 :],
            data[:at] + r.randbytes(r.randint(1, 20)) + data[at:],
            data[:at] + data[at + r.randint(1, 50) :],
            data[:at] + bytes(min(100, len(data) - at)) + data[at + 100 :],
            data + data,
            r.randbytes(r.randint(1, 500)),
            r.choice([b"", b"null", b"{}", b'"x"', b"[" * 10**5, b'{"a":' * 10**4, b"\xff\xfe", b"1e999"]),
        ]
    )


@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_file_is_a_clear_error(name: str, tmp_path: Path) -> None:
    make, load, look = FORMATS[name]
    try:
        made = make()
    except ValueError:
        pytest.skip("such a plan cannot be made by hand")
    made.save(tmp_path / "whole.safetensors")
    whole, r, wrong = (tmp_path / "whole.safetensors").read_bytes(), random.Random(0), []
    for i in range(60 * TIMES):
        path = tmp_path / "damaged.safetensors"
        path.write_bytes(damaged(whole, r))
        try:
            read = load(path)
        except Exception as error:
            if not is_clear(error):
                wrong.append(f"case {i}: {type(error).__name__}: {error}")
        else:
            if not torch.equal(look(read), look(made)):
                wrong.append(f"case {i}: another content was accepted")
    assert not wrong, "\n".join(wrong[:10])
