"""The state of the queries of a round, with seeds for a generator."""

import hashlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_dp import ledger as ledger_lib
from keras_dp.errors import PrivateTrainingError
from keras_dp.noise import seeds
from keras_dp.optimizers.private_round import PrivateRound
from keras_dp.optimizers.state import StateVariables


class DrawnState:
    """Holds the state of queries between rounds, and makes its seeds.

    Noise is drawn with the generator that the header of the ledger names. An
    optimizer that was loaded from a file has no ledger when it is built. When
    it gets one, its seeds are made anew for the generator of this ledger.

    The noise, the clip and other numbers of a query are a part of its state,
    which may be restored from a file. A fingerprint of the queries is saved
    beside them, so that numbers of other queries are found.
    """

    def __init__(
        self,
        round_: PrivateRound,
        seed: int | None,
        header: ledger_lib.Header | None,
        add_variable: Callable[..., Any],
    ) -> None:
        """Creates the variables.

        Args:
            round_: The round with its queries.
            seed: The seed of the noise inside `reproducible()`. Anywhere else
                the operating system gives the seeds.
            header: The header of the ledger, or `None` if the ledger is not
                known yet.
            add_variable: Creates a variable that is saved, as in
                `StateVariables`.
        """
        self._round, self._seed = round_, seed
        self._is_bound = header is not None
        self._generator = header.generator if header else seeds.DEFAULT
        self._strategy = tf.distribute.get_strategy()
        self._saved: list[Any] = []

        def saved(**specification: Any) -> Any:
            self._saved.append(add_variable(**specification))
            return self._saved[-1]

        self._variables = self._drawn(saved)
        self._own = _fingerprint(round_)
        self._asked = saved(
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

    def bind(self, header: ledger_lib.Header) -> None:
        """Makes new seeds if the ledger has another generator.

        Args:
            header: The header of the ledger.

        Raises:
            PrivateTrainingError: The seeds were made for a ledger with another
                generator.
        """
        other = header.generator != self._generator
        if other and self._is_bound:
            raise PrivateTrainingError(
                "`ledger` must be of the generator that the optimizer was "
                f"built to draw with, {self._generator!r}. Received: "
                f"generator={header.generator!r}. Compile with a new "
                "optimizer."
            )
        self._is_bound = True
        if other:
            self._generator = header.generator
            self._draw_again()

    def _draw_again(self) -> None:
        values = [variable.numpy() for variable in self._saved]
        remaining = iter(self._saved)
        with self._strategy.scope():
            self._variables = self._drawn(lambda **_: next(remaining))
        for variable, value in zip(self._saved, values, strict=True):
            variable.assign(value)

    def _drawn(self, add_variable: Callable[..., Any]) -> StateVariables:
        return StateVariables(self._initial(), add_variable)

    def _initial(self) -> Any:
        with seeds.drawing_with(self._generator):
            return self._round.initial_state(self._seed)


def _fingerprint(round_: PrivateRound) -> np.ndarray:
    """Returns a hash of the queries, shape `[4]`."""
    # An object without a text of its own shows its place in memory.
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", round_.fingerprint())
    return np.frombuffer(hashlib.sha256(text.encode()).digest(), np.int64)
