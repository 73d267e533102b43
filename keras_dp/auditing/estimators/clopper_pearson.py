"""Bounds epsilon by the rates of a threshold, with binomial intervals."""

import dataclasses
import math

import numpy as np
from scipy import stats

from keras_dp.accountants.arrays import Array
from keras_dp.auditing.lower_bound import LowerBound, check_question
from keras_dp.auditing.scores import Scores

_ASSUMPTIONS = (
    "the scores are independent: each is of a training of its own, or of a "
    "canary that no other canary influences",
    "all inside scores have one distribution, and all outside scores have one",
)


@dataclasses.dataclass(frozen=True, slots=True)
class ClopperPearson:
    """Bounds the rates of a threshold, with exact binomial intervals.

    A decision with the true positive rate `p` and the false positive rate `q`
    refutes every `epsilon < log((p - delta) / q)`. Use it for many trainings
    with one canary each. The scores of several canaries in one training depend
    on the same noise. The bound then holds only if they are independent all the
    same, as projections of Gaussian noise on orthogonal directions are.

    The thresholds are the 1st, 2nd, 4th, 8th, ... highest outside scores, and
    the lowest inside scores of the same ranks. The probability that an outside
    score is above the k-th highest one has the distribution
    Beta(k, outside - k + 1) or a smaller value. The inside scores are
    independent of this threshold. The error probability is divided by the
    number of intervals.

    Source: Jagielski, Ullman, Oprea (2020), arXiv:2006.07709v1; Clopper and
    Pearson (1934), Biometrika 26. Our thresholds differ from theirs.

    >>> scores = Scores(np.arange(900.0, 1900.0), np.arange(0.0, 1000.0))
    >>> found = ClopperPearson().epsilon(scores, delta=1e-5)
    >>> round(found.epsilon, 2), found.statistic
    (4.87, '900 of 1,000 inside and 0 of 1,000 outside above 999')
    """

    def epsilon(
        self, scores: Scores, *, delta: float, confidence: float = 0.95
    ) -> LowerBound:
        """Returns the largest bound of all thresholds, in both directions.

        Args:
            scores: The scores of all canaries.
            delta: In [0, 1).
            confidence: In (0, 1).
        """
        check_question(delta, confidence)
        inside, outside = scores.inside, scores.outside
        ranks = _ranks(outside.size), _ranks(inside.size)
        error = (1 - confidence) / max(1, 2 * sum(map(len, ranks)))
        bounds = [(0.0, "no threshold shows a difference")]
        for rank in ranks[0]:
            found, threshold = _refuted(outside, inside, rank, delta, error)
            bounds.append((found, _counted("above", threshold, scores)))
        for rank in ranks[1]:
            found, threshold = _refuted(-inside, -outside, rank, delta, error)
            bounds.append((found, _counted("below", -threshold, scores)))
        epsilon, statistic = max(bounds, key=lambda each: each[0])
        return LowerBound(
            epsilon,
            delta,
            confidence,
            scores.neighbours,
            type(self).__name__,
            statistic,
            _ASSUMPTIONS,
        )


def _ranks(size: int) -> list[int]:
    return [2**power for power in range(size.bit_length())]


def _refuted(
    false: Array, true: Array, rank: int, delta: float, error: float
) -> tuple[float, float]:
    """Returns the epsilon that a threshold refutes, and the threshold."""
    threshold = float(np.sort(false)[-rank])
    hits = int(np.count_nonzero(true > threshold))
    if not hits:
        return 0.0, threshold
    least = stats.beta.ppf(error, hits, true.size - hits + 1)
    most = stats.beta.isf(error, rank, false.size - rank + 1)
    if least - delta <= most:
        return 0.0, threshold
    return math.log((least - delta) / most), threshold


def _counted(side: str, threshold: float, scores: Scores) -> str:
    beyond = np.greater if side == "above" else np.less
    inside, outside = (
        f"{np.count_nonzero(beyond(each, threshold)):,} of {each.size:,}"
        for each in (scores.inside, scores.outside)
    )
    return f"{inside} inside and {outside} outside {side} {threshold:.6g}"
