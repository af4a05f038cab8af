"""The error of a multistep solver with and without a restart after each projection.

The data is a Gaussian, for which the noise that a perfect model predicts and the exact solution between two timesteps
are known. The exact run projects after the same steps, so only the solver's error is left.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

import trimtab as tt
from _compare import Ratio, row, skipped

SPREADS = torch.tensor([0.1, 0.3, 1.0, 2.0])
MEAN = torch.tensor([0.5, -1.0, 0.0, 1.5])
REACH, STEPS, SAMPLES = 0.6, 25, 64
SOLVERS = ("DPMSolverMultistepScheduler", "UniPCMultistepScheduler", "DEISMultistepScheduler", "PNDMScheduler")


def noise_at(x: Tensor, signal: Tensor) -> Tensor:
    """Return the noise that a perfect model predicts at signal level alpha squared."""
    return (1 - signal).sqrt() * (x - signal.sqrt() * MEAN) / (signal * SPREADS**2 + 1 - signal)


def exact_step(x: Tensor, signal: Tensor, after: Tensor) -> Tensor:
    """Follow the probability flow from one signal level to another."""
    spread, later = ((s * SPREADS**2 + 1 - s).sqrt() for s in (signal, after))
    return after.sqrt() * MEAN + later / spread * (x - signal.sqrt() * MEAN)


def ratio_of_means(a: Tensor, b: Tensor) -> Ratio:
    """Return the ratio with a bootstrap interval over samples: a few samples are changed much, most hardly."""
    rows = torch.randint(len(a), (2000, len(a)), generator=torch.Generator().manual_seed(0))
    drawn = a[rows].mean(dim=1) / b[rows].mean(dim=1)
    low, high = torch.quantile(drawn, torch.tensor([0.025, 0.975])).tolist()
    return Ratio(float(a.mean() / b.mean()), low, high)


def run(quick: bool) -> list[dict[str, Any]]:
    claim = "solver error with a stale history, over the error with a restart"
    try:
        import diffusers

        from trimtab.integrations.diffusers import wrap
        from trimtab.integrations.diffusers_schedulers import step_ends
    except ImportError as error:
        return [skipped(claim, "history='restart'", str(error))]

    box = tt.as_constraint(
        lambda x: x.clamp(-REACH, REACH), lambda x: (x.abs() - REACH).clamp(min=0).flatten(1).amax(dim=1)
    )

    def final(name: str, history: str | None, schedule: Any) -> Tensor:
        """Return the final states of a solver, or of the exact solution if history is None."""
        more = {"skip_prk_steps": True} if name == "PNDMScheduler" else {}
        plain = getattr(diffusers, name)(**more)
        plain.set_timesteps(STEPS)
        ends, signals = step_ends(plain), plain.alphas_cumprod
        x = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(0))
        if history is not None:
            scheduler = wrap(plain, box, schedule, history=history)
            scheduler.set_timesteps(STEPS)
            for t in scheduler.timesteps:
                x = scheduler.step(noise_at(x, signals[t]), t, x).prev_sample
            return x
        corrector = tt.Corrector(box, schedule, sum(ends))
        visited = list(dict.fromkeys(plain.timesteps.tolist()))  # PNDM visits its second timestep twice
        if name == "PNDMScheduler":
            visited.append(visited[-1] - plain.config.num_train_timesteps // STEPS)
            after = [signals[t] if t >= 0 else plain.final_alpha_cumprod for t in visited[1:]]
        else:
            after = [*(signals[t] for t in visited[1:]), torch.ones(())]
        for t, later in zip(visited, after, strict=False):
            x = corrector(exact_step(x, signals[t], later))
        return x

    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in SOLVERS[: 1 if quick else None]:
            for budget in (0.12, 0.25, 0.5):
                schedule = tt.Periodic(budget)
                truth = final(name, None, schedule)
                keep, restart = ((final(name, h, schedule) - truth).norm(dim=1) for h in ("keep", "restart"))
                inputs = (
                    f"{name}, T = {STEPS}, budget {budget}, {SAMPLES} samples; mean error "
                    f"{float(keep.mean()):.2g} kept, {float(restart.mean()):.2g} restarted; ratio of medians "
                    f"{float(keep.median() / restart.median()):.2g}"
                )
                rows.append(row(claim, "history='restart'", ratio_of_means(keep, restart), "", inputs))
    return rows
