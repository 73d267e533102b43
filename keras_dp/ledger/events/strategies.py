"""Strategies of correlated noise: the matrices that say how rounds share it."""

import abc
import dataclasses
from typing import ClassVar, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from keras_dp import _check
from keras_dp._override import override

Array = npt.NDArray[np.float64]
_Integers: TypeAlias = npt.NDArray[np.int64]


class Filter(NamedTuple):
    """How the noise of a round is made from a new draw and from buffers.

    The noise of round `t` is `lead[t] z_t + sum_i weights[t, i] s_i`, where
    `z_t` is a new draw and `s_i` are buffers, which begin with 0. With `decays`
    a buffer becomes `decays[i] s_i` plus the noise of the round. Without them
    the buffers move by one place, and the first of them becomes the noise of
    the round. Here `t` stands for the row of the round.

    Attributes:
        lead: The factor of the new draw, shape `[rows]`.
        weights: The factors of the buffers, shape `[rows, buffers]`.
        decays: The decays of the buffers, shape `[rows, buffers]`; `None` if
            buffers move.
        order: The row of each round, shape `[rounds]`; `None` if there is one
            row for each round, or one for all.
    """

    lead: Array
    weights: Array
    decays: Array | None = None
    order: npt.NDArray[np.uint8] | None = None


class Strategy(abc.ABC):
    """A lower-triangular matrix C with a positive diagonal, and no entry < 0.

    A mechanism with the strategy C releases `x_t + stddev (C^-1 z)_t` in round
    `t`. Here `x_t` is the sum over the records of the round, and `z` has
    independent standard normal entries. This is `C^-1` times `C x + stddev z`,
    so the mechanism costs what one release of `C x` with independent noise
    costs (`accountants.strategy_sensitivity`). A strategy whose inverse has
    small sums of rows gives prefix sums with little noise.

    Attributes:
        kind: The name of the class in a ledger, which never changes.
    """

    __slots__ = ()
    kind: ClassVar[str]

    @property
    def bands(self) -> int | None:
        """The number of diagonals that may differ from 0; `None` for all."""
        return None

    @abc.abstractmethod
    def times(self, values: Array) -> Array:
        """Returns C times values, both of the shape `[rounds, ...]`."""

    @abc.abstractmethod
    def filter(self, rounds: int) -> Filter:
        """Returns how the noise of some rounds is made: `C^-1` times draws."""

    @abc.abstractmethod
    def growth(self, rounds: int) -> float:
        """Returns a bound on the stddev of the noise of a round, in draws."""

    @abc.abstractmethod
    def variances_of_sums(self, rounds: int) -> Array:
        """Returns the variance of the noise of each prefix sum, in draws."""

    def matrix(self, rounds: int) -> Array:
        """Returns the matrix of some rounds, shape `[rounds, rounds]`."""
        return self.times(np.eye(rounds))


@dataclasses.dataclass(frozen=True, slots=True)
class BandedToeplitz(Strategy):
    """The matrix with `coefficients[k]` on its diagonal `k`.

    With at most as many bands as there are rounds between two participations
    of a record, no two of them meet in a row of the matrix. So each costs what
    it would cost alone, and sampling amplifies it. One buffer is kept for each
    band but the first. `BandedToeplitz((1.0,))` is independent noise.

    Attributes:
        coefficients: The first column, from the diagonal down, each >= 0; it
            begins with 1. The noise stays bounded if they decrease.

    Source: Choquette-Choo et al. (2023), arXiv:2306.08153; McKenna (2024),
    arXiv:2405.15913 (Toeplitz).

    >>> BandedToeplitz((1, 0.5)).matrix(3).tolist()
    [[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.0, 0.5, 1.0]]
    """

    kind: ClassVar[str] = "banded_toeplitz"

    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        given = self.coefficients
        try:
            numbers = tuple(float(each) for each in given)
        except TypeError:
            raise TypeError(
                "`coefficients` must be a sequence of numbers. "
                f"Received: coefficients={_check.shown(given)}."
            ) from None
        if not numbers or not np.isfinite(numbers).all() or min(numbers) < 0:
            raise ValueError(
                "`coefficients` must hold at least one number, all of them "
                f"finite and >= 0. Received: coefficients={given!r}."
            )
        if numbers[0] != 1:
            raise ValueError(
                "`coefficients` must begin with 1. Received: "
                f"coefficients={given!r}. Divide them by the first one, and "
                "multiply the noise by it."
            )
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

    @property
    @override
    def bands(self) -> int:
        return len(self.coefficients)

    def first_column(self, rounds: int) -> Array:
        """Returns the first column of the matrix, shape `[rounds]`."""
        column = np.zeros(rounds)
        given = self.coefficients[:rounds]
        column[: len(given)] = given
        return column

    @override
    def times(self, values: Array) -> Array:
        found = np.zeros_like(values)
        for lag, each in enumerate(self.coefficients[: len(values)]):
            found[lag:] += each * values[: len(values) - lag]
        return found

    @override
    def filter(self, rounds: int) -> Filter:
        rest = np.array([self.coefficients[1:]], np.float64)
        return Filter(np.ones(1), -rest)

    @override
    def growth(self, rounds: int) -> float:
        # Each draw is heard as the first one is, or shorter.
        found = float(np.linalg.norm(self._inverse_column(rounds)))
        return found if np.isfinite(found) else np.inf

    @override
    def variances_of_sums(self, rounds: int) -> Array:
        noise = np.cumsum(self._inverse_column(rounds))
        return np.asarray(np.cumsum(np.square(noise)))

    def _inverse_column(self, rounds: int) -> Array:
        from scipy import signal  # It takes half a second, and few need it.

        one = np.zeros(rounds)
        one[0] = 1.0
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(signal.lfilter([1.0], self.coefficients, one))


@dataclasses.dataclass(frozen=True, slots=True)
class BinaryTree(Strategy):
    """The matrix of a binary tree over the rounds (DP-FTRL).

    Number the rounds from 1. A node of level `i` holds the sum of a block of
    `2^i` rounds that ends at a multiple of `2^i`. If `2^r` is the largest power
    of two that divides `T`, nodes of the levels 0 to `r` end at round `T`. Row
    `T` of the matrix is the sum of these nodes with the weights `2^i`, divided
    by the root of `1 + 4 + ... + 4^r`.

    So the sum over the first `t` rounds has the noise of one block for each
    binary digit of `t` that is 1. That of a block of `2^l` rounds has the
    variance `1 / (2 - 2^-l)`, the least that any weights of its nodes reach.
    One buffer is kept for each doubling of the rounds. Coefficients need not
    be found.

    Source: Kairouz et al. (2021), arXiv:2103.00039v3, Appendix B, and Honaker
    (2015), "Efficient Use of Differentially Private Binary Trees" (the estimate
    from below). We differ in drawing once a round, what is new in the nodes
    that end there, and not once for each node.

    >>> np.square(BinaryTree().matrix(4)).round(3).tolist()[3]
    [0.762, 0.762, 1.714, 2.333]
    """

    kind: ClassVar[str] = "binary_tree"

    @override
    def times(self, values: Array) -> Array:
        rounds = len(values)
        sums = np.concatenate([np.zeros([1, *values.shape[1:]]), values])
        sums = np.cumsum(sums, axis=0)
        nodes = np.zeros_like(sums)
        for level in range(rounds.bit_length()):
            ends = sums[:: 1 << level]
            nodes[1 << level :: 1 << level] += 2.0**level * np.diff(
                ends, axis=0
            )
        lengths = np.sqrt(_squares(_levels(rounds)))
        found: Array = nodes[1:].T / lengths
        return found.T

    @override
    def growth(self, rounds: int) -> float:
        return 2.0  # The noise of at most two blocks is added.

    @override
    def variances_of_sums(self, rounds: int) -> Array:
        numbers = np.arange(1, rounds + 1)
        found = np.zeros(rounds)
        for level in range(rounds.bit_length()):
            found += (numbers >> level & 1) / (2 - 2.0**-level)
        return found

    @override
    def filter(self, rounds: int) -> Filter:
        # Buffer i - 1 has the noise of the 2^i - 1 rounds before a round at
        # which a node of level i ends, and is emptied in the round after it.
        top = rounds.bit_length() - 1
        levels = np.arange(top + 1)
        weights = np.zeros([2 * top + 1, top])
        decays = np.ones([2 * top + 1, top])
        lead = np.ones(2 * top + 1)
        whole = 2.0 ** (levels + 1) - 1
        lead[: top + 1] = np.sqrt(_squares(levels)) / whole
        for level in levels:
            weights[level, :level] = -(2.0 ** levels[1 : level + 1])
            weights[level] /= whole[level]
            decays[top + level, :level] = 0.0
        # Rounds at which only a leaf ends differ in what is emptied.
        ended = np.concatenate([[top], _levels(rounds)[:-1]])
        own = _levels(rounds)
        order = np.where(own > 0, own, top + ended).astype(np.uint8)
        return Filter(lead, weights, decays, order=order)


def _levels(rounds: int) -> _Integers:
    """Returns the highest level of a node that ends at each round."""
    numbers = np.arange(1, rounds + 1)
    found: _Integers = np.log2(numbers & -numbers).astype(np.int64)
    return found


def _squares(levels: _Integers) -> Array:
    """Returns `1 + 4 + ... + 4^r` for each level `r`."""
    return (4.0 ** (levels + 1) - 1) / 3
