from __future__ import annotations

import pytest
import torch

from trimtab.core.quality import Quality, as_quality

FINAL = torch.tensor([[3.0, 4.0], [0.0, 1.0], [6.0, 8.0]])
LENGTHS = [5.0, 1.0, 10.0]


def length(final):
    return final.norm(dim=1)


def test_a_plain_function_is_a_quality_that_is_better_if_lower_and_goes_by_its_own_name():
    quality = as_quality(length)
    assert (quality.name, quality.higher_is_better) == ("length", False)
    assert quality.costs(FINAL).tolist() == LENGTHS
    assert as_quality(lambda final: final[:, 0]).name == "quality"
    assert as_quality(quality) is quality
    assert as_quality(None) is None


def test_higher_is_better_turns_the_sign_of_costs_and_not_of_values():
    quality = Quality(length, higher_is_better=True, name="length")
    assert quality.costs(FINAL).tolist() == [-value for value in LENGTHS]
    assert quality.values(FINAL)["length"].tolist() == LENGTHS


def test_one_of_several_by_name_decides():
    def both(final):
        return {"first": final[:, 0], "length": final.norm(dim=1)}

    quality = Quality(both, name="first")
    assert quality.costs(FINAL).tolist() == [3.0, 0.0, 6.0]
    assert {name: values.tolist() for name, values in quality.values(FINAL).items()} == {
        "first": [3.0, 0.0, 6.0],
        "length": LENGTHS,
    }
    with pytest.raises(ValueError, match=r"has first, length; .*name='first'"):
        Quality(both).costs(FINAL)


def test_the_problem_is_handed_to_a_measure_that_asks_for_it():
    seen = []

    def against(final, problem):
        seen.append(problem)
        return final[:, 0] - problem

    assert Quality(against).costs(FINAL, 1.0).tolist() == [2.0, -1.0, 5.0]
    assert seen == [1.0]
    # a second argument with a value of its own is the measure's business
    assert Quality(lambda final, scale=2.0: scale * final[:, 0]).costs(FINAL, "a problem").tolist() == [6.0, 0.0, 12.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_numbers_of_any_kind_become_doubles(dtype):
    costs = Quality(lambda final: (final[:, 0] > 1).to(dtype)).costs(FINAL)
    assert costs.dtype == torch.float64
    assert costs.tolist() == [1.0, 0.0, 1.0]
    assert Quality(lambda final: [1, 2, 3]).costs(FINAL).tolist() == [1.0, 2.0, 3.0]


def test_what_is_not_one_number_per_sample_is_refused():
    with pytest.raises(ValueError, match=r"quality must be one number per sample, shape \(3,\): got \(3, 2\)"):
        Quality(lambda final: final).costs(FINAL)
    with pytest.raises(ValueError, match=r"got \(\)"):
        Quality(lambda final: final.mean()).costs(FINAL)
    with pytest.raises(ValueError, match="NaN for 2 of 3 samples"):
        Quality(lambda final: torch.tensor([1.0, torch.nan, torch.nan])).costs(FINAL)
    with pytest.raises(TypeError, match=r"one real number per sample, .*: got torch.complex64"):
        Quality(lambda final: final[:, 0].to(torch.complex64)).costs(FINAL)
    with pytest.raises(TypeError, match="a function of the final states or a Quality: got int"):
        as_quality(3)
