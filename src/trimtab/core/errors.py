"""Old place of names in `trimtab.core.checks`; it goes when nobody imports it."""

from trimtab.core.checks import (
    EngineError,
    check_callable,
    check_integer,
    check_number,
    check_type,
    missing_extra,
    unknown,
)

__all__ = ["EngineError", "check_callable", "check_integer", "check_number", "check_type", "missing_extra", "unknown"]
