"""What a ledger holds counts towards the target."""

import pytest

from keras_dp.accountants import RDP, Fourier
from keras_dp.errors import CalibrationError, UnsupportedEventError
from keras_dp.ledger import (
    DisjointBatches,
    FixedSizeWithoutReplacement,
    FullDataset,
    GaussianSum,
    PoissonSampling,
    Round,
    ThresholdedSum,
    UnverifiedSampling,
)
from keras_dp.planning import calibrate_noise, rounds_left

MOMENTS = RDP(conversion="moments")

TARGET = {"target_epsilon": 1.0, "delta": 1e-5}
HELD = [(Round(PoissonSampling(0.02), (GaussianSum("a", 1.0, 3.0),)), 500)]
STEP = Round(PoissonSampling(0.01), (GaussianSum("b", 2.0, 4.0),))


@pytest.mark.parametrize("accountant", [Fourier(), RDP(), MOMENTS])
@pytest.mark.parametrize("held", [[], HELD], ids=["none", "some"])
def test_no_round_more_would_fit(accountant, held) -> None:
    found = rounds_left(held, STEP, accountant=accountant, **TARGET)

    def epsilon(rounds):
        return accountant.epsilon([*held, (STEP, rounds)], delta=1e-5)

    assert found >= 1
    assert epsilon(found) <= 1.0 < epsilon(found + 1)


def test_the_search_ends_at_the_most_that_are_asked_for() -> None:
    assert rounds_left([], STEP, most=17, **TARGET) == 17


def test_takes_the_relation_that_all_rounds_support() -> None:
    """Unverified samples support the replacement of a record alone."""
    strong = Round(FullDataset(), (GaussianSum("b", 1.0, 30.0),))
    weak = Round(UnverifiedSampling(), (GaussianSum("b", 1.0, 30.0),))

    assert rounds_left([], weak, **TARGET) < rounds_left([], strong, **TARGET)


def test_refuses_rounds_without_a_bound() -> None:
    unknown = Round(
        FixedSizeWithoutReplacement(5, 50),
        (ThresholdedSum("words", 1.0, 4.0, max_keys=1, threshold=9.0),),
    )

    with pytest.raises(UnsupportedEventError):
        rounds_left([], unknown, **TARGET)


@pytest.mark.parametrize(
    "changes",
    [
        {"target_epsilon": 0.0},
        {"delta": 1.0},
        {"delta": 0.0},
        {"most": 0},
        {"rounds_per_pass": 0},
        {"rounds_per_pass": 10, "planned": [(STEP, 10**6)]},
    ],
    ids=str,
)
def test_refuses_impossible_arguments(changes) -> None:
    with pytest.raises(ValueError, match=f"`{next(iter(changes))}` must"):
        rounds_left([], **({"planned": STEP} | TARGET | changes))


def test_no_pass_more_would_fit() -> None:
    """Of disjoint batches, a pass costs as much as one round on all records."""
    batch = Round(DisjointBatches("first"), (GaussianSum("b", 1.0, 30.0),))
    whole = Round(UnverifiedSampling(), batch.queries)

    found = rounds_left([], batch, rounds_per_pass=7, **TARGET)

    assert found == 7 * rounds_left([], whole, **TARGET) > 7


def test_rounds_that_all_fit_are_as_many_as_are_planned() -> None:
    assert rounds_left([], [(STEP, 3), (HELD[0][0], 2)], **TARGET) == 5
    assert rounds_left([], [], **TARGET) == 0


def test_counts_rounds_that_can_be_read_only_once() -> None:
    rounds = [(STEP, 10_000)] * 2

    once = rounds_left([], iter(rounds), **TARGET)

    assert once == rounds_left([], rounds, **TARGET) < 20_000


class TestCalibrationOverALedger:
    def test_refuses_a_ledger_that_exceeds_the_target(self) -> None:
        with pytest.raises(CalibrationError, match="`target_epsilon` must"):
            calibrate_noise(
                sampling_probability=0.01,
                rounds=10,
                ledger=[(STEP, 10**6)],
                **TARGET,
            )
