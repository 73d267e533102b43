"""A ledger refuses all rounds of a mechanism but the next ones."""

import dataclasses

import pytest

from keras_dp.errors import LedgerFormatError, LedgerWriteError
from keras_dp.ledger import (
    BandedToeplitz,
    BinaryTree,
    CorrelatedSum,
    CyclicPoissonSampling,
    DisjointBatches,
    FullDataset,
    PoissonSampling,
    PrivacyLedger,
    Round,
)
from keras_dp.ledger.rows import codec
from tests.ledger_faults import in_a_fork

EVENT = CorrelatedSum("sum", 1.0, 2.0, BandedToeplitz((1.0, 0.5)), 10, "one")


@pytest.fixture
def ledger():
    return PrivacyLedger.in_memory(dataset="test")


def cycle(number, draw="draw", probability=0.25):
    return CyclicPoissonSampling(f"{draw}-{number}", 4, probability)


def refuses(ledger, match, sampling, event=EVENT, count=1, recorder=None):
    before = len(ledger)
    with pytest.raises(LedgerWriteError, match=match) as error:
        (recorder or ledger).record(sampling, [event], count)
    assert "Received:" in str(error.value)
    assert len(ledger) == before


class TestCycles:
    def test_are_filled_block_by_block(self, ledger) -> None:
        block = ledger.start_run("a")
        block.cover(Round(cycle(0), [EVENT]), 1)
        block.cover(Round(cycle(0), [EVENT]), 3, most=3)
        block.cover(Round(cycle(1), [EVENT]), 4, most=4)
        block.settle()

        assert len(ledger) == 8

    def test_are_not_left_early(self, ledger) -> None:
        run = ledger.start_run("a")
        run.cover(Round(cycle(0), [EVENT]), 4)
        run.settle(3)

        refuses(ledger, "each class in turn", cycle(1), recorder=run)
        run.record(cycle(0), [EVENT], 1)
        run.record(cycle(1), [EVENT], 1)

    def test_are_not_left_out(self, ledger) -> None:
        ledger.record(cycle(3), [EVENT], 4)

        refuses(ledger, "each class in turn", cycle(5))
        refuses(ledger, "each class in turn", cycle(3))
        refuses(ledger, "each class in turn", cycle(4), count=5)

    def test_count_in_full_until_they_are_settled(self, ledger) -> None:
        run = ledger.start_run("a")
        run.cover(Round(cycle(0), [EVENT]), 4)

        refuses(ledger, "each class in turn", cycle(0), recorder=run)

    @pytest.mark.parametrize(
        "other",
        [
            cycle(0, draw="other"),
            cycle(1, probability=0.5),
            PoissonSampling(0.25),
            FullDataset(),
            DisjointBatches("one"),
        ],
    )
    def test_are_of_one_draw(self, ledger, other) -> None:
        ledger.record(cycle(0), [EVENT], 4)

        refuses(ledger, "one kind and of one draw", other)


class TestRows:
    def test_end_with_the_mechanism(self, ledger) -> None:
        ledger.record(FullDataset(), [EVENT], 8)

        refuses(ledger, "at most 10 rounds", FullDataset(), count=3)
        ledger.record(FullDataset(), [EVENT], 2)
        refuses(ledger, "at most 10 rounds", FullDataset())

    @pytest.mark.parametrize(
        "change",
        [
            {"l2_norm_bound": 2.0},
            {"noise_stddev": 1.0},
            {"rounds": 20},
            {"strategy": BandedToeplitz((1.0,))},
        ],
    )
    def test_have_one_bound_noise_and_strategy(self, ledger, change) -> None:
        ledger.record(FullDataset(), [EVENT])

        other = dataclasses.replace(EVENT, **change)
        refuses(ledger, "one bound, noise", FullDataset(), other)

    def test_are_of_one_run(self, ledger) -> None:
        first = ledger.start_run("first")
        first.record(FullDataset(), [EVENT])
        second = ledger.start_run("second")

        refuses(ledger, "of one run", FullDataset(), recorder=second)
        refuses(ledger, "of one run", FullDataset())
        first.record(FullDataset(), [EVENT])

    def test_are_of_one_process(self, tmp_path) -> None:
        """Another process continues a plan only with noise of its own."""
        path, asked = tmp_path / "run.ledger", Round(FullDataset(), (EVENT,))

        def die() -> None:
            run = PrivacyLedger.open(path, dataset="test").start_run("a")
            run.plan([(asked, 10)])
            run.cover(asked, 2)
            run.cover(asked, 3, most=3)

        in_a_fork(die)
        with PrivacyLedger.open(path) as ledger:
            run = ledger.continue_run(1)
            refuses(ledger, "of one process", FullDataset(), recorder=run)
            other = dataclasses.replace(EVENT, mechanism_id="other")
            for _ in range(2):
                run.record(FullDataset(), [other])
            assert len(ledger) == 5 + 2

    def test_may_go_on_in_their_process(self, ledger) -> None:
        run = ledger.start_run("a")
        run.plan([(Round(FullDataset(), (EVENT,)), 10)])
        run.record(FullDataset(), [EVENT], 4)
        run.finish("stopped")

        with ledger.continue_run(1) as run:
            run.record(FullDataset(), [EVENT], 6)

        assert len(ledger) == 10


@pytest.mark.parametrize(
    "strategy",
    [
        BandedToeplitz((1, 0.5)),
        BinaryTree(),
    ],
)
def test_a_strategy_is_stored(strategy) -> None:
    event = dataclasses.replace(EVENT, strategy=strategy, rounds=2)
    round_ = Round(cycle(0), (event,))

    text = codec.text_from_round(round_)

    assert codec.round_from_text(text) == round_
    with pytest.raises(LedgerFormatError):
        codec.round_from_text(text.replace(strategy.kind, "newer"))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: BandedToeplitz(()), "at least one"),
        (lambda: BandedToeplitz((2, 1)), "begin with 1"),
        (lambda: BandedToeplitz((1, float("nan"))), "finite"),
        (lambda: BandedToeplitz(1.0), "sequence"),
        (lambda: BandedToeplitz((1, -0.5)), ">= 0"),
        (lambda: cycle("x"), "number of a cycle"),
        (lambda: CyclicPoissonSampling("a-0", 0, 0.5), "classes"),
        (lambda: CyclicPoissonSampling("a-0", 1, 0.0), "probability"),
        (
            lambda: dataclasses.replace(EVENT, mechanism_id="a%"),
            "letters and digits",
        ),
        (lambda: dataclasses.replace(EVENT, rounds=0), "rounds"),
        (lambda: dataclasses.replace(EVENT, strategy=1), "strategy"),
    ],
)
def test_an_argument_is_checked(make, match) -> None:
    with pytest.raises((TypeError, ValueError), match=match):
        make()
