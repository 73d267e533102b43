"""The weight of an example by its label, as in Keras's `class_weight`."""

import numbers
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_dp import _check


def check_class_weight(class_weight: Any) -> None:
    """Raises unless it maps integer labels to numbers.

    Raises:
        TypeError: It is no such mapping.
        ValueError: A weight is not finite, or negative.
    """
    if isinstance(class_weight, Mapping) and all(
        isinstance(label, numbers.Real) and float(label).is_integer()
        for label in class_weight
    ):
        _check.finite_non_negative(
            **{
                f"class_weight[{label:g}]": weight
                for label, weight in class_weight.items()
            }
        )
        return
    raise TypeError(
        "`class_weight` must map integer labels to numbers, such as {0: 1.0, "
        f"1: 5.0}}. Received: {_check.shown(class_weight)}. Of a list make "
        "dict(enumerate(...)). Choose weights that tell nothing of the records:"
        " their own counts are no public numbers."
    )


def with_class_weights(
    y: Any, sample_weight: Any, class_weight: Mapping[int, float]
) -> tf.Tensor:
    """Returns the weight of each example of a batch.

    The weight follows from the example's own label alone, and multiplies its
    loss before its gradient is clipped.

    Args:
        y: Shape `[batch]` or `[batch, 1]`, labels; or `[batch, classes]`, of
            which the largest names the label.
        sample_weight: Must be `None`.
        class_weight: Label to weight; other labels have the weight 1. So have
            those that are not finite: an error would tell of a record.

    Returns:
        Shape `[batch]`.

    Raises:
        ValueError: There are sample weights too, or there is no single label.

    >>> with_class_weights(np.array([0, 2, 1]), None, {2: 5.0}).numpy()
    array([1., 5., 1.], dtype=float32)
    >>> with_class_weights(np.array([2.0, np.nan]), None, {2: 5.0}).numpy()
    array([5., 1.], dtype=float32)
    """
    if sample_weight is not None:
        raise ValueError(
            "`class_weight` must be None where examples have sample weights. "
            f"Received: class_weight={class_weight!r}. Multiply the sample "
            "weights by the weights of the classes."
        )
    labels: Any = np.asarray(y) if hasattr(y, "__array__") else None
    is_single = labels is not None and labels.ndim in (1, 2)
    if not is_single or labels.dtype.kind not in "biuf":
        raise ValueError(
            "`class_weight` must be None for targets other than one label an "
            f"example. Received: class_weight={class_weight!r}. Pass sample "
            "weights with the records."
        )
    if labels.ndim == 2:
        is_column = labels.shape[1] == 1
        labels = labels[:, 0] if is_column else labels.argmax(axis=1)
    found, places = np.unique(np.round(labels), return_inverse=True)
    weights = [
        class_weight.get(int(label), 1.0) if np.isfinite(label) else 1.0
        for label in found
    ]
    return tf.constant(np.array(weights, keras.config.floatx())[places])
