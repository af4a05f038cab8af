"""Train a network that sees the constraint of each sample, as a scheduled run would show it.

A sampler that never saw the constraint of a sample has to be moved by projections. A network can be told instead: the
gradient of the defect at its last clean prediction says how that prediction violates the constraint of this sample.
The inputs are added by a layer whose weights start at 0, so training starts from the model as it is.

    def inputs(clean):                                     # of the network, besides the noisy state and its time
        return torch.cat([clean, defect_gradient(clean, constraint)], dim=1)

    def predict(back, clean):                              # of your model, `back` steps of the sampler earlier
        return network.clean(*noisy(back), None if clean is None else inputs(clean))

    clean = scheduled_prediction(predict, constraint, 0.1, generator=generator)
    loss = (network(*noisy(0), inputs(clean)) - target).square().mean()

`examples/train_informed.py` has all of it; `fit` is a loop that can be stopped and continued.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.core.arrays import rowwise
from trimtab.core.checks import check_callable, check_integer, check_number, check_type
from trimtab.core.constraint import Constraint, Projection, check_constraint
from trimtab.core.files import as_path, load_tensors, save_tensors

__all__ = ["defect_gradient", "fit", "scheduled_prediction"]

# ------------------------------------------------------------------ what the network is told


def defect_gradient(clean: Tensor, constraint: Constraint) -> Tensor:
    r"""Return the gradient of half the squared defect, (n, \*event), which is 0 where the defect is 0.

    It costs no projection. The defect must be differentiable.

    Args:
        clean: Clean predictions in the units of the constraint, (n, \*event). Gradients do not flow back through them.
        constraint: Of these samples. If its defect is a mean over many numbers, multiply the gradient by their number,
            so that the network sees values of order one.

    Example:
        >>> from trimtab import as_constraint
        >>> sphere = as_constraint(lambda x: x / x.norm(dim=1, keepdim=True), lambda x: (x.norm(dim=1) - 1).abs())
        >>> defect_gradient(torch.tensor([[3.0, 4.0], [0.6, 0.8]]), sphere)
        tensor([[2.4000, 3.2000],
                [0.0000, 0.0000]])
    """
    check_constraint(constraint)
    with torch.enable_grad():
        x = check_type(clean, Tensor, "clean").detach().requires_grad_()
        defect = constraint.defect(x)
        if not defect.requires_grad:
            raise TypeError(
                f"the defect of {type(constraint).__name__} has no gradient: give one in torch operations, as in "
                "trimtab.as_constraint(project, defect)"
            )
        (gradient,) = torch.autograd.grad(defect.square().sum() / 2, x)
    return torch.where(rowwise(defect.detach() > 0, gradient), gradient, 0)


@torch.no_grad()
def scheduled_prediction(
    predict: Callable[[int, Tensor | None], Tensor],
    constraint: Constraint,
    share: float,
    *,
    steps: int = 3,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Return clean predictions as a scheduled run holds them before its next step, (n, \*event).

    A few steps in a row are predicted, and each sample is projected at even spacing, with a phase of its own.

    Args:
        predict: `predict(back, clean)` returns the clean predictions, (n, \*event), `back` steps before the states that
            are trained on, for back = steps, …, 1. `clean` is what the step before held, and None at the first.
        constraint: Of these samples.
        share: Projections as a share of steps, in (0, 1].
        steps: Number of steps. With one, the network never sees what its own inputs lead to, and is worse.
        generator: Draws the phases.
    """
    check_callable(predict, "predict", "predict(back, clean)")
    check_constraint(constraint)
    check_integer(steps, "steps")
    spacing = round(1 / check_number(share, "share", 1e-6, 1))
    clean, phase = None, None
    for back in range(steps, 0, -1):
        clean = predict(back, clean).clone()
        if phase is None:
            phase = torch.randint(spacing, (len(clean),), generator=generator).to(clean.device)
        rows = (phase == back % spacing).nonzero().squeeze(1)
        if len(rows):
            answer = constraint.take(rows).project(clean[rows])
            clean[rows] = answer.x if isinstance(answer, Projection) else answer
    assert clean is not None
    return clean


# ------------------------------------------------------------------ the loop


def fit(
    network: nn.Module,
    averaged: nn.Module,
    loss: Callable[[int], Tensor],
    rate: Callable[[int], float],
    checkpoint: str | Path,
    recipe: Mapping[str, Any],
    *,
    steps: int,
    average: float,
    weight_decay: float = 0.0,
    every: int = 250,
    progress: Callable[[str], None] = print,
    also: Callable[[], str] = lambda: "",
) -> None:
    """Train a network, and let `averaged` follow its weights; continue from the checkpoint if there is one.

    Args:
        network: The network to train, by AdamW.
        averaged: A copy with the same initial weights; its weights are the ones to keep.
        loss: `loss(step)` returns the loss of the network on the batch of a step. If it depends on the step only, a
            training that was stopped ends with the same weights.
        rate: `rate(step)` returns the learning rate.
        checkpoint: The file to continue from. It is also there at the end; the caller may remove it.
        recipe: All that the weights depend on, as JSON. A checkpoint with another recipe raises an error.
        steps: The number of optimiser steps.
        average: How slowly `averaged` follows, below 1.
        weight_decay: The weight decay.
        every: The number of steps between checkpoints, and between lines of progress.
        progress: Called with a line of text.
        also: Returns more text for that line.
    """
    check_type(network, nn.Module, "network")
    check_type(averaged, nn.Module, "averaged").requires_grad_(False)
    check_callable(loss, "loss", "loss(step)")
    check_callable(rate, "rate", "rate(step)")
    check_integer(steps, "steps")
    check_integer(every, "every")
    check_number(average, "average", 0, 1)
    checkpoint = as_path(checkpoint)
    optimiser = torch.optim.AdamW(network.parameters(), betas=(0.9, 0.99), weight_decay=weight_decay)
    first = 0
    if checkpoint.exists():
        first = _restore(checkpoint, recipe, network, averaged, optimiser)
        progress(f"continuing from {checkpoint} at step {first}")
    started, losses = perf_counter(), []
    for step in range(first, steps):
        for group in optimiser.param_groups:
            group["lr"] = rate(step)
        optimiser.zero_grad()
        value = loss(step)
        torch.autograd.backward(value)
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        keep = min(average, (step + 1) / (step + 10))
        with torch.no_grad():
            for mean, parameter in zip(averaged.parameters(), network.parameters(), strict=True):
                mean.lerp_(parameter, 1 - keep)
        losses.append(float(value.detach()))
        done = step + 1
        if done % every == 0 or done == steps:
            _save(checkpoint, recipe, network, averaged, optimiser, done)
            left = (perf_counter() - started) / (done - first) * (steps - done) / 60
            progress(f"step {done}/{steps}  loss {sum(losses) / len(losses):.4f}  {also()}{left:.1f} min left")
            losses = []


_KIND = "training"


def _save(
    path: Path, recipe: Mapping[str, Any], network: nn.Module, averaged: nn.Module, optimiser: Any, done: int
) -> None:
    tensors = {f"network/{name}": value for name, value in network.state_dict().items()}
    tensors |= {f"averaged/{name}": value for name, value in averaged.state_dict().items()}
    for i, state in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser/{i}/{name}": value for name, value in state.items()}
    save_tensors(path, _KIND, tensors, {"recipe": dict(recipe), "done": done})


def _restore(path: Path, recipe: Mapping[str, Any], network: nn.Module, averaged: nn.Module, optimiser: Any) -> int:
    """Load a checkpoint and return the number of steps it has done."""
    tensors, facts = load_tensors(path, _KIND)
    if facts.get("recipe") != dict(recipe):
        raise ValueError(
            f"{path} belongs to another training ({facts.get('recipe')}, now {dict(recipe)}); "
            "give the same settings to continue, or delete the file or use another folder to start again"
        )
    states: dict[int, dict[str, Tensor]] = {}
    parts: dict[str, dict[str, Tensor]] = {"network": {}, "averaged": {}}
    for key, tensor in tensors.items():
        part, _, name = key.partition("/")
        if part == "optimiser":
            index, _, name = name.partition("/")
            states.setdefault(int(index), {})[name] = tensor
        else:
            parts[part][name] = tensor
    network.load_state_dict(parts["network"])
    averaged.load_state_dict(parts["averaged"])
    optimiser.load_state_dict({"state": states, "param_groups": optimiser.state_dict()["param_groups"]})
    return int(facts["done"])
