"""Rounds as events of dp_accounting: what they say, what they refuse."""

import math
import re

import dp_accounting as dp
import pytest
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent

from keras_dp.errors import UnsupportedEventError
from keras_dp.interchange import to_dp_event
from keras_dp.ledger import (
    CoordinateBounds,
    DisjointBatches,
    EncodedSum,
    FixedSizeWithoutReplacement,
    FullDataset,
    GaussianSum,
    LaplaceNoise,
    NonPrivateSum,
    PoissonSampling,
    PrivacyLedger,
    Round,
    StudentTNoise,
    ThresholdedSum,
    UnverifiedSampling,
)

SUM = GaussianSum("gradients", 2.0, 8.0)
BOUNDS = CoordinateBounds.from_arrays([[0.5, 0.125], [0.25, 0.25]], [1, 3])
LAPLACE = EncodedSum("encoded", BOUNDS, LaplaceNoise(2.0))
MESSAGE = re.compile(r"`\w+` must .* Received: .*", re.DOTALL)


def of(sampling, *queries):
    return Round(sampling, queries or (SUM,))


class TestToADpEvent:
    @pytest.mark.parametrize(
        ("neighbours", "event"),
        [
            ("add_or_remove_one", dp.GaussianDpEvent(4.0)),
            ("zero_out", dp.GaussianDpEvent(4.0)),
            ("replace_one", dp.GaussianDpEvent(2.0)),
        ],
    )
    def test_noise_is_relative_to_the_relation(self, neighbours, event) -> None:
        rounds = [(of(FullDataset()), 1)]

        assert to_dp_event(rounds, neighbours=neighbours) == event

    @pytest.mark.parametrize(
        ("sampling", "event"),
        [
            (
                PoissonSampling(0.1),
                dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(4.0)),
            ),
            (PoissonSampling(1.0), dp.GaussianDpEvent(4.0)),
            # The strongest relation is to replace a record.
            (UnverifiedSampling(), dp.GaussianDpEvent(2.0)),
            (
                FixedSizeWithoutReplacement(5, 50),
                dp.SampledWithoutReplacementDpEvent(
                    50, 5, dp.GaussianDpEvent(2.0)
                ),
            ),
            (FixedSizeWithoutReplacement(5, 5), dp.GaussianDpEvent(2.0)),
        ],
        ids=repr,
    )
    def test_says_how_a_sample_was_drawn(self, sampling, event) -> None:
        assert to_dp_event([(of(sampling), 1)]) == event
        assert to_dp_event([(of(sampling), 3)]) == dp.SelfComposedDpEvent(
            event, 3
        )

    def test_an_epoch_of_disjoint_batches_is_one_release(self) -> None:
        rounds = [
            (of(DisjointBatches("1")), 10),
            (of(PoissonSampling(0.1)), 2),
            (of(DisjointBatches("2"), GaussianSum("a", 1.0, 3.0)), 7),
            (of(DisjointBatches("1")), 10),
        ]

        first, *epochs = to_dp_event(rounds, neighbours="zero_out").events
        assert isinstance(first, dp.SelfComposedDpEvent)
        assert sorted(epochs, key=repr) == [
            dp.GaussianDpEvent(3.0),
            dp.GaussianDpEvent(4.0),
        ]

    @pytest.mark.parametrize(
        ("queries", "event"),
        [
            ((NonPrivateSum("loss"),), dp.NonPrivateDpEvent()),
            ((GaussianSum("bare", 1.0, 0.0),), dp.NonPrivateDpEvent()),
            ((GaussianSum("nothing", 0.0, 0.0),), dp.NoOpDpEvent()),
            (
                # The L1 norms are 0.875 and 1.
                (LAPLACE,),
                dp.LaplaceDpEvent(pytest.approx(2.0, rel=1e-13)),
            ),
            (
                (LAPLACE, SUM),
                dp.ComposedDpEvent(
                    [
                        dp.LaplaceDpEvent(pytest.approx(2.0, rel=1e-13)),
                        dp.GaussianDpEvent(4.0),
                    ]
                ),
            ),
        ],
        ids=repr,
    )
    def test_says_what_was_released(self, queries, event) -> None:
        assert to_dp_event([(of(FullDataset(), *queries), 1)]) == event

    def test_rounds_towards_more_epsilon(self) -> None:
        laplace = to_dp_event([(of(FullDataset(), LAPLACE), 1)])

        assert laplace.noise_multiplier < 2.0

    @pytest.mark.parametrize(
        ("sampling", "queries"),
        [
            (PoissonSampling(0.1), [LAPLACE, SUM]),
            (FullDataset(), [EncodedSum("e", BOUNDS, StudentTNoise(1.0, 9.0))]),
            (FullDataset(), [ThresholdedSum("words", 1.0, 4.0, 20, 25.0)]),
        ],
        ids=repr,
    )
    def test_refuses_what_no_event_says(self, sampling, queries) -> None:
        rounds = [(of(sampling, *queries), 1)]

        with pytest.raises(UnsupportedEventError) as raised:
            to_dp_event(rounds)

        assert MESSAGE.fullmatch(str(raised.value))

    @pytest.mark.parametrize(
        ("sampling", "event"),
        [
            (FullDataset(), dp.GaussianDpEvent(math.nextafter(2.0, 0.0))),
            (
                PoissonSampling(0.5),
                MixtureOfGaussiansDpEvent(
                    4.0, [0.0, 1.0, 2.0], [0.25, 0.5, 0.25]
                ),
            ),
        ],
        ids=["full", "poisson"],
    )
    def test_is_about_all_rows_of_a_unit(self, sampling, event) -> None:
        ledger = PrivacyLedger.in_memory(
            dataset="d", unit="patient", rows_per_unit=2
        )
        ledger.record(sampling, [SUM])

        assert to_dp_event(ledger) == event
        assert to_dp_event(ledger.rounds, units=2) == event
        assert to_dp_event(ledger.rounds) != event

    @pytest.mark.parametrize(
        "sampling", [PoissonSampling(0.5), FixedSizeWithoutReplacement(5, 50)]
    )
    def test_refuses_a_group_that_no_event_says(self, sampling) -> None:
        rounds = [(of(sampling), 1)]

        with pytest.raises(UnsupportedEventError, match="2 records together"):
            to_dp_event(rounds, neighbours="replace_one", units=2)
