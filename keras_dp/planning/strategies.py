"""Strategies of correlated noise with the least error of prefix sums."""

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from keras_dp import _check
from keras_dp.accountants.normalize.participations import strategy_sensitivity
from keras_dp.ledger import (
    BandedToeplitz,
    BufferedToeplitz,
    InverseToeplitz,
    Strategy,
)

Array = npt.NDArray[np.float64]

_Toeplitz: TypeAlias = BandedToeplitz | BufferedToeplitz | InverseToeplitz

# The free numbers of a start that has zeros, in place of their logarithms.
_SMALLEST = 1e-6
_STEPS = 2000
# The first step of L-BFGS has length 1 in its numbers. A strategy whose noise
# grows without end is often nearer than that.
_SCALE = 50.0


def prefix_sum_error(
    strategy: Strategy,
    rounds: int,
    *,
    min_separation: int = 1,
    max_participations: int | None = None,
) -> float:
    """Returns the root mean squared error of the prefix sums.

    The noise of the sum over the first `t` rounds has a variance. This is the
    root of its mean over all `t`, where the mechanism costs as much as one
    Gaussian sum of noise multiplier 1 without sampling, and each record moves
    the sum of a round by at most 1.

    Args:
        strategy: C.
        rounds: The number of rounds, >= 1.
        min_separation: See `accountants.strategy_sensitivity`.
        max_participations: See `accountants.strategy_sensitivity`.

    >>> from keras_dp.ledger import BandedToeplitz
    >>> prefix_sum_error(BandedToeplitz((1.0,)), 3, max_participations=1)
    1.4142...
    """
    sensitivity = strategy_sensitivity(
        strategy, rounds, min_separation, max_participations
    ).upper
    column = strategy.first_column(rounds)
    if column is None:
        mean = strategy.variances_of_sums(rounds).mean()
        return float(np.sqrt(mean)) * sensitivity
    noise = np.cumsum(_reciprocal(column))
    square = np.square(noise) @ np.arange(rounds, 0, -1)
    return float(np.sqrt(square / rounds)) * sensitivity


def optimize_strategy(
    start: Strategy,
    rounds: int,
    *,
    min_separation: int = 1,
    max_participations: int | None = None,
) -> Strategy:
    """Returns a strategy of the kind of `start` with a smaller error.

    It minimizes `prefix_sum_error`, by L-BFGS from the numbers of `start`. The
    result is one of few local optima, and never worse than `start`.

    Args:
        start: A Toeplitz strategy, which also says how many bands or buffers
            there are.
        rounds: The number of rounds, >= 1.
        min_separation: See `accountants.strategy_sensitivity`.
        max_participations: See `accountants.strategy_sensitivity`.

    Raises:
        TypeError: `start` is of another kind.

    Source: McKenna (2024), arXiv:2405.15913, and Dvijotham et al. (2024),
    arXiv:2404.16706, whose objective this is.

    >>> from keras_dp.ledger import BandedToeplitz
    >>> optimize_strategy(BandedToeplitz((1, 0.5)), 100, min_separation=2)
    BandedToeplitz(coefficients=(1.0, 0.7...))
    """
    _check.kind(Strategy, start=start)
    family = _family(start)
    objective = _Objective(rounds, min_separation, max_participations)

    def loss(numbers: Array) -> tuple[float, Array]:
        numbers = numbers / _SCALE
        with np.errstate(over="ignore", invalid="ignore"):
            value, slope = objective(family.made(numbers).first_column(rounds))
            slope = family.slope(numbers, slope) / _SCALE
        if not np.isfinite(value) or not np.isfinite(slope).all():
            return 1e9, np.zeros_like(numbers)
        return value, slope

    def error(strategy: Strategy) -> float:
        return prefix_sum_error(
            strategy,
            rounds,
            min_separation=min_separation,
            max_participations=max_participations,
        )

    if not len(family.start):
        return start
    from scipy import optimize  # Training imports this package, and not that.

    found = optimize.minimize(
        loss,
        family.start * _SCALE,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": _STEPS, "ftol": 1e-13, "gtol": 1e-10},
    )
    return min(start, family.made(found.x / _SCALE), key=error)


class _Family(NamedTuple):
    """The strategies of one kind, by numbers without limits.

    Attributes:
        start: The numbers of the first strategy.
        made: Returns the strategy of some numbers.
        slope: From the gradient with respect to the first column to that with
            respect to the numbers.
    """

    start: Array
    made: Callable[[Array], _Toeplitz]
    slope: Callable[[Array, Array], Array]


@functools.singledispatch
def _family(start: Strategy) -> _Family:
    raise TypeError(
        "`start` must be a BandedToeplitz, BufferedToeplitz or "
        f"InverseToeplitz. Received: start={start!r}."
    )


@_family.register
def _(start: BandedToeplitz) -> _Family:
    def slope(numbers: Array, of_column: Array) -> Array:
        padded = np.zeros(len(numbers) + 1)
        padded[: min(len(padded), len(of_column))] = of_column[: len(padded)]
        return padded[1:]

    return _Family(
        np.array(start.coefficients[1:]),
        lambda numbers: BandedToeplitz((1.0, *numbers.tolist())),
        slope,
    )


@_family.register
def _(start: BufferedToeplitz) -> _Family:
    """Decays are logistic functions of numbers, and scales exponentials."""

    def parts(numbers: Array) -> tuple[Array, Array]:
        first, second = np.split(numbers, 2)
        return 1 / (1 + np.exp(-first)), np.exp(second)

    def made(numbers: Array) -> BufferedToeplitz:
        decays, scales = parts(numbers)
        decays = np.minimum(decays, 1 - 2.0**-40)
        return BufferedToeplitz(tuple(decays.tolist()), tuple(scales.tolist()))

    def slope(numbers: Array, of_column: Array) -> Array:
        decays, scales = parts(numbers)
        powers = np.arange(len(of_column) - 1)
        table = np.power.outer(decays, powers)
        below = np.power.outer(decays, np.maximum(powers - 1, 0)) * powers
        rest = of_column[1:]
        of_decays = scales * (below @ rest) * decays * (1 - decays)
        return np.concatenate([of_decays, scales * (table @ rest)])

    decays = np.clip(start.decays, _SMALLEST, 1 - _SMALLEST)
    return _Family(
        np.concatenate([np.log(decays / (1 - decays)), np.log(start.scales)]),
        made,
        slope,
    )


@_family.register
def _(start: InverseToeplitz) -> _Family:
    """Parts are `e^x_k / (1 + sum_j e^x_j)`, so that they add up to below 1."""

    def parts(numbers: Array) -> Array:
        powers = np.exp(numbers)
        return np.asarray(powers / (1 + powers.sum()))

    def made(numbers: Array) -> InverseToeplitz:
        return InverseToeplitz((1.0, *(-parts(numbers)).tolist()))

    def slope(numbers: Array, of_column: Array) -> Array:
        column = made(numbers).first_column(len(of_column))
        # The change of 1/r with -r_k is the square of 1/r, moved by k.
        square = _product(column, column)
        of_parts = _correlation(of_column, square)[1 : len(numbers) + 1]
        padded = np.zeros(len(numbers))
        padded[: len(of_parts)] = of_parts
        own = parts(numbers)
        return own * (padded - own @ padded)

    given = np.maximum(-np.array(start.coefficients[1:]), _SMALLEST)
    left = max(1 - given.sum(), _SMALLEST)
    return _Family(np.log(given / left), made, slope)


class _Objective(NamedTuple):
    """The logarithm of the squared error, with its gradient."""

    rounds: int
    min_separation: int
    max_participations: int | None

    def __call__(self, column: Array) -> tuple[float, Array]:
        """Returns the value and the gradient for a first column."""
        weights = np.arange(self.rounds, 0, -1)
        inverse = _reciprocal(column)
        noise = np.cumsum(inverse)
        error = np.square(noise) @ weights
        of_inverse = np.cumsum((2 * weights * noise)[::-1])[::-1]
        of_error = -_correlation(of_inverse, _product(inverse, inverse))

        square, of_square = self._square(column)
        value = float(np.log(error) + np.log(square))
        return value, of_error / error + of_square / square

    def _square(self, column: Array) -> tuple[float, Array]:
        """Returns the square of the sensitivity, and its gradient."""
        cycles = -(-self.rounds // self.min_separation)
        most = min(self.max_participations or cycles, cycles)
        sizes = np.abs(column)
        # The entry that is the largest from each one on.
        largest = np.arange(self.rounds)
        if most > 1 and np.flatnonzero(column)[-1] >= self.min_separation:
            above = np.maximum.accumulate(sizes[::-1])[::-1]
            own = np.where(sizes == above, largest, self.rounds)
            largest = np.minimum.accumulate(own[::-1])[::-1]
        moved = np.zeros(self.rounds)
        shifts = np.arange(most) * self.min_separation
        for shift in shifts:
            moved[shift:] += sizes[largest][: self.rounds - shift]
        slope = np.zeros(self.rounds)
        for shift in shifts:
            slope[: self.rounds - shift] += 2 * moved[shift:]
        of_sizes = np.bincount(largest, slope, self.rounds)
        return float(moved @ moved), np.sign(column) * of_sizes


def _reciprocal(column: Array) -> Array:
    """Returns the first column of the inverse of a Toeplitz matrix."""
    from scipy import signal

    one = np.zeros(len(column))
    one[0] = 1.0
    last = int(np.flatnonzero(column)[-1])
    return np.asarray(signal.lfilter([1.0], column[: last + 1], one))


def _product(one: Array, other: Array) -> Array:
    """Returns the first column of the product of two Toeplitz matrices."""
    from scipy import signal

    return np.asarray(signal.fftconvolve(one, other)[: len(one)])


def _correlation(values: Array, column: Array) -> Array:
    """Returns the product of the transpose of a Toeplitz with `values`."""
    return _product(values[::-1], column)[::-1]
