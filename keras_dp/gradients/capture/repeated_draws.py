"""Repeats the random numbers of layers, or moves them to other rows.

A layer without a rule is called again, on the batch or on one example. The
layers inside, such as Dropout, must then draw the numbers of the first call. In
the self-check, numbers move along with their examples.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_dp.errors import UnsupportedLayerError
from keras_dp.keras_internals import (
    replaced_attribute,
    replaced_draws,
    seed_generators_of,
)

# Functions whose results depend on their seed and shape, if no argument is a
# tensor. A gradient could flow through such an argument.
_REPEATABLE = {"normal", "randint", "truncated_normal", "uniform"}


class _Draw(NamedTuple):
    """One draw of a call: the name of the function, and its result.

    For a dropout, the numbers are the factors of its inputs. They are `None` if
    the draw cannot be repeated.
    """

    name: str
    numbers: tf.Tensor | None


class RepeatedDraws:
    """The random numbers that a layer drew in one call.

    Attributes:
        operations: Those that the call added to a graph.
    """

    def __init__(self) -> None:
        self.operations: list[tf.Operation] = []
        self._draws: list[_Draw] = []

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Notes the draws while the layer is called."""
        home = _graph()
        before = 0 if home is None else len(home.get_operations())

        def note(name: str, numbers: tf.Tensor) -> None:
            # Only the body of a loop can use what was drawn in it.
            can_repeat = tf.executing_eagerly() or numbers.graph is home
            self._draws.append(_Draw(name, numbers if can_repeat else None))

        def draw(
            name: str,
            original: Callable[..., Any],
            args: tuple[Any, ...],
            options: dict[str, Any],
        ) -> Any:
            if name == "dropout":
                inputs, args, options = _split_off(args, options, "inputs")
                factors = original(tf.ones_like(inputs), *args, **options)
                note(name, factors)
                return _dropped(inputs, factors)
            numbers = original(*args, **options)
            _, *others = _split_off(args, options, "shape")
            if name in _REPEATABLE and not any(
                map(tf.is_tensor, keras.tree.flatten(others))
            ):
                note(name, numbers)
            else:
                self._draws.append(_Draw(name, None))
            return numbers

        with replaced_draws(draw):
            yield
        if home is not None:
            self.operations = home.get_operations()[before:]

    @property
    def numbers(self) -> list[tf.Tensor]:
        """The numbers of all draws that can be repeated."""
        return [
            each.numbers for each in self._draws if each.numbers is not None
        ]

    def rows(self, batch: int) -> dict[int, tf.Tensor]:
        """Returns the numbers of each example, by the place of the draw.

        They are `[batch, rows, ...]`, for draws of `batch * rows` rows. The
        rows of an example are taken to be consecutive.
        """
        return {
            place: tf.reshape(
                numbers,
                tf.concat(
                    [
                        [batch, numbers.shape[0] // batch],
                        tf.shape(numbers)[1:],
                    ],
                    0,
                ),
            )
            for place, (_, numbers) in enumerate(self._draws)
            if numbers is not None
            and numbers.shape.rank
            and numbers.shape[0] % batch == 0
        }

    @contextlib.contextmanager
    def repeating(
        self, layer: keras.Layer, rows: Mapping[int, tf.Tensor] | None = None
    ) -> Iterator[None]:
        """Makes the layer draw the same numbers while it is called again.

        The rows are the numbers of one example. By default, the layer is called
        on the batch.

        Raises:
            UnsupportedLayerError: The layer draws other numbers than before, or
                in a way that cannot be repeated.
        """

        def refuse(*args: Any, **options: Any) -> Any:
            raise UnsupportedLayerError(
                f"Layer {layer.path!r} of class {type(layer).__name__} has no "
                "rule for per-example gradients. It must be called again, and "
                "draws random numbers that cannot be repeated. Move the "
                "randomness into a layer of its own, such as "
                "keras.layers.Dropout, or set its rate to 0."
            )

        places = itertools.count()

        def draw(
            name: str,
            original: Callable[..., Any],
            args: tuple[Any, ...],
            options: dict[str, Any],
        ) -> Any:
            del original
            argument = "inputs" if name == "dropout" else "shape"
            given, *_ = _split_off(args, options, argument)
            place = next(places)
            known = self._draws[place : place + 1]
            if any(each.name == name for each in known):
                shape = given.shape if name == "dropout" else _static(given)
                for numbers in ((rows or {}).get(place), known[0].numbers):
                    if numbers is not None and numbers.shape == shape:
                        if name == "dropout":
                            return _dropped(given, numbers)
                        return numbers
            return refuse()

        with contextlib.ExitStack() as stack:
            for generator in seed_generators_of(layer):
                stack.enter_context(
                    replaced_attribute(generator, "next", refuse)
                )
            stack.enter_context(replaced_draws(draw))
            yield
        if next(places) != len(self._draws):
            refuse()


@contextlib.contextmanager
def moved_draws(rows: tf.Tensor) -> Iterator[None]:
    """Gives each row the random numbers that another row would have got.

    The rows are a permutation `[batch]`. Draws of another length stay. Inputs
    and parameters stay in their rows.
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
            inputs, args, options = _split_off(args, options, "inputs")
            factors = original(tf.ones_like(inputs), *args, **options)
            return _dropped(inputs, moved(factors, rows))
        given = [unmoved(each) for each in args]
        named = {name: unmoved(each) for name, each in options.items()}
        return moved(original(*given, **named), rows)

    def unmoved(given: Any) -> Any:
        """Returns inputs or parameters as the rows were: not shapes, seeds."""
        is_float = tf.is_tensor(given) and given.dtype.is_floating
        return moved(given, back) if is_float else given

    with replaced_draws(draw):
        yield


def _graph() -> Any:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _split_off(
    args: tuple[Any, ...], options: dict[str, Any], name: str
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Returns the first argument, which has the name, and the others."""
    if args:
        return args[0], args[1:], options
    others = {key: value for key, value in options.items() if key != name}
    return options[name], args, others


def _static(shape: Any) -> tf.TensorShape | None:
    """Returns a shape as numbers, `None` if they are not known."""
    known = tf.get_static_value(shape) if tf.is_tensor(shape) else shape
    if known is None or any(map(tf.is_tensor, known)):
        return None
    return tf.TensorShape([int(length) for length in known])


def _dropped(inputs: tf.Tensor, factors: tf.Tensor) -> tf.Tensor:
    """Multiplies by factors. Where they are 0, inputs may be infinite."""
    kept = tf.cast(factors, tf.bool)
    return tf.where(kept, inputs * factors, tf.zeros([], inputs.dtype))
