"""Train a flow that sees the constraint of each sample, and compare it with the same flow trained for as long.

Data are chains of 8 bars. A sample is told where its chain must end, which no network saw in its first training. All
three go on from the same weights for the same number of steps:

- plain: the flow as it is;
- informed: its last clean prediction and the gradient of the defect there are inputs that start with weight 0, made
  by `trimtab_lab.training.scheduled_prediction`;
- told the end: the coordinates of the end are inputs. This is simpler: do it if your constraint is a few numbers.
  A gradient can be had of any differentiable defect, however many numbers the constraint has.

The table has the energy distance to held-out chains with the same ends (mean ± SE of three trainings), with one
projection at the end and with projections at a tenth of the steps. The inputs make most of the difference.

Run it: `python examples/train_informed.py` (4 processor minutes)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

import trimtab as tt
from trimtab.constraints import NonlinearEquality
from trimtab_lab.distributions import energy_distance
from trimtab_lab.metrics import summary
from trimtab_lab.training import defect_gradient, fit, scheduled_prediction

BARS, STEPS, BUDGET, BATCH = 8, 50, 5, 256
INPUTS = {"plain": 0, "informed": 2 * BARS, "told the end": 2}


def chains(n: int, seed: int) -> Tensor:
    """Draw data: the angles at the joints of arches and waves to either side, (n, 8)."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.arange(BARS) / (BARS - 1)
    arch, wave = 2 * torch.randint(2, (2, n, 1), generator=generator) - 1
    noise = torch.randn(n, BARS + 3, generator=generator)
    bend = 0.45 * arch + 0.12 * noise[:, :1] + 0.1 * noise[:, 1:2] * torch.cos(math.pi * place)
    joints = bend + 0.6 * wave * torch.sin(2 * math.pi * place) + 0.12 * noise[:, 3:]
    return torch.cat([0.5 * noise[:, 2:3], joints[:, 1:]], dim=1)


def places(joints: Tensor) -> Tensor:
    """Return where the bars end, (n, 8, 2)."""
    bars = joints.cumsum(dim=1)
    return torch.stack([bars.cos(), bars.sin()], dim=2).cumsum(dim=1)


def gap(joints: Tensor, end: Tensor) -> Tensor:
    """Return the vector from where a chain must end to where it ends, (n, 2)."""
    return places(joints)[:, -1] - end


def ending_at(end: Tensor) -> tt.Constraint:
    """Return the constraint of chains that must end at (n, 2)."""
    return tt.as_constraint(
        lambda x, end: NonlinearEquality(gap, (end,), refinements=0, batched=True).project(x),
        lambda x, end: gap(x, end).norm(dim=1),
        (end,),
    )


class Velocity(nn.Module):
    """The velocity of the flow from noise to chains, with inputs that start with weight 0."""

    def __init__(self, inputs: int = 0) -> None:
        """Make three hidden layers."""
        super().__init__()
        self.first, self.inputs = nn.Linear(BARS + 9, 192), nn.Linear(max(inputs, 1), 192, bias=False)
        nn.init.zeros_(self.inputs.weight)
        self.rest = nn.Sequential(nn.SiLU(), nn.Linear(192, 192), nn.SiLU(), nn.Linear(192, 192), nn.SiLU())
        self.last = nn.Linear(192, BARS)

    def forward(self, x: Tensor, tau: Tensor, inputs: Tensor | None = None) -> Tensor:
        """Return velocities, (n, 8), at flow times (n,)."""
        waves = torch.cat([f(2**k * tau[:, None]) for k in range(4) for f in (torch.sin, torch.cos)], dim=1)
        hidden = self.first(torch.cat([x, tau[:, None], waves], dim=1))
        velocity: Tensor = self.last(self.rest(hidden if inputs is None else hidden + self.inputs(inputs)))
        return velocity


def what_it_sees(model: str, constraint: tt.Constraint, end: Tensor) -> Callable[[Tensor | None], Tensor | None]:
    """Return the function from the last clean prediction, None at first, to the inputs of a model."""
    if model == "informed":
        return lambda clean: None if clean is None else torch.cat([clean, defect_gradient(clean, constraint)], dim=1)
    return lambda clean: end if model == "told the end" else None


def trained(model: str, start: Velocity, data: Tensor, steps: int, seed: int) -> Velocity:
    """Return the average of the weights after more steps from `start`."""
    network, averaged = (Velocity(INPUTS[model]) for _ in range(2))
    for made in (network, averaged):
        made.load_state_dict({k: v for k, v in start.state_dict().items() if k != "inputs.weight"}, strict=False)
    ends = places(data)[:, -1]

    def loss(step: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        rows = torch.randint(len(data), (BATCH,), generator=generator)
        noise, clean = torch.randn(BATCH, BARS, generator=generator), data[rows]
        tau = (torch.arange(BATCH) + torch.rand(BATCH, generator=generator)) / BATCH
        constraint = ending_at(ends[rows])
        inputs = what_it_sees(model, constraint, ends[rows])

        def predict(back: int, held: Tensor | None) -> Tensor:
            then = (tau - back / STEPS).clamp(min=0)
            x = torch.lerp(noise, clean, then[:, None])
            return x + (1 - then)[:, None] * network(x, then, inputs(held))

        held = None
        if model == "informed":
            held = scheduled_prediction(predict, constraint, BUDGET / STEPS, generator=generator)
        x = torch.lerp(noise, clean, tau[:, None])
        return (network(x, tau, inputs(held)) - (clean - noise)).square().mean()

    with TemporaryDirectory() as folder:  # a folder of yours lets a stopped training go on
        fit(
            *(network, averaged, loss, lambda step: 1e-3 * (1 + math.cos(math.pi * step / steps))),
            *(Path(folder) / "state", {"model": model, "steps": steps, "seed": seed}),
            steps=steps,
            average=0.995,
            progress=lambda line: None,
        )
    return averaged


@torch.no_grad()
def sampled(model: str, network: Velocity, end: Tensor, schedule: tt.Schedule) -> Tensor:
    """Draw chains that end at (n, 2); the corrector projects clean predictions."""
    constraint = ending_at(end)
    inputs = what_it_sees(model, constraint, end)
    corrector = tt.Corrector(constraint, schedule, STEPS)
    noise = torch.randn(len(end), BARS, generator=torch.Generator().manual_seed(0))
    clean, held = torch.zeros_like(noise), None
    for t in range(STEPS):
        tau = t / STEPS
        x = torch.lerp(noise, clean, tau)
        velocity = network(x, torch.full((len(x),), tau), inputs(held))
        clean, noise = corrector(x + (1 - tau) * velocity, t), x - tau * velocity
        held = clean
    return clean


def measured(seeds: range = range(11, 14), first: int = 1200, more: int = 1000) -> dict[tuple[str, str], Tensor]:
    """Return the energy distance of each model under each schedule, (seeds,), in a first training and `more` steps."""
    held_out = chains(2048, 2 * 10**6)
    found: dict[tuple[str, str], list[float]] = {}
    for seed in seeds:
        torch.manual_seed(seed)
        data = chains(20_000, seed)
        start = trained("plain", Velocity(), data, first, seed)
        for model in INPUTS:
            network = trained(model, start, data, more, seed + 100)
            for name, schedule in (("at the end", tt.Terminal()), ("a tenth", tt.Periodic(BUDGET))):
                final = sampled(model, network, places(held_out)[:, -1], schedule)
                distance = energy_distance(places(final).flatten(1), places(held_out).flatten(1))
                found.setdefault((model, name), []).append(distance)
    return {key: torch.tensor(values) for key, values in found.items()}


def main() -> None:
    """Print the distances, and how far ahead the informed model is."""
    found = measured()
    print(f"{'model':<14}{'at the end':>18}{'a tenth':>18}")
    for model in INPUTS:
        print(f"{model:<14}" + "".join(f"{summary(found[model, name])!s:>18}" for name in ("at the end", "a tenth")))
    for name in ("at the end", "a tenth"):
        ahead = summary(found["plain", name] - found["informed", "a tenth"])
        print(f"informed with a tenth is ahead of plain, {name}: {ahead}")


if __name__ == "__main__":
    main()
