"""Your own loop in ten minutes: a notebook whose cells are marked by `# %%`; the site shows it with its results."""

# %% [markdown]
# # Your own loop in ten minutes
#
# You have a sampling loop and a slow projection. This notebook adds one line to the loop, finds out what a projection
# is worth at each step, and spends a tenth of the projections where they pay.

# %%
import tempfile
from pathlib import Path

import torch

import trimtab as tt
from trimtab.core.metrics import nepe, path_error, summary

# %% [markdown]
# ## 1. A loop with a constraint
#
# Samples are points that must stay in a disc. They drift slowly, and now and then a gust throws some of them far out.
# A constraint is two functions: `project`, which is slow in real life, and `defect`, a cheap number that is 0 where a
# sample is feasible. Both take the whole batch, `(n, 2)`.

# %%
T, n = 60, 128

disc = tt.as_constraint(
    project=lambda x: x / x.norm(dim=1, keepdim=True).clamp(min=1),
    defect=lambda x: (x.norm(dim=1) - 1).clamp(min=0),
)


def sample(schedule, seed):
    generator = torch.Generator().manual_seed(seed)
    corrector = tt.Corrector(disc, schedule, n_steps=T, measure_defects=True)  # look at defects even if nobody asks
    x = torch.zeros(n, 2)
    for t in range(T):
        gust = (torch.rand(n, 1, generator=generator) < 0.1) * 1.0
        x = 0.97 * x + (0.06 + gust) * torch.randn(n, 2, generator=generator)
        x = corrector(x, t)  # the one added line
    return corrector.rollout


# %% [markdown]
# ## 2. What it does today
#
# Projecting after every step is faithful, and costs `T` projections per sample. A rollout shows itself: the defect that
# was proposed at each step, the defect that was kept, and which share of the samples was projected.

# %%
stepwise = sample(tt.Stepwise(), seed=0)
stepwise

# %%
terminal = sample(tt.Terminal(), seed=0)
terminal

# %% [markdown]
# ## 3. Calibrate once
#
# Calibration runs the loop on noise set aside, a few batches in all, and computes the price of a correction: at step
# `t` with `b` corrections left, project where the defect is at least this.

# %%
price = tt.calibrate(lambda schedule: sample(schedule, seed=1), objective="path")
price

# %% [markdown]
# ## 4. Spend a tenth
#
# `price.at(0.1)` is a schedule. Each sample spends its own budget at its own moments; the bars show where.

# %%
adaptive = sample(price.at(0.1), seed=0)
adaptive

# %%
assert (adaptive.paid <= 0.1 * T).all()  # never more than was asked for, the closing projection included
assert (disc.defect(adaptive.final) < 1e-6).all()  # every sample ends feasible

# %% [markdown]
# ## 5. What is lost
#
# NEPE is the error added up along the path, 0 for projecting at every step and 1 for projecting only at the end. The
# same number of evenly spaced projections is the thing to beat.

# %%
error = {
    name: path_error(run)
    for name, run in {
        "stepwise": stepwise,
        "terminal": terminal,
        "periodic": sample(tt.Periodic(0.1), seed=0),
        "adaptive": adaptive,
    }.items()
}
for name in ("periodic", "adaptive"):
    print(f"{name:10s} NEPE {summary(nepe(error[name], error['stepwise'], error['terminal']))}")

# %% [markdown]
# ## 6. Keep the price
#
# A price is one small file. It knows how many steps it was made for and refuses to be used for another number.

# %%
with tempfile.TemporaryDirectory() as folder:
    price.save(Path(folder) / "price.safetensors")
    again = tt.load(Path(folder) / "price.safetensors")
again
