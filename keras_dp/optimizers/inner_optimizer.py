"""The inner optimizer: what it may be, how it applies answers or keeps them."""

import contextlib
from collections.abc import Iterator
from typing import Any, NoReturn

import keras
import tensorflow as tf

from keras_dp._override import override
from keras_dp.errors import PrivateTrainingError
from keras_dp.keras_internals import gradient_reduction, optimizers_in


def check_inner(inner: Any) -> None:
    """Raises unless `inner` is an optimizer that can apply noised answers.

    Raises:
        TypeError: It is not an optimizer of Keras, or scales the loss.
        ValueError: It accumulates gradients, or has a `loss_scale_factor`.
    """
    if not isinstance(inner, keras.optimizers.Optimizer):
        raise TypeError(
            "`inner` must be a keras.optimizers.Optimizer instance. "
            f"Received: inner={inner!r}. Pass keras.optimizers.SGD(0.1), for "
            "instance."
        )
    if isinstance(inner, keras.optimizers.LossScaleOptimizer):
        raise TypeError(
            "`inner` must not scale the loss: clipping needs unscaled "
            f"gradients. Received: {type(inner).__name__}. Pass the optimizer "
            "inside of it, and compile(loss_scale=...) for float16."
        )
    if "apply" in vars(inner) and not is_closed(inner):
        raise ValueError(
            "`inner` must have its `apply` in its class. Received: a "
            f"{type(inner).__name__} with a function in its place, which would "
            "not be called. Make a subclass."
        )
    for each in optimizers_in(inner):
        for option in ("gradient_accumulation_steps", "loss_scale_factor"):
            if getattr(each, option, None) is not None:
                raise ValueError(
                    f"`{option}` of `inner` must be None. Received: "
                    f"{option}={getattr(each, option)!r}. A sample larger than "
                    "memory is split by the sampler's physical_batch_size, "
                    "with noise added once."
                )


def take_averaging(inner: keras.optimizers.Optimizer) -> dict[str, Any]:
    """Takes the options of averaged weights from an optimizer.

    Returns:
        The options, for the optimizer that averages in its place.

    Raises:
        ValueError: Optimizers inside of it average in different ways.
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
