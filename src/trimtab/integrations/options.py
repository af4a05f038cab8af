"""Options that an integration hands on to its `Corrector`, told by their names before they get there."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from trimtab.core.corrector import Corrector
from trimtab.core.checks import unknown

__all__ = ["check_options"]


def check_options(options: Mapping[str, Any], of: str) -> None:
    """Refuse names that are no option of a `Corrector`.

    Example:
        >>> check_options({"keep_state": True}, "odeint")
        Traceback (most recent call last):
        TypeError: unknown option of odeint 'keep_state'; did you mean 'keep_states'? Known: closing, seeds...
    """
    parameters = inspect.signature(Corrector).parameters.values()
    known = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            raise TypeError(str(unknown(f"option of {of}", name, known)))
