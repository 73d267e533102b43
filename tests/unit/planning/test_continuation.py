"""Rounds like the last one of a ledger, and the same with other noise."""

import re

import pytest

from keras_dp.accountants import AnalyticGaussian
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import (
    CoordinateBounds,
    DiscreteGaussianSum,
    DisjointBatches,
    EncodedSum,
    FixedSizeWithoutReplacement,
    FixedSizeWithReplacement,
    FullDataset,
    GaussianSum,
    LaplaceNoise,
    NonPrivateSum,
    PoissonSampling,
    Round,
    ThresholdedSum,
    TreeSum,
    UnverifiedSampling,
)
from keras_dp.planning.continuation import continuation, with_noise

MESSAGE = re.compile(r"`\w+` must .* Received: .*", re.DOTALL)
SUM = GaussianSum("sum", 1.0, 4.0)
OTHER = Round(FullDataset(), (GaussianSum("other", 1.0, 9.0),))


@pytest.mark.parametrize(
    ("sampling", "per_epoch"),
    [
        (FullDataset(), 1),
        (PoissonSampling(0.03), 33),
        (PoissonSampling(0.9), 1),
        (FixedSizeWithoutReplacement(30, 100), 3),
        (FixedSizeWithReplacement(200, 100), 1),
        (UnverifiedSampling(), None),
    ],
    ids=repr,
)
def test_the_last_round_goes_on(sampling, per_epoch) -> None:
    last = Round(sampling, (SUM,))

    found = continuation([(OTHER, 3), (last, 2)])

    assert found == (last, per_epoch, False)


def test_an_epoch_of_disjoint_batches_is_one_round() -> None:
    """Else more of the same epoch would cost nothing."""
    last = Round(DisjointBatches("1"), (SUM,))

    found = continuation([(last, 100)])

    assert found == (Round(UnverifiedSampling(), (SUM,)), 1, True)


def test_a_tree_is_refused() -> None:
    tree = Round(FullDataset(), (SUM, TreeSum("prefix", 1.0, 3.0, "c0ffee")))

    assert continuation([(tree, 1), (OTHER, 1)]).round == OTHER
    with pytest.raises(UnsupportedEventError, match="Received: "):
        continuation([(OTHER, 1), (tree, 1)])


def test_an_empty_ledger_is_refused() -> None:
    with pytest.raises(ValueError, match=MESSAGE):
        continuation([])


def test_noise_grows_and_is_rounded_up() -> None:
    bounds = CoordinateBounds.from_arrays([[1.0]], [1])
    queries = (
        SUM,
        DiscreteGaussianSum("counts", 2.0, 3.0),
        EncodedSum("encoded", bounds, LaplaceNoise(2.0)),
    )

    gaussian, discrete, encoded = with_noise(
        Round(FullDataset(), queries), 1.00001
    ).queries

    assert gaussian == GaussianSum("sum", 1.0, 4.001)
    assert discrete == DiscreteGaussianSum("counts", 2.0, 3.001)
    assert encoded.noise == LaplaceNoise(2.001)


def test_a_threshold_grows_with_the_noise() -> None:
    """One record's keys pass it less often, never more."""
    words = Round(FullDataset(), (ThresholdedSum("words", 1.0, 4.0, 9, 20.0),))

    more = with_noise(words, 1.99999)

    assert more.queries == (ThresholdedSum("words", 1.0, 8.0, 9, 40.0),)
    least, most = (
        AnalyticGaussian().delta([(each, 1)], epsilon=50.0)
        for each in (more, words)
    )
    assert least < most


def test_a_sum_without_noise_is_refused() -> None:
    with pytest.raises(UnsupportedEventError, match=MESSAGE):
        with_noise(Round(FullDataset(), (NonPrivateSum("loss"),)), 2.0)
