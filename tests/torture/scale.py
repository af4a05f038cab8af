"""How many cases the tests of this folder try: a few in the suite, many more with `python tools/torture.py`."""

from __future__ import annotations

import os

TIMES = int(os.environ.get("TRIMTAB_TORTURE", "1"))
"""Factor on the number of cases."""
