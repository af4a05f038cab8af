"""Problems to sample: a sampler, a constraint and a distance each.

A domain is made by `domain(name, **settings)`. Each lives in one module with a function `make(**settings)`; a new one
is a module and a line in `DOMAINS`.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from importlib import import_module, resources

from trimtab.core.errors import check_integer, check_number, check_type, unknown
from trimtab.evaluation.domains.base import Domain, Problem, View
from trimtab.evaluation.domains.flow import Flow
from trimtab.evaluation.domains.langevin import Chain

__all__ = [
    "DOMAINS",
    "DYNAMICS",
    "FLOWS",
    "SYNTHETIC",
    "VARIANTS",
    "Domain",
    "Problem",
    "View",
    "base_of",
    "domain",
    "dynamics_of",
]

SYNTHETIC = ("so3", "se3", "terrain", "so3-impulse", "se3-lever", "terrain-ridge")
"""The six controlled domains of the paper, in its order."""

DYNAMICS: dict[str, tuple[str, type]] = {"langevin": ("make", Chain), "flow": ("make_flow", Flow)}
"""What `dynamics=` of a synthetic domain may be: the function of its module that makes it, and what that hands on."""

VARIANTS = {
    "flow": "at constant speed",
    "ramp": "at a speed that grows in proportion to time",
    "replica": "with settings fitted to the paper's tables",
}
"""Endings of the names of synthetic domains that flow, as in `so3-flow`, and what they mean."""

DOMAINS: dict[str, str] = {
    "so3": "trimtab.evaluation.domains.so3",
    "se3": "trimtab.evaluation.domains.se3",
    "terrain": "trimtab.evaluation.domains.terrain",
    "so3-impulse": "trimtab.evaluation.domains.so3_impulse",
    "se3-lever": "trimtab.evaluation.domains.se3_lever",
    "terrain-ridge": "trimtab.evaluation.domains.terrain_ridge",
    "linkage": "trimtab.evaluation.domains.linkage",
    "pdm": "trimtab.evaluation.domains.pdm.domain",
    "reaction-flow": "trimtab.evaluation.domains.reaction_flow.domain",
    "grid": "trimtab.evaluation.domains.grid.domain",
}
"""Where each domain's `make` is; imported when asked for, since some load a model."""

FLOWS = tuple(f"{name}-{variant}" for variant in VARIANTS for name in SYNTHETIC)
"""The synthetic domains with flow dynamics, by their own names."""

DOMAINS |= {name: DOMAINS[name.rpartition("-")[0]] for name in FLOWS}


def domain(name: str, **settings: object) -> Domain:
    """Make a domain by name; `settings` are those of its module's `make`, or `make_flow` where `dynamics="flow"`.

    Example:
        >>> domain("so3", kappa=0.5).name
        'so3'
        >>> domain("so3-ramp").settings["ramp"], domain("so3", dynamics="flow").settings["ramp"]
        (1.0, 0.0)
    """
    if not isinstance(name, str) or name not in DOMAINS:
        raise unknown("domain", name, DOMAINS)
    base, variant = base_of(name), name.rpartition("-")[2]
    if base != name:
        if (dynamics := settings.get("dynamics", "flow")) != "flow":
            raise ValueError(
                f"{name} is {base} with dynamics='flow': got dynamics={dynamics!r}; ask for {base!r} with it"
            )
        made = domain(base, **_settings_of_variant(base, variant) | settings)
        summary = f"{made.summary}, {VARIANTS[variant]}"
        return replace(
            made, name=name, summary=summary, view=replace(made.looks, label=f"{made.looks.label} {variant}")
        )
    module = import_module(DOMAINS[name])
    dynamics = settings.pop("dynamics", "langevin") if hasattr(module, "make_flow") else "langevin"
    if not isinstance(dynamics, str) or dynamics not in DYNAMICS:
        raise unknown("dynamics", dynamics, DYNAMICS)
    maker, handed_on = DYNAMICS[dynamics]
    make = getattr(module, maker)
    known = _settings_of(make, handed_on)
    for setting, value in settings.items():
        if setting not in known:
            raise unknown(
                f"setting of {name}", setting, [*known, *(["dynamics"] if hasattr(module, "make_flow") else [])]
            )
        _check_like(known[setting], value, f"{setting}, a setting of {name},")
    made = make(**settings)
    assert isinstance(made, Domain)
    return made


def base_of(name: str) -> str:
    """The synthetic domain that a name with a variant's ending stands for; any other name as it is.

    Example:
        >>> base_of("se3-lever-replica"), base_of("se3-lever")
        ('se3-lever', 'se3-lever')
    """
    base, _, variant = check_type(name, str, "the name of a domain").rpartition("-")
    return base if base in SYNTHETIC and variant in VARIANTS else name


def dynamics_of(name: str) -> str | None:
    """The kind of dynamics that a synthetic domain's name stands for; None for any other name.

    Example:
        >>> dynamics_of("so3"), dynamics_of("so3-impulse-ramp"), dynamics_of("grid")
        ('langevin', 'ramp', None)
    """
    if check_type(name, str, "the name of a domain") in SYNTHETIC:
        return "langevin"
    return None if base_of(name) == name else name.rpartition("-")[2]


def _settings_of(make: Callable[..., Domain], handed_on: type) -> dict[str, object]:
    """A domain's settings with their defaults, those that `make` hands on among them."""
    parameters = inspect.signature(make).parameters.values()
    own = {one.name: one.default for one in parameters if one.kind is not one.VAR_KEYWORD}
    return own if len(own) == len(parameters) else own | {field.name: field.default for field in fields(handed_on)}


def _check_like(default: object, value: object, what: str) -> None:
    """Refuse what is no number where the default is one; what range it may have is the domain's own to say."""
    if type(default) is int:
        check_integer(value, what, -(2**31))
    elif type(default) is float and not math.isfinite(check_number(value, what)):
        raise ValueError(f"{what} must be a finite number: got {value!r}")


def _settings_of_variant(base: str, variant: str) -> dict[str, object]:
    """What a synthetic domain is made with under a name of its own."""
    own: dict[str, dict[str, object]] = {"flow": {}, "ramp": {"ramp": 1.0}, "replica": _replica()[base]}
    return {"dynamics": "flow"} | own[variant]


@cache
def _replica() -> dict[str, dict[str, object]]:
    """Settings fitted to the paper's tables in sample, 59 numbers for 54: such dynamics exist, no more."""
    text = resources.files("trimtab.evaluation.domains").joinpath("replica.json").read_text(encoding="utf-8")
    fitted: dict[str, dict[str, object]] = json.loads(text)
    return fitted
