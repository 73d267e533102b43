"""The state of the queries of a round, between rounds."""

import hashlib
import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_dp import _nests
from keras_dp.optimizers.private_round import PrivateRound


class DrawnState:
    """Holds the state of queries between rounds, and makes its seeds.

    Some leaves are secret: those in a field named `seed`, and those below a
    field whose name begins with `secret_`. Neither Keras nor
    `tf.train.Checkpoint` finds their variables, so they are never saved. A
    restored seed would repeat its noise on other data. Someone who reads a
    saved seed could subtract the noise.

    The noise, the clip and other numbers of a query are a part of its state,
    which may be restored from a file. A fingerprint of the queries is saved
    beside them, so that numbers of other queries are found.
    """

    def __init__(
        self,
        round_: PrivateRound,
        seed: int | None,
        add_variable: Callable[..., Any],
    ) -> None:
        """Creates the variables: `add_variable` those that are saved."""
        self._round, self._seed = round_, seed
        self._structure = self._initial()
        self._variables: list[Any] = []
        for path, leaf, is_secret in _flatten(self._structure):
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
        self._fingerprint = _fingerprint(round_)
        self._saved_fingerprint = add_variable(
            shape=self._fingerprint.shape,
            initializer="zeros",
            dtype="int64",
            name="query_fingerprint",
        )
        self._saved_fingerprint.assign(self._fingerprint)

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
        return keras.tree.pack_sequence_as(self._structure, values)

    def assign(self, state: Any, *, secrets: bool = True) -> None:
        """Replaces the state; secret leaves only if `secrets` is true."""
        for variable, (_, leaf, is_secret) in zip(
            self._variables, _flatten(state), strict=True
        ):
            if secrets or not is_secret:
                variable.assign(leaf)

    def drop_other_queries(self) -> bool:
        """Starts anew if the state was restored from other queries.

        It returns whether it did.

        Guarantee: afterwards the public numbers of the state are those of the
        queries of this round, or followed from them.
        """
        if np.array_equal(
            tf.convert_to_tensor(self._saved_fingerprint), self._fingerprint
        ):
            return False
        self.assign(self._initial(), secrets=False)
        self._saved_fingerprint.assign(self._fingerprint)
        return True

    def _initial(self) -> Any:
        return self._round.initial_state(self._seed)


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


def _fingerprint(round_: PrivateRound) -> np.ndarray:
    """Returns a hash of the queries, shape `[4]`."""
    # An object without a text of its own shows its place in memory.
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", round_.fingerprint())
    return np.frombuffer(hashlib.sha256(text.encode()).digest(), np.int64)
