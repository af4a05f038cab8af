"""The benchmark of the field: systems × rules × work, on seeds of its own; `trimtab bench` runs it."""

from trimtab_lab.bench.rules import RULES, NotApplicable, Rule
from trimtab_lab.bench.system import System, systems

__all__ = ["RULES", "NotApplicable", "Rule", "System", "systems"]
