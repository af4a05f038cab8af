"""To come."""

from trimtab_lab.bench.system import System


def systems() -> list[System]:
    """Return the systems."""
    return []
