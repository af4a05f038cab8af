"""Damaged and forged files of every format that is read: a clear error, or what an intact file would progress."""

from __future__ import annotations

import json
import math
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import trimtab as tt
from torture.judge import is_clear, where
from torture.kills import in_child, work
from torture.targets_schedules import iterated, priced
from torture.things import prices, whole_run
from trimtab.core.files import kind_of, load_tensors, tensor_bytes
from trimtab.core.replay import replay
from trimtab.evaluation.domains.pdm.checkpoint import load_model
from trimtab.evaluation.domains.pdm.domain import load_map
from trimtab.evaluation.studies.rows import read_rows, rows_in
from trimtab.evaluation.studies.store import RunFiles, study_of
from trimtab.evaluation.studies.traces import Trace, read_about
from trimtab.evaluation.studies.usercode import read_settings

Reader = Callable[[Path], Any]


def same(one: Any, other: Any) -> bool:
    """Whether two results say the same."""
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor) and one.shape == other.shape and bool(((one == other) | (one != one)).all())
        )
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    if isinstance(one, Mapping):
        return isinstance(other, Mapping) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "__dict__") and type(one) is type(other):
        return same(vars(one), vars(other))
    return bool(one == other) or (one != one and other != other)


def formats(folder: Path) -> dict[str, tuple[Path, Reader, bool]]:
    """Every format: an intact file, what reads it, and whether every change must be noticed."""
    run = folder / "run"
    assert in_child(lambda: work(run, report=False)) == 0
    name = "so3"
    trace = next((run / "traces").iterdir())
    kept = next((run / "work").glob("*.json"))
    files = folder / "files"
    files.mkdir()
    prices().save(files / "price.safetensors")
    tt.prices.Plan(torch.zeros(3, 6, dtype=torch.bool)).save(files / "plan.safetensors") if _plan_is_simple() else None
    whole_run(tt.Periodic(2), keep_states=True).save(files / "rollout.safetensors")
    iterated(keep_states=True).save(files / "iterations.safetensors")
    replace(priced(), closing_reserve=2).save(files / "iteration-price.safetensors")
    (files / "settings.json").write_text(json.dumps({"kappa": 0.3, "n_steps": 20, "more": [1, {"a": None}]}))
    (files / "settings.toml").write_text('kappa = 0.3\nn_steps = 20\n[more]\na = "b"\n')
    (files / "map.json").write_text(json.dumps({"circles": [[0.1, 0.2, 0.3], [0.4, 0.5, 0.1]]}))
    torch.save({"layer.weight": torch.rand(4, 4), "layer.bias": torch.rand(4)}, files / "checkpoint.pt")

    def in_run(path: Path) -> Reader:
        """What reads a file of a run checks it against the list first."""
        return lambda damaged: RunFiles(run).read(_put_back(damaged, path))

    def _put_back(damaged: Path, path: Path) -> str:
        shutil.copy(damaged, path)
        return path.relative_to(run).as_posix()

    table = {
        "run.json": (run / "run.json", lambda p: study_of(_alone(p, folder, "run.json")), False),
        "domains.json": (run / "domains.json", lambda p: read_about(_listed(p, folder, "domains.json"), [name]), False),
        "rows (Parquet)": (run / "rows" / f"{name}.parquet", lambda p: rows_in(p.read_bytes(), str(p)).columns, False),
        "rows in a run": (run / "rows" / f"{name}.parquet", in_run(run / "rows" / f"{name}.parquet"), True),
        "result in a run": (kept, in_run(kept), True),
        "trace in a run": (trace, in_run(trace), True),
        "trace": (trace, Trace.load, True),
        "price": (files / "price.safetensors", tt.load, True),
        "rollout": (files / "rollout.safetensors", tt.Rollout.load, True),
        "price of iterations": (files / "iteration-price.safetensors", tt.load, True),
        "rollout of iterations": (files / "iterations.safetensors", tt.Rollout.load, True),
        "price, forged": (files / "price.safetensors", used_price, False),
        "rollout, forged": (files / "rollout.safetensors", used_rollout, False),
        "price of iterations, forged": (files / "iteration-price.safetensors", used_price, False),
        "rollout of iterations, forged": (files / "iterations.safetensors", used_rollout, False),
        "settings, JSON": (files / "settings.json", read_settings, False),
        "settings, TOML": (files / "settings.toml", read_settings, False),
        "map": (files / "map.json", load_map, False),
        "PyTorch checkpoint": (files / "checkpoint.pt", load_model, False),
        "list of files": (run / "files.jsonl", lambda p: _rows_by(p, run, name), False),
    }
    if (files / "plan.safetensors").is_file():
        table["plan"] = (files / "plan.safetensors", tt.load, True)
    return table


def used_price(path: Path) -> Any:
    """A price that is loaded and used once."""
    price = tt.load(path)
    run = iterated if price.unit == "iteration" else whole_run
    record = run(schedule=price.at(min(2, price.budget)), closing=price.closing or "free")
    return vars(price) | {"spent": record.spent}


def used_rollout(path: Path) -> Any:
    """A record that is loaded and looked at."""
    record = tt.Rollout.load(path)
    looked = (record.spent, record.paid, record.all_iterations, record.grouped().spent)
    repr(record), record._repr_html_(), replay(tt.Periodic(1), record)
    return vars(record) | {"looked": looked}


def _plan_is_simple() -> bool:
    try:
        tt.prices.Plan(torch.zeros(3, 6, dtype=torch.bool))
    except (ValueError, TypeError):
        return False
    return True


def _alone(path: Path, folder: Path, name: str) -> Path:
    place = folder / "alone"
    place.mkdir(exist_ok=True)
    shutil.copy(path, place / name)
    return place


def _listed(path: Path, folder: Path, name: str) -> RunFiles:
    """A file whose checksum was mended by whoever changed it."""
    place = folder / "listed"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    files = RunFiles(place)
    files.put(name, path.read_bytes())
    return files


def _rows_by(sums: Path, run: Path, name: str) -> Any:
    """The rows of a run whose list of files was damaged."""
    shutil.copy(sums, run / "files.jsonl")
    return read_rows(run, name).columns


# ------------------------------------------------------------------ damage


def mutated(data: bytes, r: random.Random) -> bytes:
    """Some other bytes: cut, emptied, flipped, swapped, doubled, filled; or JSON with another value somewhere."""
    kind = r.choice(
        ["cut", "flip", "flip", "insert", "delete", "zeros", "random", "empty", "double", "json", "json", "text"]
    )
    at = r.randrange(len(data) + 1)
    if kind == "cut":
        return data[:at]
    if kind == "flip":
        changed = bytearray(data)
        for _ in range(r.choice([1, 1, 2, 8])):
            changed[r.randrange(len(changed))] ^= 1 << r.randrange(8)
        return bytes(changed)
    if kind == "insert":
        return data[:at] + r.randbytes(r.randint(1, 20)) + data[at:]
    if kind == "delete":
        return data[:at] + data[at + r.randint(1, 50) :]
    if kind == "zeros":
        return data[:at] + bytes(min(100, len(data) - at)) + data[at + 100 :]
    if kind == "random":
        return r.randbytes(r.randint(1, 500))
    if kind == "empty":
        return b""
    if kind == "double":
        return data + data
    if kind == "text":
        return r.choice(
            [b"null", b"[]", b"{}", b"3", b'"x"', b"[" * 10**5, b'{"a":' * 10**4, b"\xff\xfe", b"NaN", b"1e999"]
        )
    try:
        value = json.loads(data)
    except ValueError:
        return data[:at] + b"!" + data[at:]
    return json.dumps(_other(value, r)).encode()


def forged(path: Path, r: random.Random) -> bytes:
    """A file of tensors in which one tensor or one fact is another, with a checksum that is right."""
    kind, tensors, facts = kind_of(path), *load_tensors(path, kind_of(path))
    if r.random() < 0.4:
        fact = r.choice(sorted(facts))
        changed = {fact: _other(facts[fact], r)} if r.random() < 0.85 else {}
        return tensor_bytes(kind, tensors, {k: v for k, v in facts.items() if k != fact} | changed)
    name = r.choice(sorted(tensors))
    old = tensors.pop(name)
    numbers = old.double()
    spoiled = numbers.clone()
    spoiled.view(-1)[r.randrange(max(1, spoiled.numel())) :][:1] = r.choice([math.nan, math.inf, -1.0, 1e30])
    shapes = [old[:0], old[:1], torch.cat([old, old]), old[None], old.flatten(), old.transpose(0, -1).contiguous()]
    kinds = [
        spoiled.to(old.dtype),
        spoiled,
        numbers.long(),
        numbers.bool(),
        -old.long(),
        torch.tensor(1.0),
        numbers.half(),
    ]
    new = r.choice([*shapes, *kinds, torch.tensor(1.0), None])
    more = {} if new is None else {r.choice([name, name, name, "x"]): new.clone()}
    return tensor_bytes(kind, tensors | more, facts)


def _other(value: Any, r: random.Random, depth: int = 0) -> Any:
    """The same value with one part replaced by something else."""
    if isinstance(value, dict) and value and depth < 6 and r.random() < 0.9:
        key = r.choice(list(value))
        if r.random() < 0.15:
            return {k: v for k, v in value.items() if k != key}
        return value | {key: _other(value[key], r, depth + 1)}
    if isinstance(value, list) and value and depth < 6 and r.random() < 0.8:
        i = r.randrange(len(value))
        return [*value[:i], _other(value[i], r, depth + 1), *value[i + 1 :]]
    odd = [
        None,
        True,
        -1,
        0,
        1.5,
        10**30,
        float("nan"),
        float("inf"),
        "x",
        "",
        "../../x",
        [],
        {},
        [[]],
        {"a": 1},
        "x" * 500,
    ]
    return r.choice(odd)


def run(count: int, seed: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """Read `count` damaged files and count what comes of it."""
    folder = Path(tempfile.mkdtemp(prefix="torture-files-"))
    try:
        return _run(folder, count, random.Random(seed), progress)
    finally:
        shutil.rmtree(folder)


def _run(folder: Path, count: int, r: random.Random, progress: Callable[[str], None]) -> dict[str, Any]:
    table = formats(folder)
    intact = {name: path.read_bytes() for name, (path, _, _) in table.items()}
    meant = {}
    for name, (path, read, _) in table.items():
        try:
            meant[name] = read(_placed(folder, path, intact[name]))
        except ValueError:
            meant[name] = None  # a checkpoint of another network: well read, and refused for what it is
    clear: Counter[str] = Counter()
    unclear, accepted, equal, valid = Counter[str](), Counter[str](), 0, 0
    examples: dict[str, str] = {}
    names = list(table)
    for i in range(count):
        name = names[i % len(names)]
        path, read, must_notice = table[name]
        data = forged(path, r) if name.endswith("forged") else mutated(intact[name], r)
        try:
            result = read(_placed(folder, path, data))
        except Exception as error:
            if is_clear(error):
                clear[name] += 1
            else:
                unclear[name] += 1
                examples.setdefault(f"{name}: unclear", where(error))
        else:
            if data == intact[name] or same(result, meant[name]):
                equal += 1
            elif must_notice:
                accepted[name] += 1
                examples.setdefault(f"{name}: accepted", repr(data[:60]))
            else:
                valid += 1
        for other in (path,):
            if other.read_bytes() != intact[name]:
                other.write_bytes(intact[name])
        progress(f"{i + 1} of {count} files, {sum(unclear.values())} unclear, {sum(accepted.values())} accepted")
    return {
        "files": count,
        "formats": len(table),
        "clear": sum(clear.values()),
        "said the same": equal,
        "another valid file": valid,
        "unclear": sum(unclear.values()),
        "accepted": sum(accepted.values()),
        "crashes": 0,  # or this line would not have been reached
        "examples": examples,
    }


def _placed(folder: Path, like: Path, data: bytes) -> Path:
    place = folder / f"damaged{like.suffix}"
    place.write_bytes(data)
    return place
