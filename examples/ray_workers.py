"""Ray workers that sample with the same prices and learn as one.

In each round every worker starts with what all of them know, draws a batch, and returns its learner. The merged learner
starts the next round. Nothing else is shared: a learner is a small value that can be pickled.

Run it: `python examples/ray_workers.py` (it needs ray: pip install 'trimtab[ray]')
"""

from __future__ import annotations

import ray
import torch

import trimtab as tt

STEPS, BATCH, WORKERS, ROUNDS = 40, 16, 4, 4


@ray.remote
def draw(learner: tt.prices.Learner, seed: int) -> tuple[torch.Tensor, tt.prices.Learner]:
    """Draw a batch; return its final samples, (n, 2), and what was learned."""
    ball = tt.as_constraint(
        lambda x: x / x.norm(dim=1, keepdim=True).clamp(min=1), lambda x: (x.norm(dim=1) - 1).clamp(min=0)
    )
    generator = torch.Generator().manual_seed(seed)
    corrector = tt.Corrector(ball, learner, n_steps=STEPS)
    x = torch.zeros(BATCH, 2)
    for t in range(STEPS):
        x = corrector(0.98 * x + 0.3 * torch.randn(BATCH, 2, generator=generator), t)
    return x, learner


def main() -> None:
    """Serve a few rounds of batches."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    learner = tt.prices.Learner(0.25)
    for k in range(ROUNDS):
        seeds = range(WORKERS * k, WORKERS * k + WORKERS)
        answers = ray.get([draw.remote(learner.worker(seed), seed) for seed in seeds])
        first, *others = (worker for _, worker in answers)
        learner = first.merge(others)
        drawn = torch.cat([x for x, _ in answers])
        print(f"round {k}: {len(drawn)} samples drawn, {learner.samples} learned from, next: {learner.report().in_use}")
    print(learner.report())
    ray.shutdown()


if __name__ == "__main__":
    main()
