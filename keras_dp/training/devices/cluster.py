"""Mends two defects of Keras 3.15 where several processes train one model."""

from typing import Any

from keras_dp._override import override
from keras_dp.keras_internals import FitHooks, build_from_batch
from keras_dp.training.devices.replicas import Replicas


class ClusterModel(FitHooks):
    """Evaluates on several workers as on one.

    Each worker evaluates the examples that Keras gives it. All workers get the
    metrics of all examples.
    """

    @override
    def build_for_fit(self, iterator: Any, data_batch: Any) -> None:
        replicas = Replicas(self.distribute_strategy)
        if replicas.workers == 1:
            super().build_for_fit(iterator, data_batch)
            return
        # Keras takes a mean over the parts of a batch. Some of the parts are on
        # other workers, and so it raises.
        if iterator is not None:
            _, _, batches = next(iter(iterator))
            data_batch = replicas.whole(next(iter(batches)))
        with replicas.strategy.scope():
            build_from_batch(self, data_batch)

    @override
    def test_step(self, data: Any) -> Any:
        logs = super().test_step(data)
        if Replicas(self.distribute_strategy).workers == 1:
            return logs
        # Keras takes the mean of metrics along an axis, which scalars lack.
        return {name: value[None] for name, value in logs.items()}
