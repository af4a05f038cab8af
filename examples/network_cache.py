"""An expensive network as the correction: which of 50 steps should run it, and which reuse its last answer?

The state is {x, velocity, input}: the sample, the last answer of the network, and the x it was asked about. The
correction runs the network; the defect is the relative change of its input since. Nothing has to be feasible at the end
(closing="none"), and every sample runs the network exactly B times. The table shows how far the samples end from those
with a call at every step. Nothing is ahead of even spacing, not the prices learned online either: there is no hook for
pipelines. `calibrate` notices with "dp", warns, and returns even spacing.

Run it: `python examples/network_cache.py`
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import trimtab as tt
from trimtab.core.budget import PerSample
from trimtab.schedules import AccumulatedDefect
from trimtab_lab.metrics import summary

STEPS = 50
State = dict[str, Tensor]


def clusters(n: int, generator: torch.Generator) -> Tensor:
    """Draw data: points near eight centres on a ring, (n, 2)."""
    angle = torch.randint(8, (n,), generator=generator) * (math.pi / 4)
    return 2 * torch.stack([angle.cos(), angle.sin()], dim=1) + 0.1 * torch.randn(n, 2, generator=generator)


def trained(iterations: int = 1500) -> nn.Module:
    """Train a velocity network of (x, t), (n, 3) to (n, 2), by flow matching along straight lines."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    layers = [nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2)]
    model = nn.Sequential(*layers)
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(iterations):
        begin, end = torch.randn(512, 2, generator=generator), clusters(512, generator)
        t = torch.rand(512, 1, generator=generator)
        loss = (model(torch.cat([begin + t * (end - begin), t], dim=1)) - (end - begin)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.eval()


class RunNetwork(tt.Constraint):
    """Ask the network about the present x; counts the rows it was asked about."""

    needs, is_projection = ("t",), False

    def __init__(self, model: nn.Module) -> None:
        """Start the count at 0."""
        self.model, self.rows = model, 0

    def velocity(self, x: Tensor, step: int) -> Tensor:
        """Return the network's velocity at the start of a step, (n, 2)."""
        self.rows += len(x)
        with torch.no_grad():
            return self.model(torch.cat([x, torch.full((len(x), 1), step / STEPS)], dim=1))

    def project(self, state: State, t: int) -> State:
        """Run the network."""
        return {"x": state["x"], "velocity": self.velocity(state["x"], t + 1), "input": state["x"]}

    def defect(self, state: State, t: int) -> Tensor:
        """Return the change of the input relative to its size, (n,)."""
        return (state["x"] - state["input"]).norm(dim=1) / state["input"].norm(dim=1).clamp(min=1e-6)

    def take(self, rows: Tensor) -> RunNetwork:
        """Return itself: there is no data per sample."""
        return self


@dataclass(frozen=True)
class Flow:
    """Euler steps with the last velocity. Step 0 always runs the network, so 49 steps are left to decide about."""

    network: RunNetwork
    n_steps: int = STEPS - 1
    dtype: torch.dtype = torch.float32

    def start(self, noise: Any) -> State:
        """Draw x and run the network once."""
        x = noise.start((2,))
        return {"x": x, "velocity": self.network.velocity(x, 0), "input": x}

    def step(self, state: State, t: int, noise: Any) -> State:
        """Move x, (n, 2), and keep the old velocity."""
        return state | {"x": ended(state)}


def ended(state: State) -> Tensor:
    """Return x at the end of the step, (n, 2)."""
    return state["x"] + state["velocity"] / STEPS


def accumulated(held_out: tt.Problem, budget: int) -> AccumulatedDefect:
    """Return the rule of threshold caches: run when changes add up to a value, chosen on held-out seeds."""
    low, high = 0.0, 1e3
    for _ in range(30):
        value = (low + high) / 2
        spent = held_out.rollout(AccumulatedDefect(value), closing="none").spent.double().mean()
        low, high = (value, high) if spent > budget else (low, value)
    return AccumulatedDefect(high)


def learned(held_out: tt.Problem, budget: int) -> tt.Schedule:
    """Learn prices online, without a single run that calls the network at every step."""
    learner = tt.prices.Learner(PerSample(budget))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # prices for path error of what is not a projection: this measures them
        for rows in torch.arange(len(held_out)).split(32):
            held_out.take(rows).rollout(learner, closing="none")
    assert learner.price is not None
    return learner.price.at(budget)


def main() -> None:
    """Calibrate on some seeds and compare on others."""
    network = RunNetwork(trained())
    held_out, fresh = (tt.Problem(Flow(network), network, seeds) for seeds in (range(5000, 5128), range(1024)))
    free = {"closing": "none"}
    reference = ended(fresh.rollout(tt.Stepwise(), **free).final)
    how = free | {"objective": "endpoint", "distance": lambda a, b: (ended(a) - ended(b)).norm(dim=1)}
    prices = {method: tt.calibrate(held_out, 9, method, **how) for method in ("planned", "dp")}
    print(f"{'schedule':<22}{'network calls':>14}{'distance to 50 calls':>24}")
    for calls in (5, 10):
        schedules = {"even spacing": tt.Periodic(calls - 1), "accumulated change": accumulated(held_out, calls - 1)}
        schedules |= {"learned online": learned(held_out, calls - 1)}
        schedules |= {name: price.at(calls - 1) for name, price in prices.items()}
        for name, schedule in schedules.items():
            network.rows = 0
            final = fresh.rollout(schedule, **free).final
            spent = network.rows / len(final["x"])
            assert (
                spent == calls or name == "accumulated change"
            )  # exactly B calls for every sample, but for a threshold
            print(f"{name:<22}{spent:>14.1f}{summary((ended(final) - reference).norm(dim=1))!s:>24}")


if __name__ == "__main__":
    main()
