"""Canaries: coins, and commitments to them."""

import numpy as np
import pytest
from scipy import stats

from keras_dp.auditing import FairCoins, OneRun, Scores, write_verdict
from keras_dp.ledger import FullDataset, GaussianSum, PrivacyLedger

# The chance that a test fails although all is well.
FALSE_ALARM = 1e-9


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
        with pytest.raises(ValueError, match="`values` must"):
            FairCoins(values, "ab" * 32)

    def test_that_a_ledger_fixed_are_opened_by_the_verdict(self) -> None:
        ledger = PrivacyLedger.in_memory(dataset="doc")
        coins, content = FairCoins.draw(50), "ab" * 32
        fixed = ledger.write_commitment(coins.commitment(content, "noise"))
        with ledger.start_run("training") as run:
            run.record(FullDataset(), [GaussianSum("sum", 1.0, 1.0)])
        scores = Scores.from_coins(np.zeros(50), coins.values)
        bound = OneRun().epsilon(scores, delta=1e-5)

        write_verdict(
            ledger,
            bound,
            runs=[run.number],
            opening=coins.opening(fixed.number, content),
        )

        assert ledger.verdicts[0].statement.opening is not None
        other = FairCoins.draw(50).opening(fixed.number, content)
        with pytest.raises(ValueError, match="does not open"):
            write_verdict(ledger, bound, opening=other)
