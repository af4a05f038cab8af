"""One rule with three verdicts, and what follows from it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

import trimtab as tt
from trimtab.advice.trials import scale_of
from trimtab.advice.verdict import judge
from trimtab.core.quality import Quality, QualityWarning

TOOL = Path(__file__).parents[2] / "tools" / "advice_coverage.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("advice_coverage", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("loss", "truth"), [(0.0, {"no better"}), (0.05, {"no better", "better"}), (0.5, {"better"})])
@pytest.mark.parametrize("n", [8, 32, 512])
def test_a_verdict_is_true_or_undecided(loss, truth, n):
    """The truth is known, and noise is skew: the mean of an exponential is 1."""
    generator = torch.Generator().manual_seed(n)
    found = []
    for _ in range(60):
        noise = -torch.rand(n, generator=generator, dtype=torch.float64).log() - 1
        found.append(judge(loss + noise, torch.zeros(n, dtype=torch.float64), 0.1).verdict)
    assert sum(one not in truth | {"undecided"} for one in found) <= 4
    assert n < 512 or loss == 0.05 or sum(one in truth for one in found) > 20


def test_so_many_seeds_as_it_says_decide_most_of_the_time():
    generator = torch.Generator().manual_seed(0)

    def draw(n):
        return judge(0.3 + torch.randn(n, generator=generator, dtype=torch.float64), torch.zeros(n), 0.1)

    asked = sorted(found.seeds for found in (draw(32) for _ in range(60)) if found.verdict == "undecided")
    typical = asked[len(asked) // 2]
    assert 64 <= typical < 500
    assert sum(draw(typical).verdict == "better" for _ in range(40)) > 20


def test_a_few_pairs_without_any_difference_prove_nothing():
    same = torch.ones(12)
    assert judge(same, same, 0.1).verdict == "undecided"
    assert judge(torch.ones(24), torch.ones(24), 0.1).verdict == "no better"


def test_a_heavy_tail_does_not_widen_the_tolerance():
    typical = torch.rand(64, generator=torch.manual_seed(0), dtype=torch.float64)
    tail = typical.clone()
    tail[0] = 1e6
    zeros = torch.zeros_like(tail)
    assert scale_of(tail, zeros) == pytest.approx(scale_of(typical, zeros), rel=0.1)
    assert scale_of(torch.cat([typical, torch.zeros(64)]), torch.zeros(128)) == pytest.approx(
        0.5 * scale_of(typical, zeros)
    )


@pytest.mark.parametrize("count", [32, 128])
def test_where_full_projection_is_truly_better_advice_never_says_it_is_not(tool, count):
    truth = tool.Truth(tool.gusts(range(2_000_000, 2_004_000)), tool.off_target)
    assert tool.verdicts(count, truth, trials=5)["wrong"] == 0


def test_undecided_advice_says_how_many_seeds_would_decide_and_names_what_may_be_enough(tool):
    advice = tt.advise(tool.gusts(range(10_000, 10_064)), quality=tool.off_target, cost="projections")
    assert advice.verdict == "undecided"
    assert advice.seeds >= 128
    text = str(advice)
    assert text.startswith("Undecided; until it is, use a whole projection after every step.")
    assert f"about {advice.seeds:,} seeds would decide" in text
    assert "no better" not in text
    assert advice.facts()["seeds_to_decide"] == advice.seeds


def test_a_simple_rule_that_wins_is_said_to_be_simple():
    corrected_late = [0.0] * 10 + [1.0] * 6

    class Late:
        n_steps = 16

        def start(self, noise):
            return torch.ones(len(noise.seeds), 2, dtype=torch.float64)

        def step(self, x, t, noise):
            u = x[:, :1]
            return torch.cat([0.5 + noise.uniform(t, (1,)), x[:, 1:] + corrected_late[t] * u], dim=1)

    first_zero = tt.as_constraint(lambda x: x * torch.tensor([0.0, 1.0], dtype=x.dtype), lambda x: x[:, 0].abs())
    problem = tt.Problem(Late(), first_zero, range(64))
    advice = tt.advise(problem, quality=lambda final: final[:, 1], cost="projections")
    assert advice.times == "window"
    assert "a simple rule, which needs no prices" in advice.reason


def test_repeated_seeds_of_a_loop_count_once(tool):
    runs = [tool.gusts([*range(a, a + 16), *range(a, a + 16)]).rollout for a in (0, 100)]
    advice = tt.advise(*runs, quality=tool.off_target, cost="projections")
    assert (advice.measured.held_out, advice.measured.repeated, advice.measured.batch) == (16, 16, 32)
    assert "16 samples with repeated seeds were left out" in " ".join(str(advice).split())


def test_an_error_of_the_quality_warns_and_counts_as_missing():
    def down(final):
        raise RuntimeError("the evaluator is down")

    with pytest.warns(QualityWarning, match="the evaluator is down"):
        assert Quality(down).costs_or_missing(torch.zeros(3, 2)).isnan().all()
    said = []
    Quality(down).costs_or_missing(torch.zeros(3, 2), failed=said.append)
    assert said == ["RuntimeError: the evaluator is down"]


def test_where_terminal_projection_has_a_tail_no_cheaper_way_is_said_to_have_none():
    same = torch.zeros(64, dtype=torch.float64)
    slight = 0.01 * torch.rand(64, generator=torch.manual_seed(0), dtype=torch.float64)
    tail = torch.cat([torch.tensor([500.0]).double(), slight[1:]])
    assert judge(slight, same, 0.1).verdict == "no better"
    found = judge(slight, same, 0.1, tail)
    assert (found.verdict, found.loss.reliable) == ("undecided", False)
