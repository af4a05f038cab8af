"""Every scheduler class of the installed diffusers, bare and wrapped, through the ways its own tests use one.

With a constraint that changes nothing, a wrapped scheduler must do, bit for bit, what the bare one does wherever that
works at all. What cannot be served is refused by name, when wrapping.
"""

from __future__ import annotations

import copy
import inspect
import warnings

import pytest
import torch

import trimtab as tt

diffusers = pytest.importorskip("diffusers", reason="needs the diffusers extra")
from diffusers import schedulers  # noqa: E402
from diffusers.utils import logging  # noqa: E402

from trimtab.integrations.diffusers import wrap  # noqa: E402

pytestmark = pytest.mark.slow

logging.set_verbosity_error()  # remarks on settings
NOWHERE = tt.as_constraint(lambda x: x, lambda x: torch.zeros(len(x), dtype=x.dtype))
TOKENS = {
    "AmusedScheduler",
    "BlockRefinementScheduler",
    "DiscreteDDIMScheduler",
    "EntropyBoundScheduler",
    "VQDiffusionScheduler",
}
OTHERWISE_REFUSED = {
    "KarrasVeScheduler": "needs 2 calls per step",
    "RePaintScheduler": "also goes backwards",
    "ScoreSdeVeScheduler": "has no step",
    "ScoreSdeVpScheduler": "has no step",
}
CONFIGS = {
    "AmusedScheduler": {"mask_token_id": 9},
    "VQDiffusionScheduler": {"num_vec_classes": 9},
    "RFD4ProteinaScheduler": {
        "schedule_mode": "log",
        "noise_mode": "1/t",
        "tsr_k": 2.0,
        "tsr_sigma": 1.0,
        "tail_steps": 0,
    },
}
CLASSES = sorted(name for name in dir(schedulers) if name.endswith("Scheduler") and name[0].isupper())


def make(name):
    """A scheduler by its class's name, or a skip where it needs something that is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated classes say so
        try:
            return getattr(schedulers, name)(**CONFIGS.get(name, {}))
        except ImportError as error:
            pytest.skip(str(error).strip())


# ------------------------------------------------------------------ one call, and how tests use a scheduler


def start(scheduler, event=(3, 8, 8), dtype=torch.float32):
    if type(scheduler).__name__ == "RFD4ProteinaScheduler":
        event = (5, 3)  # it takes no others
    return torch.rand(4, *event, generator=torch.Generator().manual_seed(0)).to(dtype)


def call(scheduler, x, t, *, return_dict=True):
    """One step with a toy model, and whatever else this scheduler's `step` wants."""
    output = 0.1 * (scheduler.scale_model_input(x, t) if hasattr(scheduler, "scale_model_input") else x)
    wanted = inspect.signature(scheduler.step).parameters
    more = {"return_dict": return_dict} if "return_dict" in wanted else {}
    if "generator" in wanted:
        more["generator"] = torch.Generator().manual_seed(1)
        if "emit_mask" in wanted:
            more["generator"] = [torch.Generator().manual_seed(i) for i in range(len(x))]
    if "emit_mask" in wanted:
        more["emit_mask"] = torch.ones(x.shape[:2], dtype=torch.bool)
    if "old_pred_original_sample" in wanted:
        more |= {"old_pred_original_sample": None, "timestep_back": None}
    if type(scheduler).__name__ == "PiflowScheduler":
        output = output.repeat(*[1] * (x.ndim - 1), scheduler.n_grid)
    if "dmd_sigmas" in wanted:
        where = (scheduler.timesteps == t).nonzero().flatten().tolist()
        more |= {"cur_sampling_step": where[0] if where else 0, "dmd_noisy_tensor": 0.3 * torch.ones_like(x)}
        more |= {"dmd_sigmas": scheduler.sigmas, "dmd_timesteps": scheduler.timesteps}
        more |= {"all_timesteps": scheduler.timesteps}
    if type(scheduler).__name__ == "DDPMWuerstchenScheduler":
        t = torch.as_tensor(t).expand(len(x))
    answer = scheduler.step(model_output=output, timestep=t, sample=x, **more)
    return answer[0] if isinstance(answer, tuple) else answer.prev_sample


def loop(scheduler, x, timesteps=None, **more):
    for t in times(scheduler) if timesteps is None else timesteps:
        x = call(scheduler, x, t, **more)
    return x


def times(scheduler):
    """The timesteps at which a pipeline calls `step`: two schedulers name the end of the run as well."""
    ends = type(scheduler).__name__ in ("SCMScheduler", "DDPMWuerstchenScheduler")
    return scheduler.timesteps[:-1] if ends else scheduler.timesteps


def set_timesteps(scheduler, n, **more):
    if type(scheduler).__name__ == "ConsistencyDecoderScheduler":
        n = 2  # it knows no other number
    if "stage_index" in inspect.signature(scheduler.set_timesteps).parameters:
        more |= {"stage_index": 0}
    if "intermediate_timesteps" in inspect.signature(scheduler.set_timesteps).parameters:
        more |= {"intermediate_timesteps": None}
    scheduler.set_timesteps(n, **more)


def full_loop(scheduler):
    set_timesteps(scheduler, 10)
    return loop(scheduler, start(scheduler))


def flat_states(scheduler):
    set_timesteps(scheduler, 10)
    return loop(scheduler, start(scheduler, (5, 3)))


def half_precision(scheduler):
    set_timesteps(scheduler, 10)
    return loop(scheduler, start(scheduler, dtype=torch.bfloat16))


def again(scheduler):
    full_loop(scheduler)
    return full_loop(scheduler)


def again_with_other_steps(scheduler):
    full_loop(scheduler)
    set_timesteps(scheduler, 5)
    return loop(scheduler, start(scheduler))


def again_without_setting_up(scheduler):
    full_loop(scheduler)
    return loop(scheduler, start(scheduler))


def tuples(scheduler):
    set_timesteps(scheduler, 10)
    return loop(scheduler, start(scheduler), return_dict=False)


def two_steps_in_the_middle(scheduler):
    set_timesteps(scheduler, 10)
    return loop(scheduler, start(scheduler), times(scheduler)[5:7])


def from_the_middle(scheduler):
    set_timesteps(scheduler, 10)
    return loop(scheduler, start(scheduler), times(scheduler)[4:])


def from_a_begin_index(scheduler):
    set_timesteps(scheduler, 10)
    scheduler.set_begin_index(4)
    return loop(scheduler, start(scheduler), times(scheduler)[4:])


def out_of_order(scheduler):
    set_timesteps(scheduler, 10)
    return loop(scheduler, start(scheduler), times(scheduler)[[3, 7, 5]])


def outside(scheduler):
    set_timesteps(scheduler, 10)
    return loop(scheduler, start(scheduler), [0, 1, 7])


def outside_then_a_run(scheduler):
    set_timesteps(scheduler, 10)
    first = call(scheduler, start(scheduler), 3)
    return first + loop(scheduler, start(scheduler))


def without_set_timesteps(scheduler):
    return loop(scheduler, start(scheduler), [1, 0])


def own_timesteps(scheduler):
    scheduler.set_timesteps(timesteps=[900, 500, 300, 100, 0])
    return loop(scheduler, start(scheduler))


def stopped_and_begun_anew(scheduler):
    set_timesteps(scheduler, 10)
    loop(scheduler, start(scheduler), times(scheduler)[:4])
    return full_loop(scheduler)


def copied_in_mid_run(scheduler):
    set_timesteps(scheduler, 10)
    x = loop(scheduler, start(scheduler), times(scheduler)[:4])
    return loop(copy.deepcopy(scheduler), x, times(scheduler)[4:])


def rebuilt_from_its_config(scheduler):
    return full_loop(type(scheduler).from_config(scheduler.config))


WAYS = [
    full_loop,
    flat_states,
    half_precision,
    again,
    again_with_other_steps,
    again_without_setting_up,
    tuples,
    two_steps_in_the_middle,
    from_the_middle,
    from_a_begin_index,
    out_of_order,
    outside,
    outside_then_a_run,
    without_set_timesteps,
    own_timesteps,
    stopped_and_begun_anew,
    copied_in_mid_run,
    rebuilt_from_its_config,
]


def outcome(way, scheduler):
    """The states a way ends with, or the error it ends in; what is not finite is no result to compare."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            x = way(scheduler)
        except Exception as error:
            return error
    return x if bool(x.isfinite().all()) else ValueError("not finite")


def counts(name):
    """How many ways work bare, and how many of them give the same wrapped; which do not, and why."""
    bare, same, other = 0, 0, {}
    for way in WAYS:
        expected = outcome(way, make(name))
        if isinstance(expected, Exception):
            continue
        bare += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wrapped = wrap(make(name), NOWHERE, tt.Stepwise())
        got = outcome(way, wrapped)
        if isinstance(got, torch.Tensor) and got.dtype == expected.dtype and torch.equal(got, expected):
            same += 1
        else:
            other[way.__name__] = got if isinstance(got, Exception) else "other states"
    return bare, same, other


@pytest.mark.parametrize("name", [name for name in CLASSES if name not in TOKENS | set(OTHERWISE_REFUSED)])
def test_a_wrapped_scheduler_does_what_the_bare_one_does(name):
    bare, same, other = counts(name)
    assert not other
    assert bare == same >= 3  # a harness in which nothing works bare would show nothing


@pytest.mark.parametrize("name", [name for name in CLASSES if name not in TOKENS | set(OTHERWISE_REFUSED)])
def test_a_whole_run_is_a_whole_record(name):
    """As many calls as a pipeline makes end a run, and its result is feasible."""
    box = tt.as_constraint(lambda x: x.clamp(-0.2, 0.2), lambda x: (x.abs() - 0.2).clamp(min=0).flatten(1).amax(dim=1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scheduler = wrap(make(name), box, tt.Terminal())
        x = full_loop(scheduler)
    assert float(x.abs().max()) <= 0.2 + 1e-6
    assert torch.equal(scheduler.rollout.final, x)


@pytest.mark.parametrize("name", sorted(TOKENS & set(CLASSES)))
def test_schedulers_of_tokens_are_refused_by_name(name):
    with pytest.raises(ValueError, match=f"{name} steps integer tokens"):
        wrap(make(name), NOWHERE, tt.Stepwise())


@pytest.mark.parametrize("name", sorted(set(OTHERWISE_REFUSED) & set(CLASSES)))
def test_what_cannot_be_counted_ahead_is_refused_by_name(name):
    try:
        scheduler = make(name)
    except Exception as error:  # a class that cannot even be made
        pytest.skip(f"{name}: {error}")
    with pytest.raises(ValueError, match=f"{name} {OTHERWISE_REFUSED[name]}"):
        wrap(scheduler, NOWHERE, tt.Stepwise())


if __name__ == "__main__":
    total = [0, 0]
    for name in CLASSES:
        if name in TOKENS | set(OTHERWISE_REFUSED):
            print(f"{name:40} refused when wrapping")
            continue
        try:
            bare, same, other = counts(name)
        except pytest.skip.Exception as reason:
            print(f"{name:40} skipped: {reason}")
            continue
        total = [total[0] + bare, total[1] + same]
        print(f"{name:40} {bare:3} of {len(WAYS)} bare, {same:3} wrapped", other or "")
    print(f"{total[1]} of {total[0]} pass wrapped where they pass bare")
