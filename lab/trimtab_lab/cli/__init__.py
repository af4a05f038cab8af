"""The commands of the lab, which `trimtab` finds by an entry point."""

from trimtab_lab.cli import advise, bench, compare, reproduce, train

COMMANDS = {
    "advise": advise.ADVISE,
    "calibrate": advise.CALIBRATE,
    "compare": compare.COMMAND,
    "bench": bench.COMMAND,
    "reproduce": reproduce.REPRODUCE,
    "report": reproduce.REPORT,
    "train": train.COMMAND,
    "train-pdm": train.PDM,
    "train-grid": train.GRID,
    "domains": reproduce.DOMAINS,
}
"""The commands by name."""
