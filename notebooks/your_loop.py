"""Your own loop in ten minutes: a notebook whose cells are marked by `# %%`; the site shows it with its results."""

# %% [markdown]
# # Your own loop in ten minutes
#
# You have a sampling loop and a slow projection. This notebook adds one line to the loop, learns what a projection is
# worth at each step, and makes a tenth of the projections.

# %%
import tempfile
from pathlib import Path

import torch

import trimtab as tt

# %% [markdown]
# ## 1. A loop with a constraint
#
# Samples are points that must stay in a disc. They drift slowly, and sometimes a gust throws some of them far out. A
# constraint is two functions of the whole batch, `(n, 2)`: `project`, which is slow in real life, and `defect`, a cheap
# number per sample that is 0 if the sample is feasible.

# %%
T, n = 60, 128

disc = tt.as_constraint(
    project=lambda x: x / x.norm(dim=1, keepdim=True).clamp(min=1),
    defect=lambda x: (x.norm(dim=1) - 1).clamp(min=0),
)


def sample(schedule, seed):
    generator = torch.Generator().manual_seed(seed)
    corrector = tt.Corrector(disc, schedule, n_steps=T, measure_defects=True)  # measure defects for the record
    x = torch.zeros(n, 2)
    for t in range(T):
        gust = (torch.rand(n, 1, generator=generator) < 0.1) * 1.0
        x = 0.97 * x + (0.06 + gust) * torch.randn(n, 2, generator=generator)
        x = corrector(x, t)  # the one added line
    return corrector.rollout


# %% [markdown]
# ## 2. What it does today
#
# A projection after every step costs `T` projections per sample. A rollout shows the defect that was proposed at each
# step, the defect that was kept, and the share of samples that were projected.

# %%
stepwise = sample(tt.Stepwise(), seed=0)
stepwise

# %%
terminal = sample(tt.Terminal(), seed=0)
terminal

# %% [markdown]
# ## 3. Calibrate once
#
# Calibration runs a few batches of the loop on other noise and computes the price of a correction: at step `t` with `b`
# corrections left, project if the defect is at least this.

# %%
price = tt.calibrate(lambda schedule: sample(schedule, seed=1), objective="path")
price

# %% [markdown]
# ## 4. Spend a tenth
#
# `price.at(0.1)` is a schedule. Each sample spends its budget at other steps; the bars show when.

# %%
adaptive = sample(price.at(0.1), seed=0)
adaptive

# %%
assert (adaptive.paid <= 0.1 * T).all()  # at most the budget, closing projection included
assert (disc.defect(adaptive.final) < 1e-6).all()  # every sample ends feasible

# %% [markdown]
# ## 5. What is lost
#
# NEPE is the error along the path, 0 for a projection at every step and 1 for one at the end. The same number of evenly
# spaced projections (periodic) is the baseline.

# %%
tt.compare(lambda schedule: sample(schedule, seed=0), {"adaptive": price}, [0.1])

# %% [markdown]
# ## 6. Keep the price
#
# A price is one small file. It knows its number of steps and raises an error in a loop with another number.

# %%
with tempfile.TemporaryDirectory() as folder:
    price.save(Path(folder) / "price.safetensors")
    again = tt.load(Path(folder) / "price.safetensors")
again
