"""Rounds in the forms of other programs: what they say, what they refuse."""

import csv
import io
import math
import re

import dp_accounting as dp
import pytest
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent

from keras_dp.errors import UnsupportedEventError
from keras_dp.interchange import (
    to_dp_event,
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
    NonPrivateSum,
    PoissonSampling,
    PrivacyLedger,
    Round,
    StudentTNoise,
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
        assert to_dp_event(ledger.rounds, units=2) == event
        assert to_dp_event(ledger.rounds) != event

    @pytest.mark.parametrize(
        "sampling", [PoissonSampling(0.5), FixedSizeWithoutReplacement(5, 50)]
    )
    def test_refuses_a_group_that_no_event_says(self, sampling) -> None:
        rounds = [(of(sampling), 1)]

        with pytest.raises(UnsupportedEventError, match="2 records together"):
            to_dp_event(rounds, neighbours="replace_one", units=2)

    def test_says_how_to_install_it(self, monkeypatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, "dp_accounting", None)

        with pytest.raises(ImportError, match=r"keras_dp\[dp_accounting\]"):
            to_dp_event([])


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
