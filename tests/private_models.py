"""A private model for a test, in one call."""

from typing import Any

import keras
import tensorflow as tf

import keras_dp

CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def adaptive_average(
    noise_multiplier: float, denominator: float
) -> keras_dp.dp_queries.NormalizedQuery:
    """Returns an average whose clip begins at 1 and follows the median."""
    total = keras_dp.dp_queries.QuantileAdaptiveClipSumQuery(
        initial_l2_norm_clip=1.0,
        noise_multiplier=noise_multiplier,
        target_unclipped_quantile=0.5,
        learning_rate=0.2,
        clipped_count_stddev=2.0,
        expected_num_records=denominator,
    )
    return keras_dp.dp_queries.NormalizedQuery(total, denominator)


def correlated_average(
    model: keras.Model,
    strategy: Any,
    noise_multiplier: float,
    rounds: int,
    denominator: float,
    restart_after: int | None = None,
) -> keras_dp.dp_queries.NormalizedQuery:
    """Returns an average with a clip of 1, of the gradients of a model."""
    total = keras_dp.dp_queries.CorrelatedSumQuery(
        strategy,
        1.0,
        noise_multiplier,
        rounds,
        [tf.TensorSpec(v.shape) for v in model.trainable_variables],
        restart_after=restart_after,
    )
    return keras_dp.dp_queries.NormalizedQuery(total, denominator)


def private_of(
    model: keras.Model,
    query: Any,
    ledger: keras_dp.PrivacyLedger | None = None,
    *,
    kind: Any = keras_dp.DPSGD,
    rate: Any = 0.1,
    seed: int | None = None,
    groups: Any = None,
    inner: dict[str, Any] | None = None,
    checks: int = 0,
    loss: Any = "mse",
    **compiled: Any,
) -> keras_dp.PrivateModel:
    """Returns a compiled private model, with a ledger of its own or given.

    `checks` is how many examples the self-check looks at, 0 for none; `inner`
    has more arguments of the optimizer.
    """
    private = keras_dp.PrivateModel(model, self_check_examples=checks)
    optimizer = kind(
        rate,
        query=query,
        ledger=ledger or keras_dp.PrivacyLedger.in_memory(dataset="test"),
        seed=seed,
        groups=groups,
        **inner or {},
    )
    private.compile(optimizer, loss=loss, **compiled)
    return private
