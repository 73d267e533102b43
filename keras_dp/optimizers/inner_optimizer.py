"""The inner Keras optimizer, and the base class of what stands around it.

The file says what it may be, and how it applies answers or keeps them.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import keras
import numpy as np
import tensorflow as tf

from keras_dp._override import override
from keras_dp.errors import PrivateTrainingError
from keras_dp.keras_internals import (
    averages_of,
    gradient_reduction,
    optimizers_in,
    own_variables_of,
    releases_of,
)

_OF_FLOAT16 = (
    "Pass the optimizer without it, and compile(loss_scale=...) for float16."
)
# Options for gradients that are not yet the answer, and what serves instead.
_NOT_OF_ANSWERS = {
    "gradient_accumulation_steps": "A sample larger than memory is split by "
    "the sampler's physical_batch_size, with noise added once.",
    "loss_scale_factor": _OF_FLOAT16,
}


def check_inner(inner: Any, name: str = "inner") -> None:
    """Raises unless the argument can apply noised answers."""
    if not isinstance(inner, keras.optimizers.Optimizer):
        raise TypeError(
            f"`{name}` must be a keras.optimizers.Optimizer instance. "
            f"Received: {name}={inner!r}. Pass keras.optimizers.SGD(0.1), for "
            "instance."
        )
    if isinstance(inner, WrappingOptimizer):
        raise TypeError(
            f"`{name}` must not be private already. "
            f"Received: {name}={inner!r}. Pass a Keras optimizer."
        )
    if isinstance(inner, keras.optimizers.LossScaleOptimizer):
        raise TypeError(
            f"`{name}` must not scale the loss: clipping needs unscaled "
            f"gradients. Received: {type(inner).__name__}. {_OF_FLOAT16}"
        )
    if "apply" in vars(inner) and not is_closed(inner):
        raise ValueError(
            f"`{name}` must have its `apply` in its class. Received: a "
            f"{type(inner).__name__} with a function in its place, which would "
            "not be called. Make a subclass."
        )
    for each in optimizers_in(inner):
        for option, instead in _NOT_OF_ANSWERS.items():
            if getattr(each, option, None) is not None:
                raise ValueError(
                    f"`{option}` of `{name}` must be None. Received: "
                    f"{option}={getattr(each, option)!r}. {instead}"
                )


def take_averaging(inner: keras.optimizers.Optimizer) -> dict[str, Any]:
    """Takes the options of averaged weights from an optimizer.

    They are for the optimizer that averages in its place.
    """
    names = ("use_ema", "ema_momentum", "ema_overwrite_frequency")
    averaging = [each for each in optimizers_in(inner) if each.use_ema]
    found = [
        {name: getattr(each, name) for name in names} for each in averaging
    ]
    if any(options != found[0] for options in found):
        raise ValueError(
            "`inner` must average all weights in one way. Received: optimizers "
            f"with {found!r}. Give them the same `ema_momentum`."
        )
    for each in averaging:
        each.use_ema = False
    return found[0] if found else {}


def close(inner: keras.optimizers.Optimizer) -> None:
    """Makes the optimizer refuse gradients, except through `apply_once`.

    An attribute of the instance hides the method `apply`, through which all
    other ways to apply gradients go. A model that was compiled with the inner
    optimizer itself would be trained without noise.
    """
    vars(inner)["apply"] = _refuse


def is_closed(inner: keras.optimizers.Optimizer) -> bool:
    """Whether a private optimizer has the optimizer inside already."""
    return vars(inner).get("apply") is _refuse


def apply_once(
    inner: keras.optimizers.Optimizer, gradients: Any, variables: Any
) -> None:
    """Applies noised answers that are equal on all replicas."""
    with already_summed(inner):
        type(inner).apply(inner, gradients, variables)


def _refuse(*arguments: Any, **options: Any) -> NoReturn:
    raise PrivateTrainingError(
        "The inner optimizer of a DPOptimizer must not be handed gradients, "
        "which no noise protects: it applies noised answers only. Make "
        "another optimizer for training without privacy."
    )


class _AsTheyAre:
    """Replaces the method that sums gradients; counts its users."""

    def __init__(self) -> None:
        self.users = 0

    def __call__(self, grads_and_vars: Any) -> list[Any]:
        return list(grads_and_vars)


@contextlib.contextmanager
def already_summed(inner: keras.optimizers.Optimizer) -> Iterator[None]:
    """Makes the optimizer take gradients as they are, equal on all replicas.

    By default each optimizer sums the gradients of all replicas before it
    applies them. The same noise would then count once for each replica.
    """
    name = gradient_reduction()
    every = optimizers_in(inner)
    for each in every:
        vars(each).setdefault(name, _AsTheyAre()).users += 1
    try:
        yield
    finally:
        # Several replicas can be inside. The last one to leave removes it.
        for each in every:
            vars(each)[name].users -= 1
            if not vars(each)[name].users:
                del vars(each)[name]


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


def _of_inner(name: str) -> Any:
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
        """The number of rounds that were released."""
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
