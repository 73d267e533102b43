"""Delta of composed rounds, as a function of epsilon that has two bounds.

Closed forms are exact. Elsewhere delta is a line integral, or a sum over a
grid. Both are made for one epsilon, and are good for others next to it.
"""

import math
from typing import NamedTuple, Protocol

from keras_dp.accountants.compose import (
    integral,
    small_losses,
)
from keras_dp.accountants.compose.composition import (
    Composition,
    MomentBounds,
    square_without_sampling,
)
from keras_dp.accountants.compose.integral import Target
from keras_dp.accountants.loss import gaussian_profile
from keras_dp.accountants.loss.fixed_size import FixedSizeLoss
from keras_dp.accountants.loss.mixture import MixtureLoss
from keras_dp.errors import NumericalLimitError, TooSlowError

# An upper bound on how far `gaussian_profile` rounds up.
_PROFILE_ERROR = 1e-11
# The largest share by which normalization rounds noise multipliers down.
_ROUNDED_DOWN = 1.1e-11
# Methods raise these for rounds that they cannot handle, and nothing else.
_OUT_OF_REACH = (TooSlowError, NumericalLimitError)

CLOSED_FORM = "closed form"
LINE = "line integral"
MOMENTS = "bound by moments"
WITHOUT_SAMPLING = "closed form without sampling"
GRID = "convolution of likelihood ratios"
# A line is long where losses are so small: their stddev, and its product with
# the tilt of the line.
_TINY, _SHORT_LINE = 1e-5, 0.01
# Bounds on epsilon of a line are this far apart, as a share, where a grid may
# have better ones.
_WIDE = 5e-7
# A line is as good as it gets where log delta is this near, in nats, and a grid
# where it is that near.
NEAR, _NEAR_ON_GRID = 0.3, 10.0
# First guess of log delta: this far below the bound by moments. The next ones
# are lower by this.
_BELOW, _FURTHER = 3.0, 30.0
# A line is made again for a better guess if this one left less of the width.
_WORTHWHILE, _MOST_GUESSES = 0.5, 9
# No width of log delta is less.
_LEAST_WIDTH = 1e-12
# So far below the delta that is given, in nats, it does not matter where log
# delta is.
LOWEST = 30.0
# The width of a line as a share of epsilon if the one that is wanted is too
# long.
FIRST_WIDTH = 1e-2


class DeltaBounds(NamedTuple):
    """Bounds on log delta, and the method of the upper one."""

    lower: float
    upper: float
    method: str

    @property
    def width(self) -> float:
        """How far apart they are."""
        return self.upper - self.lower if self.upper > self.lower else 0.0

    def tightened(
        self, lower: float, upper: float, method: str
    ) -> "DeltaBounds":
        """Returns the better bounds of these and of others."""
        # NaN, and bounds that contradict others, would be defects. They must
        # not pass for bounds.
        if not (lower <= upper and lower <= self.upper and self.lower <= upper):
            return self
        best = method if upper < self.upper else self.method
        return DeltaBounds(max(lower, self.lower), min(upper, self.upper), best)


class Side(Protocol):
    """Bounds on delta as a function of epsilon."""

    def log_delta(
        self, epsilon: float, floor: float = -math.inf
    ) -> DeltaBounds:
        """Returns bounds on log delta that are known already.

        Below `floor` it does not matter where log delta is.
        """

    def prepare(
        self, epsilon: float, width: float, log_delta: float | None = None
    ) -> None:
        """Makes bounds that are good next to an epsilon.

        Bounds on log delta may be `width` apart. If the log of a delta is given
        whose epsilon is looked for, bounds on epsilon may be apart by that
        share.
        """


class _Bounds(Protocol):
    def log_delta(self, epsilon: float) -> tuple[float, float]:
        """Returns a lower and an upper bound on the log of delta."""


class Curve(Side):
    """Delta of one adjacency direction of all rounds."""

    def __init__(self, composition: Composition) -> None:
        self.composition = composition
        self._largest = composition.largest
        self._moments = MomentBounds(composition)
        # The last bounds of each method, and what was tried last.
        self._made: dict[str, _Bounds] = {}
        self._tried: dict[str, Target] = {}
        self._asked: tuple[float, float, float | None] | None = None

    def log_delta(
        self, epsilon: float, floor: float = -math.inf
    ) -> DeltaBounds:
        """See `Side`."""
        found = self._closed(epsilon)
        if found is not None:
            return found
        found = DeltaBounds(-math.inf, math.inf, MOMENTS)
        try:
            best = self._moments.log_delta(epsilon)
            found = found._replace(upper=best.log_delta)
        except _OUT_OF_REACH:
            return self._without_sampling(epsilon)
        for method, bounds in self._made.items():
            if found.upper > floor:
                found = found.tightened(*bounds.log_delta(epsilon), method)
        return found

    def prepare(
        self, epsilon: float, width: float, log_delta: float | None = None
    ) -> None:
        """See `Side`."""
        asked = epsilon, width, log_delta
        if self._asked == asked or self._closed(epsilon) is not None:
            return
        self._asked = asked
        try:
            tilt = self._moments.log_delta(epsilon).tilt
            ways = self._ways(tilt)
        except _OUT_OF_REACH:
            return
        apart = width
        if log_delta is not None:
            # The first bounds only tell where the next ones must be good.
            ways = ways[:1] if width >= FIRST_WIDTH else ways
            width *= self._slope(epsilon, tilt) * epsilon
            width = max(width, _LEAST_WIDTH)
        for method, wide in ways:
            enough = max(width, wide * tilt * epsilon)
            if self.log_delta(epsilon).width <= enough:
                return
            if method == GRID:
                self._make_grid(epsilon, log_delta, apart)
            elif log_delta is None:
                self._make_lines(epsilon, width)
            else:
                self._make_line(epsilon, log_delta, width)
        if self.log_delta(epsilon).method == MOMENTS:
            self._moments.refine(epsilon)

    def _closed(self, epsilon: float) -> DeltaBounds | None:
        """Returns what needs no integral: `None` where nothing is."""
        composition = self.composition
        if not composition.losses:
            mu = math.sqrt(composition.gaussian)
            upper = gaussian_profile.log_delta(mu * (1 + 1e-15), epsilon)
            lower = gaussian_profile.log_delta(
                mu * (1 - _ROUNDED_DOWN), epsilon
            )
            error = _PROFILE_ERROR * (1 - float(upper))
            return DeltaBounds(float(lower) - error, float(upper), CLOSED_FORM)
        if epsilon >= self._largest:
            return DeltaBounds(-math.inf, -math.inf, CLOSED_FORM)
        loss = composition.losses[0]
        if (
            composition.gaussian == 0
            and composition.counts.sum() == 1
            and isinstance(loss, MixtureLoss)
            and len(loss.probabilities) == 2
        ):
            found = gaussian_profile.log_delta_bounds(loss, epsilon)
            return DeltaBounds(*found, CLOSED_FORM)
        return None

    def _without_sampling(self, epsilon: float) -> DeltaBounds:
        """Returns a bound where there is too little noise for moments."""
        square = square_without_sampling(self.composition)
        if square == math.inf:
            return DeltaBounds(-math.inf, math.inf, MOMENTS)
        upper = gaussian_profile.log_delta(math.sqrt(square), epsilon)
        return DeltaBounds(-math.inf, float(upper), WITHOUT_SAMPLING)

    def _ways(self, tilt: float) -> list[tuple[str, float]]:
        """Returns methods in the order in which they are tried.

        And the width, as a share of epsilon, of bounds that are too narrow for
        each.
        """
        if not small_losses.supports(self.composition):
            return [(LINE, 0.0)]
        # The line of samples of fixed size is no longer where losses are small.
        spread = math.inf
        if not any(
            isinstance(each, FixedSizeLoss) for each in self.composition.losses
        ):
            spread = self._moments.stddev()
        if spread <= _TINY or tilt * spread <= _SHORT_LINE:
            return [(GRID, 0.0), (LINE, 0.0)]
        return [(LINE, 0.0), (GRID, _WIDE)]

    def _make_grid(
        self, epsilon: float, log_delta: float | None, width: float
    ) -> None:
        """Makes bounds on a grid, unless there are some."""
        guess = log_delta
        if guess is None:
            found = self.log_delta(epsilon)
            guess = max(found.lower, found.upper - _BELOW)
        last = self._tried.get(GRID)
        if last is not None and (
            abs(last.log_delta - guess) <= _NEAR_ON_GRID and last.width <= width
        ):
            return
        self._tried[GRID] = Target(epsilon, guess, 0.0, width)
        try:
            self._made[GRID] = small_losses.bounds_near(
                self.composition,
                epsilon,
                guess,
                width,
                is_given=log_delta is not None,
            )
        except _OUT_OF_REACH:
            return

    def _make_lines(self, epsilon: float, width: float) -> None:
        """Makes lines for lower and lower guesses of delta, while they help."""
        found = self.log_delta(epsilon)
        guess = found.upper - _BELOW
        for _ in range(_MOST_GUESSES):
            if found.lower > -math.inf:
                guess = found.lower
            before = found.width
            if not self._make_line(epsilon, guess, width):
                return
            found = self.log_delta(epsilon)
            if found.width <= width or _WORTHWHILE * before < found.width < (
                math.inf
            ):
                return
            guess -= _FURTHER

    def _make_line(self, epsilon: float, guess: float, width: float) -> bool:
        """Returns whether there is a new line, which is better here."""
        tilt = self._moments.log_delta(epsilon).tilt
        target = Target(epsilon, guess, self._slope(epsilon, tilt), width)
        last = self._tried.get(LINE)
        if last is not None and (
            abs(last.log_delta - guess) <= NEAR
            and abs(last.epsilon - epsilon) * last.slope <= NEAR
            and last.width <= width
        ):
            return False
        self._tried[LINE] = target
        try:
            made = self._line(tilt, target, last)
        except _OUT_OF_REACH:
            return False
        before = self._made.get(LINE)
        if before is not None:
            old, new = before.log_delta(epsilon), made.log_delta(epsilon)
            if old[0] >= new[0] and old[1] <= new[1]:
                return False
        self._made[LINE] = made
        return True

    def _line(
        self, tilt: float, target: Target, last: Target | None
    ) -> _Bounds:
        known = self.log_delta(target.epsilon).width
        try:
            return integral.bounds_near(self.composition, tilt, target, known)
        except TooSlowError:
            wide = FIRST_WIDTH * target.slope * target.epsilon
            if last is not None or known < math.inf or target.width >= wide:
                raise
            target = target._replace(width=wide)
            return integral.bounds_near(self.composition, tilt, target, known)

    def _slope(self, epsilon: float, tilt: float) -> float:
        """Returns about how fast log delta falls with epsilon."""
        if LINE not in self._made:
            # Epsilon is of the size of the losses.
            at = 1 / epsilon if epsilon and GRID in self._made else 0.0
            return max(tilt, at)
        near = 0.05 / tilt
        here = self._made[LINE].log_delta(epsilon)[1]
        there = self._made[LINE].log_delta(epsilon + near)[1]
        if not math.isfinite(here) or not math.isfinite(there):
            return tilt / 2
        return max((here - there) / near, tilt / 2)
