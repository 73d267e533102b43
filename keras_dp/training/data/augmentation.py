"""Random changes of the inputs of records, by Keras layers."""

from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_dp import _check
from keras_dp.errors import PrivateTrainingError
from keras_dp.gradients.unsupported.layers import MIXING
from keras_dp.keras_internals import takes_training

# In Keras 3.15 each of these computes a row from this row alone, and from
# random numbers that it draws for each row: `[rows, ...]`. RandomCrop and
# RandomGaussianBlur draw once for all rows.
ROWWISE = (
    keras.layers.CenterCrop,
    keras.layers.GaussianNoise,
    keras.layers.RandomBrightness,
    keras.layers.RandomColorDegeneration,
    keras.layers.RandomContrast,
    keras.layers.RandomErasing,
    keras.layers.RandomFlip,
    keras.layers.RandomGrayscale,
    keras.layers.RandomHue,
    keras.layers.RandomInvert,
    keras.layers.RandomRotation,
    keras.layers.RandomSaturation,
    keras.layers.RandomSharpness,
    keras.layers.RandomShear,
    keras.layers.RandomTranslation,
    keras.layers.RandomZoom,
    keras.layers.Rescaling,
    keras.layers.Resizing,
)


# The class of Keras 3.15 whose layers take three axes for one image.
_IMAGES = "BaseImagePreprocessingLayer"


class Augmentation:
    """A map of samplers that changes the inputs of records by Keras layers.

    A record `(x, y, ...)` becomes `(augmented x, y, ...)`. It is for the
    argument `map` of samplers, and `make_private(augment=...)` makes one.

    Guarantee: as for `RecordMap`. Keras layers of which it is known that they
    keep the rows of a batch apart, and draw random numbers for each of them,
    are called on many records at once. Other layers and functions are called on
    one record at a time.

    Attributes:
        stages: The layers and functions, in their order.

    >>> import numpy as np
    >>> from keras_dp.sampling import PoissonBatches
    >>> images, labels = np.zeros([100, 8, 8, 1], "float32"), np.zeros([100])
    >>> augmentation = Augmentation(
    ...     keras.layers.RandomFlip("horizontal"),
    ...     keras.layers.RandomTranslation(0.1, 0.1))
    >>> augmentation.is_rowwise
    True
    >>> PoissonBatches((images, labels), sampling_probability=0.1,
    ...                map=augmentation, views=4)
    <PoissonBatches of 100 records, ..., views=4>
    """

    def __init__(self, *stages: Callable[..., Any]) -> None:
        """Calls none of them.

        Args:
            *stages: Keras layers, or a `Sequential` or `Pipeline` of them,
                which are called with `training=True` on a batch; and functions
                of TensorFlow of the inputs of one record.

        Raises:
            TypeError: There is none, or one is no function.
            PrivateTrainingError: A layer mixes records.
        """
        self.stages = [each for stage in stages for each in _parts(stage)]
        if not self.stages or not all(map(callable, self.stages)):
            raise TypeError(
                "`augment` must be Keras layers, or a function of the inputs "
                f"of one record. Received: augment={_check.shown(stages)}. "
                'Pass keras.layers.RandomFlip("horizontal"), for instance.'
            )
        for stage in self.stages:
            if isinstance(stage, MIXING):
                raise mixing(type(stage).__name__)

    @property
    def has_layers_only(self) -> bool:
        """Whether `of_rows` can be called."""
        return all(isinstance(each, keras.Layer) for each in self.stages)

    @property
    def is_rowwise(self) -> bool:
        """Whether layers are known to keep rows apart and to draw for each."""
        return all(type(each) in ROWWISE for each in self.stages)

    def __call__(self, x: Any, *rest: Any) -> Any:
        """Returns one record with other inputs.

        Args:
            x: Its inputs, without an axis for the batch.
            *rest: The rest of the record.
        """
        for stage in self.stages:
            if isinstance(stage, keras.Layer):
                x = _called(stage, tf.nest.map_structure(_as_batch, x))[0]
            else:
                x = stage(x)
        return (x, *rest) if rest else x

    def of_rows(self, x: Any, *rest: Any) -> Any:
        """Returns records with other inputs, all at once.

        Args:
            x: The inputs, `[rows, ...]`.
            *rest: The rest of the records.
        """
        for stage in self.stages:
            x = _called(stage, x)
        return (x, *rest) if rest else x


def mixing(what: str) -> PrivateTrainingError:
    """Returns the refusal of something that makes records interact."""
    return PrivateTrainingError(
        "`augment` must change each record by itself, or one record would "
        f"move the gradients of others. Received: {what}, which mixes the rows "
        "of a batch. Leave it out, or take a function of one record."
    )


def _parts(stage: Any) -> Iterator[Any]:
    """Yields the layers of a sequence of layers, or what else it is."""
    if isinstance(stage, list | tuple):
        layers = stage
    elif isinstance(stage, keras.Sequential | keras.layers.Pipeline):
        layers = stage.layers
    else:
        yield stage
        return
    for layer in layers:
        yield from _parts(layer)


def _as_batch(leaf: Any) -> tf.Tensor:
    return tf.convert_to_tensor(leaf)[tf.newaxis]


def _called(layer: keras.Layer, x: Any) -> Any:
    if not tf.is_tensor(x):
        raise TypeError(
            "`augment` must be a function where the inputs of a record are not "
            f"one array: layers take one. Received: {type(x).__name__}. Pass a "
            "function that calls the layers on the right part."
        )
    kinds = {kind.__name__ for kind in type(layer).__mro__}
    if _IMAGES in kinds and x.shape.rank < 4:
        raise PrivateTrainingError(
            "`augment` must have layers of images for records that are images, "
            "[height, width, channels]: of others such a layer takes the rows "
            f"of a batch for the height. Received: {type(layer).__name__}, for "
            f"records of shape {tuple(x.shape[1:])}. Give the images an axis "
            "for the channels, such as x[..., np.newaxis]."
        )
    if takes_training(layer):
        return layer(x, training=True)
    return layer(x)
