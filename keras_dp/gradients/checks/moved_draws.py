"""Moves the random numbers of layers along with the examples of a batch."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from keras_dp.gradients.capture.repeated_draws import dropped, split_off
from keras_dp.keras_internals import replaced_draws


@contextlib.contextmanager
def moved_draws(rows: tf.Tensor) -> Iterator[None]:
    """Gives each row the random numbers that another row would have got.

    Args:
        rows: The row whose numbers each row gets, a permutation `[batch]`.
            Draws of another length stay. Inputs and parameters stay in their
            rows.
    """
    back = tf.math.invert_permutation(rows)

    def moved(values: Any, order: tf.Tensor) -> Any:
        is_batch = tf.is_tensor(values) and values.shape[:1] == rows.shape
        return tf.gather(values, order) if is_batch else values

    def draw(
        name: str,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        options: dict[str, Any],
    ) -> Any:
        if name == "dropout":
            inputs, args, options = split_off(args, options, "inputs")
            factors = original(tf.ones_like(inputs), *args, **options)
            return dropped(inputs, moved(factors, rows))
        given = [unmoved(each) for each in args]
        named = {name: unmoved(each) for name, each in options.items()}
        return moved(original(*given, **named), rows)

    def unmoved(given: Any) -> Any:
        """Returns inputs or parameters as the rows were: not shapes, seeds."""
        is_float = tf.is_tensor(given) and given.dtype.is_floating
        return moved(given, back) if is_float else given

    with replaced_draws(draw):
        yield
