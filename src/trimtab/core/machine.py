"""Old place of names in `trimtab.core.identity`; it goes when nobody imports it."""

from trimtab.core.identity import THREADS, machine_facts

__all__ = ["THREADS", "machine_facts"]
