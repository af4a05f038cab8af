"""Problems to sample: a sampler, a constraint and a distance each.

A domain is made by `domain(name, **settings)`. Each lives in one module with a function `make(**settings)`; a new one
is a module and a line in `DOMAINS`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from importlib import import_module

from trimtab.core.errors import unknown
from trimtab.domains.base import Domain, Problem
from trimtab.domains.langevin import Chain

__all__ = ["DOMAINS", "SYNTHETIC", "Domain", "Problem", "domain"]

DOMAINS: dict[str, str] = {
    "so3": "trimtab.domains.so3",
    "se3": "trimtab.domains.se3",
    "terrain": "trimtab.domains.terrain",
    "so3-impulse": "trimtab.domains.so3_impulse",
    "se3-lever": "trimtab.domains.se3_lever",
    "terrain-ridge": "trimtab.domains.terrain_ridge",
    "pdm": "trimtab.domains.pdm.domain",
    "reaction-flow": "trimtab.domains.reaction_flow.domain",
    "grid": "trimtab.domains.grid.domain",
}
"""Where each domain's `make` is; imported when asked for, since some load a model."""

SYNTHETIC = ("so3", "se3", "terrain", "so3-impulse", "se3-lever", "terrain-ridge")
"""The six controlled domains of the paper, in its order."""


def domain(name: str, **settings: object) -> Domain:
    """Make a domain by name; `settings` are those of its module's `make`.

    Example:
        >>> domain("so3", kappa=0.5).name
        'so3'
    """
    if not isinstance(name, str) or name not in DOMAINS:
        raise unknown("domain", name, DOMAINS)
    make = import_module(DOMAINS[name]).make
    known = _settings_of(make)
    for setting in settings:
        if setting not in known:
            raise unknown(f"setting of {name}", setting, known)
    made = make(**settings)
    assert isinstance(made, Domain)
    return made


def _settings_of(make: Callable[..., Domain]) -> list[str]:
    """The names of a domain's settings; those that `make` hands on are a chain's."""
    parameters = inspect.signature(make).parameters.values()
    own = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
    return own if len(own) == len(parameters) else own + [field.name for field in fields(Chain)]
