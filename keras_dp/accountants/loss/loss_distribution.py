"""What one round's privacy loss is, as the tight accountant needs it.

A round has an ordered pair of laws `P`, `Q`. Its privacy loss is `l = log
dP/dQ`, and `M(s) = E_P[e^(s l)] = E_Q[e^((1+s) l)]` its moment generating
function. Losses are finite here: `P` and `Q` have the same null sets.
"""

import abc
from typing import NamedTuple

from keras_dp.accountants.arrays import Array


class Nodes(NamedTuple):
    """Points and weights that stand for `Q` in integrals of the loss.

    Each of shape `[n]`:

        M(s) = 1 + sum_j q_j (e^((1+s) l_j) - 1 - (1+s) (e^(l_j) - 1)),

    as `E_Q[e^l] = 1`. For small losses nothing cancels in the bracket.
    Weights sum to 1, to within the error.

    Attributes:
        losses: `l_j`, in nats.
        log_weights: `log q_j`.
        log_error: Log of a bound on `|error| / M(Re s)`, for the `s` that
            were asked for.
    """

    losses: Array
    log_weights: Array
    log_error: float


class Layers(NamedTuple):
    """Uniform laws within a law: it is a mixture of them and of a rest.

    Attributes:
        probabilities: Of each uniform law, > 0, sum at most 1; shape `[n]`.
        widths: Of the intervals, in nats, > 0; shape `[n]`.
    """

    probabilities: Array
    widths: Array


class LossLaw(abc.ABC):
    """The law of one round's loss, for one order of `P` and `Q`."""

    __slots__ = ()

    @property
    @abc.abstractmethod
    def support(self) -> tuple[float, float]:
        """The least interval that holds all losses; may be infinite."""

    @property
    def is_bound(self) -> bool:
        """Whether `log_masses` are those of a law that dominates the true one.

        `nodes` say with `log_error` how far apart the two are.
        """
        return False

    @abc.abstractmethod
    def nodes(self, least_tilt: float, tilt: float, frequency: float) -> Nodes:
        """Returns nodes for all `s` in a rectangle.

        Args:
            least_tilt: Lower end of `Re s`, > -1.
            tilt: Upper end of it, at least `least_tilt`.
            frequency: Upper end of `|Im s|`, >= 0.

        Raises:
            TooSlowError: There would be too many.
        """

    @abc.abstractmethod
    def log_masses(self, edges: Array) -> tuple[Array, Array]:
        """Returns logs of the masses of `P` and of `Q` between losses.

        Args:
            edges: Losses in strictly rising order, shape `[n]`.

        Returns:
            Both of shape `[n + 1]`, the first for losses below `edges[0]`, the
            last for those above `edges[-1]`; `-inf` where there is nothing.
            Relatively precise also far out in the tails.
        """

    @abc.abstractmethod
    def layers(self, tilt: float) -> Layers:
        """Returns uniform laws in the law `e^(tilt l) dP / M(tilt)` of losses.

        What they leave out costs time, not truth: with `p_k`, `w_k` the
        probabilities and widths, `|M(tilt + i t)| / M(tilt)` is at most
        `1 - sum_k p_k (1 - |sinc(t w_k / 2)|)`, for every `t`.
        """
