"""An IEEE grid as numbers, read from `pandapower` at run time: the package contains no case data."""

from __future__ import annotations

import json
import logging
import warnings
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from trimtab.core.checks import missing_extra

__all__ = ["CASES", "Branch", "Grid", "Parts", "from_pandapower"]

CASES = ("case14", "case30")


class Branch(NamedTuple):
    """A line or a transformer as a two-port: the currents at its ends are y times the voltages at its ends."""

    ends: tuple[int, int]  # two buses
    own: tuple[complex, complex]  # complex admittance of each end on itself
    across: tuple[complex, complex]  # complex admittance from the other end, for each end
    rating: float  # largest apparent power at either end, per unit


class Parts(NamedTuple):
    """The parts of a state: of arrays (n, d), each (n, size of the part)."""

    load: Any
    load_reactive: Any
    generation: Any
    generation_reactive: Any
    voltage: Any
    angle: Any


@dataclass(frozen=True)
class Grid:
    """Everything that the equations need, in per unit of `base` MVA; hashable, so that solvers are cached by grid.

    A state is the row (loads, reactive loads, generation, reactive generation, voltages, angles). The angle of the bus
    of the first generator is 0 and not part of the state.
    """

    case: str  # name of the grid
    base: float  # MVA of one per unit
    shunts: tuple[complex, ...]  # complex admittance to earth at every bus
    branches: tuple[Branch, ...]  # lines first, then transformers
    load_buses: tuple[int, ...]  # buses with demand
    loads: tuple[complex, ...]  # complex demand of the case at these buses
    generator_buses: tuple[int, ...]  # buses with a generator
    costs: tuple[tuple[float, float, float], ...]  # quadratic, linear and constant cost of each generator
    lower: tuple[float, ...]  # smallest value of every number of a state; -inf for none
    upper: tuple[float, ...]  # largest value
    places: tuple[tuple[float, float], ...]  # x and y of each bus in a drawing

    @property
    def buses(self) -> int:
        """The number of buses."""
        return len(self.shunts)

    @property
    def sizes(self) -> Parts:
        """The size of each part of a state."""
        loads, generators = len(self.load_buses), len(self.generator_buses)
        return Parts(loads, loads, generators, generators, self.buses, self.buses - 1)

    @property
    def dimension(self) -> int:
        """The size of a state."""
        return sum(self.sizes)

    @property
    def slack(self) -> int:
        """The bus whose angle is 0."""
        return self.generator_buses[0]

    def slices(self) -> Parts:
        """Return the slice of each part of a state."""
        ends = np.cumsum([0, *self.sizes])
        return Parts(*(slice(a, b) for a, b in pairwise(ends.tolist())))


def from_pandapower(case: str) -> Grid:
    """Return a grid as pandapower has it; its lines may have no ratings."""
    try:
        import pandapower.networks as networks
        from pandapower.converter.pypower.to_ppc import to_ppc
    except ImportError as error:
        raise missing_extra("pandapower", "grid", "the grid domain", "trimtab-lab") from error
    logger = logging.getLogger("pandapower")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about missing tables and set points that are not used here
        logger.setLevel(logging.ERROR)
        try:
            net = {"case14": networks.case14, "case30": networks.case30}[case]()
            tables = to_ppc(net, init="flat", mode="opf")
        finally:
            logger.setLevel(level)
    base = float(tables["baseMVA"])
    bus, gen = np.real(tables["bus"]), np.real(tables["gen"])
    loaded = np.flatnonzero((bus[:, 2] != 0) | (bus[:, 3] != 0))
    demand = (bus[loaded, 2] + 1j * bus[loaded, 3]) / base
    free, angles = np.full(len(loaded), np.inf), np.full(len(bus) - 1, np.inf)
    low, high = net.bus.min_vm_pu.to_numpy(), net.bus.max_vm_pu.to_numpy()  # to_ppc narrows the slack bus to a point
    # active demand is at least 0; reactive demand may be negative
    lower = [np.zeros(len(loaded)), -free, gen[:, 9] / base, gen[:, 4] / base, low, -angles]
    upper = [free, free, gen[:, 8] / base, gen[:, 3] / base, high, angles]
    places = [json.loads(place)["coordinates"] for place in net.bus.geo]
    return Grid(
        case=case,
        base=base,
        shunts=tuple(complex(y) for y in (bus[:, 4] + 1j * bus[:, 5]) / base),
        branches=tuple(_branch(row, base) for row in np.real(tables["branch"])),
        load_buses=tuple(int(i) for i in loaded),
        loads=tuple(complex(s) for s in demand),
        generator_buses=tuple(int(i) for i in gen[:, 0]),
        costs=tuple((float(a) * base**2, float(b) * base, float(c)) for a, b, c in tables["gencost"][:, 4:7]),
        lower=tuple(np.concatenate(lower).tolist()),
        upper=tuple(np.concatenate(upper).tolist()),
        places=tuple((float(x), float(y)) for x, y in places),
    )


def _branch(row: Any, base: float) -> Branch:
    """Return a row of a branch table (from, to, r, x, b, rating, …, tap, shift) as a two-port."""
    series = 1 / complex(row[2], row[3])
    charging = 0.5j * row[4]
    tap = (row[8] or 1.0) * np.exp(1j * np.deg2rad(row[9]))
    return Branch(
        ends=(int(row[0]), int(row[1])),
        own=(complex((series + charging) / abs(tap) ** 2), complex(series + charging)),
        across=(complex(-series / np.conj(tap)), complex(-series / tap)),
        rating=float(row[5] / base),
    )
