"""Fixtures of searches that do not wait for an accountant."""

import pytest

from keras_dp.tuning.private_search import PrivateSearch


@pytest.fixture
def noise_is_given(monkeypatch):
    """Makes searches take a noise multiplier of 1, and spares accounting."""
    monkeypatch.setattr(
        PrivateSearch,
        "_calibrated",
        lambda self, kinds, held: dict.fromkeys(kinds, 1.0),
    )
    monkeypatch.setattr(PrivateSearch, "_check_room", lambda self: None)
