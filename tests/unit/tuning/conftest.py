"""Fixtures of searches that do not wait for an accountant.

They name what they replace: `make quick` loads this file without TensorFlow.
"""

import pytest

from keras_dp.ledger import PrivacyLedger


@pytest.fixture
def ledger():
    return PrivacyLedger.in_memory(dataset="doc")


@pytest.fixture
def no_target(monkeypatch):
    """Makes every target have room."""

    def allowed(limit, planned, count, *_):
        limit.head_seen = limit._ledger.head
        return count

    monkeypatch.setattr(
        "keras_dp.spending.epsilon_limit.EpsilonLimit.allowed", allowed
    )


@pytest.fixture
def noise_is_given(monkeypatch, no_target):
    """Makes searches take a noise multiplier of 1, and spares accounting."""
    monkeypatch.setattr(
        "keras_dp.tuning.private_search.PrivateSearch._calibrated",
        lambda self, kinds, held: dict.fromkeys(kinds, 1.0),
    )
