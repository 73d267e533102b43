"""The noise of one round, divided between gradients and batch statistics."""

import math
from typing import NamedTuple

import keras

from keras_dp import _check
from keras_dp.dp_queries import GaussianAverageQuery
from keras_dp.errors import PrivateTrainingError
from keras_dp.gradients import trained_normalizations

# The part of the statistics in the budget of a round.
_SHARE = 0.1


class BatchStatisticsPlan(NamedTuple):
    """Noise for gradients and batch statistics that together cost what one did.

    Attributes:
        noise_multiplier: The noise multiplier of the gradients: the stddev of
            their noise, divided by their clip.
        query: The query for `PrivateModel.compile(...,
            batch_statistics=query)`.
    """

    noise_multiplier: float
    query: GaussianAverageQuery


def trains_normalization(model: keras.Model) -> bool:
    """Whether layers of batch normalization are trained."""
    return bool(trained_normalizations(model))


def plan_batch_statistics(
    model: keras.Model,
    *,
    noise_multiplier: float,
    denominator: float,
) -> BatchStatisticsPlan:
    """Divides the budget of a round between gradients and batch statistics.

    Two Gaussian sums over one sample with noise multipliers a and b cost what
    one sum with the noise multiplier z costs, if `1 / z^2 = 1 / a^2 + 1 / b^2`.
    The batch statistics get a tenth of `1 / z^2`, so that the gradients get 5 %
    more noise than alone. The clip of the statistics is the norm that an
    ordinary example has: the root of twice the number of channels of
    `BatchNormalization`.

    Args:
        model: A built model with trained layers of batch normalization.
        noise_multiplier: The noise multiplier z that the gradients would have
            alone, > 0, such as from `calibrate_noise`.
        denominator: The expected number of records in a sample, > 0.

    Raises:
        PrivateTrainingError: `model` is not built, or has no such layer.
        ValueError: An argument is out of its range.

    >>> model = keras.Sequential([
    ...     keras.Input((8,)), keras.layers.BatchNormalization()])
    >>> plan = plan_batch_statistics(
    ...     model, noise_multiplier=1.0, denominator=100)
    >>> round(plan.noise_multiplier, 3), plan.query.l2_norm_clip
    (1.054, 4.0)
    """
    _check.finite_positive(
        noise_multiplier=noise_multiplier, denominator=denominator
    )
    layers = trained_normalizations(model)
    if not layers or not all(layer.built for layer in layers):
        raise PrivateTrainingError(
            "`model` must be built and train BatchNormalization. Received: "
            f"{len(layers)} such layers in {model.name!r}. Call the model on "
            "a batch to build it. If it has no such layer, leave "
            "`batch_statistics` out."
        )
    channels = sum(layer.moving_mean.shape[0] for layer in layers)
    clip = math.sqrt(2 * channels)
    stddev = clip * noise_multiplier / math.sqrt(_SHARE)
    return BatchStatisticsPlan(
        noise_multiplier / math.sqrt(1 - _SHARE),
        GaussianAverageQuery(clip, stddev, denominator),
    )
