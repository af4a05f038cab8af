"""Which budget should I take? Calibrate once, look at every budget, take the smallest that keeps what you want.

One calibration serves all budgets up to its own. For each, the share of stepwise projection's benefit that is
recovered is measured on seeds that were not used for calibration, paired by seed with doing nothing (0%) and with
projecting after every step (100%).

Run it: `python examples/choose_budget.py`
"""

from __future__ import annotations

import trimtab as tt
from trimtab.core.metrics import benefit, nepe, path_error, summary

CALIBRATION, EVALUATION = range(1000, 1064), range(128)
BUDGETS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
WANTED = 0.5


def main() -> None:
    """Measure the benefit of each budget on rotations under a Langevin chain."""
    domain = tt.domain("so3")
    held_out, fresh = domain.problem(CALIBRATION), domain.problem(EVALUATION)
    price = tt.calibrate(held_out, budget=max(BUDGETS), objective="path")

    def run(schedule: tt.Schedule) -> tt.Rollout:
        return tt.rollout(fresh.sampler, fresh.constraint, schedule, EVALUATION, measure_defects=True)

    terminal, stepwise = path_error(run(tt.Terminal())), path_error(run(tt.Stepwise()))

    def share(schedule: tt.Schedule) -> tuple[float, str]:
        found = summary(benefit(nepe(path_error(run(schedule)), stepwise, terminal)))
        return found.mean, f"{found.mean:.1%} ± {found.se:.1%}"

    chosen = None
    print(f"{'budget':>8}{'adaptive':>18}{'periodic':>18}")
    for budget in BUDGETS:
        value, adaptive = share(price.at(budget))
        _, periodic = share(tt.Periodic(budget))
        print(f"{budget:>8.0%}{adaptive:>18}{periodic:>18}")
        if chosen is None and value >= WANTED:
            chosen = budget
    if chosen is None:
        print(f"No budget up to {max(BUDGETS):.0%} keeps {WANTED:.0%} of the benefit: project at every step.")
    else:
        print(f"Take {chosen:.0%}: the smallest of these that keeps {WANTED:.0%} of the benefit.")


if __name__ == "__main__":
    main()
