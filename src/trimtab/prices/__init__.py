"""Prices: what a correction is worth at each step with each budget, how that is estimated, and the schedules it makes.

Every method is a function of calibration batches, which are run by a problem or by a loop of the user's own.

- `calibration`: `calibrate`; `methods`: the ways it knows, each a function of calibration batches.
- `race`: all of them tried out on a measure of final samples; `candidates` is what races, `raced` what comes of it.
- `thresholds`: a table of prices and `Adaptive`, the schedule of Algorithm 1; `plan`: times fixed in advance.
- `provenance`: what all prices tell about how they were made, and their schedules pass on.
- `quantile`: the paper's rule. `dynamic`: the dynamic program; `transitions` tells it what one step does.
- `graded`: prices of single iterations. `mean`: prices that hold a budget on average, found by `mean_program`.
- `planned`: the best fixed times. `seconds`: a budget of time instead of calls.
- `batches` and `explore` run calibration batches, `heeded` refuses those that do not belong together, `sample_scale` tells
  whether samples differ in scale, `objective` finds what a residual at each step adds to an error that is not path
  error, `resample` serves another number of steps.
"""

from trimtab.prices.calibration import Price, calibrate
from trimtab.prices.mean import Mean, MeanPrices
from trimtab.prices.online import Learned, Learner
from trimtab.prices.plan import Plan, Planned
from trimtab.prices.price_file import load
from trimtab.prices.quantile import paper_prices, quantile_table
from trimtab.prices.raced import Raced
from trimtab.prices.thresholds import Adaptive, Thresholds

__all__ = [
    "Adaptive",
    "Learned",
    "Learner",
    "Mean",
    "MeanPrices",
    "Plan",
    "Planned",
    "Price",
    "Raced",
    "Thresholds",
    "calibrate",
    "load",
    "paper_prices",
    "quantile_table",
]
