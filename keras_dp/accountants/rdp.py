"""Rényi differential privacy: a bound for all kinds of rounds but three."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import ClassVar, Literal, TypeAlias, get_args

import numpy as np

from keras_dp._override import override
from keras_dp.accountants.accountant import Accountant
from keras_dp.accountants.arrays import Array
from keras_dp.accountants.groups import Profile
from keras_dp.accountants.loss.loss_distribution import conversion
from keras_dp.accountants.normalize.mechanisms import (
    CountedMechanism,
    Mechanism,
)
from keras_dp.accountants.renyi.divergences import (
    LOG_MOMENTS,
    check_moments,
    composed_log_moment,
)

# Octaves of `order - 1` that are tried first, the outermost ones, and how many
# are added at once. Large orders take long, so few are tried in vain.
_FIRST_OCTAVE, _LAST_OCTAVE = -6, 4
_LOWEST_OCTAVE, _HIGHEST_OCTAVE = -60, 30
_EXTENSION = 4
# Three zooms leave 0.003 octaves, on which the function is smooth; the parabola
# through the best three points then finds the minimum.
_ZOOMS = 3
_POINTS = 16


def least_over_orders(objective: Callable[[Array], Array]) -> float:
    """Returns the least value of `objective` over all orders.

    The objective takes `order - 1`, an array. Every value is a valid bound, so
    that the search decides how tight the result is, never whether it is true.
    The log moment is convex in the order. So is what the improved conversion
    adds to it, `(a-1) log(a-1) - a log a`. Delta is the exponential of a convex
    function, then, and epsilon a convex function over `a - 1`: both have one
    minimum. It is bracketed by octaves, as far out as need be, and zoomed in
    on.
    """
    octaves = np.arange(_FIRST_OCTAVE, _LAST_OCTAVE + 1.0)
    values = objective(2.0**octaves)
    while (more := _beyond(octaves, int(np.argmin(values)))).size:
        octaves = np.concatenate([octaves, more])
        values = np.concatenate([values, objective(2.0**more)])
        order = np.argsort(octaves, kind="stable")
        octaves, values = octaves[order], values[order]
    least_value = float(values.min())
    for _ in range(_ZOOMS):
        best = int(np.argmin(values))
        low = octaves[max(best - 1, 0)]
        high = octaves[min(best + 1, octaves.size - 1)]
        octaves = np.linspace(low, high, _POINTS)
        values = objective(2.0**octaves)
        least_value = min(least_value, float(values.min()))
    last = objective(2.0 ** _vertex(octaves, values))
    return min(least_value, float(last[0]))


def _vertex(octaves: Array, values: Array) -> Array:
    """Returns where the parabola through the best three points is least."""
    best = min(max(int(np.argmin(values)), 1), octaves.size - 2)
    near = slice(best - 1, best + 2)
    x = octaves[near] - octaves[best]
    with np.errstate(divide="ignore", invalid="ignore"):
        y = values[near] - values[best]  # NaN if all are infinite.
        numerator = y[2] * x[0] ** 2 - y[0] * x[2] ** 2
        vertex = numerator / (y[2] * x[0] - y[0] * x[2]) / 2
    if not np.isfinite(vertex):  # Constant, or next to an infinite value.
        vertex = 0.0
    return np.array([octaves[best] + min(max(vertex, x[0]), x[2])])


def _beyond(octaves: Array, best: int) -> Array:
    """Returns octaves past the end, if the least value was at an end."""
    if best == 0:
        lowest = max(octaves[0] - _EXTENSION, _LOWEST_OCTAVE)
        return np.arange(lowest, octaves[0])
    if best == octaves.size - 1:
        highest = min(octaves[-1] + _EXTENSION, _HIGHEST_OCTAVE)
        return np.arange(octaves[-1] + 1, highest + 1)
    return np.empty(0)


Conversion: TypeAlias = Literal["improved", "classic", "moments"]

# The error of a sum of a few terms, relative to the largest of them.
_SUM_ERROR = 1e-15
# Replaces a product that overflows; subtracting less still gives a bound.
_LARGEST = 1e300
# The moments of the paper.
_MOMENTS = np.arange(1.0, 33.0)
# Next to order 1 the divergence is that of Kullback and Leibler.
_NEAR_ONE = 1e-6


@dataclasses.dataclass(frozen=True, slots=True)
class RDP(Accountant):
    """Composes Rényi divergences and converts them at the best real order.

    Guarantee: let `R(a)` be the sum over the rounds of their divergences of
    order `a`. For every `a > 1`, the ledger is `(epsilon, delta)`-private with
    the `epsilon` of this table. The result is the least of these over all real
    orders, not over a list of orders. It is typically 7 to 12 % above the least
    true epsilon.

    | `conversion` | `epsilon` |
    | --- | --- |
    | improved | `R(a) + log((a-1)/a) - (log(delta) + log(a)) / (a-1)` |
    | classic | `R(a) - log(delta) / (a-1)` |
    | moments | the same, at `a - 1` = 1, 2, ..., 32 |

    The classic conversion never gives less than the improved one. It is there
    for comparisons with numbers that were published before 2020, and the
    moments accountant for those of Abadi et al. (2016).

    If the total variation distance is at most `delta`, epsilon is 0, but with
    "moments". The distance is bounded from the Kullback-Leibler
    divergence, by the inequalities of Pinsker and of Bretagnolle and Huber.

    | Rounds | Divergence |
    | --- | --- |
    | not sampled | `a / (2 z^2)`, exact |
    | Poisson, one record more or less, or zero | exact, the larger direction |
    | Poisson, one record replaced | exact (see `mechanisms`) |
    | fixed size, one record replaced | a bound (see `renyi.divergences`) |
    | encoded, any noise | to 1e-6, at `renyi.encoded.ORDERS` |
    | a search | a bound (see docs/accounting.md, section 8) |
    | sampled groups | none |

    For encoded sums, orders between those in the table are bounded by a chord
    of the log moment, which is convex.

    Attributes:
        conversion: "improved", "classic" or "moments".

    Source: Mironov (2017), arXiv:1702.07476v3, the classic conversion is its
    Proposition 3; Mironov, Talwar, Zhang (2019), arXiv:1908.10530v1; Wang,
    Balle, Kasiviswanathan (2018), arXiv:1808.00087v2; improved conversion:
    Canonne, Kamath, Steinke (2020), arXiv:2004.00010v4, Proposition 12. We
    differ in the quadrature (`renyi.divergences`) and in searching the order
    instead of taking the best of a list. Moments: Abadi et al. (2016),
    arXiv:1607.00133v2, Theorem 2 and section 3.2.

    >>> from keras_dp.ledger import GaussianSum, PoissonSampling, Round
    >>> step = Round(PoissonSampling(0.01), (GaussianSum("all", 1.0, 4.0),))
    >>> round(RDP().epsilon([(step, 10_000)], delta=1e-5), 3)
    1.035
    >>> classic = RDP(conversion="classic")
    >>> round(classic.epsilon([(step, 10_000)], delta=1e-5), 3)
    1.258
    """

    conversion: Conversion = "improved"

    mechanisms: ClassVar[frozenset[type[Mechanism]]] = frozenset(LOG_MOMENTS)

    def __post_init__(self) -> None:
        if self.conversion not in get_args(Conversion):
            raise ValueError(
                f"`conversion` must be one of {get_args(Conversion)}. "
                f"Received: conversion={self.conversion!r}."
            )

    @property
    @override
    def name(self) -> str:  # type: ignore[override]
        # Reports show which of the conversions was used.
        if self.conversion == "improved":
            return "RDP"
        return f"RDP ({self.conversion} conversion)"

    @override
    def __repr__(self) -> str:
        if self.conversion == "improved":
            return "RDP()"
        return f"RDP(conversion={self.conversion!r})"

    @override
    def check_supported(self, rounds: tuple[CountedMechanism, ...]) -> None:
        # `super()` does not work in dataclasses with slots.
        Accountant.check_supported(self, rounds)
        for mechanism, _ in rounds:
            check_moments(mechanism)

    def _epsilon(
        self, rounds: tuple[CountedMechanism, ...], delta: float
    ) -> float:
        log_moment = functools.partial(composed_log_moment, rounds)
        log_delta = math.log(delta)
        if self.conversion == "moments":
            return float(np.min((log_moment(_MOMENTS) - log_delta) / _MOMENTS))
        if _total_variation_bound(log_moment) <= delta:
            return 0.0

        def epsilon(excess: Array) -> Array:
            terms = [
                log_moment(excess) / excess,
                -log_delta / excess,
            ]
            if self.conversion == "improved":
                terms.append(conversion(excess) / excess)
            return _sum_rounded_up(np.stack(terms))

        return least_over_orders(epsilon)

    def _profile(self, rounds: tuple[CountedMechanism, ...]) -> Profile:
        log_moment = functools.partial(composed_log_moment, rounds)
        if self.conversion == "moments":
            logs = log_moment(_MOMENTS)
            return lambda epsilon: math.exp(
                min(0.0, float(np.min(logs - _MOMENTS * epsilon)))
            )

        def delta(epsilon: float) -> float:
            def log_delta(excess: Array) -> Array:
                with np.errstate(over="ignore"):
                    less = np.minimum(excess * epsilon, _LARGEST)
                terms = [log_moment(excess), -less]
                if self.conversion == "improved":
                    terms.append(conversion(excess))
                return _sum_rounded_up(np.stack(terms))

            least = math.exp(min(0.0, least_over_orders(log_delta)))
            return min(least, _total_variation_bound(log_moment))

        return delta


def _total_variation_bound(log_moment: Callable[[Array], Array]) -> float:
    """Returns a bound on delta at epsilon 0, and so at every epsilon."""
    near_one = np.array([_NEAR_ONE])
    divergence = float(log_moment(near_one)[0]) / _NEAR_ONE
    pinsker = math.sqrt(divergence / 2)
    bretagnolle_huber = math.sqrt(-math.expm1(-divergence))
    return min(pinsker, bretagnolle_huber) * (1 + _SUM_ERROR)


def _sum_rounded_up(terms: Array) -> Array:
    return np.asarray(
        terms.sum(axis=0) + _SUM_ERROR * np.abs(terms).sum(axis=0)
    )
