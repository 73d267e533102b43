"""A lower bound on epsilon, with all that it takes for granted."""

import dataclasses
from collections.abc import Callable
from typing import Protocol

from keras_dp import _check
from keras_dp.accountants.normalize.adjacency import Neighbours
from keras_dp.auditing.scores import Scores

# Bounds are this near to the largest value that is refuted, or nearer.
_NEAREST = 1e-9
# No number of canaries refutes more, and exp() of it is finite.
_LARGEST = 2.0**9


@dataclasses.dataclass(frozen=True, slots=True)
class LowerBound:
    """A bound that the scores of canaries show.

    Guarantee: if the assumptions hold, and the training is
    `(e, delta)`-private under `neighbours`, then `epsilon <= e` with a
    probability of at least `confidence`, over the coins of the canaries and
    the noise of the training. It is not known afterwards whether this was one
    of the other times.

    A bound far below the ledger's shows nothing about the ledger: attacks and
    canaries may be weak, and canaries may be few.

    Attributes:
        epsilon: Finite and >= 0. 0 says nothing.
        delta: At which epsilon is given.
        confidence: In (0, 1).
        neighbours: The adjacency relation.
        estimator: The name of the class that computed it.
        statistic: The counts or the measurement, in words.
        assumptions: Sentences. Nothing is claimed where one of them fails.
    """

    epsilon: float
    delta: float
    confidence: float
    neighbours: Neighbours
    estimator: str
    statistic: str
    assumptions: tuple[str, ...]


class Estimator(Protocol):
    """Turns scores into a lower bound on epsilon."""

    def epsilon(
        self, scores: Scores, *, delta: float, confidence: float = 0.95
    ) -> LowerBound:
        """Returns the bound; its epsilon is 0 if canaries are too few."""


def check_question(delta: float, confidence: float) -> None:
    """Raises unless `delta` is in [0, 1) and `confidence` in (0, 1)."""
    _check.finite_non_negative(delta=delta)
    if delta >= 1:
        raise ValueError(
            f"`delta` must be in [0, 1). Received: delta={delta!r}."
        )
    _check.finite_positive(confidence=confidence)
    if confidence >= 1:
        raise ValueError(
            "`confidence` must be in (0, 1). Received: "
            f"confidence={confidence!r}. 0.95 is usual."
        )


def largest_refuted(refutes: Callable[[float], bool]) -> float:
    """Returns a value that is refuted, near the largest; 0 if none is.

    Args:
        refutes: Whether the scores refute a value > 0. Smaller values are
            refuted too.
    """
    refuted, other = 0.0, 1.0
    while other < _LARGEST and refutes(other):
        refuted, other = other, 2 * other
    while other - refuted > _NEAREST * max(1.0, other):
        middle = (refuted + other) / 2
        if refutes(middle):
            refuted = middle
        else:
            other = middle
    return refuted
