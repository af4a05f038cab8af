"""How much work a search for paths among obstacles may do."""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.core.checks import check_positive
from trimtab.core.errors import check_integer, check_number

__all__ = ["Effort"]


@dataclass(frozen=True)
class Effort:
    """How hard the solver tries.

    Attributes:
        rounds: Convex problems solved in one search at the most.
        sweeps: Dual steps on each.
        step: Longest move of a waypoint in one round, per coordinate.
        reach: Gap up to which a pair is part of the convex problem.
        damping: Pull towards the last path, in units of the pull towards the proposal. It keeps a round from
            overshooting where the half-planes turn quickly.
        stiffening: What the damping is multiplied by after a round that did not halve the violation.
        settled: A free path is final when the last round moved it by less than this share of its distance,
        stale: or when this many rounds have found no better one.
        patience: Rounds after which a search that started from the proposal must violate little,
        hopeless: namely less than this, or it is given up for one from the roadmap.
        leap: Length from which a colliding segment of the start ends the search at once: it will not find the way
            round, but the roadmap will.
        overhang: How far outside the square a waypoint of the proposal still pulls harder.
    """

    rounds: int = 30
    sweeps: int = 20
    step: float = 0.15
    reach: float = 0.05
    damping: float = 3.0
    stiffening: float = 1.3
    settled: float = 0.03
    stale: int = 5
    patience: int = 10
    hopeless: float = 1e-3
    leap: float = 0.7
    overhang: float = 2.0

    def __post_init__(self) -> None:
        """Refuse what is no limit of a search; the numbers reach compiled code."""
        for name in ("rounds", "sweeps", "stale", "patience"):
            check_integer(getattr(self, name), f"{name} of an Effort", 0)
        for name in ("step", "stiffening"):
            check_positive(getattr(self, name), f"{name} of an Effort")
        for name in ("reach", "damping", "settled", "hopeless", "overhang"):
            check_number(getattr(self, name), f"{name} of an Effort", 0, 1e6)
        check_number(self.leap, "leap of an Effort", 0)
