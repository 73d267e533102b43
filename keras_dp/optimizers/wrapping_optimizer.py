"""The part of a private optimizer that its inner Keras optimizer does."""

from typing import Any, NoReturn

import keras
from typing_extensions import override

from keras_dp.errors import PrivateTrainingError
from keras_dp.keras_internals import own_variables_of
from keras_dp.optimizers.inner_optimizer import close


class WrappingOptimizer(keras.optimizers.Optimizer):
    """Holds a Keras optimizer, and refuses ordinary gradients.

    The learning rate, the iterations and what is saved are those of the inner
    optimizer. Subclasses say what is applied to it.
    """

    def _wrap(self, inner: keras.optimizers.Optimizer, name: str) -> None:
        """Stands for the constructor, which loading does not call."""
        keras.optimizers.Optimizer.__init__(self, learning_rate=0.0, name=name)
        self._inner = inner
        close(inner)

    @property
    def inner(self) -> keras.optimizers.Optimizer:
        """The Keras optimizer that applies the noised answers."""
        return self._inner

    @override
    def apply(self, grads: Any, trainable_variables: Any = None) -> NoReturn:
        _refuse_gradients()

    @override
    def apply_gradients(self, grads_and_vars: Any) -> NoReturn:
        _refuse_gradients()

    @override
    def scale_loss(self, loss: Any) -> NoReturn:
        _refuse_gradients()

    @override
    def stateless_apply(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse_gradients()

    @property
    def variables(self) -> list[keras.Variable]:
        """All that is saved: the query's public state, and the inner's."""
        return own_variables_of(self) + self.inner.variables

    @property
    def learning_rate(self) -> Any:
        """The inner optimizer's."""
        return self.inner.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        self.inner.learning_rate = learning_rate

    @property
    def iterations(self) -> Any:
        """Rounds that were released."""
        return self.inner.iterations

    @property
    def rounds_released(self) -> int:
        """The iterations as a number, also where replicas hold them."""
        return int(keras.ops.convert_to_numpy(self.inner.iterations))

    @override
    def finalize_variable_values(self, var_list: Any) -> None:
        self.inner.finalize_variable_values(var_list)


def _refuse_gradients() -> NoReturn:
    raise PrivateTrainingError(
        "DPOptimizer was handed ordinary gradients, which are not private. "
        "Wrap the model: private = keras_dp.PrivateModel(model); "
        "private.compile(optimizer=..., loss=...); private.fit(...)."
    )
