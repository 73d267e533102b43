"""Any strategy, given by its entries."""

import dataclasses
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from keras_dp._override import override
from keras_dp.ledger.events.strategies.strategy import (
    Array,
    Filter,
    Strategy,
    checked_numbers,
)

# A ledger stores them with each kind of round.
_MOST_ENTRIES = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class LowerTriangular(Strategy):
    """A matrix of your own, with one row for each round.

    Attributes:
        rows: For each round the entries of its row up to the diagonal, without
            leading zeros. There are at most 4096 entries in all. The last
            entry of each row, on the diagonal, is positive.

    >>> LowerTriangular.from_matrix([[2, 0], [1, 1]]).rows
    ((2.0,), (1.0, 1.0))
    """

    kind: ClassVar[str] = "lower_triangular"

    rows: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        rows = tuple(checked_numbers(rows=row) for row in self.rows)
        entries = sum(map(len, rows))
        if not 0 < entries <= _MOST_ENTRIES:
            raise ValueError(
                f"`rows` must hold from 1 to {_MOST_ENTRIES} entries, which a "
                f"ledger stores. Received: {entries} entries. Take a Toeplitz "
                "strategy for more rounds."
            )
        for number, row in enumerate(rows):
            if len(row) > number + 1 or row[-1] <= 0:
                raise ValueError(
                    "`rows` must end on the diagonal, with a number > 0. "
                    f"Received: {row!r} in round {number}."
                )
        object.__setattr__(self, "rows", rows)

    @classmethod
    def from_matrix(cls, matrix: npt.ArrayLike) -> Self:
        """Returns the strategy of a square matrix.

        Args:
            matrix: Shape `[rounds, rounds]`, 0 above the diagonal.

        Raises:
            ValueError: It is not square, or not lower-triangular.
        """
        entries = np.asarray(matrix, np.float64)
        if entries.ndim != 2 or entries.shape[0] != entries.shape[1]:
            raise ValueError(
                "`matrix` must have the shape [rounds, rounds]. Received: an "
                f"array of shape {entries.shape}."
            )
        if np.triu(entries, 1).any():
            raise ValueError(
                "`matrix` must be 0 above its diagonal. Received: other "
                "numbers there."
            )
        rows = []
        for number, row in enumerate(entries):
            first = min(np.flatnonzero(row), default=number)
            rows.append(tuple(row[first : number + 1].tolist()))
        return cls(tuple(rows))

    @override
    def first_column(self, rounds: int) -> None:
        return None

    @override
    def matrix(self, rounds: int) -> Array:
        matrix = np.zeros([rounds, rounds])
        for number, row in enumerate(self.rows[:rounds]):
            matrix[number, number + 1 - len(row) : number + 1] = row
        return matrix

    @property
    @override
    def is_non_negative(self) -> bool:
        return min(map(min, self.rows)) >= 0

    @override
    def filter(self, rounds: int) -> Filter:
        lead = np.array([1 / row[-1] for row in self.rows])
        weights = np.zeros([len(self.rows), self.bands - 1])
        for number, row in enumerate(self.rows):
            weights[number, : len(row) - 1] = row[-2::-1]
        return Filter(lead, -weights * lead[:, np.newaxis])

    @property
    @override
    def bands(self) -> int:
        return max(map(len, self.rows))

    @property
    @override
    def largest_rounds(self) -> int:
        return len(self.rows)
