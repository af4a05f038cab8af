"""What the benchmark samples: systems, each with a quality of its own domain and a work that can be counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from typing import Any

from torch import Tensor

from trimtab.core.checks import unknown
from trimtab.loop.rollout import Problem
from trimtab_lab.domains import SYNTHETIC, domain
from trimtab_lab.domains.base import Domain

__all__ = ["CALIBRATION", "EVALUATION", "FITTING", "SIZES", "System", "systems"]

CALIBRATION, FITTING, EVALUATION = 2_100_000, 2_200_000, 2_300_000
"""Where the seeds begin that rules may learn from, that budgets are fitted on, and that results are of."""

SIZES = ("smoke", "whole")


@dataclass(frozen=True, eq=False)
class System:
    r"""A sampler with a correction that costs something, and a number for each final sample.

    Attributes:
        name: Its name in tables and files.
        problem: `problem(seeds)` returns a `Problem`.
        quality: `quality(final)` gives one number per final sample, (n, \*event) to (n,), lower being better. None: the
            distance to full projection on the same noise, a reference and no quality of the domain.
        measure: What the quality is, with its unit.
        about: One sentence.
        meter: `meter()` returns what was spent so far, if work is neither the iterations of the solver nor, where it
            counts none, projections: gradients and energies, for example.
        samples: How many samples the results are of.
        learning: How many samples a rule may learn from or be fitted on.
        batch: How many samples run together.
        gradients: Whether the correction is a number of gradient steps, whose published numbers then apply.
        needs: Modules that must be installed.
    """

    name: str
    problem: Callable[[Iterable[int]], Problem]
    quality: Callable[[Any], Tensor] | None = None
    measure: str = "distance to full projection"
    about: str = ""
    samples: int = 64
    learning: int = 32
    batch: int = 16
    gradients: bool = False
    needs: tuple[str, ...] = ()
    meter: Callable[[], float] | None = None

    @property
    def missing(self) -> str:
        """Say which modules are not installed; "" if all are."""
        absent = [name for name in self.needs if find_spec(name) is None]
        return f"needs {', '.join(absent)}, which is not installed" if absent else ""

    def batches(self, first: int, count: int | None = None) -> list[Problem]:
        """Return problems of `batch` samples each, for `count` seeds from `first` on (default: all samples)."""
        last = first + (self.samples if count is None else count)
        return [self.problem(range(at, min(at + self.batch, last))) for at in range(first, last, self.batch)]

    @property
    def calibrating(self) -> Problem:
        """The problem that rules may learn from."""
        return self.problem(range(CALIBRATION, CALIBRATION + self.learning))


@dataclass(frozen=True)
class _Made:
    """A domain that is made when it is first used: some load a model."""

    name: str
    settings: tuple[tuple[str, Any], ...]

    def domain(self) -> Domain:
        """Return the domain, made once."""
        return _domain(self.name, self.settings)

    def __call__(self, seeds: Iterable[int]) -> Problem:
        """Return the problem of some seeds."""
        return self.domain().problem(seeds)


@cache
def _domain(name: str, settings: tuple[tuple[str, Any], ...]) -> Domain:
    return domain(name, **dict(settings))


def _of(name: str, title: str = "", **more: Any) -> System:
    """Return the system of a domain; what is not a field of `System` is a setting of the domain."""
    own = {key: more.pop(key) for key in list(more) if key in System.__dataclass_fields__}
    return System(title or name, _Made(name, tuple(sorted(more.items()))), **own)


# ------------------------------------------------------------------ qualities


def _energy(molecule: str) -> Callable[[Any], Tensor]:
    def energy(final: Any) -> Tensor:
        from trimtab_lab.domains.molecules.domain import judge, shipped_model

        return judge(shipped_model(molecule), final)["energy"]

    return energy


def _solution_error(final: Any) -> Tensor:
    """Return how far fields are from a solution for what they are given, with the diffusivity that suits them best."""
    import torch

    from trimtab_lab.domains.reaction_flow.domain import clean_field
    from trimtab_lab.domains.reaction_flow.equation import Conditions, mass_imbalance
    from trimtab_lab.domains.reaction_flow.train import solution_error

    fields = clean_field(final)
    none = Conditions(fields[:, 0], torch.zeros(len(fields), dtype=fields.dtype))
    inflow = mass_imbalance(fields, none)[:, -1]  # final fields keep their balance, which gives away the inflow
    return solution_error(fields, Conditions(fields[:, 0], inflow))


def _length(final: Any) -> Tensor:
    steps = final[:, :2].double().diff(dim=2)
    length: Tensor = steps.norm(dim=1).sum(dim=1)
    return length


def _cost_gap(final: Any) -> Tensor:
    from trimtab_lab.domains.grid.domain import cost_gap
    from trimtab_lab.domains.grid.power import load_grid

    return cost_gap(load_grid("case14"), final[:, 0])


# ------------------------------------------------------------------ all of them


def systems(size: str = "whole") -> dict[str, System]:
    """Return the systems by name: all of them for "whole", small versions of a few for "smoke".

    Example:
        >>> list(systems("smoke"))
        ['so3-impulse', 'linkage', 'alanine-dipeptide']
    """
    if size not in SIZES:
        raise unknown("size", size, SIZES)
    if size == "smoke":
        small: dict[str, Any] = {"samples": 16, "learning": 16, "batch": 8, "n_steps": 30}
        chosen = [
            _of("so3-impulse-ramp", "so3-impulse", **small),
            _of("linkage", **small),
            _molecule("alanine-dipeptide", **small),
        ]
        return {system.name: system for system in chosen}
    found = [
        *(_of(f"{name}-ramp", name, samples=128, learning=64) for name in SYNTHETIC),
        _of("linkage"),
        _of(
            "reaction-flow",
            n_steps=50,
            quality=_solution_error,
            measure="error against the nearest solution",
            samples=48,
        ),
        _of("pdm", quality=_length, measure="length of the path", samples=32, learning=16),
        _of("grid", quality=_cost_gap, measure="cost above the cheapest, a share", samples=32, needs=_GRID),
        _molecule("alanine-dipeptide"),
        _molecule("testosterone-butyrate", samples=48),
    ]
    from trimtab_lab.bench import steering, xtb

    found += [*steering.systems(), *xtb.systems()]
    return {system.name: system if system.about else _said(system) for system in found}


_GRID = ("casadi", "pandapower")


def _molecule(molecule: str, **more: Any) -> System:
    measure = "MMFF94 energy above the lowest known, kcal/mol"
    settings = {"molecule": molecule, "quality": _energy(molecule), "measure": measure, "needs": ("rdkit",)}
    return _of("molecules", molecule, **(settings | more))


def _said(system: System) -> System:
    """Return the system with the summary of its domain."""
    made = system.problem
    usable = isinstance(made, _Made) and not system.missing
    return replace(system, about=made.domain().summary) if usable else system  # type: ignore[attr-defined]
