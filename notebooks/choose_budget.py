"""Choosing a budget by final samples: a notebook whose cells are marked by `# %%`; the site shows its results."""

# %% [markdown]
# # Choosing a budget by the quality of the final samples
#
# What counts is the final sample. Here a sampler draws points of eight clusters on a ring, and a disc that covers three
# of them is forbidden. You say what a good sample is, and ask for the cheapest budget that gives it.

# %%
import math

import torch

import trimtab as tt

# %% [markdown]
# ## The sampler and the constraint
#
# Ancestral sampling with the noise that a perfect model predicts, so nothing has to be trained. The noise comes from
# trimtab and depends on the seed of a sample, so two schedules are compared on the same noise.

# %%
T = 50
signal = torch.cumprod(1 - torch.linspace(1e-3, 0.16, T), dim=0)  # the share of the data after k + 1 noise steps
angles = torch.arange(8) * (2 * math.pi / 8)
clusters = torch.stack([angles.cos(), angles.sin()], dim=1)
centre, radius = torch.tensor([0.8, 0.0]), 0.85


class Ring:
    n_steps = T

    def start(self, noise):
        return noise.start((2,)).float()

    def step(self, x, t, noise):
        k = T - 1 - t
        now, before = signal[k], signal[k - 1] if k > 0 else torch.ones(())
        offsets = x[:, None] - now.sqrt() * clusters
        spread = now * 0.05**2 + 1 - now
        weights = torch.softmax(-offsets.square().sum(dim=2) / (2 * spread), dim=1)
        predicted = (1 - now).sqrt() * (weights[:, :, None] * offsets).sum(dim=1) / spread
        keep = now / before
        mean = (x - (1 - keep) / (1 - now).sqrt() * predicted) / keep.sqrt()
        return mean + ((1 - keep) * (1 - before) / (1 - now)).sqrt() * noise.normal(t, (2,)).float()


def out_of_disc(x):
    away = x - centre
    distance = away.norm(dim=1, keepdim=True).clamp(min=1e-9)
    return torch.where(distance < radius, centre + away / distance * radius, x)


disc = tt.as_constraint(out_of_disc, lambda x: (radius - (x - centre).norm(dim=1)).clamp(min=0))

# %% [markdown]
# ## What a good sample is
#
# A function of the final states that returns one number per sample, the lower the better: here the distance to the
# nearest allowed cluster. A sample that was pushed out of the disc at the last step lies on its rim, on no cluster.


# %%
def off_data(final):
    allowed = clusters[(clusters - centre).norm(dim=1) > radius]
    return torch.cdist(final, allowed).amin(dim=1)


held_out = tt.Problem(Ring(), disc, range(1000, 1512))
fresh = tt.Problem(Ring(), disc, range(512))
for name, schedule in {"only at the end": tt.Terminal(), "after every step": tt.Stepwise()}.items():
    print(f"{name:17s} {float(off_data(fresh.rollout(schedule).final).mean()):.4f} off the data on average")

# %% [markdown]
# ## Find out when to correct
#
# On other seeds. The prices go by how far final samples end from those of full projection; if even spacing did better
# by that, it would be the result.

# %%
price = tt.calibrate(held_out)
price

# %% [markdown]
# ## Look at every budget
#
# On seeds that were not used to calibrate: the cost of each budget, closing projection included, and the quality.

# %%
found = tt.compare(fresh, {"priced": price}, [2, 3, 5, 8, 25], quality=off_data)
found

# %% [markdown]
# ## Take the smallest that is good enough
#
# Say, one that loses no more than a quarter of what full projection gains over projecting only at the end.

# %%
worst, best = (found[name, None].mean("off_data").mean for name in ("terminal", "stepwise"))
enough = [row for row in found.rows if row.mean("off_data").mean <= best + 0.25 * (worst - best)]
cheapest = min(enough, key=lambda row: row.projections)
print(f"{cheapest.name} with {cheapest.projections:.0f} of {T} projections: {cheapest.mean('off_data')}")
print(f"full projection with {T}: {found['stepwise', None].mean('off_data')}")

# %% [markdown]
# ## Or ask for advice
#
# `advise` does all of this with intervals, and checks how timing could fail. It is more cautious than the line above:
# the whole interval of the loss has to be within the tolerance.

# %%
tt.advise(held_out, quality=off_data, tolerance=0.25, cost="projections")
