"""An IEEE grid as numbers, read from `pandapower` at run time: no case data are part of this package."""

from __future__ import annotations

import json
import logging
import warnings
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.core.errors import missing_extra

__all__ = ["CASES", "Branch", "Grid", "Parts", "from_pandapower"]

CASES = ("case14", "case30")
Array = NDArray[np.float64]

UNRATED = 50.0
"""Ratings in per unit from which a line counts as unrated; case14 has 99 for all of its lines."""


class Branch(NamedTuple):
    """A line or a transformer as a two-port: the currents at its ends are y · (voltages at its ends).

    Attributes:
        ends: Bus at which it begins and at which it ends.
        own: Complex admittance of each end on itself.
        across: Complex admittance from the other end, for each end.
        rating: Largest apparent power at either end, per unit.
    """

    ends: tuple[int, int]
    own: tuple[complex, complex]
    across: tuple[complex, complex]
    rating: float


class Parts(NamedTuple):
    """A state cut into its parts: of arrays (n, d), each (n, how many)."""

    load: Any
    load_reactive: Any
    generation: Any
    generation_reactive: Any
    voltage: Any
    angle: Any


@dataclass(frozen=True)
class Grid:
    """Everything the equations need, in per unit of `base` MVA; hashable, so that solvers can be kept by grid.

    A state is the row (loads, reactive loads, generation, reactive generation, voltages, angles); the angle of the
    first generator's bus is 0 and not part of it.

    Attributes:
        case: Its name.
        base: MVA of one per unit.
        shunts: Complex admittance to earth at every bus.
        branches: Lines first, then transformers.
        load_buses: Where there is demand.
        loads: The case's own demand there, complex.
        generator_buses: Where there is a generator.
        costs: Of each generator: of a per unit squared, of a per unit, constant.
        lower: Smallest value of every number of a state; -inf for none.
        upper: Largest.
        places: Where each bus is drawn, x and y.
    """

    case: str
    base: float
    shunts: tuple[complex, ...]
    branches: tuple[Branch, ...]
    load_buses: tuple[int, ...]
    loads: tuple[complex, ...]
    generator_buses: tuple[int, ...]
    costs: tuple[tuple[float, float, float], ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    places: tuple[tuple[float, float], ...]

    @property
    def buses(self) -> int:
        """How many."""
        return len(self.shunts)

    @property
    def sizes(self) -> Parts:
        """How many numbers each part of a state has."""
        loads, generators = len(self.load_buses), len(self.generator_buses)
        return Parts(loads, loads, generators, generators, self.buses, self.buses - 1)

    @property
    def dimension(self) -> int:
        """Numbers of a state."""
        return sum(self.sizes)

    @property
    def slack(self) -> int:
        """The bus whose angle is 0."""
        return self.generator_buses[0]

    @property
    def turning(self) -> tuple[int, ...]:
        """The buses whose angles are part of a state."""
        return tuple(bus for bus in range(self.buses) if bus != self.slack)

    def slices(self) -> Parts:
        """Where each part of a state is."""
        ends = np.cumsum([0, *self.sizes])
        return Parts(*(slice(a, b) for a, b in pairwise(ends.tolist())))

    def names(self) -> list[str]:
        """Of every number of a state; buses count from 1, as in the literature."""
        words = ("load", "reactive load", "generation", "reactive generation", "voltage", "angle")
        each = range(self.buses)
        at = (self.load_buses, self.load_buses, self.generator_buses, self.generator_buses, each, self.turning)
        return [f"{word} {bus + 1}" for word, buses in zip(words, at, strict=True) for bus in buses]


def from_pandapower(case: str) -> Grid:
    """A grid as pandapower has it; lines may be unrated."""
    try:
        import pandapower.networks as networks
        from pandapower.converter.pypower.to_ppc import to_ppc
    except ImportError as error:
        raise missing_extra("pandapower", "grid", "the grid domain") from error
    with warnings.catch_warnings():
        # about tables of later versions that the cases do not have, and set points beyond limits, which are not used
        warnings.simplefilter("ignore")
        logger = logging.getLogger("pandapower")
        before = logger.level
        logger.setLevel(logging.ERROR)
        try:
            net = {"case14": networks.case14, "case30": networks.case30}[case]()
            tables = to_ppc(net, init="flat", mode="opf")
        finally:
            logger.setLevel(before)
    base = float(tables["baseMVA"])
    bus, gen = np.real(tables["bus"]), np.real(tables["gen"])
    shunts = (bus[:, 4] + 1j * bus[:, 5]) / base
    loaded = np.flatnonzero((bus[:, 2] != 0) | (bus[:, 3] != 0))
    demand = (bus[loaded, 2] + 1j * bus[loaded, 3]) / base
    wide = np.full(2 * len(loaded), np.inf)
    whole = np.full(len(bus) - 1, np.inf)
    low, high = net.bus.min_vm_pu.to_numpy(), net.bus.max_vm_pu.to_numpy()  # to_ppc narrows the slack bus to a point
    # a demand may be anything from nothing on; reactive demand may be negative
    lower = [np.where(np.arange(2 * len(loaded)) < len(loaded), 0, -wide), gen[:, 9] / base, gen[:, 4] / base, low]
    upper = [wide, gen[:, 8] / base, gen[:, 3] / base, high]
    places = [json.loads(place)["coordinates"] for place in net.bus.geo]
    return Grid(
        case=case,
        base=base,
        shunts=tuple(complex(y) for y in shunts),
        branches=tuple(_branch(row, base) for row in np.real(tables["branch"])),
        load_buses=tuple(int(i) for i in loaded),
        loads=tuple(complex(s) for s in demand),
        generator_buses=tuple(int(i) for i in gen[:, 0]),
        costs=tuple((float(a) * base**2, float(b) * base, float(c)) for a, b, c in tables["gencost"][:, 4:7]),
        lower=tuple(np.concatenate([*lower, -whole]).tolist()),
        upper=tuple(np.concatenate([*upper, whole]).tolist()),
        places=tuple((float(x), float(y)) for x, y in places),
    )


def _branch(row: Array, base: float) -> Branch:
    """A row of a branch table (from, to, r, x, b, rating, …, tap, shift) as a two-port."""
    series = 1 / complex(row[2], row[3])
    charging = 0.5j * row[4]
    tap = (row[8] or 1.0) * np.exp(1j * np.deg2rad(row[9]))
    return Branch(
        ends=(int(row[0]), int(row[1])),
        own=(complex((series + charging) / abs(tap) ** 2), complex(series + charging)),
        across=(complex(-series / np.conj(tap)), complex(-series / tap)),
        rating=float(row[5] / base),
    )
