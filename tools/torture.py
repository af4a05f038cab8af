"""Run the tests of tests/torture with many more cases: `python tools/torture.py [TIMES] [pytest options]`.

TIMES is a factor on the number of cases of the suite, 20 by default. New random examples are tried in every run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main(words: list[str]) -> int:
    """Return the status of pytest."""
    times, options = (words[0], words[1:]) if words and words[0].isdigit() else ("20", words)
    environment = os.environ | {"TRIMTAB_TORTURE": times, "HYPOTHESIS_PROFILE": "search", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "tests/torture", *options]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
