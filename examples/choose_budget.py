"""Choose a budget: calibrate once, look at every budget, take the smallest that is good enough.

One calibration serves all budgets up to its own. NEPE is the error along the path: 0 for a projection after every step,
1 for one at the end. It is measured on seeds that were not used for calibration.

Run it: `python examples/choose_budget.py`
"""

from __future__ import annotations

import trimtab as tt

BUDGETS = (2, 5, 10, 20, 30, 50)  # of 100 steps
WANTED = 0.5


def main() -> None:
    """Compare budgets on rotations under a Langevin chain."""
    domain = tt.domain("so3")
    price = tt.calibrate(domain.problem(range(1000, 1064)), budget=max(BUDGETS), objective="path")
    found = tt.compare(domain.problem(range(128)), {"adaptive": price}, BUDGETS)
    print(found)
    enough = [b for b in BUDGETS if found["adaptive", b].mean("nepe").mean <= WANTED]
    best = f"{enough[0]} projections" if enough else "none of these"
    print(f"Smallest budget with a NEPE of at most {WANTED}: {best}")


if __name__ == "__main__":
    main()
