from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import torch

import trimtab as tt
from trimtab.cli.main import main
from trimtab.prices.price import load
from trimtab_lab.cli.command import quality_from
from trimtab_lab.domains import domain
from trimtab_lab.studies.probe import probe
from trimtab_lab.studies.usercode import Source, domain_from, load_function, read_settings, split, version_of

ROOT = Path(__file__).parents[3]
MINE = "examples.my_sampler:make"

HEAD = """
import torch
import trimtab as tt

class Walk(tt.Constraint):
    n_steps = 6
    def start(self, noise):
        return noise.start((2,))
    def step(self, x, t, noise):
        return x + noise.normal(t, (2,))

disc = tt.as_constraint(
    lambda x: x / x.norm(dim=1, keepdim=True).clamp(min=1), lambda x: (x.norm(dim=1) - 1).clamp(min=0)
)
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a module into an empty working directory; returns "module:make"."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    names = []

    def write_module(body: str, factory: str = "make") -> str:
        name = f"user_module_{abs(hash(body))}"
        names.append(name)
        (tmp_path / f"{name}.py").write_text(HEAD + dedent(body))
        return f"{name}:{factory}"

    yield write_module
    for name in names:
        sys.modules.pop(name, None)


def made(spec: str, **settings):
    return domain_from(Source.of_user(spec, settings, "mine"))


# ------------------------------------------------------------------ the contract


def test_a_factory_may_return_a_pair_a_triple_a_problem_or_a_domain(write):
    bodies = {
        "return Walk(), disc": 5.0,  # Euclidean
        "return Walk(), disc, lambda a, b: (a - b)[:, 0].abs()": 3.0,
        "from trimtab_lab.domains import Problem; return Problem(Walk(), disc, [0])": 5.0,
        "from trimtab_lab.domains import Domain, Problem\n"
        "    return Domain('d', 's', lambda seeds: Problem(Walk(), disc, seeds),"
        " lambda a, b: (a - b)[:, 1].abs())": 4.0,
    }
    a, b = torch.zeros(1, 2), torch.tensor([[3.0, 4.0]])
    for body, expected in bodies.items():
        domain = made(write(f"def make():\n    {body}"))
        probe(domain, range(3), whole=True)
        assert float(domain.distance(a, b)) == expected
        run = domain.problem(range(4)).rollout(tt.Periodic(2))
        assert run.spent.tolist() == [2] * 4


def test_a_factory_that_takes_seeds_is_called_for_each_batch_so_that_data_follow_the_sample(write):
    spec = write("""
        def make(seeds, base=1.0):
            radius = base + seeds.double()
            ball = tt.as_constraint(
                lambda x, r: x * (r[:, None] / x.norm(dim=1, keepdim=True)).clamp(max=1),
                lambda x, r: (x.norm(dim=1) - r).clamp(min=0),
                data=(radius,),
            )
            return Walk(), ball
    """)
    domain = made(spec, base=2.0)
    probe(domain, [5, 0, 3])
    far = torch.full((2, 2), 100.0, dtype=torch.float64)
    projected = domain.problem([3, 0]).constraint.project(far)
    torch.testing.assert_close(projected.norm(dim=1), torch.tensor([5.0, 2.0], dtype=torch.float64))
    assert domain.settings == {"base": 2.0}


def test_the_summary_is_the_docstrings_first_line_and_the_name_the_modules():
    source = Source.of_user(MINE, {})
    assert source.name == "my_sampler"
    assert domain_from(source).summary == "Return the walk and the disc that it must stay in"


def test_built_in_domains_are_factories_too():
    domain = domain_from(Source.built_in("so3", {"n_steps": 7}))
    assert (domain.name, domain.problem([0]).sampler.n_steps) == ("so3", 7)


def test_another_setting_or_another_source_is_another_version(write):
    body = "def make(radius=1.0):\n    return Walk(), tt.as_constraint(lambda x: x * 0, lambda x: x.norm(dim=1) * {0})"
    first, second = write(body.format("1")), write(body.format("2"))
    versions = {version_of(Source("mine", spec)) for spec in (first, second)}
    assert len(versions) == 2
    wider, mine = Source.built_in("so3", {"n_steps": 7}), Source.built_in("so3", {"n_steps": 8})
    assert version_of(wider) != version_of(mine)
    assert version_of(mine) == version_of(mine)


@pytest.mark.parametrize(("name", "text"), [("a.json", '{"radius": 2.0}'), ("a.toml", "radius = 2.0")])
def test_settings_are_read_from_json_and_toml(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert read_settings(tmp_path / name) == {"radius": 2.0}


# ------------------------------------------------------------------ what is refused, and how


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("my_sampler", "package.module:factory.*got 'my_sampler'"),
        ("examples/my_sampler.py:make", r"perhaps examples\.my_sampler:make"),
        ("examples.my_sampler:", "package.module:factory"),
        ("examples.my_sampler:mak", "did you mean 'make'"),
        ("examples.my_samplr:make", "did you mean 'my_sampler'"),
        ("exampels.my_sampler:make", "did you mean 'examples'"),
        ("examples.my_sampler:torch", "not a function but module"),
    ],
)
def test_a_factory_that_is_not_there_is_looked_for(monkeypatch, spec, complaint):
    monkeypatch.chdir(ROOT)
    with pytest.raises(ValueError, match=complaint):
        load_function(spec)


def test_split_gives_module_and_factory():
    assert split("a.b:c") == ("a.b", "c")


@pytest.mark.parametrize(
    ("body", "settings", "complaint"),
    [
        ("import no_such_package_here", {}, "cannot be imported: ModuleNotFoundError.*no_such_package_here"),
        ("1 / 0", {}, r"cannot be imported: ZeroDivisionError.*line \d+"),
        ("def make(): return {'sampler': Walk()}", {}, "returned dict; expected .sampler, constraint."),
        ("def make(): return Walk()", {}, "returned Walk; expected"),
        ("def make(): return disc, Walk()", {}, "constraint first"),
        ("def make(): return object(), disc", {}, "object has no n_steps"),
        ("def make():\n    w = Walk(); w.n_steps = 2.5\n    return w, disc", {}, "n_steps must be a whole number"),
        ("def make(): return Walk(), lambda x: x", {}, r"must derive from trimtab.Constraint.*as_constraint"),
        (
            "def make():\n    class C:\n        project = defect = lambda s, x: x\n    return Walk(), C()",
            {},
            "must derive from trimtab.Constraint",
        ),
        ("def make(): return Walk(), disc, 3", {}, "distance must be a function"),
        ("def make(radius): return Walk(), disc", {}, "needs radius: .*--config"),
        ("def make(radius=1): return Walk(), disc", {"radus": 2}, "did you mean 'radius'"),
        ("def make(): return Walk(), disc", {"radius": 2}, "takes no settings"),
        ("def make(): raise KeyError('weights')", {}, r"failed: KeyError: 'weights' \(user_module_\d+.py, line"),
    ],
)
def test_a_factory_that_returns_the_wrong_thing_is_explained(write, body, settings, complaint):
    with pytest.raises(ValueError, match=complaint):
        made(write(body), **settings)


STEPS = {
    "batch norm": ("return x - x.mean(dim=0)", "Samples influence each other"),
    "noise of the batch": ("return x + torch.randn(x.shape, generator=torch.Generator().manual_seed(t))", "influence"),
    "wrong shape": ("return x[:, :1]", r"step must return .* where \(3, 2\) of torch.float64 was expected"),
    "nan": ("return x / 0 * 0", "NaN or inf"),
    "crash": ("return x @ x", "step failed: RuntimeError"),
}


@pytest.mark.parametrize("case", STEPS)
def test_a_sampler_that_would_go_wrong_is_told_so_after_one_step(write, case):
    step, complaint = STEPS[case]
    spec = write(f"class Bad(Walk):\n    def step(self, x, t, noise):\n        {step}\ndef make(): return Bad(), disc")
    with pytest.raises(ValueError, match=complaint):
        probe(made(spec), range(3))


def test_samples_that_influence_each_other_late_are_found_by_the_whole_check(write):
    spec = write("""
        class Late(Walk):
            def step(self, x, t, noise):
                return x - x.mean(dim=0) if t == 5 else x + noise.normal(t, (2,))
        def make(): return Late(), disc
    """)
    probe(made(spec), range(3))
    with pytest.raises(ValueError, match="Samples influence each other"):
        probe(made(spec), range(3), whole=True)


def test_rows_that_cannot_be_selected_are_explained(write):
    spec = write("""
        class Fixed(tt.Constraint):
            radius = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
            def project(self, x):
                return x * (self.radius[:, None] / x.norm(dim=1, keepdim=True)).clamp(max=1)
            def defect(self, x):
                return (x.norm(dim=1) - self.radius).clamp(min=0)
            def take(self, rows):
                return self
        def make(): return Walk(), Fixed()
    """)
    with pytest.raises(ValueError, match=r"take\(rows\)|cannot run sample 0 of 3 alone"):
        probe(made(spec), range(3))


@pytest.mark.parametrize(
    ("defect", "complaint"),
    [
        ("lambda x: x.norm()", r"one number per sample, shape \(3,\) here"),
        ("lambda x: x @ x", "constraint failed"),
    ],
)
def test_a_defect_of_the_wrong_shape_is_explained(write, defect, complaint):
    spec = write(f"def make(): return Walk(), tt.as_constraint(lambda x: x, {defect})")
    with pytest.raises(ValueError, match=complaint):
        probe(made(spec), range(3))


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("a.yaml", "radius: 2", r"\.json or \.toml"),
        ("a.json", "[1]", "expected keyword arguments, got list"),
        ("a.toml", "radius =", "not usable as settings"),
        ("b.json", None, "no such file"),
    ],
)
def test_settings_that_cannot_be_read_are_explained(tmp_path, name, text, complaint):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=complaint):
        read_settings(tmp_path / name)


def test_names_that_are_taken_or_no_file_names_are_refused():
    with pytest.raises(ValueError, match="built-in domain; choose another name"):
        Source.of_user("my.so3:make".replace("so3", "terrain"), {})
    with pytest.raises(ValueError, match="letters, digits"):
        Source.of_user(MINE, {}, "a/b")


# ------------------------------------------------------------------ the command line


def trimtab(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "trimtab", *words], env=environment, cwd=cwd, capture_output=True, text=True, check=False
    )


def test_calibrate_writes_a_price_that_advise_can_judge(tmp_path):
    settings, price, plot = (tmp_path / name for name in ("a.toml", "price.safetensors", "advice.png"))
    settings.write_text("radius = 0.4")
    source = ("--sampler", MINE, "--config", str(settings))
    done = trimtab("calibrate", *source, "--out", str(price), "--seeds", "16", "--method", "paper", "--budget", "0.5")
    assert done.returncode == 0, done.stderr
    loaded = load(price)
    assert (loaded.n_steps, loaded.budget, loaded.method, len(loaded.seeds)) == (60, 30, "paper", 16)

    words = ("advise", *source, "--price", str(price), "--seeds", "16", "--cost", "projections", "--tolerance", "0.3")
    told = trimtab(*words, "--json", "--check", "--plot", str(plot))
    assert told.returncode == 0, told.stderr
    facts = json.loads(told.stdout)
    assert facts["loss"]["high"] <= 0.3
    assert facts["recommended"]["n_steps"] == 60
    assert "checked: samples do not influence each other" in told.stderr
    assert plot.stat().st_size > 10_000


def test_advise_judges_a_plan_that_calibrate_wrote(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    plan = str(tmp_path / "plan.safetensors")
    assert main(["calibrate", "--sampler", MINE, "--seeds", "16", "--method", "planned", "--out", plan]) == 0
    words = ["advise", "--sampler", MINE, "--seeds", "16", "--cost", "projections", "--price", plan, "--json"]
    capsys.readouterr()
    assert main(words) == 0
    tried = {trial["schedule"] for trial in json.loads(capsys.readouterr().out)["trials"]}
    assert tried == {"terminal", "periodic", "window", "first", "planned", "stepwise"}


def test_compare_writes_what_a_study_writes_for_a_sampler_of_ones_own(tmp_path):
    pytest.importorskip("pyarrow")
    from trimtab_lab.studies.rows import read_rows

    run = tmp_path / "mine"
    words = ("compare", "--sampler", MINE, "--out", str(run), "--seeds", "2", "--calibration-seeds", "4")
    small = ("--budgets", "0.1", "--schedules", "planned", "adaptive:dp", "--engine", "serial")
    done = trimtab(*words, *small)
    assert done.returncode == 0, done.stderr
    assert "my_sampler: distance of final samples to those of full projection" in done.stdout
    rows = read_rows(run, "my_sampler")
    assert set(rows.values("schedule")) == {"terminal", "stepwise", "periodic", "planned", "adaptive:dp"}
    assert rows.values("budget") == [0.0, 1.0, 0.1]
    for name in ("report.html", "summary.json", "figures/nepe.png", "tables/table1-planned.md"):
        assert (run / name).is_file()
    config = json.loads((run / "run.json").read_text())["config"]
    assert config["samplers"]["my_sampler"]["factory"] == MINE

    assert main(["report", str(run)]) == 0  # made again without running anything


def test_a_loop_of_ones_own_is_compared_like_a_sampler(tmp_path):
    run = tmp_path / "mine"
    words = ("compare", "--sampler", "examples.my_loop:make", "--out", str(run), "--seeds", "2", "--check")
    small = ("--calibration-seeds", "4", "--budgets", "0.1", "--schedules", "planned", "--engine", "serial")
    done = trimtab(*words, *small)
    assert done.returncode == 0, done.stderr
    assert "my_loop: distance of final samples to those of full projection" in done.stdout
    assert "checked: samples do not influence each other" in done.stderr


def test_a_wrong_command_is_answered_with_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    there = tmp_path / "there.safetensors"
    there.touch()
    cases = {
        "required": ["calibrate"],
        "did you mean 'so3'": ["advise", "--domain", "sO3"],
        "did you mean 'make'": ["compare", "--sampler", "examples.my_sampler:mkae"],
        "unknown method 'pd'": ["calibrate", "--sampler", MINE, "--method", "pd"],
        "unknown objective": ["calibrate", "--sampler", MINE, "--objective", "paths"],
        "a budget must be a fraction": ["calibrate", "--sampler", MINE, "--budget", "half"],
        "--overwrite": ["calibrate", "--sampler", MINE, "--out", str(there)],
        "too few": ["calibrate", "--sampler", MINE, "--out", str(tmp_path / "p"), "--seeds", "2"],
        "at least 16": ["advise", "--sampler", MINE, "--seeds", "8"],
        "unknown schedule 'dp'": ["compare", "--sampler", MINE, "--schedules", "dp"],
        "at most two digits": ["compare", "--sampler", MINE, "--budgets", "0.125"],
        "too few: give --calibration-seeds": ["compare", "--sampler", MINE, "--calibration-seeds", "2"],
        "not a trimtab price file": ["advise", "--sampler", MINE, "--price", str(there)],
    }
    for complaint, words in cases.items():
        assert main(words) == 2, words
        said = capsys.readouterr().err.strip().splitlines()[-1]
        assert said.startswith("trimtab: ")
        assert complaint in said, said


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("advise", "--domain", "so3", "--name", "mine"), "--name is the name of a sampler of your own"),
        (("advise", "--sampler", MINE, "--higher-is-better"), "--higher-is-better needs --quality"),
        (
            ("advise", "--sampler", MINE, "--quality", "examples/my_sampler.py:length"),
            "a quality must be given as package.module:function, the dotted name of a module and a function in it: got "
            "'examples/my_sampler.py:length' (perhaps examples.my_sampler:length?)",
        ),
        (("advise", "--sampler", MINE, "--quality", "examples.my_sampler:length"), "unknown function of examples.my"),
        (("advise", "--sampler", MINE, "--quality", "math:pi"), "a quality needs a function of the final states"),
        (("calibrate", "--sampler", MINE, "--out", "{folder}", "--overwrite"), "is a folder"),
        (("advise", "--sampler", MINE, "--save", "{folder}", "--overwrite"), "is a folder"),
        (("advise", "--sampler", MINE, "--plot", "{folder}/a.png", "--overwrite"), "is a folder"),
        (("advise", "--sampler", MINE, "--out", "{folder}/a.txt"), "kept in a folder, and this is a file"),
    ],
)
def test_what_cannot_be_meant_is_found_before_anything_is_run(words, complaint, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    (tmp_path / "a.png").mkdir()
    (tmp_path / "a.txt").touch()
    assert main([word.format(folder=tmp_path) for word in words]) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1, said  # and no word of a batch


def test_the_qualities_of_a_domain_are_known_by_name_before_it_is_run():
    made = domain("pdm", inner_steps=1)
    problem = made.problem(range(2))
    assert quality_from("length", False, made).costs(problem.rollout(tt.Terminal()).final, problem).shape == (2,)
    with pytest.raises(ValueError, match=r"unknown quality of pdm 'nothing'. Known: collision_free, length, roughness"):
        quality_from("nothing", False, made)
