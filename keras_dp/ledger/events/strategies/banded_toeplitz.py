"""Strategies with few diagonals, constant along each."""

import dataclasses
from typing import ClassVar, Self

import numpy as np

from keras_dp import _check
from keras_dp._override import override
from keras_dp.ledger.events.strategies.strategy import (
    Array,
    Filter,
    Strategy,
    checked_leading_one,
)


@dataclasses.dataclass(frozen=True, slots=True)
class BandedToeplitz(Strategy):
    """The matrix with `coefficients[k]` on its diagonal `k`.

    With at most as many bands as there are rounds between two participations
    of a record, no two of them meet in a row of the matrix. So each costs what
    it would cost alone, and sampling amplifies it. One buffer is kept for each
    band but the first. `BandedToeplitz((1.0,))` is independent noise.

    Attributes:
        coefficients: The first column, from the diagonal down; it begins with
            1. The noise stays bounded if their power series has no zero in the
            unit disk, as that of positive decreasing numbers.

    Source: Choquette-Choo et al. (2023), arXiv:2306.08153; McKenna (2024),
    arXiv:2405.15913 (Toeplitz).

    >>> BandedToeplitz((1, 0.5)).matrix(3).tolist()
    [[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.0, 0.5, 1.0]]
    """

    kind: ClassVar[str] = "banded_toeplitz"

    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        numbers = checked_leading_one(coefficients=self.coefficients)
        object.__setattr__(self, "coefficients", numbers)

    @classmethod
    def square_root(cls, bands: int) -> Self:
        """Returns the first diagonals of the square root of the prefix sums.

        They are the first coefficients of `(1 - x)^(-1/2)`.

        Args:
            bands: The number of coefficients, >= 1.

        >>> BandedToeplitz.square_root(3)
        BandedToeplitz(coefficients=(1.0, 0.5, 0.375))
        """
        _check.integer_at_least(1, bands=bands)
        numbers = [1.0]
        for k in range(1, bands):
            numbers.append(numbers[-1] * (k - 0.5) / k)
        return cls(tuple(numbers))

    @override
    def first_column(self, rounds: int) -> Array:
        column = np.zeros(rounds)
        given = self.coefficients[:rounds]
        column[: len(given)] = given
        return column

    @override
    def filter(self, rounds: int) -> Filter:
        rest = np.array([self.coefficients[1:]], np.float64)
        return Filter(np.ones(1), -rest)

    @property
    @override
    def bands(self) -> int:
        return len(self.coefficients)
