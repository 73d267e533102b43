"""Noise with random labels: memory is all that can say them right."""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_dp import _check
from keras_dp.auditing.draws import Draws
from keras_dp.auditing.memorization.memorization_check import (
    MemorizationCheck,
)


@dataclasses.dataclass(frozen=True, slots=True)
class NoiseRecords:
    """Images of noise, each with a label that says nothing about it.

    Train a model on `data`, as privately as the real one, and ask it for the
    labels of the same images. The data are public, so that this costs nothing.

    Attributes:
        count: The number of records.
        shape: The shape of one image.
        classes: How many labels there are, all equally likely.
        seed: Draws images and labels.

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
        """Images in [0, 1), float32, and labels, int32."""
        draws = Draws(self.seed)
        images = draws.images((self.count, *self.shape))
        labels = draws.integers(self.classes, (self.count,))
        return images, labels.astype(np.int32)

    def check(
        self, predictions: npt.ArrayLike, *, false_alarm: float = 0.01
    ) -> MemorizationCheck:
        """Tests whether a model knows the labels.

        Args:
            predictions: The label that the model gives each image of `data`,
                shape `[count]`.
            false_alarm: As in `MemorizationCheck`.
        """
        return checked(predictions, self.data[1], self.classes, false_alarm)


def checked(
    predictions: npt.ArrayLike,
    labels: npt.NDArray[np.int32],
    classes: int,
    false_alarm: float,
) -> MemorizationCheck:
    """Counts the predictions that are right."""
    said = np.asarray(predictions)
    if said.shape != labels.shape:
        raise ValueError(
            "`predictions` must be one label for each of "
            f"{labels.size} images. Received: shape={said.shape!r}."
        )
    correct = int(np.count_nonzero(said == labels))
    return MemorizationCheck(correct, labels.size, classes, false_alarm)
