"""Where batches run changes no number, and what was finished is not run again."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import engine_cases
import trimtab as tt
from engine_cases import Loop, problem, returns_states, tree_loop, unseeded
from trimtab.constraints import SO3
from trimtab.core.checks import EngineError
from trimtab.core.processes import Processes
from trimtab.core.schedule import as_schedule
from trimtab.loop import kept, runner
from trimtab.loop.runner import BatchRunner

SOURCES = {"problem": (problem, ()), "loop": (lambda: Loop(1), (Loop(2),))}
KEY = "so3 v1"


def price_bytes(source, path, method="dp", **options) -> bytes:
    tt.calibrate(source, method=method, **options).save(path)
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
    """One process that several tests share: it takes seconds to start."""
    with BatchRunner(1) as started:
        yield started


@pytest.fixture
def ran(monkeypatch) -> list[object]:
    """The schedules of the batches that are run in this process."""
    found = []

    def run(work, original=runner.Work.run):
        found.append(work.schedule)
        return original(work)

    monkeypatch.setattr(runner.Work, "run", run)
    return found


@pytest.mark.parametrize(("engine", "what"), [(2, "problem"), ("threads", "loop")])
def test_the_engine_changes_no_number(engine, what, tmp_path):
    make, held_out = SOURCES[what]
    children = set(multiprocessing.active_children())
    executor = ThreadPoolExecutor(2) if engine == "threads" else engine
    with BatchRunner(executor) as shop:
        there = price_bytes(make(), tmp_path / "there", engine=shop), table(make(), shop)
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


def test_what_was_stopped_goes_on_and_ends_with_the_same_price(tmp_path, ran):
    whole = price_bytes(problem(), tmp_path / "whole")
    for after in (4, 6, None):

        def stop(text, after=after):
            if text == f"calibration batch {after}":
                raise StoppedError

        before = len(list((tmp_path / "kept").glob("*.json")))
        ran.clear()
        with BatchRunner(keep=tmp_path / "kept", key=KEY) as shop:
            if after is not None:
                with pytest.raises(StoppedError):
                    tt.calibrate(problem(), method="dp", engine=shop, progress=stop)
            else:
                assert price_bytes(problem(), tmp_path / "again", engine=shop) == whole
        new = len(list((tmp_path / "kept").glob("*.json"))) - before
        assert new > 0
        assert len(ran) == new + (before > 0)  # one kept batch is run again, to compare


def test_a_call_that_has_finished_is_read_whatever_the_engine(tmp_path, ran):
    with BatchRunner(keep=tmp_path / "kept", key=KEY) as shop:
        first = price_bytes(problem(), tmp_path / "first", engine=shop)
    ran.clear()
    for engine in (None, ThreadPoolExecutor(1)):
        with BatchRunner(engine, tmp_path / "kept", KEY) as shop:
            assert price_bytes(problem(), tmp_path / "again", engine=shop) == first
        assert len(ran) == 1  # to compare
        ran.clear()


def test_two_functions_of_one_runner_are_not_taken_for_each_other(tmp_path):
    whole = advice_facts(Loop(1), (Loop(2),), None)
    for _ in range(2):
        with BatchRunner(keep=tmp_path, key="loops") as shop:
            assert advice_facts(Loop(1), (Loop(2),), shop) == whole
    with BatchRunner(keep=tmp_path, key="loops") as shop:
        tt.compare(Loop(4), {}, [3], engine=shop)
        with pytest.raises(EngineError, match="not of this problem"):
            tt.compare(Loop(5), {}, [3], engine=shop)


CTRL_C = """
import sys, time, torch, trimtab as tt
from concurrent.futures import wait
from engine_cases import Loop
from trimtab.loop.runner import BatchRunner

class Slow(Loop):
    def __call__(self, schedule):
        time.sleep(0.0 if schedule.budget < 4 else 60.0)
        return super().__call__(schedule)

if __name__ == "__main__":
    with BatchRunner(1, sys.argv[1], "slow loop") as shop:
        run = shop.runs(Slow(1))
        run.prefetch([tt.Periodic(2), tt.Periodic(3), tt.Periodic(5), tt.Periodic(6)])
        while sum(future.done() for futures in run._ahead.values() for future in futures) < 2:
            time.sleep(0.05)
        print("now", flush=True)
        run(tt.Periodic(5))
"""


def test_ctrl_c_loses_no_finished_batch(tmp_path, ran):
    (tmp_path / "slow.py").write_text(CTRL_C)
    places = os.pathsep.join([str(Path(engine_cases.__file__).parent), *filter(None, sys.path)])
    command = [sys.executable, str(tmp_path / "slow.py"), str(tmp_path / "kept")]
    begun = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": places}, stdout=subprocess.PIPE, text=True)
    assert begun.stdout is not None
    assert begun.stdout.readline() == "now\n"
    begin = time.monotonic()
    begun.send_signal(signal.SIGINT)
    assert begun.wait(30) != 0
    assert time.monotonic() - begin < 30  # the worker is in the middle of a minute
    begun.stdout.close()
    assert len(list((tmp_path / "kept").glob("*.json"))) == 2


# ------------------------------------------------------------------ what does not fit


class Doubled(SO3):
    def defect(self, x):
        return 2 * super().defect(x)

    def take(self, rows):
        return self


def test_seeds_and_options_are_told_apart(tmp_path, ran):
    with BatchRunner(keep=tmp_path, key=KEY) as shop:
        for other in (problem(), problem(first=2000), problem(n=8)):
            tt.calibrate(other, method="paper", engine=shop)
        tt.calibrate(problem(), method="paper", engine=shop, closing="free")
    assert len(list(tmp_path.glob("*.json"))) == len(ran) == 4


def with_gain(gain):
    ball = tt.as_constraint(lambda x: x.clamp(-0.5, 0.5), lambda x: gain * outside(x))
    return replace(problem(), constraint=ball)


def outside(x):
    return (x.abs() - 0.5).clamp(min=0).flatten(1).amax(dim=1)


MISFITS = {
    "constraint was SO3 and is Doubled": (problem, lambda: replace(problem(), constraint=Doubled())),
    "n_steps was 12 and is 13": (problem, lambda: tt.domain("so3", n_steps=13).problem(range(1000, 1016))),
    "defect scale was": (lambda: with_gain(1.0), lambda: with_gain(2.0)),
    "state shape was": (tree_loop("dict"), Loop(1)),
}


@pytest.mark.parametrize("what", MISFITS)
def test_another_problem_under_the_same_key_is_refused(what, tmp_path):
    def made(which):
        source = MISFITS[what][which]
        return (source, {}) if what.startswith("state") else (source(), {"measure_defects": True})

    def run_of(shop, source):
        return shop.runs(source[0], **source[1])

    schedule = tt.Periodic(2)
    with BatchRunner(keep=tmp_path, key=KEY) as shop:
        run_of(shop, made(0))(schedule)
    with BatchRunner(keep=tmp_path, key=KEY) as shop, pytest.raises(EngineError, match=what) as told:
        run_of(shop, made(1))(schedule)
    assert f"key={KEY!r}" in str(told.value)
    assert "Give another key" in str(told.value)
    with BatchRunner(keep=tmp_path, key="another") as shop:
        run_of(shop, made(1))(schedule)


def test_another_version_is_refused(tmp_path, monkeypatch):
    for version in ("0.1", "0.2"):
        monkeypatch.setattr(kept, "__version__", version)
        with BatchRunner(keep=tmp_path, key=KEY) as shop:
            if version == "0.1":
                shop.runs(Loop(1))(tt.Periodic(2))
                continue
            with pytest.raises(EngineError, match=r"trimtab was 0\.1 and is 0\.2"):
                shop.runs(Loop(1))(tt.Periodic(2))


def test_a_kept_batch_that_comes_out_differently_is_found_out(tmp_path):
    model = {"shift": 0.0}

    def run(schedule):
        ball = tt.as_constraint(engine_cases.inside, engine_cases.outside)
        corrector = tt.Corrector(ball, schedule, n_steps=4, measure_defects=True)
        x = torch.zeros(3, 2, dtype=torch.float64)
        for t in range(4):
            x = corrector(x + 0.3 + model["shift"] * (t == 2), t)
        return corrector.rollout

    for shift in (0.0, 0.0, 0.5):
        model["shift"] = shift
        with BatchRunner(keep=tmp_path, key=KEY) as shop:
            if shift:
                with pytest.raises(EngineError, match=r"3 of 3 samples differ.*from step 2 on.*Give another key"):
                    shop.runs(run)(tt.Periodic(2))
            else:
                shop.runs(run)(tt.Periodic(2))


@pytest.mark.parametrize("damage", ["cut", "another's", "gone"])
def test_a_damaged_batch_is_run_again(damage, tmp_path):
    folder = tmp_path / "kept"
    with BatchRunner(keep=folder, key=KEY) as shop:
        whole = price_bytes(problem(), tmp_path / "whole", engine=shop)
    one, *_ = sorted(folder.glob("*.safetensors"))
    if damage == "cut":
        one.write_bytes(one.read_bytes()[:100])
    elif damage == "another's":
        one.with_suffix(".json").write_text("{}")
    else:
        one.unlink()
    with BatchRunner(keep=folder, key=KEY) as shop, pytest.warns(UserWarning, match="damaged and is run again"):
        assert price_bytes(problem(), tmp_path / "again", engine=shop) == whole


# ------------------------------------------------------------------ states


@pytest.mark.parametrize("kind", ["dict", "numpy"])
def test_states_that_are_trees_come_back_as_they_were(kind, tmp_path, ran):
    run = tree_loop(kind)
    with BatchRunner(keep=tmp_path, key="trees") as shop:
        there = shop.runs(run)(tt.Periodic(2))
    with BatchRunner(keep=tmp_path, key="trees") as shop:
        shop.runs(run)(tt.Periodic(2))
        ran.clear()
        back = shop.runs(run)(tt.Periodic(2))
        assert not ran
    if kind == "numpy":
        np.testing.assert_array_equal(back.final, there.final)
        return
    assert list(back.final) == ["x", "more"]
    assert torch.equal(back.final["x"], there.final["x"])
    np.testing.assert_array_equal(back.final["more"][0], there.final["more"][0])


def test_states_in_types_of_ones_own_are_run_again_and_it_is_said(tmp_path):
    for _ in range(2):
        with BatchRunner(keep=tmp_path, key="own") as shop, pytest.warns(UserWarning, match="types of your own"):
            assert isinstance(shop.runs(tree_loop("dataclass"))(tt.Periodic(2)).final, engine_cases.State)


def test_kept_jax_arrays_are_read_where_jax_is_not_imported_yet(tmp_path, monkeypatch):
    jax = pytest.importorskip("jax", reason="needs the jax extra")
    still = tt.as_constraint(lambda x: x, lambda x: jax.numpy.abs(x).max(axis=1))
    corrector = tt.Corrector(still, tt.Stepwise(), 1)
    corrector(jax.numpy.ones((2, 3)))
    batches = kept.KeptBatches(tmp_path, KEY)
    batches.write("0" * 32, corrector.rollout, Loop(1))
    monkeypatch.delitem(sys.modules, "jax")
    # it cannot be imported twice
    monkeypatch.setattr("trimtab.core.arrays.import_module", lambda name: sys.modules.setdefault(name, jax))
    found = batches.read("0" * 32, Loop(1))
    assert found is not None
    assert isinstance(found.final, jax.Array)


# ------------------------------------------------------------------ what goes wrong


@pytest.mark.parametrize("name", ["here", "processes"])
def test_a_run_that_does_not_repeat_itself_is_found_out_in_a_worker_too(name, worker):
    engine = worker if name == "processes" else None
    with pytest.raises(ValueError, match=r"not repeatable.*The global generator of torch was drawn from"):
        tt.calibrate(unseeded, engine=engine)
    with pytest.raises(TypeError, match=r"must return the record of its run, corrector.rollout: got Tensor"):
        tt.calibrate(returns_states, engine=engine, check=False)


@pytest.mark.parametrize("name", ["here", "processes"])
def test_batches_go_on_after_one_that_failed(name, worker):
    run = (worker if name == "processes" else BatchRunner()).runs(engine_cases.Picky(3))
    for _ in range(3):
        with pytest.raises(OSError, match="a budget of 2 is too small"):
            run(tt.Periodic(2))
    assert int(run(tt.Periodic(4)).spent[0]) == 4
    run.prefetch([tt.Periodic(1), tt.Periodic(5)])
    assert int(run(tt.Periodic(5)).spent[0]) == 5  # whatever became of the other one
    for _ in range(2):
        with pytest.raises(OSError, match="a budget of 1 is too small"):
            run(tt.Periodic(1))


class Counting(Executor):
    """Runs calls at once and counts them."""

    calls = 0

    def submit(self, function, /, *arguments, **options):
        self.calls += 1
        future = Future()
        future.set_result(function(*arguments, **options))
        return future


def test_a_batch_that_was_started_ahead_is_run_once():
    with BatchRunner(Counting()) as shop:
        run = shop.runs(Loop(1))
        run.prefetch([tt.Periodic(5), tt.Periodic(2), tt.Periodic(torch.tensor([5] * 8))])
        assert shop.engine.calls == 3
        assert [int(run(tt.Periodic(5)).spent[0]), int(run(tt.Periodic(torch.tensor([5] * 8))).spent[0])] == [5, 5]
        assert shop.engine.calls == 3
        assert int(run(tt.Periodic(3)).spent[0]) == 3
        assert shop.engine.calls == 4


def test_a_batch_that_was_dropped_is_run_where_it_is_asked_for():
    with BatchRunner(1) as shop:
        run = shop.runs(Loop(1))
        run.prefetch([tt.Periodic(5)])
        shop.close()
        assert int(run(tt.Periodic(5)).spent[0]) == 5


def test_an_executor_ends_its_own_processes_alone():
    with Processes(1) as other:
        later = other.submit(time.sleep, 1.0)
        with Processes(1) as one:
            one.submit(time.sleep, 600.0)
        assert later.result() is None


def test_a_worker_that_is_killed_is_a_clear_error():
    with Processes(1) as one, pytest.raises(BrokenExecutor):
        one.submit(os.kill, one.submit(os.getpid).result(), signal.SIGKILL).result()
    with BatchRunner(1) as shop, pytest.raises(EngineError, match="a worker died"):
        shop.runs(engine_cases.Deadly(1))(tt.Periodic(2))


def test_what_cannot_be_sent_is_refused_with_what_to_do(monkeypatch, worker):
    monkeypatch.setattr(runner, "by_value", pickle)
    mine = replace(problem(), constraint=tt.as_constraint(lambda x: x.clamp(-1, 1)))
    with pytest.raises(ValueError, match=r"cannot be sent to other processes.*cloudpickle.*leave engine out"):
        tt.calibrate(mine, engine=worker)


def test_functions_written_in_place_are_sent_with_cloudpickle(tmp_path, worker):
    pytest.importorskip("cloudpickle", reason="cloudpickle is not installed: pip install cloudpickle")
    ball = tt.as_constraint(lambda x: x.clamp(-1, 1), lambda x: (x.abs() - 1).clamp(min=0).flatten(1).amax(dim=1))
    mine = replace(problem(), constraint=ball)
    here = price_bytes(mine, tmp_path / "here", method="paper")
    assert price_bytes(mine, tmp_path / "there", method="paper", engine=worker) == here


def test_a_schedule_that_cannot_be_pickled_is_run_and_not_kept(tmp_path):
    lock = threading.Lock()

    def due(view):
        with lock:
            return view.defect > 0.1

    with BatchRunner(keep=tmp_path, key=KEY) as shop, pytest.warns(UserWarning, match="cannot be pickled"):
        shop.runs(Loop(1))(as_schedule(due))
    assert not list(tmp_path.iterdir())


def test_engines_and_folders_that_cannot_be_meant_are_refused(tmp_path):
    for engine in ("processes", True, 1.5, [2]):
        with pytest.raises(TypeError, match="engine must be None, a number of processes, or have submit"):
            tt.calibrate(problem(), engine=engine)
    with pytest.raises(ValueError, match="at least one process"):
        BatchRunner(0)
    for key in (None, "", "  ", 3):
        with pytest.raises(ValueError, match="keep=folder needs key="):
            BatchRunner(keep=tmp_path, key=key)
    with pytest.raises(ValueError, match="give keep=folder as well"):
        BatchRunner(key="mine")
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for place in ("file", "link"):
        with pytest.raises(ValueError, match=f"{place}: expected a folder"):
            BatchRunner(keep=tmp_path / place, key=KEY)


def test_threads_and_number_formats_of_the_caller_are_left_alone_and_followed(worker):
    threads = torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    try:
        price = tt.calibrate(problem(), method="paper", engine=worker)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_default_dtype(torch.float32)
    assert price.n_steps == engine_cases.STEPS
