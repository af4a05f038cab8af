"""azula's own samplers, against azula's own loops with the corrector's line written into them."""

from __future__ import annotations

import inspect
import textwrap

import pytest
import torch

import free
import trimtab as tt
from cases import Ball, Sphere

azula_sample = pytest.importorskip("azula.sample", reason="needs the azula extra")
from azula.denoise import GaussianDenoiser  # noqa: E402
from azula.linalg.covariance import IsotropicCovariance  # noqa: E402
from azula.noise import VPSchedule  # noqa: E402

from trimtab.integrations.azula import wrap  # noqa: E402

SAMPLERS = [name for name in azula_sample.__all__ if name != "Sampler"]
T = 10


def make(name, **more):
    mean = torch.tensor([0.6, -0.2, 0.1], dtype=torch.float64)
    denoiser = GaussianDenoiser(mean, IsotropicCovariance(torch.tensor(0.5, dtype=torch.float64)), VPSchedule())
    return getattr(azula_sample, name)(denoiser, steps=T, silent=True, dtype=torch.float64, **more)


def start(sampler, n=6):
    torch.manual_seed(3)
    return sampler.init((n, 3), dtype=torch.float64)


def with_the_line_written_in(sampler, correct):
    """The sampler with `x_t = correct(x_s)` for the `x_t = x_s` at the end of each step of azula's loop."""
    source = textwrap.dedent(inspect.getsource(type(sampler).__call__))
    assert source.count("x_t = x_s") == 1
    names = vars(azula_sample) | {"correct": correct}
    exec(source.replace("x_t = x_s", "x_t = correct(x_s)"), names)
    return lambda x: names["__call__"](sampler, x)


def test_there_are_eleven():
    assert len(SAMPLERS) == 11


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("schedule", [tt.Terminal(), tt.Periodic(3), tt.schedules.FixedThreshold(0.3, 4)], ids=str)
def test_a_wrapped_sampler_is_its_loop_with_one_more_line(name, schedule):
    plain = make(name)
    x = start(plain)
    constraint = Ball(torch.linspace(0.3, 1.0, 6))
    corrector = free.Corrector(constraint, schedule, T)
    torch.manual_seed(4)
    by_hand = with_the_line_written_in(plain, corrector)(x.clone())

    wrapped = wrap(plain, constraint, schedule, **free.COUNTING)
    given = x.clone()
    torch.manual_seed(4)
    result = wrapped(given)
    assert torch.equal(result, by_hand)
    assert torch.equal(given, x)  # the caller's own tensor stays as it was
    for field in ("final", "defects", "residuals", "projected"):
        ours, theirs = getattr(wrapped.rollout, field), getattr(corrector.rollout, field)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)  # NaN where none was looked at


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_constraint_that_changes_nothing_changes_nothing(name):
    plain = make(name)
    x = start(plain)
    torch.manual_seed(4)
    bare = plain(x.clone())
    nowhere = tt.as_constraint(lambda x: x, lambda x: torch.zeros(len(x), dtype=x.dtype))
    wrapped = wrap(plain, nowhere, tt.Stepwise())
    for _ in range(2):  # and again: nothing is left over from the run before
        torch.manual_seed(4)
        assert torch.equal(wrapped(x.clone()), bare)
    assert wrapped.rollout.n_steps == T
    torch.manual_seed(4)
    assert torch.equal(plain(x.clone()), bare)


def test_orders_of_multistep_samplers():
    """Order 1 of an Adams-Bashforth method is Euler's, corrected or not."""
    x = start(make("EulerSampler"))
    euler = wrap(make("EulerSampler"), Sphere(), tt.Periodic(3))(x.clone())
    torch.testing.assert_close(wrap(make("zABSampler", order=1), Sphere(), tt.Periodic(3))(x.clone()), euler)


def test_what_cannot_be_wrapped_is_refused():
    class Own(azula_sample.EulerSampler):
        def __call__(self, x, **kwargs):
            return x

    with pytest.raises(ValueError, match=r"Own defines its own loop \(__call__\)"):
        wrap(Own(make("EulerSampler").denoiser), Sphere(), tt.Stepwise())
    with pytest.raises(TypeError, match="got float"):
        wrap(1.0, Sphere(), tt.Stepwise())


def test_a_wrapped_sampler_is_wrapped_anew_and_says_what_it_is():
    first = wrap(make("zABSampler"), Sphere(), tt.Stepwise())
    again = wrap(first, Sphere(), tt.Periodic(3))
    assert again.plain is first.plain
    again(torch.ones(2, 3, dtype=torch.float64))
    assert again.rollout.spent.tolist() == [3, 3]
    T = len(first.timesteps) - 1
    assert repr(again) == f"ProjectedSampler(zABSampler, T={T}, Periodic(budget=3))"


def test_a_subclass_with_a_step_of_its_own():
    class Half(azula_sample.EulerSampler):
        def step(self, x_t, t, s, **kwargs):
            return 0.5 * super().step(x_t, t, s, **kwargs)

    plain = Half(make("EulerSampler").denoiser, steps=T, silent=True, dtype=torch.float64)
    wrapped = wrap(plain, Sphere(), tt.Stepwise())
    assert (Sphere().defect(wrapped(start(plain))) < 1e-12).all()
    assert wrapped.rollout.projected.all()


@pytest.mark.parametrize("name", ["DDIMSampler", "zABSampler"])
def test_a_constraint_may_ask_for_the_noise_level(name):
    asked = []

    def project(x, time, sigma):
        asked.append((float(time), float(sigma)))
        return x

    needy = tt.as_constraint(project, lambda x, time, sigma: x[:, 0] * 0, needs=("time", "sigma"))
    plain = make(name)
    wrap(plain, needy, tt.Stepwise())(start(plain))
    times = plain.timesteps[1:]
    assert [time for time, _ in asked] == times.tolist()
    assert [sigma for _, sigma in asked] == pytest.approx(plain.denoiser.schedule(times)[1].tolist())
