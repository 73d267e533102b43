"""Rounds in the forms of other programs: what they say, what they refuse."""

import collections
import csv
import io
import math
import re

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent

from keras_dp.errors import UnsupportedEventError
from keras_dp.interchange import (
    GaussianSumQueryEntry,
    SampleEntry,
    from_dp_event,
    from_formatted_ledger,
    to_dp_event,
    to_formatted_ledger,
    write_csv,
)
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
    LogisticNoise,
    NonPrivateSum,
    PoissonSampling,
    PrivacyLedger,
    Round,
    ThresholdedSum,
    TreeSum,
    UnverifiedSampling,
)

SUM = GaussianSum("gradients", 2.0, 8.0)
COUNTS = DiscreteGaussianSum("counts", 5.0, 10.0)
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
            (
                FixedSizeWithReplacement(5, 50),
                dp.SampledWithReplacementDpEvent(
                    50, 5, dp.GaussianDpEvent(2.0)
                ),
            ),
        ],
        ids=repr,
    )
    def test_says_how_a_sample_was_drawn(self, sampling, event) -> None:
        assert to_dp_event([(of(sampling), 1)]) == event
        assert to_dp_event([(of(sampling), 3)]) == dp.SelfComposedDpEvent(
            event, 3
        )

    def test_sums_over_one_sample_are_one(self) -> None:
        queries = GaussianSum("a", 3.0, 10.0), GaussianSum("b", 4.0, 10.0)

        event = to_dp_event([(of(PoissonSampling(0.1), *queries), 1)])

        assert event == dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(2.0))

    def test_an_epoch_of_disjoint_batches_is_one_release(self) -> None:
        rounds = [
            (of(DisjointBatches("1")), 10),
            (of(PoissonSampling(0.1)), 2),
            (of(DisjointBatches("2"), GaussianSum("a", 1.0, 3.0)), 7),
            (of(DisjointBatches("1")), 10),
        ]

        event = to_dp_event(rounds, neighbours="zero_out")

        first, *epochs = event.events
        assert isinstance(first, dp.SelfComposedDpEvent)
        assert sorted(epochs, key=repr) == [
            dp.GaussianDpEvent(3.0),
            dp.GaussianDpEvent(4.0),
        ]

    def test_a_tree_is_one_release(self) -> None:
        """Eight leaves: a record that is in one of them is in four nodes."""
        node = TreeSum("prefix", 1.0, 3.0, "c0ffee")
        rounds = [(of(DisjointBatches("1"), node), 8)]

        event = to_dp_event(rounds, neighbours="zero_out")

        assert event == dp.GaussianDpEvent(1.5)

    @pytest.mark.parametrize(
        ("queries", "event"),
        [
            ((NonPrivateSum("loss"),), dp.NonPrivateDpEvent()),
            ((GaussianSum("bare", 1.0, 0.0),), dp.NonPrivateDpEvent()),
            ((GaussianSum("nothing", 0.0, 0.0),), dp.NoOpDpEvent()),
            ((COUNTS,), dp.ZCDpEvent(pytest.approx(0.125, rel=1e-13))),
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
        found = to_dp_event([(of(FullDataset(), *queries), 1)])

        assert found == event

    def test_rounds_towards_more_epsilon(self) -> None:
        counts = to_dp_event([(of(FullDataset(), COUNTS), 1)])
        laplace = to_dp_event([(of(FullDataset(), LAPLACE), 1)])

        assert counts.rho > 0.125
        assert laplace.noise_multiplier < 2.0

    @pytest.mark.parametrize("scale", [1e-160, 1e160])
    def test_holds_a_square_that_floats_do_not(self, scale) -> None:
        query = DiscreteGaussianSum("counts", 1.0, scale)

        event = to_dp_event([(of(FullDataset(), query), 1)])

        if scale < 1:
            assert event == dp.NonPrivateDpEvent()
        else:
            assert event.rho > 0

    def test_a_bare_sum_of_a_sample_costs_everything(self) -> None:
        event = to_dp_event(
            [(of(PoissonSampling(0.1), NonPrivateSum("loss")), 1)]
        )

        for accountant in (
            dp.rdp.RdpAccountant(),
            dp.pld.PLDAccountant(),
        ):
            assert accountant.compose(event).get_epsilon(1e-5) == math.inf

    @pytest.mark.parametrize(
        ("sampling", "queries"),
        [
            (PoissonSampling(0.1), [COUNTS]),
            (PoissonSampling(0.1), [LAPLACE, SUM]),
            (FullDataset(), [EncodedSum("e", BOUNDS, LogisticNoise(1.0))]),
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
        ("sampling", "neighbours"),
        [
            (UnverifiedSampling(), "add_or_remove_one"),
            (DisjointBatches("1"), "add_or_remove_one"),
            (FixedSizeWithoutReplacement(5, 50), "add_or_remove_one"),
            (FixedSizeWithoutReplacement(5, 50), "zero_out"),
            (FixedSizeWithReplacement(5, 50), "add_or_remove_one"),
        ],
    )
    def test_refuses_a_relation_without_a_bound(
        self, sampling, neighbours
    ) -> None:
        with pytest.raises(UnsupportedEventError):
            to_dp_event([(of(sampling), 1)], neighbours=neighbours)

    def test_takes_a_ledger(self) -> None:
        ledger = PrivacyLedger.in_memory(dataset="d")
        assert to_dp_event(ledger) == dp.NoOpDpEvent()

        ledger.record(FullDataset(), [SUM])

        assert to_dp_event(ledger) == dp.GaussianDpEvent(4.0)

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
        assert to_dp_event(ledger.rounds, group_size=2) == event
        assert to_dp_event(ledger, group_size=1) == to_dp_event(ledger.rounds)

    @pytest.mark.parametrize(
        "sampling", [PoissonSampling(0.5), FixedSizeWithoutReplacement(5, 50)]
    )
    def test_refuses_a_group_that_no_event_says(self, sampling) -> None:
        rounds = [(of(sampling), 1)]

        with pytest.raises(UnsupportedEventError, match="2 records together"):
            to_dp_event(rounds, neighbours="replace_one", group_size=2)

    def test_says_how_to_install_it(self, monkeypatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, "dp_accounting", None)

        with pytest.raises(ImportError, match=r"keras_dp\[dp_accounting\]"):
            to_dp_event([])


ROUND_TRIPS = {
    "add_or_remove_one": [FullDataset(), PoissonSampling(0.1)],
    "zero_out": [FullDataset(), PoissonSampling(0.1)],
    "replace_one": [
        FullDataset(),
        PoissonSampling(0.1),
        FixedSizeWithoutReplacement(5, 50),
        FixedSizeWithReplacement(5, 50),
    ],
}


class TestFromADpEvent:
    @pytest.mark.parametrize(
        ("neighbours", "sampling"),
        [(key, each) for key in ROUND_TRIPS for each in ROUND_TRIPS[key]],
    )
    def test_undoes_to_dp_event(self, neighbours, sampling) -> None:
        rounds = [
            (of(sampling, GaussianSum("sum/0", 1.0, 4.0)), 100),
            (of(sampling, GaussianSum("sum/0", 1.0, 3.0)), 1),
        ]

        event = to_dp_event(rounds, neighbours=neighbours)

        assert [*from_dp_event(event, neighbours=neighbours)] == rounds

    def test_takes_noise_as_their_documentation_says(self) -> None:
        event = dp.SampledWithoutReplacementDpEvent(
            50, 5, dp.GaussianDpEvent(4.0)
        )

        ((found, _),) = from_dp_event(event)

        assert found == of(
            FixedSizeWithoutReplacement(5, 50), GaussianSum("sum/0", 1.0, 4.0)
        )

    def test_compositions_are_their_events(self) -> None:
        gaussian = dp.GaussianDpEvent(4.0)
        event = dp.SelfComposedDpEvent(
            dp.ComposedDpEvent(
                [
                    gaussian,
                    dp.SelfComposedDpEvent(gaussian, 3),
                    dp.NoOpDpEvent(),
                    dp.SelfComposedDpEvent(dp.NonPrivateDpEvent(), 0),
                ]
            ),
            5,
        )

        assert [*from_dp_event(event)] == [
            (of(FullDataset(), GaussianSum("sum/0", 1.0, 4.0)), 20)
        ]

    def test_sums_over_one_sample_stay_in_one_round(self) -> None:
        gaussian = dp.GaussianDpEvent(4.0)
        event = dp.PoissonSampledDpEvent(
            0.1,
            dp.ComposedDpEvent(
                [
                    dp.SelfComposedDpEvent(gaussian, 3),
                    dp.GaussianDpEvent(2.0),
                    dp.NonPrivateDpEvent(),
                ]
            ),
        )

        ((found, count),) = from_dp_event(event)

        first, second, third = found.queries
        assert count == 1
        assert first.l2_norm_bound == pytest.approx(math.sqrt(3), rel=1e-15)
        assert first.l2_norm_bound**2 >= 3
        assert first.noise_stddev == 4
        assert second == GaussianSum("sum/1", 1.0, 2.0)
        assert third == NonPrivateSum("sum/2")

    def test_nothing_is_drawn_with_probability_0(self) -> None:
        event = dp.PoissonSampledDpEvent(0.0, dp.GaussianDpEvent(4.0))

        assert from_dp_event(event) == ()

    def test_trees_are_epochs_of_their_own(self) -> None:
        event = dp.SelfComposedDpEvent(
            dp.SingleEpochTreeAggregationDpEvent(3.0, [8, 2, 0]), 2
        )

        found = from_dp_event(event)

        assert [count for _, count in found] == [8, 2, 8, 2]
        epochs = [each.sampling.epoch_id for each, _ in found]
        assert epochs[0] == epochs[1] != epochs[2] == epochs[3]
        trees = {each.queries[0].tree_id for each, _ in found}
        assert len(trees) == 4
        (single,) = from_dp_event(dp.SingleEpochTreeAggregationDpEvent(3.0, 4))
        assert single.count == 4

    @pytest.mark.parametrize(
        "event",
        [
            dp.UnsupportedDpEvent(),
            dp.LaplaceDpEvent(1.0),
            dp.dp_event.DiscreteLaplaceDpEvent(1.0, 1),
            dp.ZCDpEvent(0.5),
            dp.RandomizedResponseDpEvent(0.5, 2),
            dp.dp_event.RepeatAndSelectDpEvent(
                dp.GaussianDpEvent(1.0), 2.0, 1.0
            ),
            dp.dp_event.MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0], [0.5, 0.5]),
            dp.TruncatedSubsampledGaussianDpEvent(100, 0.1, 20, 1.0),
            dp.PoissonSampledDpEvent(0.1, dp.LaplaceDpEvent(1.0)),
            dp.PoissonSampledDpEvent(
                0.1, dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.0))
            ),
            dp.ComposedDpEvent([dp.GaussianDpEvent(1.0), dp.ZCDpEvent(0.5)]),
            "GaussianDpEvent(1.0)",
        ],
        ids=repr,
    )
    def test_refuses_what_no_round_is(self, event) -> None:
        with pytest.raises(UnsupportedEventError) as raised:
            from_dp_event(event)

        assert MESSAGE.fullmatch(str(raised.value))

    @pytest.mark.parametrize(
        "event",
        [
            dp.GaussianDpEvent(-1.0),
            dp.GaussianDpEvent(math.nan),
            dp.PoissonSampledDpEvent(1.5, dp.GaussianDpEvent(1.0)),
            dp.SelfComposedDpEvent(dp.GaussianDpEvent(1.0), -1),
            dp.SingleEpochTreeAggregationDpEvent(1.0, -1),
        ],
        ids=repr,
    )
    def test_refuses_impossible_numbers(self, event) -> None:
        with pytest.raises(ValueError, match=MESSAGE):
            from_dp_event(event)

    def test_refuses_another_relation(self) -> None:
        with pytest.raises(ValueError, match=MESSAGE):
            from_dp_event(dp.NoOpDpEvent(), neighbours="bounded")


# As TensorFlow Privacy makes them.
THEIR_SAMPLE = collections.namedtuple(
    "SampleEntry", ["population_size", "selection_probability", "queries"]
)
THEIR_QUERY = collections.namedtuple(
    "GaussianSumQueryEntry", ["l2_norm_bound", "noise_stddev"]
)


class TestFormattedLedgers:
    def test_are_read_as_they_were_written(self) -> None:
        query = THEIR_QUERY(np.float32(1.1), np.float32(4.4))
        other = THEIR_QUERY(np.float32(1.0), np.float32(0.0))
        entries = [
            THEIR_SAMPLE(np.float32(6e4), np.float32(0.1), [query]),
            THEIR_SAMPLE(np.float32(6e4), np.float32(0.1), [query]),
            THEIR_SAMPLE(np.float32(6e4), np.float32(0.1), []),
            THEIR_SAMPLE(np.float32(6e4), np.float32(0.1), [query, other]),
        ]

        (first, one), (second, two) = from_formatted_ledger(entries)

        probability = float(np.float32(0.1))
        assert (one, two) == (2, 1)
        assert first.sampling == PoissonSampling(probability)
        assert not first.sampling.drawn_by_library
        (sum_,) = first.queries
        assert sum_.l2_norm_bound == float(np.float32(1.1))
        assert sum_.noise_stddev == float(np.float32(4.4))
        assert [each.name for each in second.queries] == ["sum/0", "sum/1"]
        assert second.queries[1].noise_stddev == 0

    def test_are_written_back(self) -> None:
        queries = [
            GaussianSumQueryEntry(1.0, 4.0),
            GaussianSumQueryEntry(2.0, 3.0),
        ]
        entries = [
            SampleEntry(1000.0, 0.25, queries),
            SampleEntry(1000.0, 0.25, queries),
            SampleEntry(1000.0, 1.0, queries[:1]),
        ]

        rounds = from_formatted_ledger(entries)

        assert to_formatted_ledger(rounds, population_size=1000) == entries

    def test_have_all_records_of_the_full_data_set(self) -> None:
        ((_, probability, _),) = to_formatted_ledger(
            [(of(FullDataset()), 1)], population_size=10
        )

        assert probability == 1

    @pytest.mark.parametrize(
        "refused",
        [
            of(UnverifiedSampling()),
            of(DisjointBatches("1")),
            of(FixedSizeWithoutReplacement(5, 50)),
            of(FullDataset(), SUM, COUNTS),
            of(PoissonSampling(0.1), NonPrivateSum("loss")),
        ],
        ids=repr,
    )
    def test_refuse_what_they_have_no_words_for(self, refused) -> None:
        with pytest.raises(UnsupportedEventError, match=MESSAGE):
            to_formatted_ledger([(refused, 1)], population_size=10)

    @pytest.mark.parametrize(
        "entry",
        [
            1.0,
            (1000.0, 0.25),
            (1000.0, 0.25, [1.0]),
            (1000.0, 0.25, [(1.0, 4.0, 3.0)]),
            (1000.0, 0.25, [("one", 4.0)]),
            (1000.0, "one", [(1.0, 4.0)]),
            (1000.0, None, [(1.0, 4.0)]),
        ],
        ids=repr,
    )
    def test_of_other_fields_are_refused(self, entry) -> None:
        with pytest.raises(TypeError, match=MESSAGE):
            from_formatted_ledger([entry])

    @pytest.mark.parametrize(
        "entry",
        [
            (1000.0, 0.0, [(1.0, 4.0)]),
            (1000.0, 1.5, [(1.0, 4.0)]),
            (1000.0, 0.25, [(-1.0, 4.0)]),
            (1000.0, 0.25, [(1.0, math.nan)]),
        ],
        ids=repr,
    )
    def test_of_impossible_numbers_are_refused(self, entry) -> None:
        with pytest.raises(ValueError, match=MESSAGE):
            from_formatted_ledger([entry])


class TestCsv:
    def written(self, rounds):
        file = io.StringIO(newline="")
        write_csv(rounds, file)
        return list(csv.DictReader(io.StringIO(file.getvalue(), newline="")))

    def test_has_a_line_for_each_counted_round(self) -> None:
        found = self.written(
            [
                (of(PoissonSampling(0.1, drawn_by_library=True)), 100),
                (Round(FullDataset(), (SUM, COUNTS), seeded=True), 2),
                (of(FixedSizeWithoutReplacement(5, 50)), 1),
                (of(DisjointBatches("epoch-1")), 1),
                (of(UnverifiedSampling()), 1),
            ]
        )

        assert [row["first_round"] for row in found] == [
            "1",
            "101",
            "103",
            "104",
            "105",
        ]
        first, second, third, fourth, fifth = found
        assert first["sampling"] == "PoissonSampling"
        assert float(first["sampling_probability"]) == 0.1
        assert first["drawn_by_library"] == "True"
        assert float(first["l2_norm_bound"]) == 2
        assert float(first["noise_stddev"]) == 8
        assert second["count"] == "2"
        assert second["seeded"] == "True"
        assert second["queries"] == "gradients; counts"
        assert second["noise_stddev"] == ""
        assert repr(COUNTS) in second["events"]
        assert (third["sample_size"], third["population_size"]) == ("5", "50")
        assert third["sampling_probability"] == ""
        assert fourth["epoch_id"] == "epoch-1"
        assert fifth["drawn_by_library"] == "False"

    def test_repeats_the_unit_of_the_header(self) -> None:
        ledger = PrivacyLedger.in_memory(
            dataset="clinic", unit="=patient", rows_per_unit=5
        )
        for noise in (4.0, 8.0):
            ledger.record(FullDataset(), [GaussianSum("sum", 1.0, noise)])
        found = self.written(ledger)

        assert [row["unit"] for row in found] == ["'=patient"] * 2
        assert [row["rows_per_unit"] for row in found] == ["5", "5"]

    def test_has_no_unit_without_a_header(self) -> None:
        ledger = PrivacyLedger.in_memory(dataset="clinic", unit="patient")
        ledger.record(FullDataset(), [SUM])
        ((row),) = self.written(ledger.rounds)

        assert (row["unit"], row["rows_per_unit"]) == ("", "")

    def test_survives_any_name(self) -> None:
        name = 'a, "b"\nc; Δ'
        ((row),) = self.written([(of(FullDataset(), NonPrivateSum(name)), 1)])

        assert row["queries"] == name

    @pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t"])
    def test_has_no_formulas(self, start) -> None:
        name = f"{start}HYPERLINK(1)"
        ((row),) = self.written([(of(DisjointBatches(name)), 1)])

        assert row["epoch_id"] == f"'{name}"
