"""A private model for a test, in one call."""

from typing import Any

import keras

import keras_dp


def private_of(
    model: keras.Model,
    query: Any,
    ledger: keras_dp.PrivacyLedger | None = None,
    *,
    rate: Any = 0.1,
    seed: int | None = None,
    groups: Any = None,
    checks: int = 0,
    loss: Any = "mse",
    **compiled: Any,
) -> keras_dp.PrivateModel:
    """Returns a model that DP-SGD trains, with a ledger of its own or given."""
    private = keras_dp.PrivateModel(model, self_check_examples=checks)
    optimizer = keras_dp.DPSGD(
        rate,
        query=query,
        ledger=ledger or keras_dp.PrivacyLedger.in_memory(dataset="test"),
        seed=seed,
        groups=groups,
    )
    private.compile(optimizer, loss=loss, **compiled)
    return private
