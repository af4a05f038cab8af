"""Samplers that are not ours: diffusers pipelines, flow-matching models, ODE solvers, loggers.

Everything here drives the same `Corrector` as the built-in rollout. Each module names what it needs:

- `trimtab.integrations.diffusers`: `wrap` a pipeline or scheduler, use `ProjectionCallback`, or make a sampler of it;
- `trimtab.integrations.loops`: any loop as a sampler;
- `trimtab.integrations.azula`: `wrap` any sampler of azula;
- `trimtab.integrations.torchdiffeq`: `odeint` with corrections at step ends;
- `trimtab.integrations.flow_matching`: `ProjectedODESolver`, an `ODESolver` that projects;
- `trimtab.integrations.jax`: decisions inside `jit`, from the same table;
- `trimtab.integrations.diffrax`: diffrax's solvers, stepped with corrections;
- `trimtab.integrations.flows`: velocity models by Euler, Heun or RK4, or by torchdiffeq in segments;
- `trimtab.integrations.manifolds`: flow_matching and geoopt manifolds as constraints;
- `trimtab.integrations.independence`: is a sample's result really its own?
- `trimtab.integrations.loggers`: numbers of each step for TensorBoard, Weights & Biases, MLflow.
"""

__all__ = [
    "azula",
    "diffrax",
    "diffusers",
    "flow_matching",
    "flows",
    "independence",
    "jax",
    "loggers",
    "loops",
    "manifolds",
    "torchdiffeq",
]
