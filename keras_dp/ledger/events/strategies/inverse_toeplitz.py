"""Strategies whose inverse has few diagonals."""

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

# For sums that rounding moves above 1.
_ROUNDING = 1e-12


@dataclasses.dataclass(frozen=True, slots=True)
class InverseToeplitz(Strategy):
    """The inverse of the matrix with `coefficients[k]` on its diagonal `k`.

    The noise of a round is a sum of as many draws as there are coefficients.
    Two kinds have names: `square_root` (BISR), and `subtracting`, in which each
    round subtracts a part of the draw before (lambda-CGD).

    Attributes:
        coefficients: The first column of the inverse, from the diagonal down.
            It begins with 1. The others are <= 0, and add up to at least -1, so
            that no entry of the matrix exceeds 1.

    Source: Kalinin et al. (2025), arXiv:2505.12128 (BISR); Choquette-Choo et
    al. (2024), arXiv:2310.06771, Koloskova et al. (2023), arXiv:2302.01463
    (noise that subtracts the draw before).

    >>> InverseToeplitz.subtracting(0.5).first_column(4).tolist()
    [1.0, 0.5, 0.25, 0.125]
    """

    kind: ClassVar[str] = "inverse_toeplitz"
    never_grows: ClassVar[bool] = True

    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        numbers = checked_leading_one(coefficients=self.coefficients)
        rest = numbers[1:]
        if max(rest, default=0) > 0 or sum(rest) < -1 - _ROUNDING:
            raise ValueError(
                "`coefficients` after the first must be <= 0, with a sum of at "
                f"least -1. Received: coefficients={self.coefficients!r}."
            )
        object.__setattr__(self, "coefficients", numbers)

    @classmethod
    def square_root(cls, bands: int) -> Self:
        """Returns the banded inverse square root of the prefix sums (BISR).

        The inverse has the first coefficients of `(1 - x)^(1/2)`.

        Args:
            bands: The number of coefficients, >= 1.

        >>> InverseToeplitz.square_root(3)
        InverseToeplitz(coefficients=(1.0, -0.5, -0.125))
        """
        _check.integer_at_least(1, bands=bands)
        numbers = [1.0]
        for k in range(1, bands):
            numbers.append(numbers[-1] * (k - 1.5) / k)
        return cls(tuple(numbers))

    @classmethod
    def subtracting(cls, part: float) -> Self:
        """Returns the strategy of noise `z_t - part z_(t-1)` (lambda-CGD).

        Args:
            part: Lambda, in [0, 1].
        """
        return cls((1.0, -part))

    @override
    def first_column(self, rounds: int) -> Array:
        column = np.zeros(rounds)
        column[0] = 1.0
        # All terms are positive, so that nothing cancels.
        rest = -np.array(self.coefficients[1:][::-1])
        for row in range(1, rounds):
            width = min(row, len(rest))
            if width:
                column[row] = rest[-width:] @ column[row - width : row]
        return column

    @override
    def filter(self, rounds: int) -> Filter:
        rest = np.array([self.coefficients[1:]], np.float64)
        return Filter(np.ones(1), rest, keeps_draws=True)
