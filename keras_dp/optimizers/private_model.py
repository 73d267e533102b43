"""A Keras model whose training is private, around the user's own."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Self

import keras
from absl import logging
from typing_extensions import override

from keras_dp.errors import PrivateTrainingError
from keras_dp.optimizers.dp_optimizer import DPOptimizer
from keras_dp.optimizers.feed import Feed, PhysicalStep
from keras_dp.optimizers.preconditions import (
    check_devices,
    check_executions,
    check_no_batching,
    check_wrapped,
)
from keras_dp.optimizers.recording import RoundRecorder, settling
from keras_dp.optimizers.training_step import TrainingStep


@keras.saving.register_keras_serializable(package="keras_dp")
class PrivateModel(keras.Model):
    """Trains a Keras model privately; everything else is the model's own.

    The model is held, not changed: it keeps its class, its saving and its
    serving, and after `fit` it is the trained model. `compile`, `fit` with
    callbacks, `evaluate`, `predict` and `train_on_batch` work as in Keras.

    Guarantee: the model's weights after any number of rounds are a function of
    noised answers only, each of which the optimizer's ledger covered before it
    was computed. Amplification by sampling is recorded only for samples drawn
    by `keras_dp.sampling`; any other input to `fit` is recorded as
    `UnverifiedSampling`. Not private: the metrics and losses that `fit` prints
    and passes to callbacks, which are computed on the training data.

    Attributes:
        model: Sequential, functional or subclassed, built or not.
        self_check_examples: How many examples of the first batch the engine
            is compared with brute force on before training, eagerly; 0 turns
            the check off. It costs one backward pass per example.

    >>> import keras_dp, numpy as np
    >>> x, y = np.zeros([64, 3], "float32"), np.zeros([64, 1], "float32")
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> ledger = keras_dp.PrivacyLedger.in_memory(dataset="doc")
    >>> private = PrivateModel(model)
    >>> private.compile(
    ...     keras_dp.optimizers.DPSGD(0.1, ledger=ledger,
    ...         query=keras_dp.GaussianAverageQuery(1.0, 1.1, denominator=16)),
    ...     loss="mse")
    >>> history = private.fit(keras_dp.sampling.PoissonBatches(
    ...     (x, y), sampling_probability=0.25), epochs=2, verbose=0)
    >>> len(ledger)
    8
    """

    def __init__(
        self,
        model: keras.Model,
        *,
        self_check_examples: int = 4,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        check_wrapped(model)
        if isinstance(model, PrivateModel):
            raise TypeError(
                "`model` must not be private already. "
                f"Received: model={model!r}."
            )
        if self_check_examples != 0 and self_check_examples < 2:
            raise ValueError(
                "`self_check_examples` must be 0 or >= 2. "
                f"Received: self_check_examples={self_check_examples!r}."
            )
        super().__init__(name=name or f"private_{model.name}", **kwargs)
        self.model = model
        self.self_check_examples = self_check_examples
        self.built = model.built
        self.supports_masking = True
        self._step: TrainingStep | None = None
        self._recorder: RoundRecorder | None = None
        self._feed: Feed | None = None
        self._warned = False

    # The model's own business.

    @override
    def call(self, inputs: Any, training: bool | None = None) -> Any:
        if self.model._call_has_training_arg:
            return self.model(inputs, training=training)
        return self.model(inputs)

    @override
    def build(self, input_shape: Any) -> None:
        self.built = True  # There is nothing to build but the model itself.

    @override
    def summary(self, *args: Any, **kwargs: Any) -> None:
        self.model.summary(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "output_names" and "model" in self.__dict__:
            return self.model.output_names
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}"
        )

    @override
    def get_config(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "model": keras.saving.serialize_keras_object(self.model),
            "self_check_examples": self.self_check_examples,
        }

    @classmethod
    @override
    def from_config(
        cls, config: Mapping[str, Any], custom_objects: Any = None
    ) -> Self:
        """Returns the private model around a new, equal model."""
        model = keras.saving.deserialize_keras_object(
            config["model"], custom_objects=custom_objects
        )
        return cls(
            model,
            self_check_examples=config["self_check_examples"],
            name=config["name"],
        )

    # Training.

    @override
    def compile(
        self, optimizer: DPOptimizer, loss: Any = None, **options: Any
    ) -> None:
        """Compiles as `keras.Model.compile` does, with a private optimizer.

        Args:
            optimizer: From `keras_dp.optimizers`.
            loss: Any Keras loss; it is evaluated per example, as that of a
                batch of one.
            **options: Those of `keras.Model.compile`, without
                `auto_scale_loss`.
        """
        if not isinstance(optimizer, DPOptimizer):
            raise TypeError(
                "`optimizer` must be a keras_dp.optimizers.DPOptimizer, such "
                "as DPAdam(1e-3, query=..., ledger=...). "
                f"Received: optimizer={optimizer!r}."
            )
        if loss is None:
            raise ValueError(
                "`loss` must be given: losses added inside the model couple "
                "examples. Received: loss=None."
            )
        options.pop("auto_scale_loss", None)
        super().compile(optimizer, loss, auto_scale_loss=False, **options)
        self._step = None

    @override
    def compile_from_config(self, config: Mapping[str, Any]) -> None:
        options = keras.saving.deserialize_keras_object(dict(config))
        self.compile(**options)
        if self.built:
            self.optimizer.resolve_groups(self.model)
            self.optimizer.build(self.trainable_variables)

    @override
    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        **options: Any,
    ) -> keras.callbacks.History:
        """Trains as `keras.Model.fit` does, and records every round.

        Args:
            x: `PoissonBatches` for amplified privacy; or anything Keras takes,
                each batch of which counts as one unverified sample.
            y: As in Keras.
            batch_size: As in Keras.
            epochs: As in Keras.
            verbose: As in Keras.
            callbacks: At the end of an epoch they find the ledger settled.
            **options: As in Keras. With `PoissonBatches`, `steps_per_epoch`
                is a number of rounds.
        """
        self._check_ready()
        feed = Feed(x)
        if feed.is_sampler:
            check_no_batching(y=y, batch_size=batch_size, **options)
            options.setdefault("steps_per_epoch", x.rounds_per_epoch)
            check_executions(
                options["steps_per_epoch"], self.steps_per_execution
            )
            options["shuffle"] = False  # The draws are random already.
            x = feed.dataset()
        with self._recording(feed) as recorder:
            return super().fit(
                x,
                y,
                batch_size=batch_size,
                epochs=epochs,
                verbose=verbose,
                callbacks=settling(callbacks, recorder),
                **options,
            )

    @override
    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Any = None,
        return_dict: bool = False,
    ) -> Any:
        """Runs one round on a batch, recorded as an unverified sample."""
        if class_weight is not None:
            raise ValueError(
                "`class_weight` must be None: pass the weights of the examples "
                "as `sample_weight`. "
                f"Received: class_weight={class_weight!r}."
            )
        self._check_ready()
        feed = Feed(x)
        if feed.is_sampler:
            raise TypeError(
                "`x` must be a batch of inputs. Received: a PoissonBatches, "
                "which fit takes."
            )
        with self._recording(feed):
            logs = self._run_round(iter([(x, y, sample_weight)]))
        logs = {name: float(value) for name, value in logs.items()}
        return logs if return_dict else self._flatten_metrics_in_order(logs)

    @override
    def train_step(self, data: Any) -> Any:
        raise PrivateTrainingError(
            "`train_step` must not be called: a step without its ledger "
            "entry is not private. Use fit or train_on_batch."
        )

    @override
    def make_train_function(self, force: bool = False) -> Any:
        self.train_function = self._run_rounds
        return self.train_function

    @contextlib.contextmanager
    def _recording(self, feed: Feed) -> Iterator[RoundRecorder]:
        """Records the rounds run inside, and settles them at the end."""
        if self._recorder is not None or self.optimizer.is_recording:
            raise PrivateTrainingError(
                "A private training must not be started inside another one of "
                "the same model or optimizer, such as from a callback."
            )
        query = self.optimizer.query
        recorder = RoundRecorder(
            self.optimizer.required_ledger(),
            plan=lambda: self.optimizer.planned_round(
                feed.sampling, seeded=feed.seeded
            ),
            events_of=lambda event: query.ledger_events(event, "gradients"),
        )
        optimizer = self.optimizer
        self._feed, self._recorder = feed, recorder
        optimizer.is_recording = True
        try:
            yield recorder
        finally:
            self._feed = self._recorder = None
            optimizer.is_recording = False
            recorder.settle()

    def _run_rounds(self, iterator: Iterator[Any]) -> Any:
        """Runs the rounds between two callbacks of `fit`."""
        logs = self._run_round(iterator)
        for _ in range(self.steps_per_execution - 1):
            try:
                logs = self._run_round(iterator)
            except StopIteration:
                break
        return logs

    def _run_round(self, iterator: Iterator[Any]) -> Mapping[str, Any]:
        """Runs one sample to its release: covered first, then computed."""
        feed, recorder = self._feed, self._recorder
        if feed is None or recorder is None:
            raise PrivateTrainingError(
                "A round must run inside fit or train_on_batch, which record "
                "it."
            )
        step = feed.step_from(next(iterator))
        training = self._prepared(step)
        training.check_unchanged()
        recorder.cover()
        logs, event = training.run(step, first=True)
        while not step.ends_sample:
            step = feed.step_from(next(iterator))
            logs, event = training.run(step, first=False)
        recorder.released(event)
        return logs

    def _prepared(self, step: PhysicalStep) -> TrainingStep:
        """Builds what is not built, and checks the engine once."""
        lengths = {
            tuple(leaf.shape)[:1]
            for leaf in keras.tree.flatten(step.data)
            if leaf is not None
        }
        if len(lengths) != 1:
            raise ValueError(
                "Inputs, targets and sample weights must have the examples "
                "along their first axis, the same number of them. Received: "
                f"{sorted(lengths)!r}."
            )
        if self._step is None:
            self._symbolic_build(data_batch=step.data)
            self.optimizer.resolve_groups(self.model)
            self._step = TrainingStep(self)
        self._step.check(step)
        return self._step

    def _check_ready(self) -> None:
        self._assert_compile_called("fit")
        if not isinstance(self.optimizer, DPOptimizer):
            raise PrivateTrainingError(
                "The optimizer of a private model must stay private. Received: "
                f"optimizer={self.optimizer!r}. Call compile with a "
                "DPOptimizer."
            )
        if self._step is not None:
            self._step.check_unchanged()
        check_devices(self.distribute_strategy.num_replicas_in_sync)
        if not self._warned:
            self._warned = True
            logging.warning(
                "The losses and metrics shown during private training are "
                "computed on the training data without noise. They are not "
                "covered by the privacy guarantee: do not publish them."
            )
