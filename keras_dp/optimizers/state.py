"""The global state of a query as variables: saved, its seeds apart."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf


class StateVariables:
    """Holds a query's global state between rounds.

    Leaves in a field called `seed`, or below one whose name starts with
    `secret_`, are kept where neither Keras nor `tf.train.Checkpoint` finds
    them. A restored seed would repeat its noise on other data, and whoever
    reads a saved one can subtract the noise.
    """

    def __init__(self, state: Any, add_variable: Callable[..., Any]) -> None:
        """Creates the variables.

        Args:
            state: Nest of tensors.
            add_variable: Creates a saved variable from shape, initializer,
                dtype and name.
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
        """Those of all leaves."""
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

    def assign(self, state: Any) -> None:
        """Replaces the state."""
        leaves = [leaf for _, leaf, _ in _flatten(state)]
        for variable, leaf in zip(self._variables, leaves, strict=True):
            variable.assign(leaf)


def _flatten(
    nest: Any, path: tuple[str, ...] = (), is_secret: bool = False
) -> list[tuple[tuple[str, ...], tf.Tensor, bool]]:
    """Returns leaves with the keys that lead to them, in `tf.nest`'s order.

    And whether they are secret, which the name of a field says, never the key
    of a dict.
    """
    if isinstance(nest, Mapping):
        items = [(str(key), nest[key], is_secret) for key in sorted(nest)]
    elif hasattr(nest, "_fields"):
        items = [
            (
                field,
                child,
                is_secret or field == "seed" or field.startswith("secret_"),
            )
            for field, child in zip(nest._fields, nest, strict=True)
        ]
    elif isinstance(nest, (list, tuple)):
        items = [(str(i), child, is_secret) for i, child in enumerate(nest)]
    else:
        return [(path or ("state",), nest, is_secret)]
    return [
        leaf
        for key, child, hidden in items
        for leaf in _flatten(child, (*path, key), hidden)
    ]
