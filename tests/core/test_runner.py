"""Where batches are run changes no number, and what was finished is not run again."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

import engine_cases
import trimtab as tt
from engine_cases import Loop, make_another, make_problem, problem, returns_states, tree_loop, unseeded
from trimtab.constraints import SO3
from trimtab.core import executors, identity, runner
from trimtab.core.checks import EngineError
from trimtab.core.executors import open_executor
from trimtab.core.repeatable import Batch
from trimtab.core.runner import BatchCache, BatchRunner, Engine
from trimtab.core.schedule import Watched

SOURCES = {"problem": (problem, ()), "loop": (lambda: Loop(1), (Loop(2),))}


def price_bytes(source, path, **options) -> bytes:
    tt.calibrate(source, **options).save(path)
    return path.read_bytes()


def advice_facts(source, held_out, engine) -> str:
    facts = tt.advise(source, *held_out, cost="projections", tolerance=0.3, engine=engine).facts()

    def numbers(thing):  # seconds differ from run to run
        if isinstance(thing, dict):
            return {key: numbers(value) for key, value in thing.items() if "second" not in key and "share" not in key}
        return [numbers(one) for one in thing] if isinstance(thing, list) else thing

    return json.dumps({key: value for key, value in numbers(facts).items() if key not in ("findings", "reason")})


def table(source, engine):
    found = tt.compare(source, {"threshold": lambda view: view.defect > 0.3}, [4], engine=engine)
    return [(row.name, row.projections, {name: v.tolist() for name, v in row.values.items()}) for row in found.rows]


@pytest.fixture(scope="module")
def worker():
    """An engine with one process that several tests share: it takes seconds to start."""
    with BatchRunner(Engine("processes", 1)) as started:
        yield started


CASES = [
    pytest.param(Engine("serial"), "loop", id="serial"),
    pytest.param(Engine("processes", 2), "problem", id="processes"),
    pytest.param(Engine("ray", 1), "loop", id="ray", marks=pytest.mark.filterwarnings("ignore")),
]


@pytest.mark.parametrize(("engine", "what"), CASES)
def test_the_engine_changes_no_number(engine, what, tmp_path):
    if engine.name == "ray":
        pytest.importorskip("ray", reason="ray is not installed: pip install 'trimtab[ray]'")
    make, held_out = SOURCES[what]
    children = set(multiprocessing.active_children())
    with BatchRunner(engine) as shop:
        there = price_bytes(make(), tmp_path / "there", engine=shop), table(make(), shop)
        if engine.name != "ray":
            assert advice_facts(make(), held_out, shop) == advice_facts(make(), held_out, None)
    assert set(multiprocessing.active_children()) == children
    here = price_bytes(make(), tmp_path / "here"), table(make(), None)
    assert there[0] == here[0]
    for (name, spent, values), (name_there, spent_there, values_there) in zip(here[1], there[1], strict=True):
        assert (name, spent) == (name_there, spent_there)
        for measure in values:  # NaN where timing makes no difference
            np.testing.assert_array_equal(values[measure], values_there[measure])


# ------------------------------------------------------------------ going on


class StoppedError(Exception):
    pass


def stopping_after(batches: int):
    """Told what is being done, it stops before a batch."""

    def progress(text: str) -> None:
        if text == f"calibration batch {batches}":
            raise StoppedError

    return progress


@pytest.mark.parametrize("after", [3, 9])
def test_what_was_stopped_goes_on_and_ends_with_the_same_price(after, tmp_path, monkeypatch):
    whole = price_bytes(problem(), tmp_path / "whole")
    engine = Engine("serial", keep=tmp_path / "kept")
    with pytest.raises(StoppedError):
        tt.calibrate(problem(), engine=engine, progress=stopping_after(after))
    kept = len(list((tmp_path / "kept").glob("*.json")))
    assert kept >= after - 2  # the first two are one piece of work
    ran = counted(monkeypatch)
    assert price_bytes(problem(), tmp_path / "resumed", engine=engine) == whole
    new = len(list((tmp_path / "kept").glob("*.json"))) - kept
    assert 0 < len(ran) - 1 == new  # one kept batch is run again, to compare


def counted(monkeypatch) -> list[object]:
    """The schedules of the batches that are run from now on, in this process."""
    ran = []

    def run_here(work, source, run=runner._run_here):
        ran.append(work.schedule)
        return run(work, source)

    monkeypatch.setattr(runner, "_run_here", run_here)
    return ran


def test_a_finished_call_runs_one_batch_again_whatever_the_engine(tmp_path, monkeypatch):
    first = price_bytes(problem(), tmp_path / "first", engine=Engine("serial", keep=tmp_path / "kept"))
    started = []

    class Counting(executors.SerialExecutor):
        def submit(self, function, *arguments):
            started.append(function)
            return super().submit(function, *arguments)

    monkeypatch.setattr(executors, "ENGINES", dict.fromkeys(executors.ENGINES, Counting))
    for name in ("serial", "processes", "ray"):
        engine = Engine(name, keep=tmp_path / "kept")
        assert price_bytes(problem(), tmp_path / name, engine=engine) == first
        assert len(started) == 1
        started.clear()


class Doubled(SO3):
    def defect(self, x):
        return 2 * super().defect(x)

    def take(self, rows):
        return self


def test_batches_of_another_problem_schedule_or_version_are_not_reused(tmp_path, monkeypatch):
    engine = Engine("serial", keep=tmp_path / "kept")
    tt.calibrate(problem(), method="paper", engine=engine)
    ran = counted(monkeypatch)
    tt.calibrate(problem(), method="paper", engine=engine)
    assert len(ran) == 1  # to compare
    ran.clear()
    for other in (problem(first=2000), problem(n=8), replace(problem(), constraint=Doubled())):
        tt.calibrate(other, method="paper", engine=engine, check=True)
    tt.calibrate(problem(), method="paper", engine=engine, closing="free")
    assert len(ran) == 4
    monkeypatch.setattr(identity, "_trimtab_code", lambda: "another version")
    tt.calibrate(problem(), method="paper", engine=engine)
    assert len(ran) == 5


def test_a_function_with_other_constants_is_another_one(tmp_path, monkeypatch):
    engine = Engine("serial", keep=tmp_path / "kept")
    ran = counted(monkeypatch)
    for side in (0.5, 0.4):

        def run(schedule, side=side):
            corrector = tt.Corrector(
                tt.as_constraint(lambda x: x.clamp(-side, side), lambda x: (x.abs() - side).clamp(min=0).amax(dim=1)),
                schedule,
                n_steps=3,
            )
            for t in range(3):
                corrector(torch.full((2, 1), t - 1.0), t)
            return corrector.rollout

        tt.calibrate(run, method="paper", engine=engine)
    assert len(ran) == 2


def test_a_loop_with_another_generator_is_another_one(tmp_path):
    engine = Engine("serial", keep=tmp_path / "kept")
    finals = []
    for seed in (1, 2, 1):
        begun = torch.Generator().manual_seed(seed)

        def run(schedule, begun=begun):
            generator = torch.Generator()
            generator.set_state(begun.get_state())  # a run draws from a copy, and repeats itself
            corrector = tt.Corrector(tt.as_constraint(engine_cases.inside, engine_cases.outside), schedule, n_steps=3)
            for t in range(3):
                corrector(torch.randn(2, 1, generator=generator), t)
            return corrector.rollout

        with BatchRunner(engine) as shop:
            finals.append(shop.runs(run)(tt.Periodic(1)).final)
            assert len(list((tmp_path / "kept").glob("*.json"))) == min(len(finals), 2)
    assert not torch.equal(finals[0], finals[1])
    assert torch.equal(finals[0], finals[2])


@pytest.mark.parametrize("damage", ["cut", "another's", "gone"])
def test_a_damaged_batch_is_run_again(damage, tmp_path):
    whole = price_bytes(problem(), tmp_path / "whole", engine=Engine("serial", keep=tmp_path / "kept"))
    facts = sorted((tmp_path / "kept").glob("*.json"))
    one = facts[0].with_name(f"{facts[0].stem}.0.safetensors")
    if damage == "cut":
        one.write_bytes(one.read_bytes()[:100])
    elif damage == "another's":
        facts[0].write_text(facts[1].read_text())
    else:
        one.unlink()
    said = []
    engine = Engine("serial", keep=tmp_path / "kept")
    assert price_bytes(problem(), tmp_path / "again", engine=engine, progress=said.append) == whole
    assert len([text for text in said if "damaged and is run again" in text]) == 1


@pytest.mark.parametrize("kind", ["dict", "numpy"])
def test_states_that_are_trees_come_back_as_they_were(kind, tmp_path):
    engine = Engine("serial", keep=tmp_path)
    run = tree_loop(kind)
    with BatchRunner(engine) as shop:
        there = shop.runs(run)(tt.Periodic(2))
    with BatchRunner(engine) as shop:
        shop._compared = True
        kept = shop.runs(run)(tt.Periodic(2))
        assert shop.reused == 1
    if kind == "numpy":
        np.testing.assert_array_equal(kept.final, there.final)
        return
    assert list(kept.final) == ["x", "more"]
    assert torch.equal(kept.final["x"], there.final["x"])
    np.testing.assert_array_equal(kept.final["more"][0], there.final["more"][0])


def test_states_in_types_of_ones_own_are_run_again_and_it_is_said(tmp_path):
    said = []
    for _ in range(2):
        with BatchRunner(Engine("serial", keep=tmp_path), said.append) as shop:
            assert isinstance(shop.runs(tree_loop("dataclass"))(tt.Periodic(2)).final, engine_cases.State)
            assert shop.reused == 0
    assert len(said) == 2
    assert "types of your own" in said[0]


# ------------------------------------------------------------------ what goes wrong


@pytest.mark.parametrize("name", ["serial", "processes"])
def test_a_run_that_does_not_repeat_itself_is_found_out_in_a_worker_too(name, worker):
    engine = worker if name == "processes" else Engine("serial")
    with pytest.raises(ValueError, match=r"not repeatable.*The global generator of torch was drawn from"):
        tt.calibrate(unseeded, engine=engine)
    with pytest.raises(TypeError, match=r"must return the record of its run, corrector.rollout: got Tensor"):
        tt.calibrate(returns_states, engine=engine, check=False)


@pytest.mark.parametrize("name", ["serial", "processes"])
def test_batches_go_on_after_one_that_failed(name, worker):
    run = (worker if name == "processes" else BatchRunner(Engine("serial"))).runs(engine_cases.Picky(3))
    for _ in range(3):
        with pytest.raises(OSError, match="a budget of 2 is too small"):
            run(tt.Periodic(2))
    assert int(run(tt.Periodic(4)).spent[0]) == 4
    run.prefetch([tt.Periodic(1), tt.Periodic(5)])
    assert int(run(tt.Periodic(5)).spent[0]) == 5  # whatever became of the other one
    for _ in range(2):
        with pytest.raises(OSError, match="a budget of 1 is too small"):
            run(tt.Periodic(1))


def test_a_batch_that_was_started_is_a_future_and_is_run_once(worker):
    run = worker.runs(Loop(1))
    run.prefetch([tt.Periodic(5), tt.Periodic(2), tt.Periodic(5)])
    futures = [run.submit(tt.Periodic(5)) for _ in range(2)]
    assert not run._started[run._work(tt.Periodic(5), 1)[1]]
    assert [int(future.result().records[0].spent[0]) for future in futures] == [5, 5]
    assert int(run.submit(tt.Periodic(3)).result().records[0].spent[0]) == 3


def test_a_batch_that_was_dropped_is_run_where_it_is_asked_for():
    with BatchRunner(Engine("processes", 1)) as shop:
        run = shop.runs(Loop(1))
        run.prefetch([tt.Periodic(5)])
        shop.close()
        assert int(run(tt.Periodic(5)).spent[0]) == 5


def test_an_executor_ends_its_own_processes_alone():
    with open_executor("processes", 1) as other:
        later = other.submit(time.sleep, 1.0)
        with open_executor("processes", 1) as one:
            one.submit(time.sleep, 600.0)
        assert later.result() is None


def test_a_worker_that_is_killed_is_a_clear_error():
    with open_executor("processes", 1) as one, pytest.raises(EngineError, match="a worker process died"):
        one.submit(os.kill, one.submit(os.getpid).result(), signal.SIGKILL).result()


def test_what_cannot_be_sent_is_refused_with_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    mine = replace(problem(), constraint=tt.as_constraint(lambda x: x.clamp(-1, 1)))
    with pytest.raises(ValueError, match=r"cannot be sent to other processes.*cloudpickle.*Engine\(make=…\)"):
        tt.calibrate(mine, engine="processes")


def test_functions_written_in_place_are_sent_with_cloudpickle(tmp_path, worker):
    pytest.importorskip("cloudpickle", reason="cloudpickle is not installed: pip install cloudpickle")
    ball = tt.as_constraint(lambda x: x.clamp(-1, 1), lambda x: (x.abs() - 1).clamp(min=0).flatten(1).amax(dim=1))
    mine = replace(problem(), constraint=ball)
    here = price_bytes(mine, tmp_path / "here", method="paper")
    assert price_bytes(mine, tmp_path / "there", method="paper", engine=worker) == here


def test_a_function_makes_the_problem_in_the_workers_and_must_make_the_same(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    engine = Engine("processes", 1, make=make_problem)
    assert tt.advise(problem(), cost="projections", engine=engine).measured.n_steps == engine_cases.STEPS
    with pytest.raises(EngineError, match="another sampler than this process"):
        tt.calibrate(problem(), engine=Engine("processes", 1, make=make_another))


def test_a_worker_with_other_libraries_is_refused(monkeypatch):
    def elsewhere(work, source, run=runner._run_here):
        batch, there = run(work, source)
        return batch, there | {"torch": "0.1"}

    monkeypatch.setattr(runner, "_run_here", elsewhere)
    with pytest.raises(EngineError, match="a worker differs from this process in torch"):
        tt.calibrate(problem(), engine="serial")


# ------------------------------------------------------------------ reuse by proof


class Model(torch.nn.Module):
    """A sampler with weights, a buffer that no file keeps, and hooks."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((2,), 0.3, dtype=torch.float64), requires_grad=False)
        self.register_buffer("shift", torch.zeros(2, dtype=torch.float64), persistent=False)
        self._gain = 1.0

    def forward(self, x):
        return x + self._gain * self.weight + self.shift


class ModelLoop:
    """A loop around a model."""

    def __init__(self, model):
        self.model = model

    def __call__(self, schedule):
        corrector = tt.Corrector(tt.as_constraint(engine_cases.inside, engine_cases.outside), schedule, n_steps=4)
        x = torch.zeros(3, 2, dtype=torch.float64)
        for t in range(4):
            x = corrector(self.model(x), t)
        return corrector.rollout


CHANGES = {
    "weights": lambda model: model.weight.mul_(2),
    "a buffer": lambda model: model.shift.add_(0.1),
    "a private attribute": lambda model: setattr(model, "_gain", 2.0),
    "a hook": lambda model: model.register_forward_hook(lambda module, given, found: found + 0.1),
}


@pytest.mark.parametrize(("name", "change"), [("processes", "weights"), *(("serial", change) for change in CHANGES)])
def test_a_change_in_place_is_seen_by_an_engine_that_is_at_work(name, change, tmp_path):
    schedule = Watched(tt.Periodic(2))
    model = Model()
    run = ModelLoop(model)
    with BatchRunner(Engine(name, 1, keep=tmp_path)) as shop:
        batches = shop.runs(run)
        batches.prefetch([schedule])
        before = run(schedule).defects
        assert torch.equal(batches(schedule).defects, before)
        batches.prefetch([schedule])
        CHANGES[change](model)
        after = run(schedule).defects
        assert not torch.equal(after, before)
        assert torch.equal(batches(schedule).defects, after)
        assert shop.reused == 0
    fresh = Model()
    CHANGES[change](fresh)
    with BatchRunner(Engine("serial", keep=tmp_path)) as shop:  # each batch is filed under what it was made with
        shop._compared = True
        assert torch.equal(shop.runs(ModelLoop(Model()))(schedule).defects, before)
        assert torch.equal(shop.runs(ModelLoop(fresh))(schedule).defects, after)
        assert shop.reused == 2


def test_a_global_of_a_module_that_changes_at_run_time_is_sent_to_the_workers(monkeypatch, worker):
    batches = worker.runs(engine_cases.scaled)
    schedule = Watched(tt.Periodic(2))
    before = batches(schedule).defects
    monkeypatch.setattr(engine_cases, "SCALE", 2.0)
    assert torch.equal(batches(schedule).defects, engine_cases.scaled(schedule).defects)
    assert not torch.equal(batches(schedule).defects, before)


def test_a_kept_batch_that_comes_out_differently_is_found_out(tmp_path):
    unseen = {"shift": 0.0}  # as if in a library, a file or a device

    class Opaque:
        def __reduce__(self):
            return Opaque, ()

        def __call__(self, schedule):
            model = Model()
            model.shift += unseen["shift"]
            return ModelLoop(model)(schedule)

    Opaque.__module__, Opaque.__qualname__ = "torch", "Opaque"
    torch.Opaque = Opaque
    try:
        for shift in (0.0, 0.0, 0.5):
            unseen["shift"] = shift
            with BatchRunner(Engine("serial", keep=tmp_path)) as shop:
                if shift:
                    with pytest.raises(EngineError, match=r"was run again and its result differs.*another folder"):
                        shop.runs(Opaque())(Watched(tt.Periodic(2)))
                else:
                    shop.runs(Opaque())(Watched(tt.Periodic(2)))
    finally:
        del torch.Opaque


def test_what_cannot_be_identified_is_run_again_and_that_is_said_once(tmp_path):
    said = []
    lock = threading.Lock()

    def run(schedule):
        with lock:
            return Loop(1)(schedule)

    for _ in range(2):
        with BatchRunner(Engine("serial", keep=tmp_path), said.append) as shop:
            for _ in range(3):
                shop.runs(run)(tt.Periodic(2))
            assert shop.reused == 0
    assert len(said) == 2
    assert "not kept" in said[0]
    assert "lock" in said[0]
    assert not list(tmp_path.iterdir())


def test_kept_jax_arrays_are_read_where_jax_is_not_imported_yet(tmp_path, monkeypatch):
    jax = pytest.importorskip("jax", reason="needs the jax extra")
    still = tt.as_constraint(lambda x: x, lambda x: jax.numpy.abs(x).max(axis=1))
    corrector = tt.Corrector(still, tt.Stepwise(), 1)
    corrector(jax.numpy.ones((2, 3)))
    said: list[str] = []
    kept, name = BatchCache(tmp_path, said.append), "0" * 32 + "-0"
    assert kept.write(name, Batch((corrector.rollout,)))
    monkeypatch.delitem(sys.modules, "jax")
    monkeypatch.setattr("trimtab.core.arrays.import_module", {"jax": jax}.__getitem__)  # it cannot be imported twice
    found = kept.read(name)
    assert not said
    assert found is not None
    assert isinstance(found.records[0].final, jax.Array)


def test_engines_that_are_none_are_refused(tmp_path):
    with pytest.raises(ValueError, match="did you mean 'processes'"):
        Engine("process")
    for workers in (0, 1.5, True):
        with pytest.raises(ValueError, match="at least 1"):
            Engine("processes", workers)
    with pytest.raises(TypeError, match="engine must be 'processes', 'ray', 'serial' or"):
        tt.calibrate(problem(), engine=2)
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for place in ("file", "link", "link/within", "file/within"):
        with pytest.raises(ValueError, match=f"{place}: .*cannot be made, since .* a file or a broken link"):
            tt.calibrate(problem(), engine=Engine("serial", keep=tmp_path / place))


def test_threads_and_number_formats_of_the_caller_are_left_alone_and_followed(worker):
    threads = torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    try:
        price = tt.calibrate(problem(), method="paper", engine=worker)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_default_dtype(torch.float32)
    assert price.n_steps == engine_cases.STEPS
