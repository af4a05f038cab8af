"""Samplers of other libraries, each driven by the same `Corrector`; modules are imported when they are used.

- `flows`: velocity models as samplers
- `diffusers`: `wrap` a pipeline or scheduler, `ProjectionCallback`
- `azula`: `wrap` any sampler; `torchdiffeq`: `odeint`; `flow_matching`: `ProjectedODESolver`
- `diffrax`: `diffeqsolve`; `jax`: decisions inside `jit`
- `manifolds`: manifolds of flow_matching and geoopt as constraints
- `independence`: check that samples do not influence each other
- `loggers`: log each step to TensorBoard, Weights & Biases or MLflow
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
