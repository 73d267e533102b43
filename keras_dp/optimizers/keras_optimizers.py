"""Private optimizers around those of Keras, with an inner one of their own."""

import abc
from typing import Any

import keras

from keras_dp._override import override
from keras_dp.dp_queries import DPQuery
from keras_dp.ledger import PrivacyLedger
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

    >>> import keras_dp
    >>> query = keras_dp.GaussianAverageQuery(1.0, 1.1, denominator=256)
    >>> ledger = keras_dp.PrivacyLedger.in_memory(dataset="doc")
    >>> DPAdam(1e-3, beta_1=0.8, query=query, ledger=ledger).inner.beta_1
    0.8
    """

    @staticmethod
    @override
    def _new_inner(**options: Any) -> keras.optimizers.Optimizer:
        return keras.optimizers.Adam(**options)
