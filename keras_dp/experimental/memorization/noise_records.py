"""Images of noise with random labels, which a model can only memorize."""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_dp import _check
from keras_dp.experimental.memorization.memorization_check import (
    MemorizationCheck,
)


@dataclasses.dataclass(frozen=True, slots=True)
class NoiseRecords:
    """Images of noise with random labels, independent of the images.

    Train a model on `data` with the privacy of the real training, and predict
    the labels of the same images. The data are public, so that this training
    has no privacy loss.

    Attributes:
        count: The number of records, >= 1.
        shape: The shape of one image.
        classes: The number of different labels, all equally likely, >= 2.
        seed: The seed of images and labels, >= 0.

    Source: Zhang, Bengio, Hardt, Recht, Vinyals (2017), arXiv:1611.03530v2;
    van der Veen, Seggers, Bloem, Patrini (2018), arXiv:1812.02890v1.

    >>> noise = NoiseRecords(200, shape=(8, 8), classes=4)
    >>> x, y = noise.data
    >>> x.shape, y.dtype.name
    ((200, 8, 8), 'int32')
    >>> noise.check(y).memorizes, noise.check(np.zeros(200, int)).memorizes
    (True, False)
    """

    count: int
    shape: tuple[int, ...] = (28, 28)
    classes: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        _check.integer_at_least(1, count=self.count)
        _check.integer_at_least(2, classes=self.classes)
        _check.integer_at_least(0, seed=self.seed)

    @property
    def data(self) -> tuple[Any, Any]:
        """The images, float32 in [0, 1), and the labels, int32."""
        draws = np.random.Generator(np.random.Philox(self.seed))
        images = draws.random((self.count, *self.shape), np.float32)
        return images, draws.integers(self.classes, size=self.count, dtype="i4")

    def check(
        self, predictions: npt.ArrayLike, *, false_alarm: float = 0.01
    ) -> MemorizationCheck:
        """Tests whether a model has memorized labels.

        Args:
            predictions: The label that the model predicts for each image of
                `data`, shape `[count]`.
            false_alarm: As in `MemorizationCheck`.
        """
        said, labels = np.asarray(predictions), self.data[1]
        if said.shape != labels.shape:
            raise ValueError(
                "`predictions` must be one label for each of "
                f"{labels.size} images. Received: shape={said.shape!r}. Give "
                "the class of the largest output of each image."
            )
        return MemorizationCheck(
            int(np.count_nonzero(said == labels)),
            self.count,
            self.classes,
            false_alarm,
        )
