"""Bad inputs for every public function: each must be a clear error, none a crash, none accepted in silence."""

from __future__ import annotations

import faulthandler
import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torture.judge import is_clear, where
from torture.spoil import Target

ROOMS = ("core", "schedules", "samplers", "sets", "measures", "limits", "studies")
"""What needs no other package: the modules `torture.targets_…`."""

OPTIONAL = ("azula", "diffusers", "torchdiffeq", "flow_matching", "jax", "diffrax")
"""Packages whose integrations are attacked where they are installed; a module for each."""


def installed() -> list[str]:
    """Those of the optional packages that are here."""
    return [name for name in OPTIONAL if find_spec(name) is not None]


@cache
def all_targets() -> dict[str, Target]:
    """Every public function by what is spoiled: what is called with a bad value, and what makes such values."""
    found: dict[str, Target] = {}
    for room in ROOMS:
        own = import_module(f"torture.targets_{room}").TARGETS
        if twice := found.keys() & own.keys():
            raise ValueError(f"targets go by one name each: {sorted(twice)} are there twice")
        found |= own
    for name in installed():
        found |= getattr(import_module("torture.targets_integrations"), f"for_{name}")()
    return found


def cases(count: int, seed: int) -> Iterator[tuple[str, Callable[[Any], Any], Any]]:
    """`count` bad inputs, about as many for each target."""
    r = random.Random(seed)
    targets = all_targets()
    names = list(targets)
    for i in range(count):
        call, bad = targets[names[i % len(names)]]
        yield names[i % len(names)], call, bad(r)


def run(count: int, seed: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """Call everything with bad inputs and count what comes of it."""
    faulthandler.enable()
    clear = 0
    unclear: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for i, (name, call, value) in enumerate(cases(count, seed)):
        try:
            call(value)
        except Exception as error:
            if is_clear(error):
                clear += 1
            else:
                unclear[name] += 1
                examples.setdefault(f"{name}: unclear", f"{value!r:.60}: {where(error)}")
        else:
            accepted[name] += 1
            examples.setdefault(f"{name}: accepted", f"{value!r:.60}")
        progress(f"{i + 1} of {count} inputs, {sum(unclear.values())} unclear, {sum(accepted.values())} accepted")
    return {
        "inputs": count,
        "targets": len(all_targets()),
        "without": sorted(set(OPTIONAL) - set(installed())),
        "clear": clear,
        "unclear": sum(unclear.values()),
        "accepted": sum(accepted.values()),
        "crashes": 0,  # or this line would not have been reached
        "examples": examples,
    }
