"""Renew the table of docs/prices.md that says what `price.resample` loses.

Run it from the repository's root: `python docs/make_resample.py`
"""

from __future__ import annotations

import argparse

import trimtab as tt
from _page import renew
from trimtab.core.metrics import nepe, path_error
from trimtab.prices.price import Thresholds

DOMAINS = ("so3", "se3", "terrain", "so3-impulse", "terrain-ridge")
OLD, NEW, BUDGET = 100, (25, 50, 200), 0.25
CALIBRATION, EVALUATION = range(1000, 1064), range(128)
HEAD = '| domain | steps | calibrated anew | `keep="count"` | `keep="share"` | periodic |'


def price_for(domain: str, n_steps: int) -> Thresholds:
    """By the dynamic program for path error, with budgets up to a half, the closing projection included."""
    problem = tt.domain(domain, n_steps=n_steps).problem(CALIBRATION)
    price = tt.calibrate(problem, 0.5, "dp", objective="path")
    assert isinstance(price, Thresholds)
    return price


def main() -> None:
    """A price for 100 steps, used for fewer and for more."""
    rows = []
    for name in DOMAINS:
        old = price_for(name, OLD)
        for n_steps in NEW:
            problem = tt.domain(name, n_steps=n_steps).problem(EVALUATION)
            paths = {
                kind: path_error(problem.rollout(schedule, measure_defects=True))
                for kind, schedule in {
                    "anew": price_for(name, n_steps).at(BUDGET),
                    "count": old.resample(n_steps, "count").at(BUDGET),
                    "share": old.resample(n_steps, "share").at(BUDGET),
                    "periodic": tt.Periodic(BUDGET),
                    "stepwise": tt.Stepwise(),
                    "terminal": tt.Terminal(),
                }.items()
            }
            kinds = ("anew", "count", "share", "periodic")
            errors = [float(nepe(paths[k], paths["stepwise"], paths["terminal"]).nanmean()) for k in kinds]
            rows.append(f"| `{name}` | {OLD} to {n_steps} | " + " | ".join(f"{error:.3f}" for error in errors) + " |")
            print(rows[-1], flush=True)
    renew("prices.md", "resample", "\n".join([HEAD, "|---" * 6 + "|", *rows]))


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    main()
