"""Plans of correlated noise: what they choose, and what they cost."""

import pytest

from keras_dp.accountants import Fourier
from keras_dp.ledger import CorrelatedSum, CyclicPoissonSampling, Round
from keras_dp.planning import plan_correlated_noise

TERMS = {"target_epsilon": 1.0, "delta": 1e-5}


@pytest.mark.full
def test_takes_bands_where_they_leave_less_noise() -> None:
    best, *others = plan_correlated_noise(
        500, sampling_probability=0.01, bands=[1, 4], **TERMS
    )
    assert best.classes == 4
    assert best.sampling_probability == pytest.approx(0.04)
    assert best.sum_noise < 0.95 * others[0].sum_noise


def test_takes_one_band_where_more_gain_next_to_nothing() -> None:
    """The control: bands are not taken whatever they gain."""
    best, *_ = plan_correlated_noise(
        100,
        sampling_probability=0.1,
        bands=[1, 2],
        **TERMS,
    )
    assert best.classes == 1


@pytest.mark.parametrize("share", [1.0, 0.9])
def test_meets_the_target_and_not_with_less_noise(share: float) -> None:
    (found,) = plan_correlated_noise(
        8, sampling_probability=0.1, bands=[2], **TERMS
    )
    event = CorrelatedSum(
        "sum", 1.0, share * found.noise_multiplier, found.strategy, 8, "m"
    )
    rounds = [
        Round(
            CyclicPoissonSampling(
                f"cycle-{each // 2}", 2, found.sampling_probability
            ),
            (event,),
        )
        for each in range(8)
    ]
    epsilon = Fourier().epsilon([(each, 1) for each in rounds], delta=1e-5)
    assert (epsilon <= 1.0) == (share == 1.0)


def test_leaves_out_bands_whose_classes_are_too_small() -> None:
    plans = plan_correlated_noise(
        8, sampling_probability=0.4, bands=[1, 2, 4, 16], **TERMS
    )
    assert sorted(each.classes for each in plans) == [1, 2]


def test_refuses_to_choose_from_none() -> None:
    with pytest.raises(ValueError, match="`bands` must hold a number"):
        plan_correlated_noise(8, sampling_probability=0.4, bands=[4], **TERMS)
