"""A model around the user's own, which does all that is not training.

`private.save` writes the private model, with the state of its query. Files of
the model inside hold nothing of this package, and can be loaded without it.
"""

import os
import zipfile
from typing import IO, Any

import h5py
import keras
import numpy as np

from keras_dp._override import override
from keras_dp.keras_internals import (
    FitHooks,
    build_from_batch,
    sliced_arrays,
    takes_training,
)
from keras_dp.sampling import Sampler
from keras_dp.training.advice.condition import judge
from keras_dp.training.advice.of_trainings import BESIDES_A_SAMPLER
from keras_dp.training.data.batches import batches_in_order
from keras_dp.training.data.first_batch import check_some_targets
from keras_dp.training.devices.replicas import Replicas

_MARK = "is_private"


class SaveModel(keras.callbacks.ModelCheckpoint):
    """Saves the user's own model while its private model trains.

    It takes the arguments of `keras.callbacks.ModelCheckpoint`. That callback
    would save the private model. With `save_best_only` the choice of a model is
    not private if it follows a metric that was computed on private data without
    noise. A model that is loaded again **trains without privacy** unless it is
    put into a `PrivateModel`.

    >>> callback = SaveModel("model-{epoch}.keras")
    """

    @override
    def set_model(self, model: Any) -> None:
        """Takes the model inside of a private model, or else `model` itself."""
        super().set_model(getattr(model, "model", model))


def holds_plain_weights(filepath: Any) -> bool:
    """Whether a file has the weights of a model that is not private.

    Files other than `.weights.h5` and `.keras` are taken to be of a private
    model.
    """
    path = os.fspath(filepath)
    if path.endswith(".weights.json"):
        raise ValueError(
            "`filepath` must be one file: a private model does not load "
            f"weights in several. Received: filepath={path!r}. Save them "
            "without max_shard_size."
        )
    if path.endswith(".keras"):
        with (
            zipfile.ZipFile(path) as archive,
            archive.open("model.weights.h5") as file,
        ):
            return not _has_mark(file)
    return path.endswith(".weights.h5") and not _has_mark(path)


def _has_mark(file: str | IO[bytes]) -> bool:
    with h5py.File(file) as weights:
        return f"vars/{_MARK}" in weights


class HeldModel(FitHooks):
    """Holds the user's model, `model`, and adds no weights of its own.

    It evaluates on several workers as on one. Each worker evaluates the
    examples that Keras gives it. All workers get the metrics of all examples.
    """

    def __init__(self, model: keras.Model, *, name: str, **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.model = model
        self.built = model.built
        self.supports_masking = True

    @override
    def call(self, inputs: Any, training: bool | None = None) -> Any:
        if takes_training(self.model):
            return self.model(inputs, training=training)
        return self.model(inputs)

    @override
    def predict_step(self, data: Any) -> Any:
        return self.model.predict_step(data)  # The user may have their own.

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

    @override
    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
        sample_weight: Any = None,
        **options: Any,
    ) -> Any:
        """Evaluates as `keras.Model.evaluate` does.

        It is not private: losses and metrics are computed without noise, and no
        ledger counts them. On the training data they tell of its records.

        Args:
            x: As in Keras, or a sampler. All its records are evaluated once, in
                their order, in physical batches. Nothing is sampled.
            y: As in Keras.
            batch_size: As in Keras.
            verbose: As in Keras.
            sample_weight: As in Keras.
            **options: As in Keras.

        Raises:
            ValueError: `y`, `batch_size` or `sample_weight` is given with a
                sampler, or there are no targets.
        """
        if isinstance(x, Sampler):
            given = {
                "y": y,
                "batch_size": batch_size,
                "sample_weight": sample_weight,
            }
            judge(BESIDES_A_SAMPLER, given)
            x = batches_in_order(x)
        if y is None:
            check_some_targets(x=x)
        if not Replicas(self.distribute_strategy).are_many:
            x, y, sample_weight = sliced_arrays(
                x, y, sample_weight, batch_size, options.get("steps")
            )
        return super().evaluate(
            x, y, batch_size, verbose, sample_weight, **options
        )

    @override
    def predict(
        self, x: Any, batch_size: int | None = None, **options: Any
    ) -> Any:
        """Predicts as `keras.Model.predict` does, one row for each record.

        Args:
            x: As in Keras; or a sampler, as in `evaluate`.
            batch_size: As in Keras.
            **options: As in Keras.

        Raises:
            ValueError: `batch_size` is given with a sampler.
        """
        if isinstance(x, Sampler):
            judge(BESIDES_A_SAMPLER, {"batch_size": batch_size})
            x = batches_in_order(x)
        return super().predict(x, batch_size, **options)

    @override
    def build(self, input_shape: Any) -> None:
        self.built = True  # The model inside is built by its own call.

    @override
    def save_own_variables(self, store: Any) -> None:
        # All weights are in the model inside. A file takes arrays only.
        store[_MARK] = np.ones([])

    @override
    def load_own_variables(self, store: Any) -> None:
        pass

    @override
    def load_weights(
        self, filepath: Any, skip_mismatch: bool = False, **options: Any
    ) -> None:
        """Loads weights that the private model or the model inside saved.

        Args:
            filepath: A file that `save_weights` or `save` of either model
                wrote. If it is of the private model, and this model is built
                and compiled, it also replaces the state of the optimizer and
                its queries.
            skip_mismatch: As in Keras.
            **options: As in Keras.
        """
        if holds_plain_weights(filepath):
            self.model.load_weights(filepath, skip_mismatch, **options)
            return
        self.build_optimizer()
        super().load_weights(filepath, skip_mismatch, **options)

    def build_optimizer(self) -> None:
        """Makes the state that a file may replace. Subclasses override it."""

    @override
    def export(self, filepath: Any, *args: Any, **options: Any) -> None:
        """Exports the model inside as `keras.Model.export` does."""
        self.model.export(filepath, *args, **options)

    def __getattr__(self, name: str) -> Any:
        if name == "output_names" and "model" in self.__dict__:
            return self.model.output_names
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}"
        )
