"""Ways to estimate the price of a correction from calibration rollouts.

Every method is a function of `run`, which runs one calibration batch under a given schedule and returns its record,
so that a sampler of ours and a loop of somebody else's are calibrated by the same code.

- `quantile`: the paper's rule, and the same rule on the policy's own rollouts.
- `dynamic`: the dynamic program over step, budget left and defect; `transitions` tells it what one step does.
- `planned`: the best times fixed in advance, with no defect looked at.
- `value`: a learned advantage of correcting now.
- `seconds`: the dynamic program for a budget of time instead of calls.

`explore` runs the calibration batches, `scale` tells whether samples differ in scale, and `objective` finds what a
residual at each step adds to an error that is not path error.
"""
