"""Which calls of a scheduler end a step."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch

from diffusers_cases import SCHEDULERS, generator_for
from trimtab.integrations.diffusers_schedulers import first_call, step_ends, undoes

pytestmark = pytest.mark.filterwarnings("ignore:__array:DeprecationWarning")  # diffusers with numpy 2


@pytest.mark.parametrize("name", [s for s in SCHEDULERS if s not in ("UniPC", "SASolver")])
def test_a_call_ends_a_step_if_the_solver_goes_on_from_the_state_it_returned(name):
    prediction = {"prediction_type": "sample"} if name == "DPMSolverSinglestep" else {}
    scheduler = SCHEDULERS[name](**prediction)
    scheduler.set_timesteps(20 if name == "PNDM-prk" else 7)
    x, output = torch.zeros(1, 1, 2, 2), torch.full((1, 1, 2, 2), 0.3)  # the model output is the same everywhere
    ends = None
    for call, t in enumerate(scheduler.timesteps):
        scheduler.scale_model_input(x, t) if hasattr(scheduler, "scale_model_input") else None
        if ends is None:
            ends = step_ends(scheduler, first_call(scheduler, t))
        else:
            moved, still = copy.deepcopy(scheduler), copy.deepcopy(scheduler)
            seeded = (
                {"generator": torch.Generator().manual_seed(0)}
                if "generator" in inspect.signature(scheduler.step).parameters
                else {}
            )
            away = moved.step(output, t, x + 1, **copy.deepcopy(seeded)).prev_sample
            here = still.step(output, t, x, **copy.deepcopy(seeded)).prev_sample
            # a sample-predicting last step to sigma 0 forgets its state altogether
            if not (prediction and call == len(scheduler.timesteps) - 1):
                assert ends[call - 1] == (not torch.allclose(away, here, atol=1e-4)), (name, call)
        x = scheduler.step(output, t, x).prev_sample
    assert len(ends) == len(scheduler.timesteps)
    assert ends[-1]
    assert sum(ends) == {"PNDM-prk": 20, "DPMSolverSinglestep": 4}.get(name, 7)


@pytest.mark.parametrize("name", ["UniPC", "SASolver"])
def test_some_solvers_recompute_the_state_they_are_given(name):
    scheduler = SCHEDULERS[name](prediction_type="sample")
    assert undoes(scheduler)
    scheduler.set_timesteps(7)
    x = output = torch.full((1, 1, 2, 2), 0.3)
    for t in scheduler.timesteps[:3]:
        x = scheduler.step(output, t, x, **generator_for(scheduler)).prev_sample
    t, moved = scheduler.timesteps[3], copy.deepcopy(scheduler)
    away = moved.step(output, t, x + 1, **generator_for(scheduler)).prev_sample
    assert torch.allclose(away, scheduler.step(output, t, x, **generator_for(scheduler)).prev_sample, atol=1e-5)
