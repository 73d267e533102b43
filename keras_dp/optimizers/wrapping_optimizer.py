"""The base class of private optimizers, around a Keras optimizer."""

from collections.abc import Sequence
from typing import Any, NoReturn

import keras
import numpy as np

from keras_dp._override import override
from keras_dp.errors import PrivateTrainingError
from keras_dp.keras_internals import own_variables_of
from keras_dp.optimizers.inner_optimizer import close


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
    applies noised answers. A subclass decides which answers these are.
    """

    weight_decay = _of_inner("weight_decay")
    clipnorm = _of_inner("clipnorm")
    clipvalue = _of_inner("clipvalue")
    global_clipnorm = _of_inner("global_clipnorm")
    use_ema = _of_inner("use_ema")
    ema_momentum = _of_inner("ema_momentum")
    ema_overwrite_frequency = _of_inner("ema_overwrite_frequency")
    learning_rate = _of_inner("learning_rate")
    apply = apply_gradients = scale_loss = stateless_apply = _refuse_gradients

    def _wrap(self, inner: keras.optimizers.Optimizer, name: str) -> None:
        """Sets the attributes, for the constructor and for loading."""
        keras.optimizers.Optimizer.__init__(self, learning_rate=0.0, name=name)
        self._inner = inner
        close(inner)

    @property
    def inner(self) -> keras.optimizers.Optimizer:
        """The Keras optimizer that applies the noised answers."""
        return self._inner

    @property
    def inner_optimizer(self) -> keras.optimizers.Optimizer:
        """The inner optimizer, under the name that Keras's callbacks use."""
        return self._inner

    @override
    def add_optimizer_variables(
        self, *arguments: Any, **options: Any
    ) -> list[Any]:
        """Returns an empty list: only the inner optimizer has slots."""
        return []

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
        """The number of rounds that were released, as a variable."""
        return self.inner.iterations

    @property
    def rounds_released(self) -> int:
        """The number of rounds that were released, as an integer."""
        return int(keras.ops.convert_to_numpy(self.inner.iterations))

    @override
    def finalize_variable_values(self, var_list: Any) -> None:
        self.inner.finalize_variable_values(var_list)
