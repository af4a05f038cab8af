"""A constraint with other settings, whatever its class."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from trimtab.core.constraint import Constraint

__all__ = ["changed"]

Kind = TypeVar("Kind", bound=Constraint)


def changed(constraint: Kind, /, **settings: Any) -> Kind:
    """The same constraint with other settings, which are known to be sound.

    Its class may be a derived one, that is made of something else than these fields (so `dataclasses.replace` would not
    do) and does something else than the class it derives from (so calling the latter would not do).

    Args:
        constraint: A frozen dataclass.
        **settings: By the name of the field.
    """
    other = copy.copy(constraint)
    other.__dict__.update(settings)
    return other
