"""Training metrics as private answers over the sample of the gradients."""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import keras
import tensorflow as tf

from keras_dp import _check
from keras_dp._override import override
from keras_dp.dp_queries import DPQuery
from keras_dp.dp_queries import records as records_lib
from keras_dp.gradients.capture.mapped_examples import map_examples


class Examples(NamedTuple):
    """The examples of a physical batch, as metrics see them.

    With several views of an example, each view is a row of all but
    `gradients`, which are those of the examples.

    Attributes:
        targets: Nest with leaves `[batch, ...]`.
        outputs: The outputs of the model, leaves `[batch, ...]`.
        losses: The losses, sample weights included, `[batch]`.
        gradients: Lazy records of each variable, before the clip.
    """

    targets: Any
    outputs: Any
    losses: tf.Tensor
    gradients: list[Any]


@dataclasses.dataclass(frozen=True, slots=True)
class PrivateMetric(abc.ABC):
    """One quantity of each example, answered by a query of its own.

    Guarantee: if each record depends on one example only, the guarantee of
    `query` holds. Nothing checks this for a subclass of your own. The events
    are part of the round of the gradients, under the same sampling event.

    Attributes:
        query: Answers the sum or average of the records of a sample.
    """

    query: DPQuery

    def __post_init__(self) -> None:
        if not isinstance(self.query, DPQuery):
            raise TypeError(
                f"`query` must be a DPQuery. Received: query={self.query!r}. "
                "Pass a GaussianAverageQuery(clip, stddev, denominator)."
            )

    @property
    def record_shape(self) -> tuple[int, ...]:
        """The shape of one example's record."""
        return ()

    @abc.abstractmethod
    def records(self, examples: Examples) -> tf.Tensor:
        """Returns the record of each example, `[batch, *record_shape]`.

        With several views, it may return one for each view. Then the record of
        the example is their mean.

        Args:
            examples: The examples of a physical batch.
        """

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, for Keras serialization."""
        return {
            field.name: keras.saving.serialize_keras_object(
                getattr(self, field.name)
            )
            for field in dataclasses.fields(self)
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Returns the metric with this `get_config`."""
        return cls(
            **{
                name: keras.saving.deserialize_keras_object(value)
                for name, value in config.items()
            }
        )


@keras.saving.register_keras_serializable(package="keras_dp")
@dataclasses.dataclass(frozen=True, slots=True)
class PrivateLoss(PrivateMetric):
    """The loss of each example, which the query clips.

    >>> import keras_dp
    >>> PrivateLoss(keras_dp.GaussianAverageQuery(5.0, 20.0, denominator=256))
    PrivateLoss(query=GaussianAverageQuery(l2_norm_clip=5.0, ...))
    """

    @override
    def records(self, examples: Examples) -> tf.Tensor:
        return examples.losses


@keras.saving.register_keras_serializable(package="keras_dp")
@dataclasses.dataclass(frozen=True, slots=True)
class PrivateMean(PrivateMetric):
    """The mean of any function of one example's targets and outputs.

    Attributes:
        measure: Maps targets and outputs, as a batch of one, to one number,
            such as `keras.metrics.sparse_categorical_accuracy`. To be saved
            with the model it must be registered with Keras.

    >>> import keras, keras_dp
    >>> PrivateMean(keras_dp.GaussianAverageQuery(1.0, 8.0, denominator=256),
    ...             keras.metrics.sparse_categorical_accuracy).record_shape
    ()
    """

    measure: Callable[[Any, Any], Any]

    def __post_init__(self) -> None:
        PrivateMetric.__post_init__(self)
        if not callable(self.measure) or isinstance(
            self.measure, keras.metrics.Metric
        ):
            raise TypeError(
                "`measure` must be a function of targets and outputs that "
                "keeps no state, such as "
                "keras.metrics.sparse_categorical_accuracy. "
                f"Received: measure={self.measure!r}."
            )

    @override
    def records(self, examples: Examples) -> tf.Tensor:
        def one_example(rows: Any) -> tf.Tensor:
            own = keras.tree.map_structure(lambda row: row[tf.newaxis], rows)
            value = tf.cast(self.measure(*own), tf.float32)
            if value.shape.num_elements() != 1:
                raise ValueError(
                    "`measure` must return one number per example. Received: "
                    f"shape={tuple(value.shape)!r}. Take its mean over the "
                    "other axes."
                )
            return tf.reshape(value, [])

        rows = keras.tree.map_structure(
            tf.convert_to_tensor, (examples.targets, examples.outputs)
        )
        return map_examples(one_example, rows)


@keras.saving.register_keras_serializable(package="keras_dp")
@dataclasses.dataclass(frozen=True, slots=True)
class PrivateGradientNorm(PrivateMetric):
    """The norm of each example's gradient, which the query clips.

    It is the joint norm over all trained variables, before the clip of the
    gradients.

    An average near the clip says that many gradients are cut. An average far
    below the clip says that a smaller clip would do. The noise is proportional
    to the clip. Its norm is about `sum_stddev * sqrt(parameters) /
    denominator`.

    >>> import keras_dp
    >>> PrivateGradientNorm(
    ...     keras_dp.GaussianAverageQuery(
    ...         2.0, noise_multiplier=20.0, denominator=256))
    PrivateGradientNorm(query=GaussianAverageQuery(l2_norm_clip=2.0, ...))
    """

    @override
    def records(self, examples: Examples) -> tf.Tensor:
        return records_lib.norms(examples.gradients)


@keras.saving.register_keras_serializable(package="keras_dp")
@dataclasses.dataclass(frozen=True, slots=True)
class PrivateClippedShare(PrivateMetric):
    """The share of the examples whose gradients are longer than a norm.

    Each record is 0 or 1, so that the query needs a clip of 1. Choose a smaller
    clip of the gradients if the share is near 0, and a larger one if it is near
    1. A share of one half is a good start.

    Attributes:
        l2_norm: The norm, > 0. Give the clip of the gradients.

    >>> import keras_dp
    >>> PrivateClippedShare(
    ...     keras_dp.GaussianAverageQuery(
    ...         1.0, noise_multiplier=20.0, denominator=256),
    ...     l2_norm=1.0).record_shape
    ()
    """

    l2_norm: float

    def __post_init__(self) -> None:
        PrivateMetric.__post_init__(self)
        _check.finite_positive(l2_norm=self.l2_norm)

    @override
    def records(self, examples: Examples) -> tf.Tensor:
        norms = records_lib.norms(examples.gradients)
        return tf.cast(norms > tf.cast(self.l2_norm, norms.dtype), tf.float32)


@keras.saving.register_keras_serializable(package="keras_dp")
@dataclasses.dataclass(frozen=True, slots=True)
class PrivateClassCounts(PrivateMetric):
    """How many examples of each class a sample holds.

    The record of an example has a one at its class, so that its norm is 1. A
    label outside of `[0, classes)` is not counted. Targets are integers or
    one-hot vectors.

    Attributes:
        classes: Number of classes.

    >>> from keras_dp.dp_queries import GaussianSumQuery
    >>> PrivateClassCounts(GaussianSumQuery(1.0, 8.0), 10).record_shape
    (10,)
    """

    classes: int

    def __post_init__(self) -> None:
        PrivateMetric.__post_init__(self)
        _check.integer_at_least(1, classes=self.classes)

    @property
    @override
    def record_shape(self) -> tuple[int, ...]:
        return (self.classes,)

    @override
    def records(self, examples: Examples) -> tf.Tensor:
        targets = tf.convert_to_tensor(examples.targets)
        size = targets.shape[1:].num_elements()
        if size == 1:
            labels = tf.cast(tf.reshape(targets, [-1]), tf.int32)
        elif size == self.classes:
            flat = tf.reshape(targets, [-1, self.classes])
            labels = tf.where(
                tf.reduce_any(flat != 0, axis=1),
                tf.argmax(flat, axis=1, output_type=tf.int32),
                -1,
            )
        else:
            raise ValueError(
                "`classes` must be that of one-hot targets, or targets must be "
                f"one integer per example. Received: classes={self.classes!r} "
                f"and targets of shape {tuple(targets.shape)!r}. Pass the "
                "number of classes of the targets."
            )
        return tf.one_hot(labels, self.classes)


def check_private_metrics(metrics: Any) -> dict[str, PrivateMetric]:
    """Returns a copy of the metrics by name."""
    if not isinstance(metrics, Mapping):
        raise TypeError(
            "`private_metrics` must be a dict of names to PrivateMetrics. "
            f"Received: private_metrics={metrics!r}. Pass such as "
            '{"loss": PrivateLoss(query)}.'
        )
    for name, metric in metrics.items():
        _check.non_empty_text(private_metrics=name)
        if not isinstance(metric, PrivateMetric):
            raise TypeError(
                "`private_metrics` must hold PrivateMetrics, such as "
                f"PrivateLoss(query). Received: {name}={metric!r}."
            )
    return dict(metrics)
