"""Fixtures of searches that do not wait for an accountant."""

import pytest

from keras_dp.spending.epsilon_limit import EpsilonLimit
from keras_dp.tuning.private_search import PrivateSearch


@pytest.fixture
def no_target(monkeypatch):
    """Makes every target have room."""

    def allowed(limit, planned, count, *_):
        limit.head_seen = limit._ledger.head
        return count

    monkeypatch.setattr(EpsilonLimit, "allowed", allowed)


@pytest.fixture
def noise_is_given(monkeypatch, no_target):
    """Makes searches take a noise multiplier of 1, and spares accounting."""
    monkeypatch.setattr(
        PrivateSearch,
        "_calibrated",
        lambda self, kinds, held: dict.fromkeys(kinds, 1.0),
    )
