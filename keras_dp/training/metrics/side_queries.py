"""Side queries: what else is asked of a sample than its gradients."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_dp import _check
from keras_dp.dp_queries import DPQuery, GaussianAverageQuery, NestedQuery
from keras_dp.errors import PrivateTrainingError
from keras_dp.gradients import (
    ExampleStatistics,
    trained_normalizations,
    update_statistics,
)
from keras_dp.optimizers.private_round import RecordBatch
from keras_dp.training.metrics.private_metrics import (
    Examples,
    PrivateMetric,
    check_private_metrics,
)

_METRICS, _STATISTICS = "metrics", "statistics"


class SideQueries:
    """The private metrics, and the statistics of batch normalization.

    The metrics are by name. They are empty if none are shown, and `None` if
    metrics are not private.
    """

    def __init__(
        self,
        metrics: Mapping[str, PrivateMetric] | None,
        statistics: DPQuery | None,
    ) -> None:
        if metrics is not None:
            metrics = check_private_metrics(metrics)
        if not isinstance(statistics, DPQuery | None):
            raise TypeError(
                "`batch_statistics` must be a DPQuery, or None. "
                f"Received: batch_statistics={statistics!r}. Pass the `query` "
                "of plan_batch_statistics."
            )
        self.metrics = metrics
        self.statistics = statistics
        self._trackers = {
            name: keras.metrics.Mean(name=name)
            for name, metric in (metrics or {}).items()
            for name in _names(name, metric)
        }

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of `PrivateModel.compile`, serialized."""
        given = {
            "private_metrics": self.metrics,
            "batch_statistics": self.statistics,
        }
        return {
            name: keras.tree.map_structure(
                keras.saving.serialize_keras_object, value
            )
            for name, value in given.items()
            if value is not None
        }

    def check_names(self, public: Iterable[str]) -> None:
        """Raises if two numbers would have one name in the logs.

        The `public` names are those of scalars of the queries' state.
        """
        names = [
            name
            for metric_name, metric in (self.metrics or {}).items()
            for name in _names(metric_name, metric)
        ]
        taken = set(public) if names else set()
        twice = {n for n in names if names.count(n) > 1 or n in taken}
        if twice:
            raise ValueError(
                "`private_metrics` must have names that differ from each other "
                "and from the public metrics of the query. Received: "
                f"{sorted(twice)!r} twice. Rename the private metrics."
            )

    @property
    def queries(self) -> dict[str, DPQuery]:
        """The queries, by the names that they have in the ledger."""
        queries: dict[str, DPQuery] = {}
        if self.metrics:
            queries[_METRICS] = NestedQuery(
                {name: metric.query for name, metric in self.metrics.items()}
            )
        if self.statistics is not None:
            queries[_STATISTICS] = self.statistics
        return queries

    @property
    def variables(self) -> list[keras.Variable]:
        """The means of the private metrics over an epoch, as variables."""
        return [v for each in self._trackers.values() for v in each.variables]

    def templates(self, layers: list[keras.Layer]) -> dict[str, Any]:
        """Returns what one record of each query looks like."""
        templates: dict[str, Any] = {}
        if self.metrics:
            templates[_METRICS] = {
                name: tf.TensorSpec(metric.record_shape, tf.float32)
                for name, metric in self.metrics.items()
            }
        if self.statistics is not None:
            templates[_STATISTICS] = [
                ExampleStatistics(
                    *[tf.TensorSpec(layer.moving_mean.shape, tf.float32)] * 2
                )
                for layer in layers
            ]
        return templates

    def batches(
        self,
        targets: Any,
        outputs: Any,
        losses: tf.Tensor,
        gradients: list[Any],
        statistics: list[ExampleStatistics],
        mask: tf.Tensor | None,
        views: int,
    ) -> dict[str, RecordBatch]:
        """Returns the records of a physical batch, one per example.

        With several views of an example, its record is their mean.
        """
        batches: dict[str, RecordBatch] = {}
        rows = losses.shape[0]

        def own(value: tf.Tensor) -> tf.Tensor:
            # Records of gradients have no views any more.
            if views == 1 or value.shape[0] != rows:
                return value
            shape = [rows // views, views, *value.shape[1:]]
            return tf.reduce_mean(tf.reshape(value, shape), axis=1)

        if mask is not None:
            mask = mask[::views]
        if self.metrics:
            examples = Examples(targets, outputs, losses, gradients)
            records = {
                name: own(tf.cast(metric.records(examples), tf.float32))
                for name, metric in self.metrics.items()
            }
            batches[_METRICS] = RecordBatch(records, mask)
        if self.statistics is not None:
            means = keras.tree.map_structure(own, statistics)
            batches[_STATISTICS] = RecordBatch(means, mask)
        return batches

    def apply(
        self, answers: Mapping[str, Any], layers: list[keras.Layer]
    ) -> dict[str, tf.Tensor]:
        """Uses the noised answers of a round; returns its private metrics."""
        if self.statistics is not None:
            update_statistics(layers, answers[_STATISTICS])
        values: dict[str, tf.Tensor] = {}
        for name, metric in (self.metrics or {}).items():
            leaves = tf.reshape(answers[_METRICS][name], [-1])
            names = _names(name, metric)
            values |= dict(zip(names, tf.unstack(leaves), strict=True))
        return values

    def track(self, values: Mapping[str, tf.Tensor]) -> None:
        """Adds the private metrics of a round to the means of the epoch."""
        for name, value in values.items():
            self._trackers[name].update_state(value)

    def logs(self) -> dict[str, Any]:
        """Returns the mean of each private metric over the rounds so far."""
        return {name: each.result() for name, each in self._trackers.items()}

    def reset(self) -> None:
        """Starts a new epoch."""
        for tracker in self._trackers.values():
            tracker.reset_state()


def _names(name: str, metric: PrivateMetric) -> list[str]:
    """Returns what logs call the numbers of a metric."""
    size = tf.TensorShape(metric.record_shape).num_elements()
    if not metric.record_shape:
        return [name]
    return [f"{name}_{index}" for index in range(size)]


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
