"""Prices: what a correction is worth at each step with each budget, how that is estimated, and the schedules it makes.

- `price`: `Price` and its rules (`Thresholds`, `Plan`, `Allowance`, `Raced`), files, other numbers of steps.
- `schedule`: `PricedSchedule`, whose `decide` is Algorithm 1's comparison.
- `calibration`: `calibrate` and its methods. `collect` runs, explores and checks calibration batches.
- `cost`: what a calibration takes, before it starts.
- `quantile`: the paper's rule. `program`: the dynamic program; `transitions` estimates what one step does, in units of
  each sample's scale (`sample_scale`), and `objective` what a residual adds to an error that is not path error.
- `plan`: the best fixed times. `race`: all of these compared on final samples. `iterations`: the same by the iteration.
- `online`: `Learner`, which learns prices from the runs they serve.
- `rates`: a rate of corrections in loops without an end.
"""

from trimtab.prices.calibration import calibrate
from trimtab.prices.online import Learned, Learner
from trimtab.prices.price import Allowance, Plan, Price, Raced, Thresholds, load
from trimtab.prices.quantile import paper_prices, quantile_table
from trimtab.prices.schedule import Adaptive, Planned, PricedSchedule

__all__ = [
    "Adaptive",
    "Allowance",
    "Learned",
    "Learner",
    "Plan",
    "Planned",
    "Price",
    "PricedSchedule",
    "Raced",
    "Thresholds",
    "calibrate",
    "load",
    "paper_prices",
    "quantile_table",
]
