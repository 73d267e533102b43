"""Adam whose second moments are less the variance of the noise."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from keras_dp import _check
from keras_dp._override import override
from keras_dp.dp_queries import DPQuery
from keras_dp.dp_queries.dp_query import gaussian_variances
from keras_dp.keras_internals import place_of_variable

_CLIPS = ("clipnorm", "clipvalue", "global_clipnorm")


@keras.saving.register_keras_serializable(package="keras_dp")
class BiasCorrectedAdam(keras.optimizers.Adam):
    """Adam for answers with noise of a known variance.

    Let s^2 be the variance of the noise on a coordinate. The second moment v of
    Adam then estimates `E[g^2] + s^2`, and where the noise is large Adam
    divides all coordinates by nearly the same number. This optimizer divides by
    the square root of `max(v - u, floor u)` instead, where u is the average of
    s^2 over the rounds with the weights that v has.

    A `DPOptimizer` says before each update which noise its answers have. Until
    then, and for answers without noise, this is Adam.

    Attributes:
        floor: The least second moment, in units of the variance of the noise,
            > 0. A step is at most `1 / sqrt(floor)` times as long as if v were
            the variance of the noise.

    Raises:
        ValueError: `floor` is not > 0; or `amsgrad` is set, or a clip of
            gradients, which would change the noise.

    Source: Tang, Shpilevskiy, Lécuyer (2023), arXiv:2312.14334v1, Algorithm 1.
    There the floor is absolute, and the noise is the same in all rounds.

    >>> adam = BiasCorrectedAdam(0.1, floor=0.04)
    >>> weight = keras.Variable([0.0])
    >>> adam.build([weight])
    >>> adam.observe_noise([tf.constant(4.0)])  # A standard deviation of 2.
    >>> adam.apply([tf.constant([1.0])])
    >>> round(float(weight[0]), 4)  # 1 / sqrt(max(1 - 4, 0.04 * 4)) = 2.5
    -0.25
    """

    def __init__(
        self, learning_rate: Any = 0.001, *, floor: float, **options: Any
    ) -> None:
        _check.finite_positive(bias_correction=floor)
        for option in ("amsgrad", *_CLIPS):
            if options.get(option):
                raise ValueError(
                    f"`{option}` must not be set with `bias_correction`, which "
                    "needs answers whose noise has a known variance. Received: "
                    f"{option}={options[option]!r}. Leave one of them out."
                )
        super().__init__(learning_rate, **options)
        self.floor = float(floor)

    @override
    def build(self, var_list: Any) -> None:
        if self.built:
            return
        super().build(var_list)
        self._variances = [
            self.add_variable((), dtype="float32", name=f"{v.name}_noise")
            for v in var_list
        ]

    def observe_noise(self, variances: Sequence[tf.Tensor]) -> None:
        """Notes the noise of the next update, once before each.

        Args:
            variances: The variance of the noise on a coordinate of each
                variable's answer, scalars in the order of the variables.
        """
        for average, variance in zip(self._variances, variances, strict=True):
            variance = ops.cast(variance, average.dtype)
            step = (variance - average) * (1 - self.beta_2)
            average.assign(average + step)

    @override
    def update_step(
        self, gradient: Any, variable: Any, learning_rate: Any
    ) -> None:
        place = place_of_variable(self, variable)
        m, v = self._momentums[place], self._velocities[place]
        u = ops.cast(self._variances[place], variable.dtype)
        rate = ops.cast(learning_rate, variable.dtype)
        gradient = ops.cast(gradient, variable.dtype)
        rounds = ops.cast(self.iterations + 1, variable.dtype)
        powers = [
            ops.power(ops.cast(beta, variable.dtype), rounds)
            for beta in (self.beta_1, self.beta_2)
        ]
        rate *= ops.sqrt(1 - powers[1]) / (1 - powers[0])
        self.assign_add(m, (gradient - m) * (1 - self.beta_1))
        self.assign_add(v, (ops.square(gradient) - v) * (1 - self.beta_2))
        moment = ops.maximum(v - u, self.floor * u)
        self.assign_sub(variable, m * rate / (ops.sqrt(moment) + self.epsilon))

    @override
    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "floor": self.floor}


def noise_variances(query: DPQuery, state: Any, answer: Any) -> Any:
    """Returns the variance of the noise on a coordinate, for each leaf.

    Args:
        query: The query that answered.
        state: Its global state before the release.
        answer: The noised answer, or a nest of the same shapes.

    Returns:
        Scalars in the structure of `answer`.

    Raises:
        TypeError: The noise is not Gaussian, or not independent with one
            variance in each leaf.
    """
    variances = gaussian_variances(query, state, answer)
    if variances is None:
        raise TypeError(
            "`bias_correction` must go with a query that has Gaussian noise of "
            "one known variance in each variable, such as a "
            f"GaussianAverageQuery. Received: query={query!r}. Take such a "
            "query, or leave bias_correction out."
        )
    return tf.nest.pack_sequence_as(answer, variances)
