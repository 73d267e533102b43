"""A lower bound on epsilon, with its assumptions."""

import dataclasses
from collections.abc import Callable
from typing import Protocol

from keras_dp import _check
from keras_dp.accountants.normalize.adjacency import Neighbours
from keras_dp.accountants.roots import last_true
from keras_dp.auditing.scores import Scores

# Bounds are at least this near to the largest refuted value.
_NEAREST = 1e-9
# No number of canaries refutes more, and exp() of it is finite.
_LARGEST = 2.0**9


@dataclasses.dataclass(frozen=True, slots=True)
class LowerBound:
    """A lower bound on epsilon, computed from the scores of canaries.

    Guarantee: suppose that the assumptions hold, and that the training is
    `(e, delta)`-private under `neighbours`. Then `epsilon <= e` with a
    probability of at least `confidence`, over the coins of the canaries and
    the noise of the training. In the remaining cases the bound is wrong, and
    nothing shows it.

    A bound far below the ledger's epsilon does not confirm the ledger. The
    attack and the canaries may be weak, and the canaries may be few.

    Attributes:
        epsilon: The bound, finite and >= 0. A bound of 0 has no information.
        delta: The delta of the bound, in [0, 1).
        confidence: The probability that the bound holds, in (0, 1).
        neighbours: The adjacency relation.
        estimator: The name of the class that computed the bound.
        statistic: The counts or the measurement, in words.
        assumptions: Sentences. If one of them fails, the guarantee does too.
    """

    epsilon: float
    delta: float
    confidence: float
    neighbours: Neighbours
    estimator: str
    statistic: str
    assumptions: tuple[str, ...]


class Estimator(Protocol):
    """Computes a lower bound on epsilon from scores."""

    def epsilon(
        self, scores: Scores, *, delta: float, confidence: float = 0.95
    ) -> LowerBound:
        """Returns the bound. Its epsilon is 0 if there are too few canaries."""


def check_question(delta: float, confidence: float) -> None:
    """Raises unless `delta` is in [0, 1) and `confidence` in (0, 1)."""
    remedy = " Choose the delta of the ledger's claim."
    _check.share("[0, 1)", remedy, delta=delta)
    _check.share("(0, 1)", " Choose, for example, 0.95.", confidence=confidence)


def largest_refuted(refutes: Callable[[float], bool]) -> float:
    """Returns a refuted value near the largest one, or 0 if there is none.

    Args:
        refutes: Whether the scores refute a value > 0. If they refute a value,
            they must refute every smaller one.
    """
    refuted, other = 0.0, 1.0
    while other < _LARGEST and refutes(other):
        refuted, other = other, 2 * other
    return last_true(refutes, refuted, other, nearest=_NEAREST, share=_NEAREST)
