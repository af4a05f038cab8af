"""Real JAX on the host: its arrays as states, decisions inside jit, and diffrax's solvers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import free
import trimtab as tt
from trimtab.prices.plan import Plan
from trimtab.prices.sample_scale import SampleScale

jax = pytest.importorskip("jax", reason="needs the jax extra")
import jax.numpy as jnp  # noqa: E402

from trimtab.integrations.jax import decision_function  # noqa: E402

pytestmark = pytest.mark.slow

T, N = 12, 7
SPHERE = tt.as_constraint(
    jax.jit(lambda x: x / jnp.linalg.norm(x, axis=1, keepdims=True)),
    jax.jit(lambda x: jnp.abs(jnp.linalg.norm(x, axis=1) - 1)),
)


@pytest.fixture(params=[False, True], ids=["float32", "float64"])
def precision(request):
    with jax.enable_x64(request.param):
        yield "float64" if request.param else "float32"


def table(seed, budget=6):
    generator = torch.Generator().manual_seed(seed)
    prices = torch.rand(T, budget + 1, generator=generator, dtype=torch.float64)
    prices[:, 0] = torch.inf
    prices[3, 2], prices[5, 3] = -torch.inf, torch.inf
    return prices


def prices(kind, seed):
    if kind == "table":
        return tt.prices.Thresholds(table(seed))
    if kind == "own scale":
        typical = torch.rand(T + 1, T, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.2
        return tt.prices.Thresholds(table(seed), sample_scale=SampleScale(typical, 2.0))
    rank = torch.rand(T, generator=torch.Generator().manual_seed(seed)).argsort().argsort()
    return Plan(torch.stack([rank < b for b in range(T + 1)]))


def updates(seed, dtype):
    """What the loop adds at each step, (T, N, 3)."""
    return 0.4 * jax.random.normal(jax.random.key(seed), (T, N, 3), dtype)


def by_corrector(schedule, closing, push):
    """The loop in Python, with JAX's own arrays going in and coming out."""
    corrector = free.Corrector(SPHERE, schedule, T, closing=closing)
    x = jnp.ones((N, 3), push.dtype)
    for t in range(T):
        x = corrector(x + push[t], t)
        assert isinstance(x, jax.Array)
        assert x.dtype == push.dtype
    return x, corrector.rollout


def by_scan(schedule, closing, push, wrap=jax.jit):
    """The same loop as one traced function."""
    start, decide = decision_function(schedule, closing)

    def step(carry, at):
        x, state = carry
        t, moved = at
        x = x + moved
        mask, state = decide(state, SPHERE.defect(x), t)
        return (jnp.where(mask[:, None], SPHERE.project(x), x), state), mask

    def loop(push):
        begin = (jnp.ones((N, 3), push.dtype), start((N,)))
        (x, _), masks = jax.lax.scan(step, begin, (jnp.arange(T), push))
        return x, masks

    return wrap(loop)(push)


@pytest.mark.parametrize("closing", ["free", "none", "paid"])
@pytest.mark.parametrize("kind", ["table", "own scale", "plan"])
def test_a_traced_loop_decides_as_a_corrector_decision_for_decision(kind, closing, precision):
    for seed, budget in enumerate((3, 6) if kind == "table" else (4,)):
        schedule = prices(kind, seed).at(budget)
        push = updates(seed, precision)
        x, record = by_corrector(schedule, closing, push)
        y, masks = by_scan(schedule, closing, push)
        assert torch.equal(torch.tensor(masks.tolist()), record.projected), (seed, budget)
        assert 0 < int(record.projected.sum()) < record.projected.numel()
        if closing != "free":
            assert jnp.abs(x - y).max() < 1e-5


def test_what_nobody_says_about_closing_is_what_a_corrector_does():
    """Of a table made by hand, which was made for no closing in particular."""
    schedule, push = prices("table", 0).at(4), updates(0, "float32")
    corrector, x = tt.Corrector(SPHERE, schedule, T), jnp.ones((N, 3))
    for t in range(T):
        x = corrector(x + push[t], t)
    y, masks = by_scan(schedule, None, push)
    assert torch.equal(torch.tensor(masks.tolist()), corrector.rollout.projected)
    assert jnp.abs(x - y).max() < 1e-5


def test_one_sample_at_a_time_under_vmap(precision):
    """Decisions of no dimension, mapped over samples, are those of the batch."""
    schedule = prices("own scale", 1).at(4)
    start, decide = decision_function(schedule, "paid")
    defects = jax.random.uniform(jax.random.key(2), (T, N))

    def alone(defects):
        def step(state, at):
            mask, state = decide(state, at[1], at[0])
            return state, mask

        return jax.lax.scan(step, start(()), (jnp.arange(T), defects))[1]

    def together(state, at):
        mask, state = decide(state, at[1], at[0])
        return state, mask

    expected = jax.lax.scan(together, start((N,)), (jnp.arange(T), defects))[1]
    assert jnp.array_equal(jax.jit(jax.vmap(alone, in_axes=1, out_axes=1))(defects), expected)


def test_ties_are_decided_alike_in_float32():
    """A table of doubles between two floats: no float may be taken to reach it that does not."""
    below = torch.tensor(0.1, dtype=torch.float32)
    above = torch.nextafter(below, torch.tensor(1.0))
    middle = (below.double() + above.double()) / 2
    for price, defect, due in ((middle, below, False), (middle, above, True), (below.double(), below, True)):
        schedule = tt.prices.Thresholds(torch.tensor([[torch.inf, float(price)]], dtype=torch.float64)).at(1)
        start, decide = decision_function(schedule, "none")
        assert bool(decide(start((1,)), jnp.array([float(defect)]), 0)[0][0]) == due
        flat = tt.as_constraint(lambda x: x * 0, lambda x: x[:, 0])
        corrector = free.Corrector(flat, schedule, 1, closing="none")
        corrector(defect.reshape(1, 1))
        assert bool(corrector.projected[0]) == due


@pytest.mark.parametrize("wrap", [jax.jit, jax.vmap, jax.grad], ids=["jit", "vmap", "grad"])
def test_inside_a_traced_function_a_corrector_is_refused_with_the_recipe(wrap):
    corrector = free.Corrector(SPHERE, tt.Stepwise(), T)
    function = (lambda x: corrector(x).sum()) if wrap is jax.grad else corrector
    with pytest.raises(TypeError, match=r"inside jit, vmap or scan.*decision_function"):
        wrap(function)(jnp.ones((2, 2, 3)) if wrap is jax.vmap else jnp.ones((2, 3)))


def test_trees_of_arrays():
    pair = tt.as_constraint(
        lambda s: {"place": jnp.clip(s["place"], -1, 1), "speed": s["speed"]},
        lambda s: jnp.maximum(jnp.abs(s["place"]) - 1, 0).max(axis=1),
    )
    corrector = free.Corrector(pair, tt.Stepwise(), 2)
    state = {"place": jnp.zeros((3, 2)), "speed": jnp.ones(3)}
    for t in range(2):
        state = corrector({"place": state["place"] + 4, "speed": state["speed"]}, t)
    assert isinstance(state["place"], jax.Array)
    assert float(state["place"].max()) == 1


def test_what_has_no_table_is_refused():
    with pytest.raises(TypeError, match="got Periodic"):
        decision_function(tt.Periodic(3))
    with pytest.raises(ValueError, match="one budget for all"):
        decision_function(prices("table", 0).at(torch.tensor([1, 2])))
    with pytest.raises(ValueError, match="leaves nothing"):
        decision_function(prices("table", 0).at(0), "paid")


# ------------------------------------------------------------------ diffrax


def swirl(t, y, args):
    turned = jnp.stack([-y[:, 1], y[:, 0], 0.5 * jnp.cos(3 * t) * y[:, 2]], axis=1)
    return turned + 0.2 * y


diffrax = pytest.importorskip("diffrax", reason="needs the jax extra")
SOLVERS = ["Euler", "Heun", "Tsit5", "Dopri5", "ReversibleHeun"]


def solve(name, constraint, schedule, y0=None):
    from trimtab.integrations.diffrax import diffeqsolve

    y0 = jnp.ones((4, 3)) / 3**0.5 if y0 is None else y0
    times = jnp.linspace(0, 1, 11)
    solver = getattr(diffrax, name)()
    return diffeqsolve(diffrax.ODETerm(swirl), solver, times, y0, constraint, schedule, **free.COUNTING)


@pytest.mark.parametrize("name", SOLVERS)
def test_a_constraint_that_changes_nothing_is_diffrax_itself(name):
    nowhere = tt.as_constraint(lambda x: x, lambda x: jnp.zeros(len(x)))
    y, record = solve(name, nowhere, tt.Terminal())
    expected = diffrax.diffeqsolve(
        diffrax.ODETerm(swirl),
        getattr(diffrax, name)(),
        0.0,
        1.0,
        None,
        jnp.ones((4, 3)) / 3**0.5,
        stepsize_controller=diffrax.StepTo(ts=jnp.linspace(0, 1, 11)),
    ).ys[-1]
    assert record.n_steps == 10
    assert jnp.abs(y - expected).max() < 1e-5


@pytest.mark.parametrize("name", ["Euler", "Tsit5"])
def test_a_corrected_step_begins_with_the_slope_of_where_it_is(name):
    """One step at a time by diffrax itself, each begun afresh, and the corrector between them."""
    y, record = solve(name, SPHERE, tt.Periodic(4))
    x, solver, times = jnp.ones((4, 3)) / 3**0.5, getattr(diffrax, name)(), jnp.linspace(0, 1, 11)
    corrector = free.Corrector(SPHERE, tt.Periodic(4), 10)
    for k in range(10):
        term = diffrax.ODETerm(swirl)
        state = solver.init(term, times[k], times[k + 1], x, None)
        x = corrector(solver.step(term, times[k], times[k + 1], x, None, state, made_jump=False)[0], k)
    assert jnp.abs(x - y).max() < 1e-5
    assert torch.equal(record.projected, corrector.rollout.projected)
    assert jnp.abs(jnp.linalg.norm(y, axis=1) - 1).max() < 1e-5


@pytest.mark.parametrize("name", SOLVERS)
def test_a_projection_of_one_sample_does_not_touch_another(name):
    """Not by what a solver carries along from its last step, either."""
    nowhere = tt.as_constraint(lambda x: x, lambda x: jnp.zeros(len(x)))
    y0 = jnp.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.5]])
    only_the_first = torch.tensor([[t in (3, 6), False] for t in range(10)])
    alone, _ = solve(name, nowhere, tt.Terminal(), y0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(free.COUNTING, "closing", "none")
        beside, record = solve(name, SPHERE, tt.schedules.Fixed(only_the_first), y0)
    assert record.spent.tolist() == [2, 0]
    assert jnp.array_equal(beside[1], alone[1])
    assert not jnp.allclose(beside[0], alone[0])


@pytest.mark.parametrize(
    ("solver", "error", "message"),
    [
        ("ImplicitEuler", ValueError, "give it tolerances, as in diffrax.ImplicitEuler"),
        ("KenCarp3", TypeError, "needs its terms as .*MultiTerm.*got ODETerm"),
        ("SemiImplicitEuler", TypeError, "needs its terms as .*got ODETerm"),
        ("LeapfrogMidpoint", ValueError, "undoes a projection"),
    ],
)
def test_solvers_that_want_more_than_they_are_given_say_so(solver, error, message):
    with pytest.raises(error, match=message):
        solve(solver, SPHERE, tt.Periodic(2))


def test_an_implicit_solver_with_tolerances():
    from trimtab.integrations.diffrax import diffeqsolve

    solver = diffrax.ImplicitEuler(root_finder=diffrax.VeryChord(rtol=1e-5, atol=1e-6))
    y, record = diffeqsolve(
        diffrax.ODETerm(swirl), solver, jnp.linspace(0, 1, 6), jnp.eye(3)[:2], SPHERE, tt.Periodic(2)
    )
    assert record.spent.tolist() == [2, 2]
    assert jnp.abs(jnp.linalg.norm(y, axis=1) - 1).max() < 1e-5


def test_options_that_are_none_of_a_corrector_are_told_by_name():
    from trimtab.integrations.diffrax import diffeqsolve

    with pytest.raises(TypeError, match="unknown option of diffeqsolve 'n_step'"):
        diffeqsolve(diffrax.ODETerm(swirl), diffrax.Heun(), jnp.linspace(0, 1, 6), jnp.eye(3), SPHERE, None, n_step=4)


def test_initial_states_may_be_numpys_and_of_nobody_else():
    from trimtab.integrations.diffrax import diffeqsolve

    rest = diffrax.ODETerm(swirl), diffrax.Heun(), jnp.linspace(0, 1, 6)
    y, _ = diffeqsolve(*rest, np.eye(3, dtype=np.float32), SPHERE, tt.Periodic(2))
    expected, _ = diffeqsolve(*rest, jnp.eye(3, dtype=jnp.float32), SPHERE, tt.Periodic(2))
    np.testing.assert_array_equal(y, expected)
    with pytest.raises(TypeError, match=r"y0 must be an array of JAX or numpy.*: got Tensor"):
        diffeqsolve(*rest, torch.eye(3), SPHERE, tt.Periodic(2))
