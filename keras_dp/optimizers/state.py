"""The global state of a query as variables, which are saved without seeds."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_dp import _nests


class StateVariables:
    """Holds a query's global state between rounds.

    Some leaves are secret: those in a field named `seed`, and those below a
    field whose name begins with `secret_`. Neither Keras nor
    `tf.train.Checkpoint` finds their variables, so they are never saved. A
    restored seed would repeat its noise on other data. Someone who reads a
    saved seed could subtract the noise.
    """

    def __init__(self, state: Any, add_variable: Callable[..., Any]) -> None:
        """Creates the variables.

        Args:
            state: A nest of tensors.
            add_variable: Creates a variable that is saved, from shape,
                initializer, dtype and name.
        """
        self._structure = state
        self._variables: list[Any] = []
        for path, leaf, is_secret in _flatten(state):
            if is_secret:
                self._variables.append(tf.Variable(leaf, trainable=False))
                continue
            variable = add_variable(
                shape=tuple(leaf.shape),
                initializer="zeros",
                dtype=leaf.dtype.name,
                name="_".join(["query", *path]),
            )
            variable.assign(leaf)
            self._variables.append(variable)

    @property
    def variables(self) -> list[Any]:
        """The variables of all leaves."""
        return list(self._variables)

    def __reduce__(self) -> Any:
        raise TypeError(
            "The state of a query must not be copied or pickled: two copies "
            "would draw the same noise. Make another optimizer."
        )

    def read(self) -> Any:
        """Returns the state as tensors."""
        values = [tf.convert_to_tensor(v) for v in self._variables]
        return tf.nest.pack_sequence_as(self._structure, values)

    def assign(self, state: Any, *, secrets: bool = True) -> None:
        """Replaces the state.

        Args:
            state: A nest of tensors.
            secrets: Whether secret leaves are replaced, too.
        """
        for variable, (_, leaf, is_secret) in zip(
            self._variables, _flatten(state), strict=True
        ):
            if secrets or not is_secret:
                variable.assign(leaf)


def _flatten(
    nest: Any, path: tuple[str, ...] = (), is_secret: bool = False
) -> list[tuple[tuple[str, ...], tf.Tensor, bool]]:
    """Returns each leaf with its path of keys, and whether it is secret.

    Only the name of a field of a NamedTuple makes a leaf secret, never the key
    of a dict.
    """
    children = _nests.children(nest)
    if children is None:
        return [(path or ("state",), nest, is_secret)]
    fields = getattr(nest, "_fields", None)
    found = []
    for place, (key, child) in enumerate(children):
        name = fields[place] if fields else str(key)
        hides = name == "seed" or name.startswith("secret_")
        hidden = is_secret or (fields is not None and hides)
        found += _flatten(child, (*path, name), hidden)
    return found
