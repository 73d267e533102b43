"""Whoever looks at a model while it trains sees the averages of its weights."""

from typing import Any

import keras
import numpy as np

from keras_dp._override import override
from keras_dp.keras_internals import averages_of
from keras_dp.optimizers.dp_optimizer import DPOptimizer


class AveragedWeights(keras.callbacks.Callback):
    """Puts averaged weights into the model while it is evaluated or saved.

    Where the private optimizer averages (`use_ema`), the model has the averages
    at the end of `fit`. With this callback it also has them during validation
    and at the end of each epoch, when other callbacks save it. Then training
    goes on with the weights that are not averaged.
    `keras.callbacks.SwapEMAWeights`, in whose place it stands, leaves weights
    that are not averaged in the model if training ends before its last epoch.
    """

    def __init__(self, optimizer: DPOptimizer) -> None:
        super().__init__()
        self._optimizer = optimizer
        self._latest: list[np.ndarray] | None = None

    @override
    def on_test_begin(self, logs: Any = None) -> None:
        self._put_averages()

    @override
    def on_test_end(self, logs: Any = None) -> None:
        self._put_latest()

    @override
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._put_averages()

    @override
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._put_latest()

    def _put_averages(self) -> None:
        if self._latest is None:
            pairs = averages_of(self._optimizer)
            self._latest = [weight.numpy() for weight, _ in pairs]
        self._optimizer.put_averages()

    def _put_latest(self) -> None:
        if self._latest is None:
            return
        for (weight, _), latest in zip(
            averages_of(self._optimizer), self._latest, strict=True
        ):
            weight.assign(latest)
        self._latest = None
