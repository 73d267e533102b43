"""The seeds of a model's layers while it trains privately.

Dropout and similar layers draw random numbers for each row of a batch. An
attacker who knows the seeds knows which row got which numbers. A seed in a
script (`Dropout(0.5, seed=3)`, `keras.utils.set_random_seed(7)`) is known.
"""

import secrets

import keras
import numpy as np

from keras_dp import _reproducible
from keras_dp.keras_internals import seed_generators_of


class LayerSeeds:
    """Sets the seed generators of all layers of a model, at any depth.

    Guarantee: outside `reproducible()`, `renew` draws each state anew from the
    operating system's generator, independent of all earlier states. Files of
    Keras hold no states. A `tf.train.Checkpoint` of the end of an epoch holds
    states that are replaced before a layer draws from them. The privacy of
    training does not rest on these seeds, because samples stand in random rows.
    """

    def __init__(self, model: keras.Model, seed: int | None) -> None:
        """Changes nothing yet.

        Args:
            model: The user's model.
            seed: The seed of the optimizer, or `None`. Inside
                `reproducible()` the states follow from it. Outside it has no
                effect.
        """
        self._model = model
        self._seed = seed if _reproducible.is_on() else None
        self._renewals = 0

    def renew(self, rounds: int) -> None:
        """Replaces all states. The replicas of one process get the same.

        Args:
            rounds: The number of rounds that the optimizer has released. One
                seed gives different states after different numbers of rounds.
        """
        sequence = None
        if self._seed is not None:
            sequence = np.random.SeedSequence(
                self._seed, spawn_key=(rounds, self._renewals)
            )
        self._renewals += 1
        states = {
            id(generator.state): generator.state
            for generator in seed_generators_of(self._model)
        }
        for state in states.values():
            # The second word is a counter, which must not overflow.
            limit = int(np.iinfo(state.dtype).max) // 2
            value = [secrets.randbelow(limit) for _ in range(2)]
            if sequence is not None:
                (own,) = sequence.spawn(1)
                words = own.generate_state(2, np.uint64).tolist()
                value = [word % limit for word in words]
            state.assign(np.array(value, state.dtype))
