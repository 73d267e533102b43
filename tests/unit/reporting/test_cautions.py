"""What a reader must know of the numbers of a report."""

import pytest

from keras_dp.accountants.replay import Replay
from keras_dp.budgets import guarantee
from keras_dp.ledger import FullDataset, GaussianSum, PrivacyLedger
from keras_dp.reporting.cautions import LIMITS, cautions


@pytest.mark.parametrize(("delta", "is_said"), [(0.1, True), (1e-5, False)])
def test_a_large_delta_is_said_to_come_from_few_units(delta, is_said) -> None:
    """Two or three records have a default of 0.1 and more."""
    ledger = PrivacyLedger.in_memory(dataset="clinic")
    ledger.record(FullDataset(True), [GaussianSum("ages", 1.0, 4.0)])

    found = cautions(Replay(ledger), guarantee(ledger, delta=delta))

    assert any("Delta is 0.1" in each for each in found) == is_said


def test_the_number_of_records_is_said_to_be_public() -> None:
    assert any("number of records" in each for each in LIMITS)
