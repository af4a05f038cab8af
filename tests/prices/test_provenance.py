"""What all prices tell about how they were made, and what schedules pass on of it."""

import pytest
import torch

import trimtab as tt
from trimtab.calibration.calibrate import METHODS
from trimtab.prices.plan import Plan
from trimtab.prices.price import Thresholds

TOLD = {
    "method": "mine",
    "seeds": (3, 5),
    "objective": "endpoint",
    "closing": "free",
    "notes": {"rollouts": 2},
    "made_for": {"event": [3], "constraint": "Ball", "defect": 0.5},
}
TABLE = torch.full((4, 3), 0.5).index_fill(1, torch.tensor([0]), torch.inf)
MASKS = torch.tensor([[False] * 4, [False, True, False, False], [False, True, False, True]])

PRICES = {
    "table": lambda **told: Thresholds(TABLE, **told),
    "plan": lambda **told: Plan(MASKS, **told),
}


@pytest.mark.parametrize("kind", PRICES)
def test_a_schedule_passes_on_the_seeds_and_the_accounting_of_its_price(kind):
    price = PRICES[kind](**TOLD)
    for budget in (1, 2):
        schedule = price.at(budget)
        assert schedule.calibration_seeds == TOLD["seeds"]
        assert schedule.closing == TOLD["closing"]


@pytest.mark.parametrize("kind", PRICES)
def test_a_budget_for_no_samples_is_refused(kind):
    with pytest.raises(ValueError, match=r"one whole number per sample, of at least one sample.*: got \(0,\)"):
        PRICES[kind]().at(torch.zeros(0, dtype=torch.int64))


@pytest.mark.parametrize("kind", PRICES)
def test_a_file_keeps_all_that_a_price_tells(kind, tmp_path):
    price = PRICES[kind](**TOLD)
    price.save(tmp_path / "price.safetensors")
    again = type(price).load(tmp_path / "price.safetensors")
    assert {name: getattr(again, name) for name in TOLD} == TOLD
    assert again.version == price.version


@pytest.mark.parametrize("kind", PRICES)
@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"closing": "later"}, "closing of prices must be 'paid', 'free', 'none' or ''"),
        ({"method": 3}, "method of prices must be of type str: got 3"),
        ({"notes": "n"}, "notes of prices must be of type Mapping: got 'n'"),
    ],
)
def test_what_no_price_could_tell_is_refused(kind, told, message):
    with pytest.raises((TypeError, ValueError), match=message):
        PRICES[kind](**told)


@pytest.mark.parametrize("kind", PRICES)
def test_a_budget_beyond_a_price_is_refused_in_the_same_words(kind):
    with pytest.raises(ValueError, match=r"a budget of 3 is more than the 2 \w+ that these prices go up to; calibrate"):
        PRICES[kind]().at(3)


def test_how_a_table_was_made_is_given_by_name():
    with pytest.raises(TypeError, match="given by name, as in method='dp'"):
        Thresholds(TABLE, "dp")
    with pytest.raises(ValueError, match="more than the 1 correction that these prices"):
        Thresholds(TABLE[:, :2]).at(2)


@pytest.mark.parametrize("kind", PRICES)
def test_a_price_knows_the_problem_that_it_was_made_for(kind):
    schedule = PRICES[kind](**TOLD).at(torch.tensor([1, 2]))
    schedule.check_fits()
    schedule.check_fits((3,), "Ball", 5.0)
    PRICES[kind]().at(1).check_fits((7,), "Box", 1e9)  # which does not know
    with pytest.raises(ValueError, match=r"states of shape \(3,\), and these have \(4,\)"):
        schedule.check_fits((4,))
    with pytest.raises(ValueError, match="the constraint Ball, and this one is Box"):
        schedule.check_fits((3,), "Box")
    for defect in (0.5e4, 0.5e-4):
        with pytest.raises(ValueError, match=r"defects of about 0\.5 at the first step, and these are"):
            schedule.check_fits((3,), "Ball", defect)


@pytest.mark.parametrize("method", METHODS)
def test_calibration_keeps_the_problem_that_it_was_made_for(method):
    price = tt.calibrate(tt.domain("so3", n_steps=12).problem(range(1000, 1016)), 6, method, check=False)
    assert (price.made_for["event"], price.made_for["constraint"]) == ([3, 3], "SO3")
    assert price.made_for["defect"] > 0
    assert price.objective == ("path" if method == "paper" else "endpoint")
