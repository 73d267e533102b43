"""An inner optimizer that keeps the noised answers and moves no variable."""

from typing import Any

import keras
import tensorflow as tf

from keras_dp._override import override


class KeptAnswers(keras.optimizers.Optimizer):
    """An inner optimizer for callers that apply the answers themselves.

    It keeps what another inner optimizer would apply: the noised answers plus
    the gradients of the weight penalties.
    """

    def __init__(self) -> None:
        super().__init__(learning_rate=0.0, name="kept_answers")
        self._kept: list[keras.Variable] = []

    @override
    def build(self, variables: list[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        self._kept = [
            self.add_variable_from_reference(variable, "answer")
            for variable in variables
        ]

    @override
    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        for kept, answer in zip(self._kept, grads, strict=True):
            kept.assign(answer)
        self.iterations.assign_add(1)

    def read(self) -> list[tf.Tensor]:
        """Returns the answers of the last round, one for each variable."""
        return [tf.convert_to_tensor(kept) for kept in self._kept]
