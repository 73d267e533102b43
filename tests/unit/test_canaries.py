"""Canaries: coins, commitments, and records that are put in or left out."""

import numpy as np
import pytest
from scipy import stats

from keras_dp.auditing import (
    FairCoins,
    OneRun,
    RecordCanaries,
    mislabelled,
    random_labels,
    write_verdict,
)
from keras_dp.ledger import FullDataset, GaussianSum, PrivacyLedger

# The chance that a test fails although all is well.
FALSE_ALARM = 1e-9


def canaries(count=50):
    generator = np.random.Generator(np.random.Philox(0))
    noise = generator.random((count, 3), np.float32)
    return RecordCanaries(random_labels(noise, classes=4, seed=0))


class TestCoins:
    def test_are_fair_and_independent(self) -> None:
        coins = FairCoins.draw(100_000).values

        for each in (coins, coins[1:] ^ coins[:-1]):
            found = stats.binomtest(int(each.sum()), each.size).pvalue
            assert found > FALSE_ALARM

    def test_are_drawn_anew_whatever_the_seed(self) -> None:
        one, other = FairCoins.draw(256), FairCoins.draw(256)

        assert (one.values != other.values).any()
        assert one.salt != other.salt

    @pytest.mark.parametrize("count", [1, 7, 8, 9])
    def test_open_their_own_commitment(self, count) -> None:
        coins, content = FairCoins.draw(count), "ab" * 32

        commitment = coins.commitment(content)

        assert commitment.canaries == len(coins) == count
        assert commitment.is_opened_by(coins.opening(3, content))

    @pytest.mark.parametrize("what", ["coins", "salt", "content"])
    def test_open_no_other_one(self, what) -> None:
        coins, content = FairCoins.draw(9), "ab" * 32
        commitment = coins.commitment(content)

        if what == "coins":
            values = coins.values.copy()
            values[4] ^= True
            coins = FairCoins(values, coins.salt)
        elif what == "salt":
            coins = FairCoins(coins.values, "cd" * 32)
        else:
            content = "ef" * 32

        assert not commitment.is_opened_by(coins.opening(3, content))

    def test_are_not_shown(self) -> None:
        coins = FairCoins.draw(20)

        assert repr(coins) == "<20 fair coins>"

    @pytest.mark.parametrize("values", [[], [1, 0], [[True]]], ids=str)
    def test_that_are_none_are_refused(self, values) -> None:
        with pytest.raises(ValueError, match="`values` must be one boolean"):
            FairCoins(values, "ab" * 32)


class TestRecordCanaries:
    def test_are_inserted_where_their_coins_are_true(self) -> None:
        chosen = canaries()
        x, y = np.zeros([10, 3]), np.zeros([10], np.int64)

        found_x, found_y = chosen.insert((x, y))

        inside = chosen.coins.values
        assert len(found_x) == len(found_y) == 10 + inside.sum()
        np.testing.assert_array_equal(found_x[:10], x)
        np.testing.assert_array_equal(found_x[10:], chosen.records[0][inside])
        np.testing.assert_array_equal(found_y[10:], chosen.records[1][inside])
        assert (found_x.dtype, found_y.dtype) == (x.dtype, y.dtype)

    def test_divide_scores_by_their_coins(self) -> None:
        chosen = canaries()

        scores = chosen.scores(chosen.coins.values * 2.0)

        assert set(scores.inside) == {2.0}
        assert set(scores.outside) == {0.0}
        assert len(scores) == 50

    def test_have_a_hash_of_all_they_hold(self) -> None:
        x, y = canaries().records
        hashes = {
            RecordCanaries(records).content
            for records in (
                (x, y),
                (x + 1, y),
                (x, y + 1),
                (x.astype(np.float64), y),
                (x[:, :1], y),
                (y, x),
            )
        }

        assert len(hashes) == 6
        assert RecordCanaries((x, y)).content in hashes

    def test_that_a_ledger_fixed_are_opened_by_the_verdict(self) -> None:
        ledger = PrivacyLedger.in_memory(dataset="doc")
        chosen = canaries()
        fixed = chosen.commit(ledger, note="labels of noise")
        with ledger.start_run("training") as run:
            run.record(FullDataset(), [GaussianSum("sum", 1.0, 1.0)])
        bound = OneRun().epsilon(chosen.scores(np.zeros(50)), delta=1e-5)

        write_verdict(
            ledger, bound, runs=[run.number], opening=chosen.opening(fixed)
        )

        assert ledger.verdicts[0].verdict.opening is not None
        with pytest.raises(ValueError, match="does not open"):
            write_verdict(ledger, bound, opening=canaries().opening(fixed))

    def test_other_nests_are_refused(self) -> None:
        with pytest.raises(ValueError, match="must be a nest like"):
            canaries().insert(np.zeros([10, 3]))

    @pytest.mark.parametrize(
        "records",
        [(), np.zeros([0, 3]), (np.zeros(3), np.zeros(4)), np.array(["a", {}])],
        ids=["none", "empty", "uneven", "objects"],
    )
    def test_that_are_no_records_are_refused(self, records) -> None:
        with pytest.raises(ValueError, match="`records` must be arrays"):
            RecordCanaries(records)

    def test_need_a_coin_each(self) -> None:
        with pytest.raises(ValueError, match="`coins` must be one"):
            RecordCanaries(np.zeros([3]), FairCoins.draw(4))


class TestLabels:
    def test_are_the_same_for_a_seed(self) -> None:
        x, labels = np.zeros([100, 1]), np.arange(100) % 4
        for make in (
            lambda seed: random_labels(x, classes=4, seed=seed)[1],
            lambda seed: mislabelled(x, labels, classes=4, seed=seed)[1],
        ):
            assert (make(1) == make(1)).all()
            assert (make(1) != make(2)).any()
            assert (make(None) != make(None)).any()

    def test_that_are_random_say_nothing(self) -> None:
        _, y = random_labels(np.zeros([40_000, 1]), classes=4)

        assert stats.chisquare(np.bincount(y)).pvalue > FALSE_ALARM
        assert set(y) == {0, 1, 2, 3}

    def test_that_are_wrong_are_each_other_one_alike(self) -> None:
        labels = np.full(30_000, 2)

        _, y = mislabelled(np.zeros([30_000, 1]), labels, classes=4)

        counts = np.bincount(y, minlength=4)
        assert counts[2] == 0
        assert stats.chisquare(counts[[0, 1, 3]]).pvalue > FALSE_ALARM

    @pytest.mark.parametrize("labels", [[0.5], [4], [-1]], ids=str)
    def test_outside_of_the_classes_are_refused(self, labels) -> None:
        with pytest.raises(ValueError, match="`y` must be integers"):
            mislabelled(np.zeros([1, 1]), labels, classes=4)
