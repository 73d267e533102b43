"""A check for memorization of noise, which has no privacy loss."""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from keras_dp import _check


@dataclasses.dataclass(frozen=True, slots=True)
class NoiseRecords:
    """Images of noise with random labels, independent of the images.

    Train a model on `data` with the privacy of the real training, and predict
    the labels of the same images. The data are public, so that this training
    has no privacy loss.

    A model that passes may have any epsilon. The check can find memorization,
    but a stronger attack, or another model of the same training, may find more.
    In van der Veen et al. a training passes whose published epsilon is 20, but
    whose epsilon is 421.

    Attributes:
        count: The number of records, >= 1.
        shape: The shape of one image.
        classes: The number of different labels, all equally likely, >= 2.
        seed: The seed of images and labels, >= 0.

    Source: Zhang, Bengio, Hardt, Recht, Vinyals (2017), arXiv:1611.03530v2;
    van der Veen, Seggers, Bloem, Patrini (2018), arXiv:1812.02890v1,
    Section 2.1. They compare accuracies. We test a hypothesis.

    >>> noise = NoiseRecords(200, shape=(8, 8), classes=4)
    >>> x, y = noise.data
    >>> x.shape, y.dtype.name
    ((200, 8, 8), 'int32')
    >>> noise.check(y).k, noise.check(y).n
    (200, 200)
    >>> print(f"{noise.check(y).pvalue:.0e}")
    4e-121
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

    def check(self, predictions: npt.ArrayLike) -> Any:
        """Tests whether a model has memorized labels.

        A model that does not depend on the labels predicts each of them with
        probability `1 / classes`, independently, because the labels are
        independent. So the number of right predictions is binomial, and the
        test is exact: such a model has a p-value of at most `a` with
        probability at most `a`.

        Args:
            predictions: The label that the model predicts for each image of
                `data`, shape `[count]`.

        Returns:
            The `BinomTestResult` of SciPy: `k` of `n` labels are right, and
            `pvalue` is the probability of as many without memory.
        """
        said, labels = np.asarray(predictions), self.data[1]
        if said.shape != labels.shape:
            raise ValueError(
                "`predictions` must be one label for each of "
                f"{labels.size} images. Received: shape={said.shape!r}. Give "
                "the class of the largest output of each image."
            )
        right = int(np.count_nonzero(said == labels))
        return stats.binomtest(right, self.count, 1 / self.classes, "greater")
