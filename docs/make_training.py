"""Print what training with the constraint as input is worth: `python docs/make_training.py` (some eight minutes).

It runs `examples/train_informed.py`, and the same on the shipped reaction flow, whose samples are given a profile and
an inflow that its network never saw. Each training goes on from the shipped weights.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from _page import HERE, kept, renew
from torch import Tensor, nn

import trimtab as tt
from trimtab.core.noise import Noise, as_seeds
from trimtab_lab.domains.learned import clock, flow_pair, fresh, pair_step, velocity, warmup_cosine
from trimtab_lab.domains.reaction_flow.domain import (
    MEAN,
    SPREAD,
    WIDTH,
    FlowNetwork,
    gaussian_field,
    given_conditions,
    shipped_network,
)
from trimtab_lab.domains.reaction_flow.equation import (
    CELLS,
    TIMES,
    Conditions,
    MassBalance,
    draw_conditions,
    solve,
)
from trimtab_lab.domains.reaction_flow.train import solution_error
from trimtab_lab.metrics import summary
from trimtab_lab.training import defect_gradient, fit, scheduled_prediction

sys.path.insert(0, str(HERE.parent / "examples"))
import train_informed as chain

STEPS, BUDGET, BATCH, MORE = 50, 5, 32, 150
DATA_SEEDS, FRESH = range(10**9, 10**9 + 8192), range(2000, 2064)
MODELS = ("plain", "informed", "told the conditions")
SCHEDULES = {"at the end": tt.Terminal(), "a tenth": tt.Periodic(BUDGET)}


class Informed(FlowNetwork):
    """The shipped network with two more channels, which start with weight 0."""

    def __init__(self) -> None:
        """Make a network without weights in the new channels."""
        super().__init__()
        self.inputs = nn.Linear(2, WIDTH, bias=False)
        nn.init.zeros_(self.inputs.weight)

    def speed(self, x: Tensor, tau: Tensor, inputs: Tensor | None) -> Tensor:
        """Return the velocity, (n, TIMES, CELLS), in scaled units."""
        return velocity(lambda x, tau: self.output(x, tau, inputs), x, tau)

    def output(self, x: Tensor, tau: Tensor, inputs: Tensor | None) -> Tensor:
        """Return the output before scaling, (n, TIMES, CELLS)."""
        scaled = x / (tau**2 + (1 - tau) ** 2).sqrt()[:, None, None]
        now = nn.functional.gelu(self.clock(clock(tau)))
        h = self.lift(torch.cat([scaled[..., None], self.place.expand(len(x), -1, -1, -1)], dim=-1))
        h = h if inputs is None else h + self.inputs(inputs)
        for layer in self.layers:
            h = layer(h, now, self.time_modes, self.space_modes)
        return self.out(h)[..., 0]


def seen(model: str, clean: Tensor | None, balance: MassBalance) -> Tensor | None:
    """Return the inputs of a model, (n, TIMES, CELLS, 2), from its last clean fields."""
    if model == "told the conditions":
        given = balance.conditions
        inflow = (given.inflow[:, None, None] - 0.05) / 0.03
        profile = (given.initial[:, None] - MEAN) / SPREAD
        return torch.stack(torch.broadcast_tensors(profile.expand(-1, TIMES, -1), inflow), dim=-1)
    if model == "plain" or clean is None:
        return None
    gradient = defect_gradient(clean, balance) * (TIMES * CELLS / SPREAD)
    return torch.stack([(clean - MEAN) / SPREAD, gradient], dim=-1)


def balance_of(given: Conditions) -> MassBalance:
    """Return the constraint of conditions, in single precision."""
    return MassBalance(Conditions(given.initial.float(), given.inflow.float()))


def trained(model: str, data: Tensor, given: Conditions, seed: int) -> Informed:
    """Return the shipped network after `MORE` steps."""
    network, averaged = (fresh(Informed, 0) for _ in range(2))
    for made in (network, averaged):
        made.load_state_dict(shipped_network().state_dict(), strict=False)

    def loss(step: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        rows = torch.randint(len(data), (BATCH,), generator=generator)
        noise = gaussian_field(torch.randn(BATCH, TIMES, CELLS, generator=generator))
        tau = (torch.arange(BATCH) + torch.rand(BATCH, generator=generator)) / BATCH
        balance = balance_of(given.take(rows))

        def predict(back: int, held: Tensor | None) -> Tensor:
            then = (tau - back / STEPS).clamp(min=0)
            x = torch.lerp(noise, data[rows], then[:, None, None])
            return MEAN + SPREAD * (x + (1 - then)[:, None, None] * network.speed(x, then, seen(model, held, balance)))

        held = None
        if model == "informed":
            held = scheduled_prediction(predict, balance, BUDGET / STEPS, generator=generator)
        x, target = flow_pair(noise, data[rows], tau)
        return nn.functional.mse_loss(network.output(x, tau, seen(model, held, balance)), target)

    with TemporaryDirectory() as folder:
        fit(
            *(network, averaged, loss, lambda step: 1e-3 * warmup_cosine(step, MORE)),
            *(Path(folder) / "state", {"model": model, "seed": seed}),
            steps=MORE,
            average=0.99,
            weight_decay=1e-3,
            every=100,
        )
    return averaged


@torch.no_grad()
def errors(model: str, network: Informed, schedule: tt.Schedule) -> Tensor:
    """Return the solution errors of samples with fresh conditions, (n,)."""
    given = given_conditions(FRESH)[0]
    balance = balance_of(given)
    corrector = tt.Corrector(balance, schedule, STEPS)
    noise = gaussian_field(Noise(as_seeds(FRESH), torch.float32).start((TIMES, CELLS)))
    clean, held = MEAN + 0 * noise, None
    for t in range(STEPS):
        x = torch.lerp(noise, (clean - MEAN) / SPREAD, t / STEPS)
        speed = network.speed(x, torch.full((len(x),), t / STEPS), seen(model, held, balance))
        predicted, noise = pair_step(x, speed, t / STEPS).unbind(dim=1)
        clean = held = corrector(MEAN + SPREAD * predicted, t)
    return solution_error(clean, given)


def table(found: dict[tuple[str, str], Tensor], models: tuple[str, ...]) -> str:
    """Return the table of values by model and schedule, and what the informed model gains on the plain one."""
    lines = ["| model | projection at the end | at a tenth of the steps |", "|---|---|---|"]
    for model in models:
        lines.append(f"| {model} | " + " | ".join(str(summary(found[model, name])) for name in SCHEDULES) + " |")
    gains = [summary(found["plain", name] - found["informed", "a tenth"]) for name in SCHEDULES]
    lines += [
        "",
        f"Informed with a tenth is ahead of plain by {gains[0]} (at the end) and {gains[1]} (a tenth), paired.",
    ]
    return "\n".join(lines)


def measured(model: str, data: Tensor, given: Conditions, seed: int) -> dict[str, list[float]]:
    """Train once, and return the solution errors by schedule."""
    network = trained(model, data, given, seed)
    return {name: errors(model, network, schedule).tolist() for name, schedule in SCHEDULES.items()}


def main() -> None:
    """Measure both samplers and renew the page."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    chains = kept("training", "chain", lambda: table(chain.measured(), tuple(chain.INPUTS)))
    renew("results/training.md", "chain", chains)
    given, diffusivity = draw_conditions(Noise(as_seeds(DATA_SEEDS)))
    data = (solve(given, diffusivity).float() - MEAN) / SPREAD
    runs: dict[tuple[str, str], list[Tensor]] = {}
    for seed in (11, 12, 13):
        for model in MODELS:
            found = kept("training", f"{model} {seed}", partial(measured, model, data, given, seed))
            for name in SCHEDULES:
                runs.setdefault((model, name), []).append(torch.tensor(found[name]))
    mean = {key: torch.stack(values).mean(dim=0) for key, values in runs.items()}
    renew("results/training.md", "reaction", table(mean, MODELS))
    pairs = zip(runs["plain", "a tenth"], runs["informed", "a tenth"], strict=True)
    each = [f"{float((plain - informed).mean()):.3f}" for plain, informed in pairs]
    renew("results/training.md", "seeds", "Gain at a tenth in each of the three trainings: " + ", ".join(each) + ".")


if __name__ == "__main__":
    main()
