"""How fast a characteristic function falls, for all frequencies at once."""

from typing import NamedTuple

import numpy as np

from keras_dp.accountants.arrays import Array

# Quadratures are off by more than the exponential of it.
_LEAST = -30.0


class Decay(NamedTuple):
    """Integrals of the size of `e^((1+s) l) Q` on paths of several heights.

    An analytic integrand has the same integral on every path. The integral of
    its size bounds that, and falls with the frequency `t` as `|e^(i t l)| =
    e^(-t Im l)`. Each row is one path.

    Attributes:
        log_sizes: Log of the size at `t = 0`, times the step, over `M(tilt)`.
        turns: `Im l` >= 0, of the same shape.
    """

    log_sizes: Array
    turns: Array

    def log_size(self, frequency: float) -> float:
        """Returns a bound on `log |M(c + i t) / M(c)|`, `t >= frequency`."""
        logs = self.log_sizes - frequency * self.turns
        peaks = logs.max(axis=1)
        totals = np.exp(logs - peaks[:, None]).sum(axis=1)
        least = float((peaks + np.log(totals)).min())
        return min(max(least, _LEAST), 0.0)


# A loss of which nothing is known.
NO_DECAY = Decay(np.zeros((1, 1)), np.zeros((1, 1)))
