"""Strategies of few buffers, with a long memory."""

import dataclasses
from typing import ClassVar

import numpy as np

from keras_dp._override import override
from keras_dp.ledger.events.strategies.strategy import (
    Array,
    Filter,
    Strategy,
    checked_numbers,
)


@dataclasses.dataclass(frozen=True, slots=True)
class BufferedToeplitz(Strategy):
    """A buffered linear Toeplitz matrix (BLT).

    Its first column is 1, and then `sum_i scales[i] decays[i]^(k - 1)` in row
    `k`. So the noise of all earlier rounds takes part, at the cost of one
    buffer for each decay.

    Attributes:
        decays: One number in [0, 1) for each buffer.
        scales: One number > 0 for each buffer.

    Source: McMahan et al. (2024), arXiv:2404.16706. We make the noise with the
    buffers of C itself, and not with those of its inverse.

    >>> BufferedToeplitz((0.5,), (0.25,)).first_column(4).tolist()
    [1.0, 0.25, 0.125, 0.0625]
    """

    kind: ClassVar[str] = "buffered_toeplitz"

    decays: tuple[float, ...]
    scales: tuple[float, ...]

    def __post_init__(self) -> None:
        decays = checked_numbers(decays=self.decays)
        scales = checked_numbers(scales=self.scales)
        if not all(0 <= each < 1 for each in decays):
            raise ValueError(
                f"`decays` must be in [0, 1). Received: decays={self.decays!r}."
            )
        if len(scales) != len(decays) or min(scales) <= 0:
            raise ValueError(
                "`scales` must be > 0, one for each of the decays. Received: "
                f"scales={self.scales!r} for decays={self.decays!r}."
            )
        object.__setattr__(self, "decays", decays)
        object.__setattr__(self, "scales", scales)

    @override
    def first_column(self, rounds: int) -> Array:
        powers = np.power.outer(np.array(self.decays), np.arange(rounds - 1))
        return np.concatenate([[1.0], np.array(self.scales) @ powers])

    @override
    def filter(self, rounds: int) -> Filter:
        weights = -np.array([self.scales])
        return Filter(np.ones(1), weights, np.array([self.decays]))
