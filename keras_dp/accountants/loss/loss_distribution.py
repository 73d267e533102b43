"""The privacy loss distribution (PLD) of one round, in one direction.

A round has a dominating pair of distributions `P`, `Q` for each adjacency
direction (a record is removed, or added). Its privacy loss is `l = log dP/dQ`
under `P`, and `M(s) = E_P[e^(s l)] = E_Q[e^((1+s) l)]` is the moment generating
function. Losses are finite here: `P` and `Q` have the same null sets.
"""

import abc
from typing import NamedTuple

import numpy as np

from keras_dp.accountants.arrays import Array, Complex

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


class Nodes(NamedTuple):
    """Points and weights that stand for `Q` in integrals of the loss.

    Each of shape `[n]`:

        M(s) = 1 + sum_j q_j (e^((1+s) l_j) - 1 - (1+s) (e^(l_j) - 1)),

    as `E_Q[e^l] = 1`. For small losses nothing cancels in the bracket.

    Attributes:
        losses: `l_j`, in nats.
        log_weights: `log q_j`.
        log_error: Log of a bound on `|error| / M(Re s)`, for the `s` that
            were asked for.
    """

    losses: Array
    log_weights: Array
    log_error: float


class Path(NamedTuple):
    """Nodes on a path above the real line, for `s` with `Im s >= 0`.

    The loss is an analytic function of the output. Where the output moves into
    the complex plane, to the side on which `Im l > 0`, the factor
    `|e^(i t l)|` is at most 1: few nodes do for every frequency `t`.

    Attributes:
        losses: `l_j`, complex, with `Im l_j >= 0`.
        log_weights: `log q_j`, complex.
        log_error: See `Nodes`.
    """

    losses: Complex
    log_weights: Complex
    log_error: float


class LossDistribution(abc.ABC):
    """The privacy loss of one round, in one adjacency direction."""

    __slots__ = ()

    @property
    @abc.abstractmethod
    def largest(self) -> float:
        """The supremum of all losses, in nats; may be infinite."""

    @abc.abstractmethod
    def nodes(self, tilt: float) -> Nodes:
        """Returns real nodes for real `s` in `(0, tilt]`.

        Raises:
            TooSlowError: There would be too many.
        """

    @abc.abstractmethod
    def path(self, tilt: float, frequency: float) -> Path:
        """Returns nodes for `s = tilt + i t`, `0 <= t <= frequency`.

        Raises:
            TooSlowError: There would be too many.
        """

    @abc.abstractmethod
    def decay(self, tilt: float) -> Decay:
        """Returns how fast `M(tilt + i t)` falls with `t`, at least.

        Where less is known than is true, it costs time or width, not truth.
        """
