"""Private optimizers around those of Keras, with an inner one of their own."""

import abc
from typing import Any

import keras

from keras_dp._override import override
from keras_dp.dp_queries import DPQuery
from keras_dp.ledger import PrivacyLedger
from keras_dp.optimizers.bias_corrected_adam import BiasCorrectedAdam
from keras_dp.optimizers.dp_optimizer import DPOptimizer
from keras_dp.optimizers.groups import Patterns, VariableGroups

_register = keras.saving.register_keras_serializable(package="keras_dp")


class _Named(DPOptimizer):
    """A `DPOptimizer` that makes its inner optimizer itself."""

    @staticmethod
    @abc.abstractmethod
    def _new_inner(**options: Any) -> keras.optimizers.Optimizer:
        """Returns the inner optimizer."""

    def __init__(
        self,
        learning_rate: Any = None,
        *,
        query: DPQuery,
        ledger: PrivacyLedger,
        groups: Patterns | VariableGroups | None = None,
        seed: int | None = None,
        name: str | None = None,
        **options: Any,
    ) -> None:
        if learning_rate is not None:
            options["learning_rate"] = learning_rate
        super().__init__(
            self._new_inner(**options),
            query=query,
            ledger=ledger,
            groups=groups,
            seed=seed,
            name=name,
        )


@_register
class DPSGD(_Named):
    """A `DPOptimizer` around a new `keras.optimizers.SGD`.

    It takes the options of SGD, and those of `DPOptimizer`.

    >>> import keras_dp
    >>> query = keras_dp.GaussianAverageQuery(1.0, 1.1, denominator=256)
    >>> ledger = keras_dp.PrivacyLedger.in_memory(dataset="doc")
    >>> DPSGD(0.1, momentum=0.9, query=query, ledger=ledger).inner.momentum
    0.9
    """

    @staticmethod
    @override
    def _new_inner(**options: Any) -> keras.optimizers.Optimizer:
        return keras.optimizers.SGD(**options)


@_register
class DPAdam(_Named):
    """A `DPOptimizer` around a new `keras.optimizers.Adam`.

    It takes the options of Adam, and those of `DPOptimizer`.

    Adam divides by the square root of the second moment of answers, and the
    variance of the noise is a part of it. With `bias_correction` this part is
    subtracted; see `BiasCorrectedAdam`. It costs no privacy, because the
    variance is public.

    Attributes:
        bias_correction: The least second moment after the subtraction, in units
            of the variance of the noise, > 0, such as 0.1. A step is at most
            `1 / sqrt(bias_correction)` times as long as one of Adam on noise
            alone. If `None`, nothing is subtracted.

    Raises:
        TypeError: `bias_correction` is set, and the noise of `query` is not
            Gaussian with one variance in each variable. A training raises it,
            before anything is recorded.
        ValueError: `bias_correction` is not > 0; or it is set, and `amsgrad` or
            a clip of gradients is too.

    >>> import keras_dp
    >>> query = keras_dp.GaussianAverageQuery(1.0, 1.1, denominator=256)
    >>> ledger = keras_dp.PrivacyLedger.in_memory(dataset="doc")
    >>> adam = DPAdam(1e-3, bias_correction=0.1, query=query, ledger=ledger)
    >>> adam.inner.floor
    0.1
    """

    @staticmethod
    @override
    def _new_inner(
        *, bias_correction: float | None = None, **options: Any
    ) -> keras.optimizers.Optimizer:
        if bias_correction is None:
            return keras.optimizers.Adam(**options)
        return BiasCorrectedAdam(floor=bias_correction, **options)
