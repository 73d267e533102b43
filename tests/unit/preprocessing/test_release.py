"""A release is in the ledger before it is computed, and stays there."""

import numpy as np
import pytest

from keras_dp import budgets
from keras_dp.errors import (
    BudgetExceededError,
    LedgerError,
    LedgerWriteError,
    PrivateTrainingError,
)
from keras_dp.ledger import FullDataset, GaussianSum, PrivacyLedger, Round
from keras_dp.preprocessing.release import noised, released

PLANNED = Round(
    FullDataset(drawn_by_library=True), (GaussianSum("means", 1.0, 2.0),)
)


def not_called():
    pytest.fail("Something was computed.")


def test_the_round_is_on_disk_before_anything_is_computed(tmp_path) -> None:
    path = tmp_path / "a.ledger"

    def compute():
        with PrivacyLedger.open(path, mode="r") as other:
            return other.rounds

    with PrivacyLedger.open(path, dataset="d") as ledger:
        seen = released(ledger, PLANNED, compute)

        assert seen == ledger.rounds == ((PLANNED, 1),)
        assert ledger.unsettled == 0


def test_an_exception_withholds_the_result_and_the_round_counts() -> None:
    ledger = PrivacyLedger.in_memory(dataset="d")

    def compute():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        released(ledger, PLANNED, compute)

    (run,) = ledger.runs
    assert (run.rounds, run.outcome) == (((PLANNED, 1),), "failed")


def test_a_ledger_that_cannot_be_settled_withholds_the_result() -> None:
    ledger = PrivacyLedger.in_memory(dataset="d")

    with pytest.raises(LedgerError):
        released(ledger, PLANNED, ledger.close)


class TestNothingIsComputed:
    def test_with_a_ledger_to_read(self, tmp_path) -> None:
        path = tmp_path / "a.ledger"
        PrivacyLedger.open(path, dataset="d").close()

        with (
            PrivacyLedger.open(path, mode="r") as ledger,
            pytest.raises(LedgerWriteError),
        ):
            released(ledger, PLANNED, not_called)

    def test_where_the_account_has_no_room(self) -> None:
        ledger = PrivacyLedger.in_memory(dataset="d")
        budgets.open_account(ledger, "all", budgets.RenyiFilter(3.0, 1e-5))
        released(ledger, PLANNED, lambda: 0)

        with pytest.raises(BudgetExceededError, match="room for one more"):
            released(ledger, PLANNED, not_called)

        assert len(ledger) == 1

    def test_for_microbatches(self) -> None:
        ledger = PrivacyLedger.in_memory(dataset="d", unit="microbatch")

        with pytest.raises(PrivateTrainingError, match="ledger of examples"):
            released(ledger, PLANNED, not_called)


def test_noise_is_new_each_time() -> None:
    ledger = PrivacyLedger.in_memory(dataset="d")

    noise = [
        released(ledger, PLANNED, lambda: noised(np.zeros(3), 2.0))
        for _ in range(2)
    ]

    assert len({*np.concatenate(noise).tolist()}) == 6
