"""The six synthetic domains and the linkage: their laws, their mechanisms, and what kappa does."""

from __future__ import annotations

import json
import math

import pytest
import torch

import free
import trimtab as tt
from trimtab.constraints.rotation import rotation_defect
from trimtab.core.metrics import path_error, top_mass
from trimtab.core.noise import Noise, as_seeds
from trimtab_lab.domains import FLOWS, SYNTHETIC, base_of, domain
from trimtab_lab.domains.dynamics import Chain, Flow
from trimtab_lab.domains.so3 import rotation_pull
from trimtab_lab.domains.terrain import Ridge, Terrain

SEEDS = range(8)
BASES = {"so3-impulse": "so3", "se3-lever": "se3", "terrain-ridge": "terrain"}
every_domain = pytest.mark.parametrize("name", SYNTHETIC)
every_chain = pytest.mark.parametrize("name", [*SYNTHETIC, "linkage"])
every_dynamics = pytest.mark.parametrize("name", [*SYNTHETIC, *FLOWS])


def run(name, schedule, seeds=SEEDS, keep_states=False, **settings):
    problem = domain(name, **settings).problem(seeds)
    return free.rollout(problem.sampler, problem.constraint, schedule, seeds, keep_states=keep_states)


@every_domain
def test_a_rollout_starts_and_ends_on_the_set_and_leaves_it_between(name):
    constraint = domain(name).problem(SEEDS).constraint
    record = run(name, tt.Terminal(), keep_states=True)
    assert record.n_steps == 100
    assert (constraint.defect(record.states[0]) <= 1e-14).all()
    assert (constraint.defect(record.final) <= 1e-14).all()
    assert (record.defects > 1e-4).double().mean() > 0.9


@every_dynamics
@pytest.mark.parametrize("schedule", [tt.Terminal(), tt.Stepwise(), tt.Periodic(0.25)], ids=repr)
def test_a_sample_alone_equals_the_sample_in_a_batch(name, schedule):
    whole = run(name, schedule)
    for rows in ([5], [7, 2, 4]):
        part = run(name, schedule, rows)
        assert torch.allclose(part.final, whole.final[rows], rtol=0, atol=1e-9)
        assert torch.allclose(part.defects, whole.defects[:, rows], rtol=0, atol=1e-9)


@every_chain
@pytest.mark.parametrize("kappa", [0.0, 0.1, 0.5, 1.0])
def test_every_kappa_gives_finite_rollouts(name, kappa):
    assert run(name, tt.Terminal(), range(64), kappa=kappa).defects.isfinite().all()


@every_chain
def test_without_a_pull_defects_accumulate_and_with_a_full_one_they_are_forgotten(name):
    errors = [path_error(run(name, tt.Terminal(), range(32), kappa=kappa)).mean() for kappa in (0.0, 0.3, 1.0)]
    assert errors[0] > 1.5 * errors[1] > 1.5 * errors[2]
    # forgotten: what the step before left makes little difference to the next defect
    free = run(name, tt.Terminal(), range(32), kappa=1.0).defects
    corrected = run(name, tt.Stepwise(), range(32), kappa=1.0).defects
    assert abs(float(free.mean() / corrected.mean()) - 1) < 0.35


@every_chain
def test_timing_changes_where_a_rollout_ends(name):
    made = domain(name)
    stepwise, terminal = run(name, tt.Stepwise()), run(name, tt.Terminal())
    distance = made.distance(terminal.final, stepwise.final)
    assert distance.shape == (len(SEEDS),)
    assert (distance > 1e-6).all()
    assert (made.distance(stepwise.final, stepwise.final) <= 1e-15).all()


@every_chain
def test_the_distance_is_symmetric_and_takes_states_off_the_set(name):
    made = domain(name)
    record = run(name, tt.Terminal(), keep_states=True)
    a, b = record.states[40], record.states[60]
    assert torch.allclose(made.distance(a, b), made.distance(b, a), rtol=1e-12, atol=0)
    assert (made.distance(a, b) > 0).all()


@every_chain
def test_settings_are_kept_and_can_be_written_as_json(name):
    made = domain(name, kappa=0.5, n_steps=7)
    assert made.name == name
    assert made.settings["kappa"] == 0.5
    assert domain(name, **json.loads(json.dumps(dict(made.settings)))).settings == made.settings
    assert run(name, tt.Stepwise(), kappa=0.5, n_steps=7).n_steps == 7


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kappa": 1.5}, "kappa must be a number from 0 to 1: got 1.5"),
        ({"n_steps": 0}, "n_steps must be a whole number of at least 1: got 0"),
        ({"drift": -1.0}, "drift must be a number of at least 0"),
        ({"noise_end": 0.0}, "noise_end must be a finite number above 0"),
        ({"noise_start": 0.001}, "noise_end must not be above noise_start"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        domain("so3", **settings)


def test_noise_falls_geometrically():
    chain = Chain(n_steps=3, noise_start=0.04, noise_end=0.01)
    assert [chain.noise(t) for t in range(3)] == pytest.approx([0.04, 0.02, 0.01])


@pytest.mark.parametrize(
    ("name", "without"),
    [("so3-impulse", {"strength": 0.0}), ("se3-lever", {"lever": 0.0}), ("terrain-ridge", {"ridge_height": 0.0})],
)
def test_a_variant_differs_from_its_base_by_its_mechanism_only(name, without):
    base, variant = run(BASES[name], tt.Periodic(0.25)), run(name, tt.Periodic(0.25), **without)
    assert torch.allclose(variant.defects, base.defects, rtol=0, atol=1e-14)
    assert torch.allclose(variant.final, base.final, rtol=0, atol=1e-13)
    assert not torch.allclose(run(name, tt.Periodic(0.25)).defects, base.defects, rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", ["so3-impulse", "terrain-ridge"])
def test_impulses_and_ridges_concentrate_the_defect(name):
    seeds = range(64)
    concentrated, diffuse = (top_mass(run(n, tt.Stepwise(), seeds).defects) for n in (name, BASES[name]))
    assert concentrated.mean() > diffuse.mean() + 0.05


def test_a_lever_amplifies_the_displacement_of_the_endpoint():
    distance = domain("se3").distance
    seeds = range(64)
    shift = [
        distance(run(name, tt.Terminal(), seeds).final, run(name, tt.Stepwise(), seeds).final).mean()
        for name in ("se3-lever", "se3")
    ]
    assert shift[0] > 3 * shift[1]


def test_bursts_come_at_times_of_each_samples_own():
    noise = Noise(as_seeds(range(200)))
    sampler = domain("so3-impulse").problem(range(200)).sampler
    steps = torch.stack([sampler.burst(t, noise, (3, 3)).flatten(1).norm(dim=1) > 0 for t in range(100)])
    a_rollout = steps.sum(dim=0)
    assert (a_rollout >= 2).all()
    assert (a_rollout <= 8).all()
    assert a_rollout.double().mean() > 7  # four bursts of two steps, less where they overlap
    assert (steps.double().mean(dim=1) < 0.2).all()  # no step at which they come together
    assert steps[:10].any()
    assert steps[-10:].any()


def test_the_pull_is_to_first_order_the_way_to_the_nearest_rotation():
    x = domain("so3").problem(SEEDS).sampler.start(Noise(as_seeds(SEEDS)))
    strain = torch.randn(8, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    strain = 1e-4 * (strain + strain.mT)
    stretched = x @ (torch.eye(3, dtype=torch.float64) + strain)
    pulled = stretched + stretched @ rotation_pull(stretched)
    assert (rotation_defect(pulled) < 1e-2 * rotation_defect(stretched)).all()


def test_the_slope_of_the_terrain_is_the_derivative_of_its_height():
    terrain = Terrain((Ridge((0.6, 0.8), 0.1), Ridge((1.0, 0.0), -0.4, height=0.1, width=0.2)), dome=0.7)
    u, v = torch.randn(2, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    height, by_u, by_v = terrain.height_and_slope(u, v)
    h = 1e-5  # the third derivative is below 1e4 where a ridge is 0.05 wide: an error of about 1e-6
    assert torch.equal(height, terrain.height(u, v))
    differences = [
        (terrain.height(u + h * du, v + h * dv) - terrain.height(u - h * du, v - h * dv)) / (2 * h)
        for du, dv in ((1, 0), (0, 1))
    ]
    assert torch.allclose(by_u, differences[0], rtol=0, atol=1e-6)
    assert torch.allclose(by_v, differences[1], rtol=0, atol=1e-6)


def test_walks_cross_both_ridges():
    record = run("terrain-ridge", tt.Stepwise(), range(64))
    u, v, _ = record.final.unbind(1)
    assert (0.96 * u - 0.28 * v > 0.5).double().mean() > 0.9


def test_starting_rotations_are_uniform():
    start = domain("so3").problem(range(4000)).sampler.start(Noise(as_seeds(range(4000))))
    trace = start.diagonal(dim1=1, dim2=2).sum(dim=1)
    # over SO(3) the trace has mean 0 and variance 1
    assert abs(float(trace.mean())) < 4 / math.sqrt(4000)
    assert abs(float(trace.var()) - 1) < 0.1


@pytest.mark.parametrize(
    ("name", "setting", "meant"),
    [("so3", "kapa", "kappa"), ("so3-impulse", "burst", "bursts"), ("pdm", "inner_step", "inner_steps")],
)
def test_unknown_settings_are_told_from_those_there_are(name, setting, meant):
    with pytest.raises(ValueError, match=f"unknown setting of {name} '{setting}'; did you mean '{meant}'"):
        domain(name, **{setting: 1})


# ------------------------------------------------------------------ flows


@every_dynamics
def test_settings_make_the_same_domain_again(name):
    made = domain(name)
    again = domain(base_of(name), **json.loads(json.dumps(dict(made.settings))))
    assert again.settings == made.settings
    runs = [each.problem(range(4)).rollout(tt.Periodic(0.25)) for each in (made, again)]
    assert torch.equal(runs[0].final, runs[1].final)


@pytest.mark.parametrize("name", FLOWS)
def test_a_flow_starts_and_ends_on_the_set_and_leaves_it_between(name):
    problem = domain(name).problem(SEEDS)
    record = problem.rollout(tt.Terminal(), keep_states=True, measure_defects=True)
    assert (problem.constraint.defect(record.states[0]) <= 1e-12).all()
    assert (problem.constraint.defect(record.final) <= 1e-14).all()
    assert (record.defects > 1e-5).double().mean() > 0.9


@every_domain
def test_a_flow_keeps_what_a_chain_forgets(name):
    """Two starts 1e-6 apart stay apart in a flow, and meet where there are modes to fall into."""
    kept = {}
    for key in (name, f"{name}-flow"):
        sampler = domain(key, **{"noise": 0.0} if key != name else {}).problem(SEEDS).sampler
        noise = Noise(as_seeds(SEEDS))
        x = sampler.start(noise)
        y = x + 1e-6 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
        constraint, distance = domain(key).problem(SEEDS).constraint, domain(key).distance
        y = constraint.project(y)
        begin = distance(x, y)
        for t in range(sampler.n_steps):
            x, y = (constraint.project(sampler.step(state, t, noise)) for state in (x, y))
        kept[key] = (distance(x, y) / begin).median()
    assert kept[f"{name}-flow"] > 0.3
    assert kept[f"{name}-flow"] > 2 * kept[name]


@pytest.mark.parametrize(("name", "other"), [("se3", "so3"), ("se3-lever", "so3-impulse")])
def test_poses_on_a_sphere_are_another_problem_than_rotations(name, other):
    """The position has a defect, which grows to a good part of the whole, and the rotation does not repeat so3's."""
    made = domain(f"{name}-sphere").problem(SEEDS)
    record = made.rollout(tt.Terminal(), measure_defects=True, keep_states=True, closing="free")
    proposals = record.states[1:]
    of_place = torch.stack([made.constraint.translation.defect(x[..., 3]) for x in proposals])
    assert 0.05 < float(of_place.sum() / record.residuals.sum()) < 0.6
    rotations = domain(f"{other}-ramp").problem(SEEDS).rollout(tt.Terminal(), measure_defects=True)
    alike = [
        torch.corrcoef(pair)[0, 1] for pair in torch.stack([record.defects, rotations.defects], 1).permute(2, 1, 0)
    ]
    assert torch.stack(alike).mean() < 0.95


def test_an_error_of_the_rotation_displaces_the_position_and_back():
    sampler = domain("se3-lever-sphere", noise=0.0, strength=0.0, ramp=0.0).problem(SEEDS).sampler
    noise = Noise(as_seeds(SEEDS))
    x = sampler.start(noise)
    strained = x.clone()
    strained[:, :, 2] *= 1.01
    lifted = x.clone()
    lifted[..., 3] *= 1.01
    free, of_strained, of_lifted = (sampler.step(state, 0, noise) for state in (x, strained, lifted))
    assert ((of_strained - free)[..., 3].norm(dim=1) > 0.005).all()
    assert ((of_lifted - free)[..., :3].flatten(1).norm(dim=1) > 1e-4).all()


def test_every_step_over_a_dome_makes_the_same_defect():
    dome, hills = (
        domain(name).problem(range(32)).rollout(tt.Stepwise(), measure_defects=True).defects
        for name in ("terrain-dome", "terrain-flow")
    )
    assert top_mass(dome).mean() < 0.25  # 0.2 if all defects are equal
    assert top_mass(hills).mean() > 0.4


@pytest.mark.parametrize("fan", [-0.3, 0.3])
def test_a_fan_spreads_walks_or_draws_them_together(fan):
    settings = {"dynamics": "flow", "deflection": 0.0, "noise": 0.0}
    plain, fanned = (
        domain("terrain", fan=each, **settings).problem(SEEDS).rollout(tt.Stepwise()).final[:, 1] for each in (0.0, fan)
    )
    # Euler steps of v' = fan v over an arc of 3 in 100 steps
    assert torch.allclose(fanned, plain * (1 + 0.03 * fan) ** 100, rtol=1e-9)


def test_speeds_add_up_to_the_arc_and_grow_with_the_ramp():
    for ramp in (0.0, 1.0, 2.5):
        flow = Flow(n_steps=50, arc=3.0, ramp=ramp)
        speeds = [flow.speed(t) for t in range(50)]
        assert sum(speeds) == pytest.approx(3.0, rel=1e-3)
        assert speeds == sorted(speeds)
        assert speeds[40] / speeds[4] == pytest.approx((40.5 / 4.5) ** ramp)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dynamics": "flow", "kappa": 1.5}, "from 0 to 1: got 1.5"),
        ({"dynamics": "flow", "arc": -1.0}, "arc must be a number of at least 0: got -1.0"),
        ({"dynamics": "flow", "drift": 0.1}, "unknown setting of so3 'drift'"),
        ({"dynamics": "flw"}, "unknown dynamics 'flw'; did you mean 'flow'"),
        ({"arc": 1.0}, "unknown setting of so3 'arc'"),
    ],
)
def test_settings_of_a_flow_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        domain("so3", **settings)


@pytest.mark.parametrize("name", FLOWS)
def test_a_domain_that_is_named_a_flow_has_no_other_dynamics(name):
    with pytest.raises(ValueError, match=f"{name} has dynamics='flow': got dynamics='langevin'"):
        domain(name, dynamics="langevin")
    assert domain(name, dynamics="flow").settings == domain(name).settings


@pytest.mark.parametrize("value", ["0.4", None, float("nan"), float("inf"), True, [1.0]])
@pytest.mark.parametrize(
    ("name", "setting"), [("terrain-ridge", "ridge_height"), ("so3-flow", "swing"), ("linkage", "strength")]
)
def test_a_setting_must_be_a_finite_number(name, setting, value):
    with pytest.raises((TypeError, ValueError), match=f"{setting} must be"):
        tt.domain(name, **{setting: value})


@pytest.mark.parametrize("name", ["se3-ramp", "se3-lever-ramp", "se3-replica"])
def test_the_projection_of_a_pose_leaves_its_translation_unless_it_is_held_to_a_sphere(name):
    problem = domain(name).problem(SEEDS)
    x = problem.rollout(tt.Terminal(), keep_states=True).states[-2]
    assert torch.equal(projected(problem.constraint, x)[..., 3], x[..., 3])
    held = domain(f"{base_of(name)}-sphere").problem(SEEDS)
    p = projected(held.constraint, held.rollout(tt.Terminal(), keep_states=True).states[-2])[..., 3]
    torch.testing.assert_close(p.norm(dim=1), torch.ones(len(SEEDS), dtype=p.dtype))


def projected(constraint, x):
    answer = constraint.project(x)
    return getattr(answer, "x", answer)
