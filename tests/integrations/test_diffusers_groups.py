"""Images that belong together: one decision, one budget and one projection call for the images of a prompt."""

from __future__ import annotations

import pytest
import torch

import trimtab as tt
from diffusers_cases import MULTISTEP, SCHEDULERS, STEPS, generate, stable_pipeline
from trimtab.core.groups import Groups
from trimtab.integrations.diffusers import ProjectionCallback, pipeline_sampler, wrap
from trimtab.schedules import FixedThreshold

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:__array:DeprecationWarning"),
]  # diffusers with numpy 2

OFFSET = {name: {"steps_offset": 1} for name in SCHEDULERS if not name.startswith(("DDIM", "PNDM"))}
GROUPS = torch.tensor([0, 0, 1, 1])  # two images for each of two prompts, next to each other


def mean(x):
    return x.flatten(1).mean(dim=1)


class SameMean(tt.Constraint):
    """The two images of a pair have the same mean; rows come in whole pairs."""

    def __init__(self):
        self.calls = []

    def project(self, x):
        self.calls.append(len(x))
        pairs = mean(x).reshape(-1, 2)
        shift = (pairs.mean(dim=1, keepdim=True) - pairs).flatten()
        return x + shift.reshape(-1, *([1] * (x.ndim - 1)))

    def defect(self, x):
        pairs = mean(x).reshape(-1, 2)
        return (pairs[:, 1] - pairs[:, 0]).abs().repeat_interleave(2) / 2

    def take(self, rows):
        return self


def apart(x):
    return SameMean().defect(x)


WAYS = [
    (name, way)
    for name in ("DDIM", "EulerAncestral", "Heun", "DPMSolverMultistep", "UniPC")
    for way in ("state", "clean", "callback")
    if (name, way) != ("Heun", "clean")  # which is refused: not every call ends a step
]


@pytest.mark.parametrize(("name", "way"), WAYS)
def test_images_of_a_prompt_are_decided_on_and_projected_together(name, way):
    pipe, constraint = stable_pipeline(scheduler=SCHEDULERS[name](**OFFSET.get(name, {}))), SameMean()
    plain = apart(generate(stable_pipeline(scheduler=SCHEDULERS[name](**OFFSET.get(name, {})))))
    schedule = FixedThreshold(float(plain.median()) / 4, 3)
    if way == "callback":
        callback = ProjectionCallback(constraint, schedule, groups=GROUPS)
        final = generate(pipe, callback_on_step_end=callback)
        run = callback.rollout
    else:
        wrap(pipe, constraint, schedule, target=way, groups=GROUPS)
        final = generate(pipe)
        run = pipe.scheduler.rollout
    assert run.projected.shape == (STEPS, 4)
    pairs = run.projected.reshape(STEPS, 2, 2)
    assert torch.equal(pairs[..., 0], pairs[..., 1])
    assert (run.spent <= 3).all()
    assert run.spent.sum() > 4  # more than the closing projections alone
    assert all(rows in (2, 4) for rows in constraint.calls)
    assert (apart(final) < 1e-5).all()
    assert (plain > 1e-3).all()


@pytest.mark.parametrize("name", [name for name in MULTISTEP if name not in ("IPNDM", "PNDM-prk")])
def test_a_history_is_forgotten_by_whole_groups(name):
    pipe = stable_pipeline(scheduler=SCHEDULERS[name](**OFFSET.get(name, {})))
    wrap(pipe, SameMean(), lambda view: view.defect > 0.02, history="restart", groups=GROUPS)
    assert (apart(generate(pipe)) < 1e-5).all()


def test_the_defect_of_a_group_may_be_the_largest_and_rows_may_be_spread():
    spread = torch.tensor([1, 0, 1, 0])
    seen = []

    def watch(view):
        seen.append(view.defect.clone())
        return view.defect > 1e9

    norms = tt.as_constraint(lambda x: x, lambda x: x.flatten(1).norm(dim=1))
    pipe = wrap(stable_pipeline(), norms, watch, groups=Groups(spread, "largest"), closing="none")
    final = generate(pipe)
    assert {len(defect) for defect in seen} == {2}  # one number per group
    assert torch.allclose(seen[-1][0], final[[1, 3]].flatten(1).norm(dim=1).max())
    assert not pipe.scheduler.rollout.projected.any()


def test_groups_that_do_not_fit_the_batch_are_refused():
    with pytest.raises(ValueError, match="3 group labels were given for a batch of 4"):
        generate(wrap(stable_pipeline(), SameMean(), tt.Periodic(3), groups=torch.tensor([0, 0, 1])))
    with pytest.raises(TypeError, match="one label per row"):
        wrap(stable_pipeline(), SameMean(), tt.Periodic(3), groups=["a", "b"])


def test_a_pipeline_with_groups_can_be_calibrated():
    pipe = stable_pipeline()
    embeds = torch.randn(8, 4, 8, generator=torch.Generator().manual_seed(5))

    def call(pipe, generators):
        n = len(generators)
        with torch.no_grad():
            return pipe(
                prompt_embeds=embeds[torch.arange(n) % 8],
                negative_prompt_embeds=torch.zeros_like(embeds[torch.arange(n) % 8]),
                num_inference_steps=STEPS,
                output_type="latent",
                height=8,
                width=8,
                generator=generators,
            )

    sampler = pipeline_sampler(pipe, call, STEPS)
    problem = tt.Problem(sampler, SameMean(), range(16), groups=torch.arange(16) // 2)
    price = tt.calibrate(problem, method="dp", objective="path")
    run = tt.Problem(sampler, SameMean(), range(100, 104), groups=GROUPS).rollout(price.at(3))
    assert run.spent.reshape(2, 2).float().std(dim=1).tolist() == [0.0, 0.0]
    assert (apart(run.final) < 1e-5).all()
