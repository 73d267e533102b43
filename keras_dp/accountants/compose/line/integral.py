"""Delta of composed rounds, by an integral along a vertical line.

With `K(s)` the sum of the logs of the moment generating functions of the
rounds' privacy losses, and any `c > 0`,

    delta(e) = 1/(2 pi i) int_(c-i inf)^(c+i inf) e^(K(s) - s e) / (s (s+1)) ds.

Next to the saddle point nothing cancels: precision is relative, `1e-30` is as
easy as `1e-5`. The errors of the trapezoidal rule, of the end of the line, of
the quadrature of `K` and of rounding are bounded and added, or subtracted.
Where the integrand falls too slowly, `smoothing` ends the line.

Source: Zhu, Dong, Wang (2022), arXiv:2106.08567v4, for the characteristic
function of the loss. The line, its saddle point and the bounds are ours.
"""

from keras_dp.accountants.compose.composition import Composition
from keras_dp.accountants.compose.line.line import lines_at, place_near
from keras_dp.accountants.compose.line.smoothing import (
    Profile,
    smoothed,
    smoothed_by,
    width_of,
)
from keras_dp.errors import TooSlowError

# Tolerated error of delta, as a share of what the width allows.
_SHARE = 0.1
# Shares of the best tilt that may do as well.
_LOWER = (1.0, 0.35, 0.12, 0.04)
# A line is not worth its time if smoothing leaves this share of the width.
_WORTHWHILE = 0.5


def bounds_near(
    composition: Composition,
    tilt: float,
    epsilon: float,
    log_delta: float,
    slope: float,
    width: float,
    known: float,
) -> Profile:
    """Returns bounds on delta that are good next to an epsilon.

    Args:
        composition: The rounds to be integrated.
        tilt: The tilt of the best bound by moments.
        epsilon: Where the bounds are to be good.
        log_delta: About what delta is there.
        slope: About how fast log delta falls with epsilon.
        width: How far apart bounds on log delta may be.
        known: How far apart they are already.

    Raises:
        TooSlowError: The line is too long, or a moment has no quadrature.
        NumericalLimitError: A moment is not finite.
    """
    tolerance = _SHARE * width / max(slope * epsilon, 1.0)
    place = None
    for each in _LOWER:
        try:
            place = place_near(
                composition, each * tilt, epsilon, log_delta, tolerance
            )
        except TooSlowError:  # Nodes are fewer at a lower tilt.
            continue
        break
    if place is None:
        raise TooSlowError
    smoothing = width_of(place, composition, epsilon, slope, width)
    if smoothing and smoothed_by(smoothing, slope) > _WORTHWHILE * known:
        raise TooSlowError
    if not smoothing:
        (line,) = lines_at(place, [composition], epsilon)
        return Profile(line, None, 0.0)
    noisier, noisiest, share = smoothed(composition, smoothing)
    line, wider = lines_at(place, [noisier, noisiest], epsilon)
    return Profile(line, wider, share)
