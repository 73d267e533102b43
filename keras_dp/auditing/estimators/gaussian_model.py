"""Bounds epsilon by the distance of the means of normal scores."""

import dataclasses
import math

import numpy as np
from scipy import stats

from keras_dp.accountants.loss.gaussian_profile import least_epsilon
from keras_dp.auditing.lower_bound import (
    LowerBound,
    check_question,
    largest_refuted,
)
from keras_dp.auditing.scores import Scores

_ASSUMPTIONS = (
    "the scores are independent and normal, with one variance for all and one "
    "mean for each of the two groups",
)
# `least_epsilon` rounds up by less.
_ROUND_DOWN = 1e-9


@dataclasses.dataclass(frozen=True, slots=True)
class GaussianModel:
    """Bounds the distance between the means of normal scores.

    Suppose that the scores are normal with one variance. Then a score is one
    Gaussian release of sensitivity `mu`, the distance between the means in
    standard deviations, and the training is no more private than that. The
    lower bound on `mu` is exact for normal scores (noncentral t). It needs few
    canaries, but extrapolates: at delta = 1e-5 the result depends on tails of
    the normal distribution that a thousand scores do not show.

    Projections of a noised sum of gradients on the directions of canaries are
    nearly normal. Losses are not.

    Source: Andrew, Kairouz, Oh, Oprea, McMahan, Suriyakumar (2023),
    arXiv:2302.03098v5, in its white-box form, to which we add a confidence;
    Johnson and Welch (1940), Biometrika 31, for the noncentral t.

    >>> inside = stats.norm.ppf(np.linspace(0.001, 0.999, 1000), loc=1)
    >>> scores = Scores(inside, inside - 1)
    >>> found = GaussianModel().epsilon(scores, delta=1e-5)
    >>> round(found.epsilon, 2), found.statistic
    (4.01, 'means 1.00554 stddevs apart, 1,000 inside and 1,000 outside')
    """

    def epsilon(
        self, scores: Scores, *, delta: float, confidence: float = 0.95
    ) -> LowerBound:
        """Returns the epsilon of a lower bound on the distance of the means.

        Args:
            scores: The scores of all canaries.
            delta: In (0, 1).
            confidence: In (0, 1).
        """
        check_question(delta, confidence)
        mu, statistic = 0.0, "too few scores, or all alike"
        sizes = scores.inside.size, scores.outside.size
        if min(sizes) and sum(sizes) > 2:
            distance = _distance(scores)
            if math.isfinite(distance):
                mu = _least_distance(distance, sizes, 1 - confidence)
                statistic = (
                    f"means {distance:.6g} stddevs apart, {sizes[0]:,} inside "
                    f"and {sizes[1]:,} outside"
                )
        return LowerBound(
            gaussian_epsilon(mu, delta),
            delta,
            confidence,
            scores.neighbours,
            type(self).__name__,
            statistic,
            _ASSUMPTIONS,
        )


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Returns the epsilon of one Gaussian release, rounded down.

    Args:
        mu: The sensitivity in noise stddevs, >= 0.
        delta: In (0, 1). At 0, no epsilon is finite.
    """
    if delta == 0:
        raise ValueError(
            "`delta` must be > 0, because a Gaussian release has no finite "
            f"epsilon at 0. Received: delta={delta!r}. Choose the delta of the "
            "ledger's claim."
        )
    if mu == 0:
        return 0.0
    found = least_epsilon(np.array([mu]), np.array([math.log(delta)]))[0]
    return float(found) * (1 - _ROUND_DOWN)


def _distance(scores: Scores) -> float:
    """Returns the distance of the means in stddevs; `nan` if those are 0."""
    inside, outside = scores.inside, scores.outside
    squares = np.sum((inside - inside.mean()) ** 2)
    squares += np.sum((outside - outside.mean()) ** 2)
    if squares == 0:
        return math.nan
    stddev = math.sqrt(squares / (len(scores) - 2))
    return float((inside.mean() - outside.mean()) / stddev)


def _least_distance(
    distance: float, sizes: tuple[int, int], error: float
) -> float:
    """Returns a lower bound on the distance, wrong with chance `error`."""
    freedom = sizes[0] + sizes[1] - 2
    root = math.sqrt(sizes[0] * sizes[1] / (sizes[0] + sizes[1]))
    return largest_refuted(
        lambda mu: bool(
            stats.nct.sf(distance * root, freedom, mu * root) <= error
        )
    )
