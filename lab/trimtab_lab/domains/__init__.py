"""Problems to sample: a sampler, a constraint and a distance each.

`domain(name, **settings)` makes a domain. Each lives in one module. A synthetic module has the dictionary `SAMPLERS`
of sampler classes, whose fields are the settings, and `make(name, sampler)`. The module of a learned sampler has
`make(**settings)`. A new domain is a module and a line in `DOMAINS`.
"""

from __future__ import annotations

import inspect
import json
from dataclasses import fields, replace
from functools import cache
from importlib import import_module, resources
from typing import Any

from trimtab.core.checks import check_type, unknown
from trimtab_lab.domains.base import Domain, Problem, View

__all__ = [
    "DOMAINS",
    "FLOWS",
    "SPHERES",
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

VARIANTS = {
    "flow": "at constant speed",
    "ramp": "at a speed that grows in proportion to time",
    "replica": "with settings fitted to the paper's tables",
}
"""The endings of the names of synthetic domains that flow, as in `so3-flow`, and their meanings."""

SPHERES = {"sphere": "at a speed that grows in proportion to time, with the position on the unit sphere"}
"""The ending of the names of the two domains of poses whose position is constrained too, and its meaning."""

FLOWS = (
    *(f"{name}-{variant}" for variant in VARIANTS for name in SYNTHETIC),
    *(f"{name}-{variant}" for variant in SPHERES for name in ("se3", "se3-lever")),
)
"""The names of the synthetic domains with flow dynamics."""

_MODULES = {
    **{name: name.partition("-")[0] for name in (*SYNTHETIC, "terrain-dome")},
    "linkage": "linkage",
    "pdm": "pdm.domain",
    "reaction-flow": "reaction_flow.domain",
    "grid": "grid.domain",
    "molecules": "molecules.domain",
    **{name: name.partition("-")[0] for name in FLOWS},
}
DOMAINS: dict[str, str] = {name: f"{__name__}.{module}" for name, module in _MODULES.items()}
"""The module of each domain; it is imported on request, since some load a model."""


def domain(name: str, **settings: Any) -> Domain:
    """Make a domain by name.

    Args:
        name: A key of `DOMAINS`.
        settings: The fields of its sampler, or the arguments of `make` in its module. Synthetic domains also take
            `dynamics`, "langevin" or "flow".

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
            raise ValueError(f"{name} has dynamics='flow': got dynamics={dynamics!r}; use {base!r} for other dynamics")
        made = domain(base, **_variant_settings(base, variant) | settings)
        view = replace(made.looks, label=f"{made.looks.label} {variant}")
        return replace(made, name=name, summary=f"{made.summary}, {(VARIANTS | SPHERES)[variant]}", view=view)
    module = import_module(DOMAINS[name])
    if not hasattr(module, "SAMPLERS"):
        _check_names(name, settings, [*inspect.signature(module.make).parameters])
        return _made(module.make(**settings))
    choices: dict[str, type[Any]] = module.SAMPLERS[name]
    dynamics = settings.pop("dynamics", next(iter(choices)))
    if not isinstance(dynamics, str) or dynamics not in choices:
        raise unknown("dynamics", dynamics, choices)
    _check_names(name, settings, [*(field.name for field in fields(choices[dynamics])), "dynamics"])
    return _made(module.make(name, choices[dynamics](**settings)))


def base_of(name: str) -> str:
    """Return the synthetic domain of a name that ends with a variant; return any other name as it is.

    Example:
        >>> base_of("se3-lever-replica"), base_of("se3-lever")
        ('se3-lever', 'se3-lever')
    """
    base, _, _ = check_type(name, str, "the name of a domain").rpartition("-")
    return base if name in FLOWS else name


def dynamics_of(name: str) -> str | None:
    """Return the kind of dynamics that the name of a synthetic domain stands for; None for any other name.

    Example:
        >>> dynamics_of("so3"), dynamics_of("so3-impulse-ramp"), dynamics_of("grid")
        ('langevin', 'ramp', None)
    """
    if check_type(name, str, "the name of a domain") in SYNTHETIC:
        return "langevin"
    return None if base_of(name) == name else name.rpartition("-")[2]


def _made(made: Any) -> Domain:
    return check_type(made, Domain, "the answer of make")


def _check_names(name: str, settings: dict[str, Any], known: list[str]) -> None:
    for setting in settings:
        if setting not in known:
            raise unknown(f"setting of {name}", setting, known)


def _variant_settings(base: str, variant: str) -> dict[str, Any]:
    ramp = {"ramp": 1.0}
    settings = {"flow": {}, "ramp": ramp, "replica": _replica()[base], "sphere": ramp | {"radius": 1.0}}[variant]
    return {"dynamics": "flow"} | settings


@cache
def _replica() -> dict[str, dict[str, Any]]:
    """Read the settings fitted to the paper's tables: 59 numbers for 54, which shows only that such dynamics exist.

    `docs/fit_replica.py` says how those of `se3` were chosen.
    """
    fitted: dict[str, dict[str, Any]] = json.loads(
        resources.files(__name__).joinpath("replica.json").read_text("utf-8")
    )
    return fitted
