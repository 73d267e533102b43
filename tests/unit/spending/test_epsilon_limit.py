"""How many rounds a target leaves room for."""

import pytest

from keras_dp.ledger import GaussianSum, PoissonSampling, PrivacyLedger, Round
from keras_dp.spending import PrivacyTarget, epsilon_limit
from keras_dp.spending.epsilon_limit import EpsilonLimit

STEP = Round(PoissonSampling(0.01), (GaussianSum("sum", 1.0, 4.0),))


@pytest.mark.parametrize(
    ("promised", "allowed"), [(0, 3), (2, 3), (10, 10), (11, 3)]
)
def test_rounds_that_were_promised_together_are_allowed(
    monkeypatch, promised, allowed
) -> None:
    """Where the bound for 4 to 9 rounds is above the one for 10."""

    def left(ledger, planned, *, most=10**12, **target):
        return 10 if most == 10 else 3

    monkeypatch.setattr(epsilon_limit, "rounds_left", left)
    ledger = PrivacyLedger.in_memory(dataset="test")
    limit = EpsilonLimit(PrivacyTarget(1.0, 1e-5), ledger)

    assert limit.allowed(STEP, 1, promised) == 1
    assert limit.allowed(STEP, 100, promised) == allowed
