"""A score of a model on private records, with noise."""

from collections.abc import Callable
from typing import Any, Self

import keras
import numpy as np

from keras_dp import _check
from keras_dp.ledger import FullDataset, GaussianSum, PrivacyLedger, Round
from keras_dp.preprocessing.release import noised, released
from keras_dp.sampling.record_source import Source, as_arrays

# Values are rounded to multiples of 2^-30: their sums are then exact.
_UNITS = 2.0**30


class PrivateScore:
    """The mean of a measure over private records, with Gaussian noise.

    The records are a validation part that no trial trains on, or the training
    data themselves. One record is one example.

    Guarantee: adding or removing a record moves the sum of the values by at
    most 1; the noise has the standard deviation `noise_multiplier`. The number
    of records becomes public. A record may be among the training data and here:
    both count. One unit has at most as many records in both together as
    `rows_per_unit` of the ledger says.

    Attributes:
        noise_multiplier: Standard deviation of the noise on the sum, > 0, in
            records: with 20, the mean over 5,000 records has the standard
            deviation 0.004.
        round: The round of one score, as ledgers hold it.

    >>> x, y = np.zeros([50, 3], "float32"), np.zeros([50, 1], "int32")
    >>> score = PrivateScore((x, y), keras.metrics.binary_accuracy,
    ...                      noise_multiplier=20.0)
    >>> score.round.queries
    (GaussianSum(name='score', l2_norm_bound=1.0, noise_stddev=20.0),)
    """

    def __init__(
        self,
        data: Any,
        measure: Callable[[Any, Any], Any],
        *,
        noise_multiplier: float,
    ) -> None:
        """Looks at the shapes of the data.

        Args:
            data: `(x, y)`, arrays or nests of arrays of equal length.
            measure: From targets and outputs of a batch to values `[batch]` or
                `[batch, ...]`, higher is better, such as
                `keras.metrics.sparse_categorical_accuracy`. Values are cut to
                [0, 1], one that is no number counts as 0, and an example has
                the mean of its values.
            noise_multiplier: See above.

        Raises:
            TypeError: `data` is no pair of arrays, or `measure` no function.
            ValueError: There are no records, or there is no noise.
        """
        _check.finite_positive(noise_multiplier=noise_multiplier)
        if not isinstance(data, tuple | list) or len(data) != 2:
            raise TypeError(
                f"`data` must be (x, y). Received: data={_check.shown(data)}."
            )
        if not callable(measure) or isinstance(measure, keras.metrics.Metric):
            raise TypeError(
                "`measure` must be a function of targets and outputs, such as "
                "keras.metrics.sparse_categorical_accuracy. "
                f"Received: measure={measure!r}."
            )
        self._x, self._y = as_arrays(tuple(data))
        self._size = len(Source((self._x, self._y)))
        if not self._size:
            raise ValueError(
                "`data` must hold at least one record. Received: data of no "
                "records."
            )
        self._measure = measure
        self.noise_multiplier = float(noise_multiplier)
        self.round = Round(
            FullDataset(drawn_by_library=True),
            (GaussianSum("score", 1.0, self.noise_multiplier),),
        )

    def on_made_up(self, made_up: Callable[[Any], Any]) -> Self:
        """Returns the same score of other records.

        Args:
            made_up: From the structure of one record, with `RecordSpec`s, to
                records.
        """
        records = made_up(Source((self._x, self._y)).structure)
        noise = self.noise_multiplier
        return type(self)(records, self._measure, noise_multiplier=noise)

    def release(self, model: keras.Model, ledger: PrivacyLedger) -> float:
        """Returns the score of a model, which the ledger covers before.

        Args:
            model: Its outputs for a record depend on this record alone.
            ledger: Records the round.
        """
        return released(
            ledger, self.round, lambda: self._noisy_mean(model), "score"
        )

    def total(self, model: keras.Model) -> float:
        """Returns the sum of the values of all records, without noise.

        Raises:
            ValueError: The measure has no value for each example.
        """
        outputs = model.predict(self._x, verbose=0)
        values = np.asarray(self._measure(self._y, outputs), np.float64)
        if values.shape[:1] != (self._size,) or not values.size:
            raise ValueError(
                "`measure` must return a value for each example. Received: "
                f"shape {values.shape} for {self._size} examples. Use a "
                "function that does not take the mean over examples."
            )
        kept = np.clip(np.nan_to_num(values, nan=0.0), 0.0, 1.0)
        kept = kept.reshape(self._size, -1).mean(axis=1)
        return float(np.sum(np.rint(kept * _UNITS)) / _UNITS)

    def _noisy_mean(self, model: keras.Model) -> float:
        total = self.total(model)
        return (
            float(noised(np.asarray(total), self.noise_multiplier)) / self._size
        )
