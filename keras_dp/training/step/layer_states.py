"""Renews what layers hold besides released weights: seeds and idle adapters.

Dropout and similar layers draw random numbers for each row of a batch. An
attacker who knows the seeds knows which row got which numbers. A seed in a
script (`Dropout(0.5, seed=3)`, `keras.utils.set_random_seed(7)`) is known.

Keras saves a layer with low-rank adaptation as the kernel `K + s A B`, and sets
both `A` and `B` to zero when it loads it. Their gradients are then zero, and
stay so. A pair begins anew as `enable_lora` begins it: `A` is random and `B` is
zero, so that the function of the layer stays the same.
"""

import secrets

import keras
import numpy as np
from absl import logging

from keras_dp import _reproducible
from keras_dp.keras_internals import averages_of, layers_of, seed_generators_of
from keras_dp.optimizers.dp_optimizer import DPOptimizer


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

        The seed of the optimizer has no effect outside `reproducible()`.
        """
        self._model = model
        self._seed = seed if _reproducible.is_on() else None
        self._renewals = 0

    def renew(self, rounds: int) -> None:
        """Replaces all states. The replicas of one process get the same.

        Inside `reproducible()`, one seed gives different states after different
        numbers of released rounds.
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


_PAIRS = (
    ("lora_kernel_a", "lora_kernel_b"),
    ("lora_embeddings_a", "lora_embeddings_b"),
)


def renew_adapters(model: keras.Model, optimizer: DPOptimizer) -> None:
    """Begins each trained pair anew of which both matrices are zero.

    Averages of such a pair are those of the adapters before, which the kernel
    holds already. They begin anew, too.
    """
    averages = {id(variable): each for variable, each in averages_of(optimizer)}
    renewed = []
    for layer in layers_of(model):
        for names in _PAIRS:
            one, two = (getattr(layer, name, None) for name in names)
            if one is None or two is None or not one.trainable:
                continue
            if any(np.any(keras.ops.convert_to_numpy(x)) for x in (one, two)):
                continue
            one.assign(keras.initializers.HeUniform()(one.shape, one.dtype))
            for each in (one, two):
                if id(each) in averages:
                    averages[id(each)].assign(each)
            renewed.append(layer.path)
    if renewed:
        logging.warning(
            "The adapters of %s begin anew: both of their matrices were zero, "
            "as after loading weights, which Keras merges into the kernel. "
            "Without it they would never change.",
            ", ".join(map(repr, renewed)),
        )
