"""Private federated averaging: users train, and their updates are averaged."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Self

import keras
import tensorflow as tf

from keras_dp import _check
from keras_dp._override import override
from keras_dp.errors import PrivateTrainingError
from keras_dp.gradients import (
    GradientEngine,
    example_losses,
    without_variable_writes,
)
from keras_dp.gradients.capture.mapped_examples import map_examples
from keras_dp.gradients.records.records import (
    GradientRecords,
    MaterializedRecords,
)
from keras_dp.keras_internals import (
    keeping_variable_scope,
    layers_of,
    seed_generators_of,
)
from keras_dp.training.data.data_adapter import DataAdapter
from keras_dp.training.devices.replicas import Replicas
from keras_dp.training.private_model import PrivateModel
from keras_dp.training.step.step_parts import StepParts
from keras_dp.training.training import Training


@dataclasses.dataclass(frozen=True, slots=True)
class LocalTraining:
    """How each user trains, by plain gradient descent.

    Attributes:
        learning_rate: > 0.
        epochs: How often each of the user's records is used, >= 1.
        batch_size: Records of a step, which must divide the sampler's
            `records_per_user`; all of them by default.

    >>> LocalTraining(0.1, epochs=2, batch_size=8).steps(records_per_user=32)
    8
    """

    learning_rate: float
    epochs: int = 1
    batch_size: int | None = None

    def __post_init__(self) -> None:
        _check.finite_positive(learning_rate=self.learning_rate)
        _check.integer_at_least(1, epochs=self.epochs)
        if self.batch_size is not None:
            _check.integer_at_least(1, batch_size=self.batch_size)

    def steps(self, records_per_user: int) -> int:
        """Returns how many steps a user takes.

        Args:
            records_per_user: As in `UserBatches`.

        Raises:
            ValueError: `batch_size` does not divide it.
        """
        size = self.batch_size or records_per_user
        if records_per_user % size:
            raise ValueError(
                "`batch_size` of the local training must divide "
                f"records_per_user={records_per_user!r}. Received: "
                f"batch_size={size!r}. Pass a divisor, or None for all records."
            )
        return self.epochs * (records_per_user // size)


class LocalUpdates:
    """Computes what each user's training takes from the weights.

    All users start from the present weights. In each step the weights of a
    user move against the mean gradient of the step's records of that user;
    rows of padding have no part in it.

    Guarantee: the update of a user is a function of the weights, of that user's
    records and of the seeds of layers. Users are mapped one by one, each with
    weights of its own, so that no layer can make them interact.
    """

    def __init__(
        self,
        local: LocalTraining,
        engine: GradientEngine,
        compiled_loss: Any,
        loss_scale: float,
    ) -> None:
        """Computes nothing.

        Losses are multiplied by `loss_scale`, a power of two, while they are
        differentiated.
        """
        self._engine, self._loss = engine, compiled_loss
        self._local, self._loss_scale = local, loss_scale
        self._seeds = [
            generator.state for generator in seed_generators_of(engine.model)
        ]
        # The gradient of a loop cannot be vectorized.
        loops = any(
            isinstance(layer, keras.layers.RNN)
            for layer in layers_of(engine.model)
        )
        self._map: Callable[..., Any] = _in_turn if loops else _together

    def records(
        self, data: tuple[Any, Any, Any], mask: tf.Tensor, rows: int
    ) -> list[GradientRecords]:
        """Returns the weights before less those after, one record a user.

        Leaves and the mask are `[batch, ...]`; a user has consecutive `rows`.
        """
        steps = self._local.steps(rows)
        size = self._local.batch_size or rows
        leaves = keras.tree.flatten(data)
        parts = [
            _in_steps(leaf, rows, size)
            for leaf in [mask, *leaves]
            if leaf is not None
        ]
        users = mask.shape[0] // rows

        def filled(rows: list[tf.Tensor]) -> Any:
            """Puts None back where the data has it, which no map takes."""
            there = iter(rows)
            found = [None if leaf is None else next(there) for leaf in leaves]
            return keras.tree.pack_sequence_as(data, found)

        before = [
            tf.repeat(tf.convert_to_tensor(variable.value)[None], users, axis=0)
            for variable in self._engine.variables
        ]

        def step(number: tf.Tensor, weights: list[tf.Tensor]) -> Any:
            now = [part[number % (rows // size)] for part in parts]

            def of_user(user: Any) -> list[tf.Tensor]:
                own, (present, *given) = user
                return self._moved(own, filled(given), present, number)

            moved = self._map(of_user, (weights, now))
            return number + 1, [
                tf.ensure_shape(after, weight.shape)
                for after, weight in zip(moved, weights, strict=True)
            ]

        with (
            keeping_variable_scope(),
            without_variable_writes(self._engine.model),
        ):
            _, after = tf.while_loop(
                lambda number, _: number < steps,
                step,
                [tf.constant(0), before],
                maximum_iterations=steps,
            )
        return [
            MaterializedRecords(old - new)
            for old, new in zip(before, after, strict=True)
        ]

    def _moved(
        self,
        weights: list[tf.Tensor],
        data: tuple[Any, Any, Any],
        present: tf.Tensor,
        number: tf.Tensor,
    ) -> list[tf.Tensor]:
        """Returns the weights of one user after one step."""
        x, y, sample_weight = data
        size = present.shape[0]
        values = list(zip(self._engine.variables, weights, strict=True))
        # Each step draws anew: the second word of a state is a counter.
        values += [
            (state, state.value + tf.cast([0, number], state.value.dtype))
            for state in self._seeds
        ]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            with keras.StatelessScope(state_mapping=values):
                outputs = self._engine.call(x)
                losses = example_losses(
                    self._loss, y, outputs, sample_weight, size
                ).total
            kept = tf.where(present, losses, tf.zeros_like(losses))
            count = tf.reduce_sum(tf.cast(present, losses.dtype))
            mean = tf.math.divide_no_nan(tf.reduce_sum(kept), count)
            scaled = mean * tf.cast(self._loss_scale, mean.dtype)
        gradients = tape.gradient(
            scaled,
            weights,
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        rate = self._local.learning_rate / self._loss_scale
        return [
            weight
            - tf.cast(rate, weight.dtype) * tf.convert_to_tensor(gradient)
            for weight, gradient in zip(weights, gradients, strict=True)
        ]


def _in_steps(leaf: tf.Tensor, rows: int, size: int) -> tf.Tensor:
    """Returns `[steps of an epoch, users, size, ...]` of `[batch, ...]`."""
    shape = [-1, rows // size, size, *leaf.shape[1:]]
    return tf.experimental.numpy.swapaxes(tf.reshape(leaf, shape), 0, 1)


def _together(function: Callable[..., Any], users: Any) -> Any:
    return map_examples(function, users)


def _in_turn(function: Callable[..., Any], users: Any) -> Any:
    weights, _ = users
    return tf.map_fn(
        function,
        users,
        fn_output_signature=[
            tf.TensorSpec(weight.shape[1:], weight.dtype) for weight in weights
        ],
    )


@keras.saving.register_keras_serializable(package="keras_dp")
class FederatedModel(PrivateModel):
    """Trains by federated averaging, with user-level privacy (DP-FedAvg).

    Each round samples users. Each sampled user trains a copy of the model on
    the user's own records, beginning at the present weights. The change of the
    weights (before minus after) is the user's record for the query. The query
    clips, sums and noises it like any other record. The optimizer takes the
    answer for a gradient. With `DPSGD(1.0)` the weights become the noised
    average of the users' weights.

    The ledger, targets, callbacks and resuming after a crash work as in
    `PrivateModel`. One process simulates the users, many at once, and holds the
    updates of all users of a physical batch in memory. A large model needs a
    small batch: pass `UserBatches(..., physical_batch_size=)`, a multiple of
    `records_per_user`.

    Guarantee: the guarantee of `PrivateModel` holds for a user with all of the
    user's records. Layers may make the records of one user interact.

    It has the attributes of `PrivateModel`.

    Attributes:
        local: How users train.

    Source: McMahan et al. (2018), arXiv:1710.06963v3, Algorithm 1, with the
    public denominator q W of its equation (2).

    >>> import keras_dp, numpy as np
    >>> x, y = np.zeros([64, 3], "float32"), np.zeros([64, 1], "float32")
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> private = FederatedModel(model, LocalTraining(0.1, batch_size=2))
    >>> private.compile(
    ...     keras_dp.DPSGD(1.0,
    ...         ledger=keras_dp.PrivacyLedger.in_memory(
    ...             dataset="doc", unit="user"),
    ...         query=keras_dp.GaussianAverageQuery(
    ...             1.0, noise_multiplier=1.1, denominator=4)),
    ...     loss="mse")
    >>> samples = keras_dp.UserBatches(
    ...     (x, y), user_ids=np.arange(64) % 16,
    ...     sampling_probability=0.25, records_per_user=4)
    >>> len(private.fit(samples, epochs=1, verbose=0).epoch)
    1
    """

    def __init__(
        self, model: keras.Model, local: LocalTraining, **kwargs: Any
    ) -> None:
        _check.kind(LocalTraining, local=local)
        # Users cannot interact, so there is nothing to check.
        super().__init__(model, self_check_examples=0, **kwargs)
        self.local = local

    @override
    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["self_check_examples"]
        return {**config, "local": dataclasses.asdict(self.local)}

    @classmethod
    @override
    def from_config(
        cls, config: Mapping[str, Any], custom_objects: Any = None
    ) -> Self:
        local = LocalTraining(**config["local"])
        return super().from_config({**config, "local": local}, custom_objects)

    @override
    def step_parts(self) -> StepParts:
        updates = functools.partial(LocalUpdates, self.local)
        return dataclasses.replace(super().step_parts(), user_updates=updates)

    @override
    def _training(
        self, adapter: DataAdapter, *fit: Any, **run: Any
    ) -> Training:
        if adapter.unit != "user":
            raise TypeError(
                "`x` must be UserBatches, which know whose records they draw. "
                f"Received: a {type(adapter.source).__name__}. Call "
                "fit(UserBatches((x, y), user_ids=...))."
            )
        if Replicas(self.distribute_strategy).are_many:
            raise PrivateTrainingError(
                "A FederatedModel must train on one device. Received: the "
                f"strategy {self.distribute_strategy!r}. Make it outside of "
                "its scope."
            )
        if adapter.is_sampler:
            self.local.steps(adapter.source.records_per_user)
        return super()._training(adapter, *fit, **run)
