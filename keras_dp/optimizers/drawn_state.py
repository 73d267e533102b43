"""The state of the queries of a round, between rounds."""

import hashlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_dp.optimizers.private_round import PrivateRound
from keras_dp.optimizers.state import StateVariables


class DrawnState:
    """Holds the state of queries between rounds, and makes its seeds.

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
        """Creates the variables.

        Args:
            round_: The round with its queries.
            seed: The seed of the noise inside `reproducible()`. Anywhere else
                the operating system gives the seeds.
            add_variable: Creates a variable that is saved, as in
                `StateVariables`.
        """
        self._round, self._seed = round_, seed
        self._variables = StateVariables(self._initial(), add_variable)
        self._own = _fingerprint(round_)
        self._asked = add_variable(
            shape=self._own.shape,
            initializer="zeros",
            dtype="int64",
            name="query_fingerprint",
        )
        self._asked.assign(self._own)

    @property
    def variables(self) -> list[Any]:
        """The variables of all leaves."""
        return self._variables.variables

    def read(self) -> Any:
        """Returns the state as tensors."""
        return self._variables.read()

    def assign(self, state: Any) -> None:
        """Replaces the state."""
        self._variables.assign(state)

    def drop_other_queries(self) -> bool:
        """Starts anew if the state was restored from other queries.

        Guarantee: afterwards the public numbers of the state are those of the
        queries of this round, or followed from them.

        Returns:
            Whether it was another state.
        """
        if np.array_equal(tf.convert_to_tensor(self._asked), self._own):
            return False
        self._variables.assign(self._initial(), secrets=False)
        self._asked.assign(self._own)
        return True

    def _initial(self) -> Any:
        return self._round.initial_state(self._seed)


def _fingerprint(round_: PrivateRound) -> np.ndarray:
    """Returns a hash of the queries, shape `[4]`."""
    # An object without a text of its own shows its place in memory.
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", round_.fingerprint())
    return np.frombuffer(hashlib.sha256(text.encode()).digest(), np.int64)
