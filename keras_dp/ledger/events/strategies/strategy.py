"""The base class of the strategies of correlated noise."""

import abc
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from keras_dp import _check

Array = npt.NDArray[np.float64]


class Filter(NamedTuple):
    """How the noise of a round is made from a new draw and from buffers.

    The noise of round `t` is `lead[t] z_t + sum_i weights[t, i] s_i`, where
    `z_t` is a new draw and `s_i` are buffers, which begin with 0. With `decays`
    a buffer becomes `decays[i] s_i` plus the noise of the round. Without them
    the buffers move by one place, and the first of them becomes the noise of
    the round, or the draw itself if `keeps_draws`. Here `t` stands for the row
    of the round.

    Attributes:
        lead: The factor of the new draw, shape `[rows]`.
        weights: The factors of the buffers, shape `[rows, buffers]`.
        decays: The decays of the buffers, shape `[rows, buffers]`; `None` if
            buffers move.
        keeps_draws: Whether buffers hold draws.
        order: The row of each round, shape `[rounds]`; `None` if there is one
            row for each round, or one for all.
    """

    lead: Array
    weights: Array
    decays: Array | None = None
    keeps_draws: bool = False
    order: npt.NDArray[np.uint8] | None = None


class Strategy(abc.ABC):
    """A lower-triangular matrix C with a positive diagonal.

    A mechanism with the strategy C releases `x_t + stddev (C^-1 z)_t` in round
    `t`. Here `x_t` is the sum over the records of the round, and `z` has
    independent standard normal entries. This is `C^-1` times `C x + stddev z`,
    so the mechanism costs what one release of `C x` with independent noise
    costs (`accountants.strategy_sensitivity`). A strategy whose inverse has
    small sums of rows gives prefix sums with little noise.

    Attributes:
        kind: The name of the class in a ledger, which never changes.
        never_grows: Whether no noise is much larger than a draw, however many
            rounds there are.
    """

    __slots__ = ()
    kind: ClassVar[str]
    never_grows: ClassVar[bool] = False

    @abc.abstractmethod
    def first_column(self, rounds: int) -> Array | None:
        """Returns the first column of the matrix of some rounds.

        Returns:
            Shape `[rounds]`; `None` unless the matrix is Toeplitz, that is
            constant along each diagonal. Then `matrix` or `times` is defined.
        """

    @abc.abstractmethod
    def filter(self, rounds: int) -> Filter:
        """Returns how the noise of some rounds is made: `C^-1` times draws."""

    @property
    def is_non_negative(self) -> bool:
        """Whether no entry is negative, for a matrix that is not Toeplitz."""
        return False

    @property
    def bands(self) -> int | None:
        """The number of diagonals that may differ from 0; `None` for all."""
        return None

    @property
    def largest_rounds(self) -> int | None:
        """The most rounds that the matrix has; `None` without an end."""
        return None

    def matrix(self, rounds: int) -> Array:
        """Returns the matrix of some rounds, shape `[rounds, rounds]`."""
        column = self.first_column(rounds)
        if column is None:
            return self.times(np.eye(rounds))
        offsets = np.subtract.outer(np.arange(rounds), np.arange(rounds))
        return np.where(offsets >= 0, column[np.maximum(offsets, 0)], 0.0)

    def times(self, values: Array) -> Array:
        """Returns C times values, both of the shape `[rounds, ...]`."""
        return self.matrix(len(values)) @ values

    def variances_of_sums(self, rounds: int) -> Array:
        """Returns the variance of the noise of each prefix sum, in draws."""
        noise = np.cumsum(np.linalg.inv(self.matrix(rounds)), axis=0)
        return np.asarray(np.square(noise).sum(axis=1))


def checked_numbers(**named: object) -> tuple[float, ...]:
    """Returns a sequence of finite numbers as a tuple of floats.

    Raises:
        TypeError: It is no sequence of numbers.
        ValueError: It is empty, or a number is not finite.
    """
    ((name, values),) = named.items()
    try:
        numbers = tuple(float(each) for each in values)  # type: ignore[attr-defined]
    except TypeError:
        raise TypeError(
            f"`{name}` must be a sequence of numbers. "
            f"Received: {name}={_check.shown(values)}."
        ) from None
    if not numbers or not np.isfinite(numbers).all():
        raise ValueError(
            f"`{name}` must hold at least one number, all of them finite. "
            f"Received: {name}={values!r}."
        )
    return numbers


def checked_leading_one(**named: object) -> tuple[float, ...]:
    """Returns coefficients, of which the first is 1.

    Raises:
        ValueError: They begin with another number. See also `checked_numbers`.
    """
    ((name, values),) = named.items()
    numbers = checked_numbers(**named)
    if numbers[0] != 1:
        raise ValueError(
            f"`{name}` must begin with 1. Received: {name}={values!r}. Divide "
            "the coefficients by the first one, and multiply the noise by it."
        )
    return numbers
