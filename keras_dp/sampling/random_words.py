"""Uniform 64-bit words: the randomness of samplers."""

import os
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

# Returns as many independent, uniform words as it is asked for.
Words = Callable[[int], npt.NDArray[np.uint64]]


def from_operating_system(count: int) -> npt.NDArray[np.uint64]:
    """Returns `count` words of the kernel's cryptographic generator."""
    return np.frombuffer(os.urandom(8 * count), np.uint64)


def from_seed(seed: int, *stream: int, part: int = 0) -> Words:
    """Returns a reproducible generator, which is not a cryptographic one.

    Args:
        seed: Chosen by the caller, >= 0.
        *stream: Numbers in [0, 2^32) that name the generator: each is
            independent of all others of the seed.
        part: A part of the stream. Parts are independent: 2^128 words each.
    """
    sequence = np.random.SeedSequence(seed, spawn_key=stream)
    generator = np.random.Philox(sequence).jumped(part)

    def words(count: int) -> npt.NDArray[np.uint64]:
        return np.asarray(generator.random_raw(count), np.uint64)

    return words
