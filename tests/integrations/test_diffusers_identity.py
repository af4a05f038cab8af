"""A wrapped scheduler stays what it was: its class, its config, its copies."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch

import trimtab as tt
from diffusers_cases import SCHEDULERS, box, diffusers, generate, quiet, run_alone, unet
from trimtab.integrations.diffusers import unwrap, wrap

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:__array:DeprecationWarning"),
]  # diffusers with numpy 2


@pytest.mark.parametrize("name", SCHEDULERS)
def test_class_identity(name, tmp_path):
    plain = SCHEDULERS[name]()
    wrapped = wrap(plain, box(), tt.Stepwise())
    cls = type(plain)
    assert isinstance(wrapped, cls)
    assert (type(wrapped).__name__, type(wrapped).__module__) == (cls.__name__, cls.__module__)
    assert wrapped.config == plain.config
    for method in ("step", "set_timesteps"):
        assert inspect.signature(getattr(wrapped, method)) == inspect.signature(getattr(plain, method))
    wrapped.save_pretrained(tmp_path / "wrapped")
    plain.save_pretrained(tmp_path / "plain")
    file = "scheduler_config.json"
    assert (tmp_path / "wrapped" / file).read_text() == (tmp_path / "plain" / file).read_text()
    assert type(cls.from_pretrained(tmp_path / "wrapped")) is cls
    assert type(unwrap(wrapped)) is cls
    assert "_trimtab_hook" not in vars(plain)


def test_a_wrapped_pipeline_saves_and_loads_as_the_plain_one(stable, tmp_path):
    wrap(stable, box(), tt.Stepwise())
    generate(stable)
    stable.save_pretrained(tmp_path)
    loaded = quiet(diffusers.StableDiffusionPipeline.from_pretrained(tmp_path, text_encoder=None, tokenizer=None))
    assert type(loaded.scheduler) is diffusers.DDIMScheduler
    assert torch.equal(generate(loaded), generate(unwrap(stable)))


def test_a_copy_made_in_mid_run_goes_on_by_itself():
    constraint = box()
    scheduler = wrap(SCHEDULERS["Euler"](), constraint, tt.Periodic(2))
    x = run_alone(scheduler, calls=3)
    twin = copy.deepcopy(scheduler)
    assert twin._trimtab_hook.corrector.constraint is constraint
    final = run_alone(twin, x)
    assert torch.equal(twin.rollout.final, final)
    assert torch.equal(run_alone(scheduler, x), final)
    assert scheduler.rollout.spent.tolist() == [2, 2, 2]


def test_rebuilt_from_its_config_a_scheduler_still_projects():
    scheduler = wrap(SCHEDULERS["Euler"](), box(), tt.Stepwise())
    run_alone(scheduler)
    again = type(scheduler).from_config(scheduler.config)
    assert run_alone(again).abs().max() <= 0.5
    assert again.rollout.spent.tolist() == [5, 5, 5]


def test_a_pipeline_that_rebuilds_a_plain_scheduler_is_found_out():
    scheduler = wrap(SCHEDULERS["DDIM"](), box(), tt.Stepwise())
    pipe = quiet(diffusers.DDIMPipeline(unet(), scheduler))
    pipe(num_inference_steps=2, generator=torch.Generator().manual_seed(0), output_type="np")
    with pytest.raises(RuntimeError, match="Wrap the pipeline after it is built"):
        _ = scheduler.rollout


def test_wrapping_again_replaces_and_runs_do_not_leak_into_each_other(stable):
    wrap(stable, box(0.1), tt.Stepwise())
    generate(stable)
    wrap(stable, box(), tt.Periodic(3))
    first = generate(stable)
    assert torch.equal(generate(stable), first)
    assert stable.scheduler.rollout.spent.tolist() == [3] * 4
    generate(stable, steps=4)
    assert stable.scheduler.rollout.n_steps == 4
    assert type(unwrap(stable).scheduler) is diffusers.DDIMScheduler


def test_a_run_that_stops_early_is_reported():
    scheduler = wrap(SCHEDULERS["Euler"](), box(), tt.Stepwise())
    run_alone(scheduler, calls=3)
    with pytest.warns(RuntimeWarning, match="stopped after 3 of 5 calls"):
        scheduler.set_timesteps(5)
