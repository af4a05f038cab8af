from __future__ import annotations

import json
import math

import jsonschema
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from study_runs import SMALL, SWEPT, finished
from trimtab_lab.metrics import MeanError
from trimtab_lab.studies.rows import COLUMNS, Rows, read_rows
from trimtab_lab.studies.store import RunFiles
from trimtab_lab.studies.summary import (
    domain_summary,
    paired,
    relative_improvement,
    summary_schema,
    write_summary,
)

positive = st.lists(st.tuples(st.floats(0.01, 10), st.floats(0.01, 10)), min_size=2, max_size=20)


@pytest.fixture
def small():
    return finished(SMALL)


@pytest.fixture
def swept():
    return finished(SWEPT)


def toy_rows(nepe: dict[str, list[float]]) -> Rows:
    """Two seeds at budgets 0.25 and 1 for each schedule, with these NEPEs; endpoints are the same numbers."""
    n = 4
    columns = {name: [] for name in COLUMNS}
    for key, values in nepe.items():
        columns["schedule"] += [key] * n
        columns["budget"] += [0.25, 0.25, 1.0, 1.0]
        columns["seed"] += [0, 1, 0, 1]
        columns["nepe"] += values
        columns["endpoint"] += values
    whole = {name: values or [0] * n * len(nepe) for name, values in columns.items()}
    whole["degenerate"] = np.isnan(whole["nepe"])
    return Rows({name: np.array(values) for name, values in whole.items()})


# ------------------------------------------------------------------ improvement of means


@given(positive, st.floats(0.1, 10))
def test_improvement_has_no_unit(pairs, scale):
    method, baseline = torch.tensor(pairs, dtype=torch.float64).unbind(1)
    first, second = relative_improvement(method, baseline), relative_improvement(scale * method, scale * baseline)
    assert math.isclose(first.mean, second.mean, rel_tol=1e-9, abs_tol=1e-9)
    assert math.isclose(first.se, second.se, rel_tol=1e-6, abs_tol=1e-9)


@given(positive)
def test_improvement_is_that_of_the_means_and_none_over_oneself(pairs):
    method, baseline = torch.tensor(pairs, dtype=torch.float64).unbind(1)
    assert math.isclose(
        relative_improvement(method, baseline).mean, 1 - float(method.mean() / baseline.mean()), abs_tol=1e-9
    )
    same = relative_improvement(baseline, baseline)
    assert abs(same.mean) < 1e-12
    assert same.se < 1e-12


def test_its_standard_error_is_the_spread_of_repeated_experiments():
    generator = torch.Generator().manual_seed(5)
    baseline = 1 + 0.3 * torch.randn(2000, 40, generator=generator, dtype=torch.float64)
    method = 0.5 * baseline + 0.1 * torch.randn(2000, 40, generator=generator, dtype=torch.float64)
    means = torch.tensor([relative_improvement(m, b).mean for m, b in zip(method, baseline, strict=True)])
    assert math.isclose(relative_improvement(method[0], baseline[0]).se, float(means.std()), rel_tol=0.25)


def test_degenerate_pairs_are_left_out_and_a_baseline_of_nothing_has_no_share():
    nan = torch.nan
    result = relative_improvement(torch.tensor([1.0, nan, 1.0]), torch.tensor([2.0, 2.0, nan]))
    assert (result.mean, result.n) == (0.5, 1)
    assert math.isnan(relative_improvement(torch.zeros(3), torch.zeros(3)).mean)
    assert relative_improvement(torch.tensor([nan]), torch.tensor([1.0])) != MeanError(0.0, 0.0, 1)


# ------------------------------------------------------------------ by hand


def test_win_rates_count_ties_as_no_win_and_leave_degenerate_pairs_out():
    nan = math.nan
    rows = toy_rows(
        {
            "terminal": [1.0, 1.0, 1.0, 1.0],
            "stepwise": [0.0, 0.0, 0.0, 0.0],
            "periodic": [0.4, nan, 0.0, 0.0],
            "adaptive:paper": [0.1, nan, 0.0, 0.0],
        }
    )
    result = domain_summary(rows)
    wins = result["win_rate"]["adaptive:paper"]
    assert wins["pathwise"] == {"mean": pytest.approx(1 / 3), "se": pytest.approx(2 / 9), "n": 3}
    assert wins["median_improvement"] == pytest.approx(0.75)
    assert result["degenerate"] == 2
    assert result["schedules"]["periodic"]["0.25"]["nepe"] == {"mean": 0.4, "se": None, "n": 1}
    assert result["improvement"]["adaptive:paper"]["1.00"]["nepe"] == {"mean": None, "se": None, "n": 2}


def many_budgets(won: list[list[bool]]) -> Rows:
    """One seed a line and one budget a column, won or lost by adaptive correction, with its ends."""
    budgets, columns = [0.1 * (i + 1) for i in range(len(won[0]))], {name: [] for name in COLUMNS}
    for key in ("terminal", "stepwise", "periodic", "adaptive:paper"):
        for i, budget in enumerate(budgets):
            for seed, line in enumerate(won):
                columns["schedule"].append(key)
                columns["budget"].append(budget)
                columns["seed"].append(seed)
                value = 0.5 if key != "adaptive:paper" else 0.4 if line[i] else 0.6
                columns["nepe"].append(value)
                columns["endpoint"].append(value)
    n = len(columns["seed"])
    whole = {name: np.array(values or [0] * n) for name, values in columns.items()}
    return Rows(whole | {"degenerate": np.isnan(whole["nepe"])})


def test_the_standard_error_of_a_win_rate_counts_the_seeds_and_not_their_budgets():
    alike = many_budgets([[True] * 8, [False] * 8, [True] * 8, [True] * 8])
    wins = domain_summary(alike)["win_rate"]["adaptive:paper"]["pathwise"]
    shares = np.array([1.0, 0.0, 1.0, 1.0])
    assert (wins["mean"], wins["n"]) == (0.75, 32)
    assert wins["se"] == pytest.approx(shares.std(ddof=1) / 2)  # the binomial one of 32 pairs would be 0.077
    even = many_budgets([[True, False]] * 4)
    assert domain_summary(even)["win_rate"]["adaptive:paper"]["pathwise"]["se"] == 0
    alone = many_budgets([[True, False]])
    assert domain_summary(alone)["win_rate"]["adaptive:paper"]["pathwise"]["se"] is None


def skewed(n: int, outlier: float) -> Rows:
    """Rows of n seeds at budget 0.25; adaptive correction halves the error, and one seed of periodic is an outlier."""
    base = np.linspace(1.0, 2.0, n)
    values = {"terminal": base, "stepwise": base, "periodic": np.append(base[1:], outlier), "adaptive:paper": base / 2}
    columns = {name: np.zeros(4 * n) for name in COLUMNS}
    columns |= {
        "schedule": np.repeat(list(values), n),
        "budget": np.full(4 * n, 0.25),
        "seed": np.tile(np.arange(n), 4),
    }
    columns |= {name: np.concatenate(list(values.values())) for name in ("nepe", "endpoint")}
    return Rows(columns | {"degenerate": np.zeros(4 * n, dtype=bool)})


def test_at_the_table_s_budget_an_improvement_has_an_interval_unless_a_few_samples_decide_it():
    known = domain_summary(skewed(64, 2.0), 0.25)["improvement"]["adaptive:paper"]["0.25"]["endpoint"]
    assert known["low"] < known["mean"] == pytest.approx(0.5, abs=0.02)
    assert known["mean"] < known["high"] < 1
    unknown = domain_summary(skewed(64, 500.0), 0.25)["improvement"]["adaptive:paper"]["0.25"]["endpoint"]
    assert (unknown["low"], unknown["high"]) == (None, None)
    assert "low" not in domain_summary(skewed(64, 2.0))["improvement"]["adaptive:paper"]["0.25"]["endpoint"]


def test_tails_say_how_much_the_largest_samples_hold():
    tails = domain_summary(skewed(64, 500.0), 0.25)["tails"]
    assert tails["periodic"]["endpoint"]["top"] > 0.8
    assert tails["periodic"]["endpoint"]["effective_n"] < 2
    assert tails["adaptive:paper"]["endpoint"]["top"] < 0.03
    assert tails["periodic"]["endpoint"]["median"] < 2 < tails["periodic"]["endpoint"]["mean"]


def test_a_rollout_that_stands_for_several_schedules_has_its_failures_counted_once():
    rows = toy_rows({key: [0.5] * 4 for key in ("terminal", "stepwise", "periodic", "adaptive:paper")})
    ends = {"terminal": 0.0, "stepwise": 1.0}
    budget = [ends.get(key, b) for key, b in zip(rows["schedule"], rows["budget"], strict=True)]
    failures = [int(b == 1.0) for b in budget]  # one in each stepwise rollout, and in what it stands for
    nepe = [math.nan if b == 0.25 else 0.5 for b in budget]
    made = {"budget": np.array(budget), "failures": np.array(failures), "degenerate": np.isnan(nepe)}
    result = domain_summary(Rows(dict(rows.columns) | made))
    assert result["failures"] == 4  # of the toy's four stepwise rows, and no more
    assert result["degenerate"] == 4


def test_rows_that_are_not_pairs_are_refused():
    rows = toy_rows({"terminal": [1.0] * 4, "stepwise": [0.0] * 4, "periodic": [0.5] * 4, "x": [0.5] * 4})
    seeds = rows["seed"].copy()
    seeds[-1] = 9
    with pytest.raises(ValueError, match="not pairs: their seeds differ"):
        paired(Rows(dict(rows.columns) | {"seed": seeds}), "x")


# ------------------------------------------------------------------ the contract


@pytest.mark.parametrize("name", ["small", "swept"])
def test_summaries_follow_the_schema(name, request):
    directory = request.getfixturevalue(name)
    result = write_summary(RunFiles(directory))
    jsonschema.Draft202012Validator.check_schema(summary_schema())
    jsonschema.validate(result, summary_schema())
    assert json.loads((directory / "summary.json").read_text()) == result
    assert ("kappa" in result) == (name == "swept")


@pytest.mark.parametrize(
    "break_it",
    [
        lambda s: s.update(version=1),
        lambda s: s["domains"]["so3"]["schedules"].pop("terminal"),
        lambda s: s["domains"]["so3"]["schedules"]["periodic"]["0.25"].pop("path_error"),
        lambda s: s["domains"]["so3"]["schedules"]["periodic"].update({"25%": {}}),
        lambda s: s["domains"]["so3"]["win_rate"]["adaptive:paper"].pop("median_improvement"),
        lambda s: s["domains"]["so3"]["concentration"].pop("q"),
        lambda s: s["domains"]["so3"].update(degenerate="none"),
    ],
)
def test_the_schema_notices_what_is_wrong(small, break_it):
    result = write_summary(RunFiles(small))
    break_it(result)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(result, summary_schema())


def test_a_summary_is_that_of_its_rows(small):
    result = write_summary(RunFiles(small))["domains"]["so3"]
    rows = read_rows(small, "so3")
    values = rows.where(schedule="periodic", budget=0.25)["path_error"]
    got = result["schedules"]["periodic"]["0.25"]["path_error"]
    assert got["mean"] == pytest.approx(values.mean(), rel=1e-12)
    assert got["se"] == pytest.approx(values.std(ddof=1) / math.sqrt(SMALL.seeds), rel=1e-12)
    assert got["n"] == SMALL.seeds
    assert result["concentration"]["mean"] == pytest.approx(rows.where(schedule="terminal")["concentration"].mean())
    assert result["schedules"]["adaptive:paper"]["0.25"]["achieved_budget"]["mean"] == 0.25
    assert result["win_rate"]["adaptive:paper"]["pathwise"]["n"] == SMALL.seeds * len(SMALL.budgets)
