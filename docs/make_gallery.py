"""Draw the pictures of docs/gallery.md, each from a run of the thing it shows.

Run it from the repository's root: `python docs/make_gallery.py [NAME ...]`; it needs all extras, and some minutes.
On the left is what is sampled; on the right when each sample was projected, over its defect.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from torch import Tensor

import trimtab as tt
from trimtab.core.metrics import path_error
from trimtab.core.runner import Engine
from trimtab.evaluation.domains import DOMAINS, base_of
from trimtab.evaluation.domains.base import Graph
from trimtab.schedules import Fixed
from trimtab.schedules.style import look_of

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "images" / "gallery"
BUDGET = 0.25
SHOWN = 24  # samples of a raster
SMALLER = {"pdm": {"inner_steps": 6}}  # updates at each noise level, for the sake of time
Draw = Callable[[Axes], None]
Run = Callable[[tt.Schedule], tt.Rollout]
Picture = tuple[Draw, tt.Rollout]


def priced(run: Run, held_out: Run | tt.Problem, engine: Engine | None = None) -> tt.Rollout:
    """A run with prices that were calibrated on other noise."""
    return run(tt.calibrate(held_out, budget=BUDGET, objective="path", engine=engine).at(BUDGET))


# ------------------------------------------------------------------ domains


def domain(name: str, engine: Engine | None = None) -> Picture:
    """Paths, or final states where a state is a path, of a domain that comes with trimtab."""
    few = name in ("pdm", "grid", "reaction-flow")
    made = tt.domain(name, **SMALLER.get(name, {}))
    view = made.looks
    held, fresh = made.problem(range(1000, 1016 if few else 1064)), made.problem(range(8 if few else SHOWN))
    record = priced(lambda s: fresh.rollout(s, keep_states=not view.final), held, engine)
    if view.final:
        points, graph = view.points(record.final), view.graph
        if graph is not None:
            return lambda axes: network(axes, graph, points[0]), record
        return lambda axes: lines(axes, points), record
    states = record.states[1:]
    flat = view.points(states.flatten(0, 1)).unflatten(0, states.shape[:2]).transpose(0, 1)
    return lambda axes: lines(axes, flat[:6], thin=True), record


# ------------------------------------------------------------------ integrations


def sphere() -> tt.Constraint:
    """The unit sphere in space."""
    return tt.as_constraint(lambda x: x / x.norm(dim=1, keepdim=True), lambda x: (x.norm(dim=1) - 1).abs())


def swirl(x: Tensor, t: Tensor) -> Tensor:
    """A velocity that leaves the sphere, in bursts."""
    out = 3 * (torch.sin(9 * torch.as_tensor(t) + 4 * x[:, :1]) > 0.8)
    return torch.stack([-x[:, 1], x[:, 0], 0.5 * torch.cos(3 * x[:, 0])], dim=1) * 2 + out * x


def starts(seed: int, n: int = SHOWN) -> Tensor:
    """Points on the sphere, (n, 3)."""
    return sphere().project(torch.randn(n, 3, generator=torch.Generator().manual_seed(seed)))


def on_sphere(run: Callable[[tt.Schedule, int], tt.Rollout]) -> Picture:
    """Final points of something that is run on the sphere."""
    record = priced(lambda s: run(s, 0), lambda s: run(s, 1))
    final = torch.as_tensor(np.array(record.final))
    return lambda axes: dots(axes, final), record


def flows() -> Picture:
    """A velocity model by Heun's method."""
    from trimtab.integrations.flows import FlowSampler

    flow = FlowSampler(velocity=swirl, n_steps=40, event=(3,), method="heun", start_from=_on_sphere)
    return on_sphere(lambda s, seed: tt.rollout(flow, sphere(), s, range(1000 * seed, 1000 * seed + SHOWN)))


def _on_sphere(noise: object) -> Tensor:
    return sphere().project(noise.normal(-1, (3,)))


def torchdiffeq() -> Picture:
    """A fixed-step solver of torchdiffeq."""
    from trimtab.integrations.torchdiffeq import odeint

    def run(schedule: tt.Schedule, seed: int) -> tt.Rollout:
        times, options = torch.tensor([0.0, 1.0]), {"step_size": 0.025}
        field = lambda t, x: swirl(x, t)  # noqa: E731
        return odeint(field, starts(seed), times, sphere(), schedule, method="rk4", options=options)[1]

    return on_sphere(run)


def flow_matching() -> Picture:
    """flow_matching's solver."""
    from trimtab.integrations.flow_matching import ProjectedODESolver

    def run(schedule: tt.Schedule, seed: int) -> tt.Rollout:
        solver = ProjectedODESolver(swirl, sphere(), schedule)
        solver.sample(starts(seed), step_size=0.025, method="midpoint")
        return solver.rollout

    return on_sphere(run)


def azula() -> Picture:
    """A sampler of azula on a Gaussian denoiser."""
    from azula.denoise import GaussianDenoiser
    from azula.linalg.covariance import IsotropicCovariance
    from azula.noise import VPSchedule
    from azula.sample import DDPMSampler

    from trimtab.integrations.azula import wrap

    def run(schedule: tt.Schedule, seed: int) -> tt.Rollout:
        torch.manual_seed(seed)
        denoiser = GaussianDenoiser(torch.zeros(3), IsotropicCovariance(torch.ones(())), VPSchedule())
        sampler = wrap(DDPMSampler(denoiser, steps=40, silent=True), sphere(), schedule)
        sampler(sampler.init((SHOWN, 3)))
        return sampler.rollout

    return on_sphere(run)


def diffrax() -> Picture:
    """A solver of diffrax."""
    import diffrax as library
    import jax.numpy as jnp

    from trimtab.integrations.diffrax import diffeqsolve

    def norm(x: object) -> object:
        return jnp.linalg.norm(x, axis=1, keepdims=True)

    def field(t: object, x: object, args: object) -> object:
        out = 3 * (jnp.sin(9 * t + 4 * x[:, :1]) > 0.8)
        return jnp.stack([-x[:, 1], x[:, 0], 0.5 * jnp.cos(3 * x[:, 0])], axis=1) * 2 + out * x

    def run(schedule: tt.Schedule, seed: int) -> tt.Rollout:
        ball = tt.as_constraint(lambda x: x / norm(x), lambda x: jnp.abs(norm(x)[:, 0] - 1))
        times = jnp.linspace(0, 1, 41)
        term, start = library.ODETerm(field), jnp.asarray(starts(seed).numpy())
        return diffeqsolve(term, library.Tsit5(), times, start, ball, schedule)[1]

    return on_sphere(run)


def inside_jit() -> Picture:
    """Decisions inside one jitted scan, from the table that a corrector's runs were calibrated for."""
    import jax
    import jax.numpy as jnp

    from trimtab.integrations.jax import decision_function

    def norm(x: object) -> object:
        return jnp.linalg.norm(x, axis=1, keepdims=True)

    ball = tt.as_constraint(lambda x: x / norm(x), lambda x: jnp.abs(norm(x)[:, 0] - 1))

    @jax.jit
    def step(x: object, t: object) -> object:
        out = 3 * (jnp.sin(9 * t / 40 + 4 * x[:, :1]) > 0.8)
        return x + (jnp.stack([-x[:, 1], x[:, 0], 0.5 * jnp.cos(3 * x[:, 0])], axis=1) * 2 + out * x) / 40

    def run(schedule: tt.Schedule, seed: int) -> tt.Rollout:
        corrector, x = tt.Corrector(ball, schedule, n_steps=40, measure_defects=True), jnp.asarray(starts(seed).numpy())
        for t in range(40):
            x = corrector(step(x, t), t)
        return corrector.rollout

    begin, decide = decision_function(tt.calibrate(lambda s: run(s, 1), budget=BUDGET, objective="path").at(BUDGET))

    @jax.jit
    def sample(x: object) -> tuple[object, object]:
        def scanned(carry: tuple[object, object], t: object) -> tuple[tuple[object, object], object]:
            proposal = step(carry[0], t)
            mask, state = decide(carry[1], ball.defect(proposal), t)
            return (jnp.where(mask[:, None], ball.project(proposal), proposal), state), mask

        (x, _), masks = jax.lax.scan(scanned, (x, begin((len(x),))), jnp.arange(40))
        return x, masks

    final, masks = (torch.as_tensor(np.array(part)) for part in sample(jnp.asarray(starts(0).numpy())))
    return lambda axes: dots(axes, final), run(Fixed(masks), 0)  # the record of what was decided in the scan


def loops() -> Picture:
    """A loop with one added line."""
    from my_loop import make

    sampler, disc = make()
    record = priced(
        lambda s: tt.rollout(sampler, disc, s, range(SHOWN)),
        lambda s: tt.rollout(sampler, disc, s, range(1000, 1064)),
    )
    return lambda axes: dots(axes, record.final), record


def my_sampler() -> Picture:
    """The sampler in ten lines."""
    from my_sampler import make

    sampler, disc = make()
    run = lambda seeds: lambda s: tt.rollout(sampler, disc, s, seeds)  # noqa: E731
    record = priced(run(range(SHOWN)), run(range(1000, 1064)))
    return lambda axes: dots(axes, record.final), record


# ------------------------------------------------------------------ examples


def example(name: str, runs: slice = slice(2, 3)) -> list[tt.Rollout]:
    """The runs whose path error an example measures: terminal, periodic, adaptive, stepwise."""
    module = importlib.import_module(name)
    seen: list[tt.Rollout] = []

    def watched(run: tt.Rollout) -> Tensor:
        seen.append(run)
        return path_error(run)

    module.path_error = watched
    module.main()
    return seen[runs]


def images(axes: Axes, final: Tensor) -> None:
    """Eight images side by side."""
    axes.imshow(torch.cat([torch.cat(list(row[:, 0]), dim=1) for row in final[:8].split(4)]), cmap="gray")
    axes.set_axis_off()


def diffusers() -> Picture:
    """The pipeline's images."""
    (record,) = example("diffusers_pipeline")
    return lambda axes: images(axes, record.final), record


def finals(name: str, of: Callable[[Tensor], Tensor] | None = None) -> Picture:
    """Final states of an example, as dots or as lines."""
    (record,) = example(name)
    return (lambda axes: lines(axes, of(record.final))) if of else (lambda axes: dots(axes, record.final)), record


def budgets() -> Picture:
    """What each budget of examples/choose_budget.py leaves, adaptive and periodic."""
    terminal, stepwise, *others = example("choose_budget", slice(None))
    low, high = (float(path_error(run).mean()) for run in (stepwise, terminal))

    def draw(axes: Axes) -> None:
        for label, key, of in (("adaptive", "adaptive:dp", others[::2]), ("periodic", "periodic", others[1::2])):
            look, shares = look_of(key), [float(run.paid.double().mean()) / run.n_steps for run in of]
            values = [(float(path_error(run).mean()) - low) / (high - low) for run in of]
            axes.plot(shares, values, color=look.colour, ls=look.dashes, marker=look.marker, ms=4, label=label)
        axes.set(xlabel="projections per step", ylabel="NEPE")
        axes.legend(frameon=False, fontsize=7)

    return draw, others[6]


# ------------------------------------------------------------------ drawing


def lines(axes: Axes, points: Tensor, thin: bool = False) -> None:
    """Paths in the plane, or in space seen from above, (n, w, 2 or 3)."""
    for path in points.double().cpu():
        axes.plot(path[:, 0], path[:, 1], lw=0.6 if thin else 1.0, alpha=0.8)
    axes.set_xticks([])
    axes.set_yticks([])


def network(axes: Axes, graph: Graph, points: Tensor) -> None:
    """A state on its network, (edges, 2): edges by the second number, the darker the fuller."""
    ends = [[graph.places[node] for node in edge] for edge in graph.edges]
    axes.add_collection(LineCollection(ends, array=points[:, 1].numpy(), cmap="viridis_r", clim=(0, 1), linewidths=2.5))
    axes.scatter(*zip(*graph.places, strict=True), s=8, color="white", edgecolors="#444444", linewidths=0.7, zorder=2)
    axes.set(xticks=[], yticks=[])


def dots(axes: Axes, points: Tensor) -> None:
    """States by their first two numbers."""
    axes.scatter(points[:, 0], points[:, 1], s=7)
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])


def raster(axes: Axes, record: tt.Rollout) -> None:
    """When each sample was projected (dots), over its defect (the darker the larger)."""
    defects, projected = record.defects[:, :SHOWN].T.double(), record.projected[:, :SHOWN].T
    top = float(defects.quantile(0.98)) or 1.0
    axes.imshow(defects.clamp(max=top), aspect="auto", cmap="Blues", vmin=0, vmax=top, interpolation="nearest")
    where = projected.nonzero()
    colour = look_of("adaptive:dp").colour
    axes.scatter(where[:, 1], where[:, 0], s=max(2.5, 180 / record.n_steps), c=colour, linewidths=0)
    axes.set(xlabel="step", ylabel="sample", yticks=[])


PICTURES: dict[str, Callable[[], Picture]] = {
    **{f"domain-{name}": lambda name=name: domain(name) for name in DOMAINS if base_of(name) == name},
    "loops": loops,
    "diffusers": diffusers,
    "flows": flows,
    "torchdiffeq": torchdiffeq,
    "flow_matching": flow_matching,
    "azula": azula,
    "diffrax": diffrax,
    "jax": inside_jit,
    "engines": lambda: domain("terrain-ridge-flow", Engine("processes", workers=2)),
    "wrap_ddpm_loop": lambda: finals("wrap_ddpm_loop"),
    "flow_on_sphere": lambda: finals("flow_on_sphere"),
    "planner_ipopt": lambda: finals("planner_ipopt", lambda x: x.transpose(1, 2)),
    "choose_budget": budgets,
    "my_sampler": my_sampler,
}


def main(names: list[str]) -> None:
    """Draw those that are named, or all."""
    sys.path.insert(0, str(ROOT / "examples"))
    OUT.mkdir(parents=True, exist_ok=True)
    mpl.rcParams.update({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False})
    for name in names or PICTURES:
        draw, record = PICTURES[name]()
        figure, (left, right) = plt.subplots(1, 2, figsize=(4.6, 1.9), width_ratios=(1, 1.6), layout="constrained")
        draw(left)
        raster(right, record)
        figure.savefig(OUT / f"{name}.png", dpi=140)
        plt.close(figure)
        print(f"{name}: {record!r}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    # an empty list is among the choices because argparse checks the absence of names as one
    parser.add_argument("names", nargs="*", choices=[*PICTURES, []], metavar="NAME", help=", ".join(PICTURES))
    main(parser.parse_args().names)
