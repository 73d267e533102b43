"""Reports say what the ledger holds and what the accountants say."""

import json

import pytest

from keras_dp import accountants
from keras_dp.accountants.replay import Replay
from keras_dp.ledger import (
    CoordinateBounds,
    DisjointBatches,
    EncodedSum,
    FixedSizeWithoutReplacement,
    FullDataset,
    GaussianNoise,
    GaussianSum,
    LaplaceNoise,
    PoissonSampling,
    PrivacyLedger,
    Round,
    ThresholdedSum,
    UnverifiedSampling,
)
from keras_dp.reporting import make_report, render
from keras_dp.reporting.report import _cost_table

DELTA = 1e-5
STEP = [GaussianSum("gradients", 1.0, 4.0)]
GROUPS = [
    GaussianSum("gradients/embedding", 0.3, 0.9),
    GaussianSum("gradients/rest/0", 1.0, 1.4),
]


def in_memory(*rounds, **options):
    """Returns a ledger of the rounds (sampling, queries, count, seeded)."""
    ledger = PrivacyLedger.in_memory(
        dataset=options.get("dataset", "clinic"),
        unit=options.get("unit", "patient"),
    )
    for sampling, queries, count, *seeded in rounds:
        ledger.record(sampling, queries, count, seeded=bool(seeded))
    return ledger


def flat(text):
    """Returns a text without its line breaks."""
    return " ".join(str(text).split())


def facts(report):
    return json.loads(render(report, "json"))


BOUNDS = CoordinateBounds.from_arrays([[0.6, 0.1], [0.4, 0.4]], [1, 3])


def unpriced():
    """Returns a ledger that no accountant has a sound bound for."""
    return in_memory(
        (DisjointBatches("epoch-1"), STEP, 3),
        (
            FixedSizeWithoutReplacement(5, 50),
            [EncodedSum("counts", BOUNDS, LaplaceNoise(10.0))],
            1,
        ),
    )


def with_every_kind_of_sum():
    sums = [
        EncodedSum("encoded", BOUNDS, GaussianNoise(2.0)),
        ThresholdedSum("words", 1.0, 4.0, 20, 25.0),
    ]
    return in_memory((FullDataset(), sums, 2))


class TestEveryKindOfSum:
    def test_is_whole_in_json(self) -> None:
        report = make_report(with_every_kind_of_sum(), delta=DELTA)

        ((encoded, words),) = [
            each["queries"] for each in facts(report)["rounds"]
        ]
        assert words["max_keys"] == 20
        assert encoded["noise"] == {"kind": "gaussian_noise", "scale": 2}
        assert encoded["bounds"]["kind"] == "coordinate_bounds"

    def test_many_different_rounds_are_left_to_json(self) -> None:
        ledger = in_memory(
            *(
                (FullDataset(), [GaussianSum("g", 1.0, 1.0 + i)], 3)
                for i in range(50)
            )
        )
        report = make_report(ledger, delta=DELTA)

        text = str(report)

        assert "150 rounds" in text
        assert "120 rounds of 40 other kinds, which JSON shows" in text
        assert text.count("g: Gaussian sum") == 10
        assert "noise stddev 50" in text
        assert len(facts(report)["rounds"]) == 50

    def test_rounds_of_other_passes_alone_are_one_line(self) -> None:
        ledger = in_memory(
            *((DisjointBatches(f"pass {i}"), STEP, 5) for i in range(30)),
            (PoissonSampling(0.1), STEP, 2),
        )
        report = make_report(ledger, delta=DELTA)

        text = str(report)

        batches = (
            "150 x disjoint batch of epoch pass 0, as declared [in 30 passes]"
        )
        assert batches in " ".join(text.split())
        assert "2 x Poisson sample, probability 0.1" in text
        assert text.count("gradients: Gaussian sum") == 2
        assert len(facts(report)["rounds"]) == 31

    def test_rounds_that_come_again_are_no_other_pass(self) -> None:
        """Kinds stay in order, and one pass counts once."""
        ledger = in_memory(
            (PoissonSampling(0.1), STEP, 3),
            (PoissonSampling(0.2), STEP, 1),
            (PoissonSampling(0.1), STEP, 3),
            (DisjointBatches("a"), STEP, 2),
            (DisjointBatches("a"), [GaussianSum("gradients", 1.0, 5.0)], 1),
            (DisjointBatches("a"), STEP, 2),
        )

        text = str(make_report(ledger, delta=DELTA))

        assert "passes]" not in text
        assert text.count("3 x Poisson sample, probability 0.1") == 2
        assert text.count("2 x disjoint batch") == 2


class TestTheText:
    def test_protects_all_rows_of_a_unit(self) -> None:
        ledger = PrivacyLedger.in_memory(
            dataset="d", unit="patient", rows_per_unit=4
        )
        ledger.record(PoissonSampling(0.01), STEP, count=100)

        report = make_report(ledger, delta=DELTA)

        together = Replay(ledger.rounds).claim(units=4, delta=DELTA)
        assert facts(report)["guarantee"]["epsilon"] == together.epsilon
        text = flat(report)
        assert "add or remove one patient of at most 4 records" in text
        assert "patient (at most 4 rows each, as declared)" in text
        assert facts(report)["rows_per_unit"] == 4

    def test_mentions_unsettled_rounds_and_counts_them(self) -> None:
        ledger = in_memory((PoissonSampling(0.01), STEP, 5))
        block = ledger.start_run("a")
        block.cover(Round(PoissonSampling(0.01), STEP), 7)

        before = make_report(ledger, delta=DELTA)
        block.settle(3)
        after = make_report(ledger, delta=DELTA)

        counts = "total_rounds", "unsettled_rounds"
        assert [before.facts[each] for each in counts] == [12, 7]
        assert "It is running, and the numbers may change" in flat(before)
        assert [after.facts[each] for each in counts] == [8, 0]
        assert "settle" not in str(after)
        assert "seed" not in str(after)
        costs = [each.facts["epsilon"]["Fourier"] for each in (before, after)]
        assert costs[0] > costs[1]

    def test_says_so_if_no_accountant_has_a_bound(self) -> None:
        report = make_report(unpriced(), delta=DELTA)

        assert report.facts["neighbours"] is None
        assert report.facts["epsilon"] == {}
        assert "no adjacency relation is supported" in str(report)
        assert "epsilon" not in str(report)

    def test_names_the_strongest_relation_of_all_rounds(self) -> None:
        """Batches that were cut from a list are not for adding a record."""
        ledger = in_memory(
            (PoissonSampling(0.01), STEP, 1000), (UnverifiedSampling(), STEP, 1)
        )
        rdp = accountants.RDP()

        report = make_report(ledger, delta=DELTA)

        assert report.facts["neighbours"] == "replace_one"
        assert report.facts["epsilon"]["RDP"] == rdp.epsilon(
            ledger, delta=DELTA, neighbours="replace_one"
        )
        assert "at delta = 1e-05, replace one:" in str(report)

    @pytest.mark.parametrize(
        ("epsilon", "shown"),
        [
            (0.0, "0.0000"),
            (5e-324, "0.0001"),
            (0.12341, "0.1235"),
            (2.9, "2.9000"),
            (2.90001, "2.9001"),
            (2.99999, "3.0000"),
            (1e22, "10000000000000000000000.0000"),
        ],
    )
    def test_rounds_epsilon_up(self, epsilon, shown) -> None:
        table = _cost_table({"it": epsilon}, DELTA, "zero_out", together=1)
        assert table.rows == (("it", f"<= {shown}"),)


class TestTheValues:
    @pytest.mark.parametrize(
        "neighbours", ["add_or_remove_one", "replace_one", "zero_out"]
    )
    @pytest.mark.parametrize("delta", [1e-9, 1e-2])
    def test_are_those_of_the_accountants(self, neighbours, delta) -> None:
        ledger = in_memory(
            (PoissonSampling(0.01), STEP, 100), (FullDataset(), GROUPS, 2)
        )
        available = accountants.available_accountants(
            ledger, neighbours=neighbours
        )

        report = make_report(ledger, delta=delta, neighbours=neighbours)

        assert available
        assert report.facts["epsilon"] == {
            each.name: each.epsilon(ledger, delta=delta, neighbours=neighbours)
            for each in available
        }
        asked = report.facts["delta"], report.facts["neighbours"]
        assert asked == (delta, neighbours)
        assert [each["count"] for each in report.facts["rounds"]] == [100, 2]
