"""The benchmark: what its cells hold, how it resumes, how it ranks, and that a system and a rule of one's own run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

import trimtab as tt
from trimtab_lab.bench import RULES, NotApplicable, Rule, System, systems
from trimtab_lab.bench.descent import Descent, Meter
from trimtab_lab.bench.page import page_html, rank_lines
from trimtab_lab.bench.rules import Changed
from trimtab_lab.bench.run import EVALUATION, Cell, cells_of, read_cells, run_cell, run_cells
from trimtab_lab.bench.table import eligible, ranks, results
from trimtab_lab.domains import domain

PAGE = Path(__file__).resolve().parents[3] / "docs" / "benchmark.md"
SMALL = System("linkage", domain("linkage", n_steps=12).problem, samples=8, learning=8, batch=4)
FEW = [RULES[name] for name in ("terminal", "full", "even", "1 iteration", "all afterwards")]


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cells")
    return folder, list(run_cells(cells_of([SMALL], FEW, (0.25, 0.5)), folder, lambda text: None))


def of(facts, rule, budget=None):
    return next(cell for cell in facts if (cell["key"]["rule"], cell["key"]["budget"]) == (rule, budget))


def test_full_projection_is_its_own_reference(cells):
    full = of(cells[1], "full")
    assert max(full["distance"]) == 0
    assert sum(full["work"]) / len(full["work"]) == pytest.approx(full["full"])


def test_a_cell_is_the_rollout_of_its_rule_on_frozen_seeds(cells):
    runs = [p.rollout(tt.Terminal()) for p in SMALL.batches(EVALUATION)]
    work = torch.cat([run.all_iterations for run in runs]).double()
    assert of(cells[1], "terminal")["work"] == work.tolist()


def test_budgets_are_fitted_to_the_work_of_full_projection(cells):
    for budget in (0.25, 0.5):
        cell = of(cells[1], "even", budget)
        assert sum(cell["work"]) / 8 / cell["full"] == pytest.approx(budget, rel=0.35)


def test_what_does_not_apply_is_left_out_with_a_reason(cells):
    assert of(cells[1], "all afterwards", 0.25)["skipped"] == "its correction has no number of steps"
    absent = System("absent", SMALL.problem, needs=("no_such_module",))
    assert "no_such_module" in run_cell(Cell(absent, RULES["full"], None))["skipped"]


def test_a_stopped_run_continues_with_what_it_has(cells):
    folder, facts = cells
    said: list[str] = []
    again = list(run_cells(cells_of([SMALL], FEW, (0.25, 0.5)), folder, said.append))
    assert (said, again) == ([], facts)
    assert len(read_cells(folder)) == len(facts)
    (folder / "linkage--terminal.json").write_text("{ half a fi")
    repaired = list(run_cells(cells_of([SMALL], FEW, (0.25, 0.5)), folder, said.append))
    assert len(said) == 1
    assert of(repaired, "terminal")["quality"] == of(facts, "terminal")["quality"]


def test_results_of_other_settings_are_not_reused(cells):
    folder, _ = cells
    said: list[str] = []
    other = System("linkage", SMALL.problem, samples=4, learning=8, batch=4)
    (found,) = run_cells(cells_of([other], [RULES["terminal"]], ()), folder, said.append)
    assert (len(said), len(found["quality"])) == (1, 4)


def facts_of(system, rule, quality, work, budget=None):
    key = {"system": system, "rule": rule, "budget": budget, "measure": "m"}
    numbers = {"quality": quality, "distance": quality, "work": [work] * len(quality), "full": 1.0}
    return {"key": key, **numbers, "calls": 1.0, "feasible": 1.0, "seconds": {"update": 1.0, "projection": 1.0}}


def test_ranks_compare_sample_by_sample_at_equal_work():
    found = results(
        [
            facts_of("a", "good", [1.0, 1.0, 1.0, 900.0], 0.2),
            facts_of("a", "even", [2.0, 2.0, 2.0, 2.0], 0.25, 0.25),
            facts_of("a", "dear", [0.0] * 4, 0.4),
            facts_of("a", "dear, in part", [0.0] * 4, 0.4, 0.5),
            facts_of("a", "dear, in part", [3.0] * 4, 0.1, 0.1),
            facts_of("a", "full", [0.0] * 4, 0.25),
        ]
    )
    assert {name: run.work for name, run in eligible(found, 0.25)["a"].items()} == pytest.approx(
        {"good": 0.2, "even": 0.25, "dear, in part": 0.1}
    )
    first, second, third = ranks(found, 0.25)
    assert (first.rule, first.place, first.wins, first.first) == ("good", 0.25, 0.75, 1)
    assert (second.rule, second.wins) == ("even", 0.5)
    assert third.place == pytest.approx((1 + 1 + 1 + 0.5) / 4)
    assert first.low <= first.place <= first.high


def test_equal_samples_share_a_place():
    found = results([facts_of("a", rule, [1.0, 2.0], 0.1) for rule in ("b", "c", "even")])
    assert {rank.place for rank in ranks(found, 0.25)} == {0.5}


def test_the_page_needs_nothing_else_and_escapes_names(cells):
    page = page_html(cells[1], {"linkage": "<b>bars</b>"}, (0.25, 0.5))
    assert "&lt;b&gt;bars" in page
    assert page.count("<svg") == 1
    assert not re.search(r'(src|href)="http', page)
    assert "its correction has no number of steps" in page
    assert sum(line.startswith("| even |") for line in rank_lines(results(cells[1]), (0.25, 0.5))) == 4


def test_a_descent_counts_what_it_evaluates():
    meter = Meter(0.5)
    descent = Descent(lambda x, slope: ((x * x).sum(1).double(), 2 * x if slope else None), 3, 0.25, meter=meter)
    x = torch.tensor([[4.0, 0.0], [0.0, 2.0]])
    answer = descent.project(x)
    assert (meter.spent, answer.iterations.tolist()) == (6, [3, 3])
    assert torch.equal(answer.x, x / 8)
    assert answer.residual.tolist() == [0.5, 0.125]  # half of that at the place before the last step
    descent.defect(x)
    assert meter.spent == 7


def test_adaptive_steps_solve_a_quadratic_in_its_dimension():
    weights = torch.tensor([1.0, 10.0], dtype=torch.float64)
    bowl = lambda x, slope: ((weights * x * x).sum(1), 2 * weights * x)  # noqa: E731
    x = torch.tensor([[3.0, 2.0]], dtype=torch.float64)
    near, far = (Descent(bowl, 20, 0.01, adaptive=adaptive).project(x).x.norm() for adaptive in (True, False))
    assert near < 1e-6 < far


def test_steering_potentials_have_the_gradient_of_their_energy():
    pytest.importorskip("rdkit")
    from trimtab_lab.bench.steering import potentials_of

    potentials = potentials_of("testosterone-butyrate")
    generator = torch.Generator().manual_seed(0)
    real = systems("smoke")["alanine-dipeptide"]
    assert real.missing == ""
    atoms = int(potentials.pairs.max()) + 1
    x = 3 * torch.randn(2, atoms, 3, generator=generator, dtype=torch.float64)
    free = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(potentials(free, False)[0].sum(), free)
    torch.testing.assert_close(potentials(x, True)[1], slope, atol=1e-12, rtol=1e-9)
    assert slope.abs().max() > 0


def test_published_numbers_of_gradient_steps_mean_nothing_to_another_solver():
    with pytest.raises(NotApplicable, match="gradient"):
        RULES["Boltz"].make(SMALL, 1.0)


def test_all_afterwards_spends_the_gradients_of_its_budget():
    bowl = Descent(lambda x, slope: ((x * x).sum(1).double(), 2 * x if slope else None), 4, 0.1)
    problem = domain("linkage", n_steps=10).problem(range(2))
    system = System("bowl", lambda seeds: tt.Problem(problem.sampler, bowl, seeds), learning=2, gradients=True)
    change = RULES["all afterwards"].make(system, 0.5)
    assert isinstance(change, Changed)
    assert change.constraint(bowl).steps == 20


def test_a_system_and_a_rule_of_ones_own_run(tmp_path, monkeypatch, capsys):
    """The module on the page, run by the command on the page."""
    from trimtab.cli.main import main

    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert all(len(text.strip().splitlines()) <= 20 for text in snippets)
    (tmp_path / "mine.py").write_text("\n".join(snippets))
    monkeypatch.chdir(tmp_path)
    command = ["bench", "--add", "mine", "--systems", "disk", "--rules", "full", "even", "when far", "--out", "out"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "when far" in shown
    facts = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert [cell["key"]["rule"] for cell in facts if "skipped" not in cell] == ["full", "even", "when far"]
    assert "disk" in (tmp_path / "out" / "index.html").read_text()
    assert main(["bench", "--report", "--out", "out"]) == 0
    assert capsys.readouterr().out == shown
    assert main(["bench", "--report", "--out", "elsewhere"]) == 2


def test_rules_and_systems_are_known_by_their_names():
    assert all(name == rule.name and isinstance(rule, Rule) for name, rule in RULES.items())
    assert all(name == system.name for name, system in systems("smoke").items())
    with pytest.raises(ValueError, match="size"):
        systems("huge")
