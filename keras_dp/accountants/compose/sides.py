"""Delta of several parts together, as a function of epsilon."""

import math
from typing import NamedTuple

import numpy as np

from keras_dp.accountants.compose.curve import (
    CLOSED_FORM,
    LOWEST,
    MOMENTS,
    Found,
    Side,
)

# More than the rounding of a logarithm, as a share of it.
_ROUND_UP = 1e-15


class Known(NamedTuple):
    """The same bounds for every epsilon."""

    found: Found

    def log_delta(self, epsilon: float, floor: float = -math.inf) -> Found:
        """See `Side`."""
        return self.found

    def prepare(
        self, epsilon: float, width: float, log_delta: float | None = None
    ) -> None:
        """See `Side`."""


# Rounds of which nothing is known, and no rounds.
UNKNOWN = Known(Found(-math.inf, 0.0, MOMENTS))
NOTHING = Known(Found(-math.inf, -math.inf, CLOSED_FORM))


class Least(NamedTuple):
    """The least of several upper bounds.

    Attributes:
        sides: Each bounds the same delta from above.
    """

    sides: tuple[Side, ...]

    def log_delta(self, epsilon: float, floor: float = -math.inf) -> Found:
        """See `Side`."""
        some = (each.log_delta(epsilon, floor) for each in self.sides)
        return min(some, key=lambda found: found.upper)

    def prepare(
        self, epsilon: float, width: float, log_delta: float | None = None
    ) -> None:
        """See `Side`."""
        for each in self.sides:
            each.prepare(epsilon, width, log_delta)


class Largest(NamedTuple):
    """The largest of several deltas.

    Attributes:
        sides: One for each delta.
        more: To be added to the upper bound on delta.
        chance: That any of it happens: both bounds are multiplied with it.
        remark: To be added to the method.
    """

    sides: tuple[Side, ...]
    more: float = 0.0
    chance: float = 1.0
    remark: str = ""

    def log_delta(self, epsilon: float, floor: float = -math.inf) -> Found:
        """See `Side`."""
        found: list[Found] = []
        lower = -math.inf
        for each in self.sides:
            found.append(each.log_delta(epsilon, max(floor, lower)))
            lower = max(lower, found[-1].lower)
        best = max(found, key=lambda each: each.upper)
        upper, scale = best.upper, _log(self.chance)
        if self.more:
            upper = float(np.logaddexp(upper, _log(self.more)))
            upper += _ROUND_UP * (1 + abs(upper))
        return Found(lower + scale, upper + scale, best.method + self.remark)

    def prepare(
        self, epsilon: float, width: float, log_delta: float | None = None
    ) -> None:
        """See `Side`."""
        found = [each.log_delta(epsilon) for each in self.sides]
        lower = max(each.lower for each in found)
        if log_delta is not None:
            left = log_delta - _log(self.chance)
            log_delta = _log(math.exp(min(left, 0.0)) - self.more)
            lower = max(lower, log_delta - LOWEST)
        for i in np.argsort([-each.upper for each in found]).tolist():
            if found[i].upper > lower or len(found) == 1:
                self.sides[i].prepare(epsilon, width, log_delta)
                lower = max(lower, self.sides[i].log_delta(epsilon).lower)


def _log(delta: float) -> float:
    return math.log(delta) if delta > 0 else -math.inf
