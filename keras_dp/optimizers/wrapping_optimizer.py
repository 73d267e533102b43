"""The base class of private optimizers, around a Keras optimizer."""

from collections.abc import Sequence
from typing import Any, NoReturn

import keras
import numpy as np
import tensorflow as tf

from keras_dp._override import override
from keras_dp.errors import PrivateTrainingError
from keras_dp.keras_internals import (
    averages_of,
    own_variables_of,
    releases_of,
)
from keras_dp.optimizers.inner_optimizer import close, take_averaging


def _of_inner(name: str) -> Any:
    """Returns a property for an option of the inner optimizer."""

    def read(self: Any) -> Any:
        return getattr(self.inner, name)

    def write(self: Any, value: Any) -> None:
        # The constructor of Keras sets defaults before `_inner` is set.
        if "_inner" in vars(self):
            setattr(self.inner, name, value)

    return property(read, write, doc="The option of the inner optimizer.")


def _refuse_gradients(*arguments: Any, **options: Any) -> NoReturn:
    raise PrivateTrainingError(
        "DPOptimizer was handed ordinary gradients, which are not private. "
        "Wrap the model: private = keras_dp.PrivateModel(model); "
        "private.compile(optimizer=..., loss=...); private.fit(...)."
    )


class WrappingOptimizer(keras.optimizers.Optimizer):
    """Holds an inner Keras optimizer, and refuses ordinary gradients.

    The options and the iterations are those of the inner optimizer, which
    applies noised answers. A subclass decides which answers these are. Averages
    of the weights (`use_ema`) are the wrapper's own: those of an inner
    optimizer with an `apply` of its own may never be filled.
    """

    weight_decay = _of_inner("weight_decay")
    clipnorm = _of_inner("clipnorm")
    clipvalue = _of_inner("clipvalue")
    global_clipnorm = _of_inner("global_clipnorm")
    learning_rate = _of_inner("learning_rate")
    apply = apply_gradients = scale_loss = stateless_apply = _refuse_gradients

    def _wrap(self, inner: keras.optimizers.Optimizer, name: str) -> None:
        """Sets the attributes, for the constructor and for loading."""
        keras.optimizers.Optimizer.__init__(
            self, learning_rate=0.0, name=name, **take_averaging(inner)
        )
        self._inner = inner
        close(inner)

    @property
    def inner(self) -> keras.optimizers.Optimizer:
        """The Keras optimizer that applies the noised answers."""
        return self._inner

    @override
    def exclude_from_weight_decay(
        self, var_list: Any = None, var_names: Any = None
    ) -> None:
        self.inner.exclude_from_weight_decay(var_list, var_names)

    @property
    def variables(self) -> list[keras.Variable]:
        """The public state of the queries, and the variables of `inner`."""
        return own_variables_of(self) + self.inner.variables

    @override
    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets `variables` to values, such as those of an equal optimizer.

        Args:
            weights: Arrays or variables, in the order of `variables`.

        Raises:
            ValueError: The optimizer is not built, or the number or shapes of
                the values differ from those of `variables`.
        """
        own = self.variables if self.built else []
        shapes = [tuple(each.shape) for each in own]
        given = [tuple(np.shape(each)) for each in weights]
        if not own or given != shapes:
            raise ValueError(
                "`weights` must have a value for each of `variables`, of its "
                f"shape. Received: shapes {given!r}, where the optimizer has "
                f"{shapes!r}. Build the optimizer first: train its model, or "
                "load it."
            )
        for variable, value in zip(own, weights, strict=True):
            variable.assign(value)

    @property
    def iterations(self) -> Any:
        """The iterations of the inner optimizer, which schedules follow."""
        return self.inner.iterations

    @property
    def rounds_released(self) -> int:
        """The number of rounds that were released, as an integer."""
        return int(keras.ops.convert_to_numpy(releases_of(self)))

    def _count_and_average(self) -> None:
        """Counts a release, and moves the averages towards the weights.

        After the first release the averages are the weights.
        """
        count = releases_of(self)
        is_first = tf.equal(count, 0)
        count.assign_add(1)
        momentum = tf.where(is_first, 0.0, self.ema_momentum)
        every = self.ema_overwrite_frequency
        for variable, average in averages_of(self):
            kept = tf.cast(momentum, average.dtype)
            average.assign(kept * average + (1 - kept) * variable)
            if every:
                is_due = tf.equal(count % every, 0)
                variable.assign(tf.where(is_due, average, variable))

    def put_averages(self) -> None:
        """Replaces the weights by their averages, if there are any.

        An average of weights that meet a constraint need not meet it: it is
        projected again.
        """
        for variable, average in averages_of(self):
            project = variable.constraint or (lambda value: value)
            variable.assign(project(average.value))

    @override
    def finalize_variable_values(self, var_list: Any) -> None:
        """Leaves the averages in the model, if weights are averaged."""
        self.inner.finalize_variable_values(var_list)
        self.put_averages()
