"""A Keras model whose training is private, around the user's own."""

import contextlib
import dataclasses
import functools
import weakref
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

import keras

from keras_dp import _check
from keras_dp._override import override
from keras_dp.dp_queries import DPQuery
from keras_dp.errors import PrivateTrainingError
from keras_dp.gradients import reduced_losses
from keras_dp.gradients.unsupported.layers import check_model
from keras_dp.keras_internals import (
    check_compiled,
    compiled_loss_of,
    fresh_copy_of,
    loss_tracker_of,
    metric_updates,
    metrics_in_order,
    print_line,
    python_values,
)
from keras_dp.ledger import RunWriter
from keras_dp.optimizers.answer_sizes import Sizes
from keras_dp.optimizers.dp_optimizer import DPOptimizer
from keras_dp.planning.calibration import check_target_delta, default_delta
from keras_dp.sampling import Sampler
from keras_dp.spending.epsilon_limit import PrivacyTarget
from keras_dp.spending.run import RunDetails
from keras_dp.training.advice.condition import Said, judge
from keras_dp.training.advice.of_models import (
    BUILT,
    COMPILED,
    HELD,
    WRAPPED,
    Compiling,
)
from keras_dp.training.advice.of_trainings import (
    CALLBACKS,
    OTHER_DATA,
    TARGETS,
    check_counts,
)
from keras_dp.training.advice.other_trainings import (
    ReleasedWeights,
    warn_of_plain_training,
)
from keras_dp.training.callbacks.fit_callbacks import fit_callbacks
from keras_dp.training.data.batches import StepBatch
from keras_dp.training.data.data_adapter import DataAdapter
from keras_dp.training.data.first_batch import (
    build_and_check,
    check_given,
)
from keras_dp.training.data.in_range import FirstLook
from keras_dp.training.description import description_of
from keras_dp.training.devices.replicas import Replicas
from keras_dp.training.held_model import HeldModel
from keras_dp.training.loop import TrainingLoop, nested_training
from keras_dp.training.metrics.example_metrics import ExampleMetrics
from keras_dp.training.metrics.private_metrics import PrivateMetric
from keras_dp.training.metrics.side_queries import SideQueries
from keras_dp.training.rounds_at_once import (
    check_at_once,
    pays_by_xla,
    rounds_at_once,
    why_one_by_one,
)
from keras_dp.training.step.step_parts import StepParts, resolved_loss_scale
from keras_dp.training.step.training_step import TrainingStep
from keras_dp.training.training import Training, audit_of, keras_arguments

# Settings of a training, which `fit` or `make_private` takes.
_SETTINGS = frozenset(
    {
        *("average", "batch_size", "delta", "epochs", "gamma", "l2_norm_clip"),
        *("learning_rate", "noise", "run", "samples", "target"),
        "target_epsilon",
    }
)


def check_kind(model: Any, *, releases_statistics: bool) -> None:
    """Raises for a model that cannot train privately, whatever its loss is."""
    _check_plain(model)
    check_model(model, releases_statistics=releases_statistics)


def _check_plain(model: Any) -> None:
    if isinstance(model, PrivateModel):
        raise TypeError(
            "`model` must not be private already. "
            f"Received: model={model!r}. Pass the model inside: "
            "`model.model`."
        )
    _check.kind(keras.Model, model=model)
    judge(WRAPPED, model)


@keras.saving.register_keras_serializable(package="keras_dp")
class PrivateModel(HeldModel):
    """Trains a Keras model privately.

    It holds the model and does not change its class, its saving or its serving.
    After `fit` the model inside is the trained model. `compile`, `fit` with
    callbacks, `evaluate`, `predict` and `train_on_batch` work as in Keras.

    Guarantee: after any number of rounds the weights of the model are a
    function of noised answers only. The optimizer's ledger covers each answer
    before it is computed. Amplification by sampling is recorded only for
    samples that `keras_dp.sampling` drew. Other input of `fit` is recorded as
    `UnverifiedSampling`. Without `private_metrics`, the values that `fit`
    prints and passes to callbacks are not private.

    Attributes:
        model: The user's model: Sequential, functional or subclassed, built or
            not.
        self_check_examples: The number of examples of the first batch whose
            norms the self-check compares, 0 or >= 2. Before training it also
            compares a sum of the gradients of all examples with that of Keras.
            Three norms cost nothing, each other one a forward and backward pass
            over the batch. 0 turns the whole self-check off.
        settings: The `Settings` of `make_private`, or `None`. Their samples,
            epochs, target and run are those of `fit` and `train_on_batch` where
            these are called without them. The first `fit` prints them, unless
            `make_private` was told otherwise. A copy, and a private model from
            a file, have no settings but keep the target.
        last_run: The row of the ledger in which the last run began. If that was
            interrupted, `fit` without `x` continues it. `make_private` sets it.

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

    steps_per_execution: int

    def __init__(
        self,
        model: keras.Model,
        *,
        self_check_examples: int = 2,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        _check_plain(model)
        _check.integer_at_least(0, self_check_examples=self_check_examples)
        if self_check_examples == 1:
            raise ValueError(
                "`self_check_examples` must be 0 or >= 2. "
                f"Received: self_check_examples={self_check_examples!r}. The "
                "check compares examples with each other: one alone shows "
                "nothing. 0 turns it off."
            )
        super().__init__(model, name=name or f"private_{model.name}", **kwargs)
        warn_of_plain_training(model)
        self.self_check_examples = self_check_examples
        self._step: TrainingStep | None = None
        self._side_queries, self._said = SideQueries(None, None), Said()
        self._loop: TrainingLoop | None = None
        self._batches_run: RunWriter | None = None
        self._batches_terms: Any = None
        self._run_to_end: RunWriter | None = None
        self._weights = ReleasedWeights(model)
        self._first_look = FirstLook()
        self.last_run: int | None = None
        self.settings: Any = None
        self.shows_settings = False
        self._kept_target: PrivacyTarget | None = None
        self._loss_scale: float | None = None
        self._chooses_steps, self._chooses_xla = False, True
        self._one_by_one: str | None = None

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        """Refuses settings of a training, which nobody would read here."""
        if name in _SETTINGS and not hasattr(self, name):
            raise AttributeError(
                f"`{name}` must not be set on a private model: it is the name "
                "of a setting, and no training would follow it. Received: "
                f"{name}={_check.shown(value)}. Pass a setting to fit, such "
                "as fit(target_epsilon=3.0), or to make_private. Give an "
                "attribute of a class of your own another name."
            )
        super().__setattr__(name, value)

    @property
    def _target(self) -> PrivacyTarget | None:
        made = self.settings
        return self._kept_target if made is None else made.target

    # Its own description.

    @override
    def summary(
        self,
        line_length: int | None = None,
        positions: Any = None,
        print_fn: Any = None,
        **options: Any,
    ) -> None:
        """Prints the model's own summary, then how it is trained privately."""
        self.model.summary(line_length, positions, print_fn, **options)
        optimizer = getattr(self, "optimizer", None)
        known = ("", {}) if self._step is None else self._step.known_of_model
        for line in description_of(
            self.model, optimizer, self._target, *known, self._one_by_one
        ):
            (print_fn or print_line)(line)

    def __repr__(self) -> str:
        # May be asked for by an error in the constructor.
        model, optimizer, target = (
            getattr(self, name, None)
            for name in ("model", "optimizer", "_target")
        )
        end = "" if target is None else f", target={target!r}"
        kind = type(self).__name__
        return f"<{kind} of {model!r}, optimizer={optimizer!r}{end}>"

    @override
    def get_config(self) -> dict[str, Any]:
        target = self._target
        return {
            "name": self.name,
            "model": keras.saving.serialize_keras_object(self.model),
            "self_check_examples": self.self_check_examples,
            "target": target and [target.epsilon, target.delta],
        }

    @classmethod
    @override
    def from_config(
        cls, config: Mapping[str, Any], custom_objects: Any = None
    ) -> Self:
        """Returns the private model around a new, equal model.

        Its target is the same. The optimizer of the model has trained nothing,
        and no file has its state: it is not built.
        """
        model = keras.saving.deserialize_keras_object(
            config["model"], custom_objects=custom_objects
        )
        if getattr(model, "optimizer", None) is not None:
            model.optimizer = fresh_copy_of(model.optimizer)
        apart = {"model", "target"}
        made = cls(model, **{k: v for k, v in config.items() if k not in apart})
        made._keep(config.get("target"))
        return made

    def _keep(self, target: Sequence[float] | None) -> None:
        if target is not None:
            self._kept_target = PrivacyTarget(*target)

    # Training.

    @override
    def call(self, inputs: Any, training: bool | None = None) -> Any:
        if training and self._loop is None:
            self._said.warn(
                "{!r} was called as in training outside of its fit, as by a "
                "model around it. If that trains it, no ledger covers it.",
                self.name,
            )
        return super().call(inputs, training=training)

    @override
    def compile(
        self,
        optimizer: DPOptimizer,
        loss: Any = None,
        *,
        private_metrics: Mapping[str, PrivateMetric] | None = None,
        batch_statistics: DPQuery | None = None,
        loss_scale: float | None = None,
        **options: Any,
    ) -> None:
        """Compiles as `keras.Model.compile` does, with a private optimizer.

        Args:
            optimizer: From `keras_dp.optimizers`.
            loss: A Keras loss that is a sum or mean over examples. The loss of
                an example is that of a batch of one. Others are refused.
            private_metrics: Maps names to metrics. `fit` then shows and passes
                on these, averaged over the rounds of an epoch, and no raw
                metric of the training data. Epsilon, the public numbers of the
                query and values of `validation_data` are shown besides. An
                empty dict shows no metric.
            batch_statistics: The query that releases the statistics of
                BatchNormalization layers. Without it such layers are refused.
                It must answer averages. A record is a list with one entry for
                each layer: the mean and variance of one example, relative to
                the present statistics. Its norm is about `sqrt(2 * channels)`.
            loss_scale: The power of two that the losses are multiplied by while
                they are differentiated, for layers that compute in float16. By
                default 1024 if there are any, else 1. It never changes, so that
                it reveals nothing. Examples that overflow count as zero.
            **options: The other options of `keras.Model.compile`. With
                `auto_scale_loss=False` losses are not multiplied by default.
                `steps_per_execution` rounds run between two calls of
                callbacks; with "auto", about half a second, but one round for a
                callback that acts on each. Rounds of records in memory are then
                one call of a compiled function, as many as the ledger covers.
        """
        if getattr(self, "_loop", None) is not None:
            raise PrivateTrainingError(
                "A private model must not be compiled while it trains: the "
                "ledger covers the rounds of the optimizer that training began "
                "with. Compile it after fit."
            )
        are_many = Replicas(self.distribute_strategy).are_many
        judge(COMPILED, Compiling(optimizer, loss, options))
        steps = options.get("steps_per_execution", 1)
        if steps != "auto":
            check_at_once(steps)
        _check.arguments_of(
            keras.Model.compile, PrivateModel.compile, given=options
        )
        side_queries = SideQueries(private_metrics, batch_statistics)
        optimizer.check_side_queries(side_queries.queries)
        self._chooses_steps = steps == "auto"
        options["steps_per_execution"] = (
            1 if self._chooses_steps else int(steps)
        )
        self._chooses_xla = options.get("jit_compile", "auto") == "auto"
        if not options.pop("auto_scale_loss", True) and loss_scale is None:
            loss_scale = 1.0
        if are_many:
            if options.get("jit_compile") is True:
                raise ValueError(
                    '`jit_compile` must be False or "auto" with replicas: XLA '
                    "cannot compile a step that updates variables on each of "
                    "them. Received: jit_compile=True. Leave it out."
                )
            options["jit_compile"] = False
        super().compile(
            optimizer, reduced_losses(loss), auto_scale_loss=False, **options
        )
        self._side_queries = side_queries
        self._weights.check(self._said)
        self._weights.forget()
        self._first_look = FirstLook()
        self._said = Said()
        judge(HELD, self.model, said=self._said)
        self._loss_scale = loss_scale
        self._step = None
        self._end_of_batches()
        self.last_run = None

    @override
    def get_compile_config(self) -> Any:
        config = super().get_compile_config()
        own = {
            **self._side_queries.get_config(),
            "loss_scale": self._loss_scale,
        }
        if self._chooses_steps:
            own["steps_per_execution"] = "auto"
        return {**config, **own} if config else config

    @property
    def loss_scale(self) -> float:
        """The factor of the losses while they are differentiated."""
        return resolved_loss_scale(self._loss_scale, self.model)

    @override
    def load_weights(
        self, filepath: Any, skip_mismatch: bool = False, **options: Any
    ) -> None:
        super().load_weights(filepath, skip_mismatch, **options)
        self._weights.forget()

    @override
    def reset_metrics(self) -> None:
        super().reset_metrics()
        self._side_queries.reset()

    @override
    def logs_to_show(self, logs: Any) -> Any:
        if self._side_queries.metrics is not None:
            return logs  # Keras would look at the raw metrics.
        return super().logs_to_show(logs)

    @override
    def compile_from_config(self, config: Mapping[str, Any]) -> None:
        options = keras.saving.deserialize_keras_object(dict(config))
        self.compile(**options)
        self.build_optimizer()

    @override
    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int | None = None,
        verbose: Any = "auto",
        callbacks: Any = None,
        *,
        target_epsilon: float | None = None,
        delta: float | None = None,
        run: RunDetails | str | None = None,
        **options: Any,
    ) -> keras.callbacks.History:
        """Trains as `keras.Model.fit` does, and records every round.

        Guarantee: with a target, training ends before a round would exceed it.
        All rounds of the ledger count, also those of earlier runs.

        Args:
            x: `PoissonBatches` or another sampler of `keras_dp.sampling`, whose
                sampling amplifies privacy. Or anything that Keras takes, of
                which each batch counts as one unverified sample. By default the
                samples of `make_private`.
            y: As in Keras.
            batch_size: As in Keras.
            epochs: As in Keras, >= 1. With the samples of `make_private`, the
                epochs of `make_private` are the default.
            verbose: As in Keras.
            callbacks: As in Keras. They find the epsilon of the ledger in the
                logs. At the end of an epoch the ledger holds exactly the rounds
                that ran, so that callbacks read what was spent.
            target_epsilon: The most that the ledger may spend, > 0. By default
                the target of `make_private`, if any.
            delta: The delta of the target and of the shown epsilon, in (0, 1).
                By default that of `make_private`, else `N^-1.1` for N records,
                else 1e-5.
            run: A run is one training in a ledger. Give its name, or
                `RunDetails`, which can also name the account that pays. By
                default the run of `make_private`; if that was interrupted, it
                goes on under its one plan. Before the first round the ledger
                gets the plan of a new run, the most rounds of each kind, if
                their number is known.
            **options: As in Keras. With a sampler, `steps_per_epoch` is a
                number of rounds. `validation_data` may be a sampler, which is
                evaluated as by `evaluate`.

        Raises:
            BudgetExceededError: The target or the account leaves no room for a
                single round.
            ValueError: A number of epochs, steps or rows is not a possible one.
                Or an option does not go with a sampler, or records hold no
                targets. Or the ledger has several accounts, and `run`
                names none of them.
        """
        made = self.settings
        if made is not None and x is None:
            x = made.samples
            epochs = made.epochs if epochs is None else epochs
        elif made is not None and x is not made.samples:
            judge(OTHER_DATA, self.optimizer.required_ledger().header)
        epochs = 1 if epochs is None else epochs
        _check.arguments_of(keras.Model.fit, PrivateModel.fit, given=options)
        check_counts(epochs, {"batch_size": batch_size, **options})
        check_at_once(self.steps_per_execution)  # It may have been set.
        _check.verbosity(verbose)
        if options.get("initial_epoch", 0) >= epochs:
            self.history = keras.callbacks.History()
            self.history.on_train_begin()
            return self.history  # As in Keras, all these epochs are over.
        check_given(x=x, y=y, sample_weight=options.get("sample_weight"))
        if self._run_to_end is not None and self._loop is None:
            # A full disk, or a second interrupt, may have left it open.
            self._run_to_end.abandon()
        training = self._training(
            DataAdapter(x, options.get("class_weight")),
            {
                "y": y,
                "batch_size": batch_size,
                "epochs": epochs,
                "verbose": verbose,
                "callbacks": callbacks,
                **options,
            },
            target_epsilon=target_epsilon,
            delta=delta,
            run=run,
        )
        with self._running(training) as loop:
            if verbose and self.shows_settings:
                print_line(
                    f"Private training of {self.model.name!r}:\n{self.settings}"
                )
                self.shows_settings = False
            if verbose and self._step is None and not self.run_eagerly:
                by = " by XLA" if training.by_xla else ""
                print_line(
                    f"Compiling the private step{by} in the first round ..."
                )
            self.steps_per_execution = training.at_once
            own = fit_callbacks(loop, self._answer_sizes)
            try:
                return super().fit(**training.given_to_keras(own))
            finally:
                self._evaluate_batch_by_batch()

    @override
    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Any = None,
        return_dict: bool = False,
        *,
        target_epsilon: float | None = None,
        delta: float | None = None,
        run: RunDetails | str | None = None,
    ) -> Any:
        """Runs one round on a batch, recorded as an unverified sample.

        All batches until `compile` are one run of the ledger, with the details
        that came with the first of them. Another ledger or target begins
        another run. `target_epsilon`, `delta` and `run` are as in `fit`, but
        delta is 1e-5 by default: a batch is not all records.
        """
        if isinstance(x, Sampler):
            raise TypeError(
                "`x` must be a batch of inputs. Received: a sampler. Pass "
                "the sampler to fit."
            )
        if delta is None and self._target is None:
            delta = default_delta(None)
        data = DataAdapter(x, class_weight)
        training = self._training(
            data, {"y": y}, target_epsilon=target_epsilon, delta=delta, run=run
        )
        terms = training.ledger, training.target
        if self._batches_run is None or self._batches_terms != terms:
            self._end_of_batches()
            # The run outlives the batch, and must not hold it.
            without = dataclasses.replace(
                training, adapter=DataAdapter(None), fit={}
            )
            self._batches_run, self._batches_terms = without.new_run(), terms
            # Batches have no end but that of the model.
            weakref.finalize(self, self._batches_run.abandon)
        self.reset_metrics()  # As Keras does.
        with self._running(training, self._batches_run) as loop:
            loop.run(iter([(x, y, sample_weight)]), rounds=1)
        logs = python_values(loop.logs)
        return logs if return_dict else metrics_in_order(self, logs)

    def _end_of_batches(self) -> None:
        """Ends the run of `train_on_batch`, if there is one."""
        run = getattr(self, "_batches_run", None)
        if run is not None:
            run.abandon()
        self._batches_run, self._batches_terms = None, None

    @override
    def train_step(self, data: Any) -> Any:
        raise PrivateTrainingError(
            "`train_step` must not be called: a step without its ledger "
            "entry is not private. Use fit or train_on_batch."
        )

    @override
    def make_train_function(self, force: bool = False) -> Any:
        self._evaluate_batch_by_batch()
        self.train_function = self._run_rounds
        return self.train_function

    def _evaluate_batch_by_batch(self) -> None:
        """Takes back a number of rounds that was chosen for `fit` alone.

        Keras's `evaluate` and `predict` would take as many batches at once, and
        more than `validation_steps`.
        """
        if self._chooses_steps:
            self.steps_per_execution = 1

    def _run_rounds(self, iterator: Iterator[Any]) -> Any:
        """Runs the rounds between two callbacks of `fit`."""
        if self._loop is None:
            raise PrivateTrainingError(
                "A round must run inside fit or train_on_batch, which record "
                "it. Call one of these, or use PrivateGradients for a loop of "
                "your own."
            )
        self._loop.run(iterator, self._loop.training.at_once)
        if self._loop.is_over:
            self.stop_training = True  # As a callback ends `fit`.
        return self._loop.logs

    @property
    def trace_count(self) -> int:
        """How often the steps of training were traced since `compile`.

        It stays the same while batches of the same shapes are trained on.
        """
        return 0 if self._step is None else self._step.trace_count

    def _answer_sizes(self) -> Sizes | None:
        return None if self._step is None else self._step.answer_sizes()

    def _built_step(self, batch: StepBatch | None) -> TrainingStep:
        """Builds what is not built from a batch; returns the compiled steps."""
        if self._step is None:
            if batch is None:
                raise RuntimeError("A first batch must build the steps.")
            with self.distribute_strategy.scope():
                if warning := build_and_check(self, batch):
                    self._said.warn(warning)
                judge(BUILT, self.model)
                self.build_optimizer()
                self._step = TrainingStep(self.step_parts())
        self._step.check_unchanged(self.model, self.optimizer)
        return self._step

    def step_parts(self) -> StepParts:
        """Returns what the steps of training are made of, once it is built."""
        audited, is_by_xla = None, False
        if self._loop is not None:
            audited = self._loop.training.round
            is_by_xla = self._loop.training.by_xla
        return StepParts(
            model=self.model,
            optimizer=self.optimizer,
            round=audited or self.optimizer.round,
            loss=compiled_loss_of(self),
            metrics=ExampleMetrics(
                loss_tracker_of(self),
                compiled_loss_of(self).metrics,
                self.compute_metrics,
                self.get_metrics_result,
                functools.partial(metric_updates, self),
            ),
            side_queries=self._side_queries,
            jit_compile=bool(self.jit_compile) or is_by_xla,
            xla_is_chosen=is_by_xla,
            run_eagerly=self.run_eagerly,
            loss_scale=self.loss_scale,
            self_check_examples=self.self_check_examples,
            replicas=Replicas(self.distribute_strategy),
        )

    @override
    def build_for_fit(self, iterator: Any, data_batch: Any) -> None:
        if self._loop is None:  # Rounds are built for by `_built_step`.
            super().build_for_fit(iterator, data_batch)
            self.build_optimizer()

    @override
    def build_optimizer(self) -> None:
        """Makes the state of the queries, once the model is built."""
        optimizer = getattr(self, "optimizer", None)
        if isinstance(optimizer, DPOptimizer) and self.built:
            optimizer.build_round(self.model, self._side_queries.queries)

    def _training(
        self,
        adapter: DataAdapter,
        fit: Mapping[str, Any] = MappingProxyType({}),
        *,
        target_epsilon: float | None = None,
        delta: float | None = None,
        run: RunDetails | str | None = None,
    ) -> Training:
        """Returns the terms of a training, unless it must not begin.

        By default, delta and the run are those of the settings. `fit` holds
        other arguments of Keras's own `fit`.
        """
        check_compiled(self, "fit")
        optimizer, said, made = self.optimizer, self._said, self.settings
        if not isinstance(optimizer, DPOptimizer):
            raise PrivateTrainingError(
                "The optimizer of a private model must stay private. Received: "
                f"optimizer={optimizer!r}. Call compile with a DPOptimizer."
            )
        if self._step is not None:
            self._step.check_unchanged(self.model, optimizer)
        fit, side = keras_arguments(adapter, fit, said), self._side_queries
        audit, round_ = audit_of(fit.get("callbacks")), None
        if audit is not None:
            round_ = audit.answering_round(optimizer, side, adapter)
        replicas = Replicas(self.distribute_strategy)
        queries = [optimizer.query, *side.queries.values()]
        why = why_one_by_one(
            adapter.source,
            adapts=any(query.adapts for query in queries),
            spreads=replicas.are_many,
            is_eager=self.run_eagerly,
            is_audited=round_ is not None,
        )
        at_once = self.steps_per_execution
        if self._chooses_steps and not why:
            at_once = rounds_at_once(self.model, adapter.source, fit)
        target = self._target
        if delta is None and target is not None:
            delta = target.delta
        if delta is None:
            delta = default_delta(adapter.population_size)
        check_target_delta(delta)
        if target_epsilon is not None:
            target = PrivacyTarget(target_epsilon, delta)
            judge(TARGETS, target_epsilon, said=said)
        details = RunDetails.of(run)
        if run is None and made is not None:
            details = RunDetails.of(made.run)
            if adapter.source is made.samples:
                details = details.continuing(self.last_run, optimizer.ledger)
        training = Training(
            model=self.model,
            optimizer=optimizer,
            ledger=optimizer.required_ledger(),
            side_queries=side,
            round=round_,
            adapter=adapter,
            replicas=replicas,
            fit=fit,
            one_by_one=why,
            by_xla=self._chooses_xla
            and not why
            and pays_by_xla(self.model, fit),
            at_once=at_once,
            delta=delta,
            target=target,
            details=details,
            said=said,
        )
        training.check()
        return training

    @contextlib.contextmanager
    def _running(
        self, training: Training, run: RunWriter | None = None
    ) -> Iterator[TrainingLoop]:
        """Covers the rounds that run inside, and settles them at the end.

        By default they are a run of their own, which ends with them.
        """
        if self._loop is not None:
            raise nested_training()
        if self._side_queries.metrics is None:
            self._said.warn(
                "The losses and metrics shown during private training are "
                "computed on the training data without noise. They are not "
                "covered by the privacy guarantee: do not publish them, and "
                "let no callback decide by them."
            )
            judge(CALLBACKS, training.fit.get("callbacks"))
        self._weights.check(self._said)
        # Callbacks may load weights when the training begins.
        self._weights.forget()
        self._one_by_one = training.one_by_one
        with contextlib.ExitStack() as stack:
            stack.callback(self._forget_ended_run)
            if run is None:
                run = stack.enter_context(training.new_run())
                self._run_to_end = run
            loop = TrainingLoop(
                training,
                run,
                self._built_step,
                self._weights,
                try_out=functools.partial(
                    self._first_look.look,
                    self,
                    training.adapter.source,
                    training.fit,
                    evaluates=training.replicas.workers == 1,
                    is_one_of_many=run is self._batches_run,
                ),
            )
            stack.enter_context(loop.recording())
            self._loop = loop
            is_audited = training.round is not None
            if is_audited:
                self._step = None
            try:
                yield loop
            finally:
                self._loop, self.last_run, step = None, run.row, self._step
                if is_audited:
                    self._step = None
                if step is not None:
                    step.close()
                    self._weights.note()

    def _forget_ended_run(self) -> None:
        """Lets go of a run, which knows the records, once it has ended."""
        if self._run_to_end is not None and not self._run_to_end.is_open:
            self._run_to_end = None
