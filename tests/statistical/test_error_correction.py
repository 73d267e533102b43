"""The posterior is the frequency of the hypotheses, by simulation.

A hypothesis is drawn, a value within it, and Gaussian noise is
added, all by NumPy. Among the outcomes y in a bin, a hypothesis must be as
frequent as its posterior probability says, averaged over those y. Seeds are
fixed; had they been free, each check would fail for a correct library with
probability `FALSE_ALARM`. Controls show what the check sees.
"""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from keras_dp.dp_queries import GaussianSumQuery
from keras_dp.dp_queries.corrected.error_corrected_query import (
    ErrorCorrectedQuery,
)

FALSE_ALARM = 1e-6
DRAWS = 400_000
BINS = 40

SETTINGS = {
    "some noise": (1.0, 1.0),
    "much noise": (4.0, 1.0),
    "little noise": (0.3, 1.0),
    "a high threshold": (1.0, 2.0),
}


def drawn(stddev, threshold, seed=0):
    """Returns y, and which of down, stop, up it came from, 0 to 2."""
    generator = np.random.default_rng(seed)
    kind = generator.choice(3, DRAWS)
    inside = generator.uniform(-threshold, threshold, DRAWS)
    beyond = threshold + generator.exponential(threshold, DRAWS)
    x = np.where(kind == 1, inside, np.where(kind == 2, beyond, -beyond))
    return x + generator.normal(0, stddev, DRAWS), kind


def posteriors(y, stddev, threshold):
    """Returns the probabilities of down, stop and up, `[3, draws]`."""
    query = ErrorCorrectedQuery(GaussianSumQuery(1.0, stddev), threshold)
    logs = query.log_likelihoods(
        tf.constant(y), tf.constant(stddev, tf.float64)
    )
    weights = np.exp(np.stack(logs))
    return weights / weights.sum(axis=0)


def p_value(kind, y, probabilities):
    """Returns the chance of frequencies as far off, in any bin, at most.

    Exact binomial tests bound the sum of indicators with unequal chances:
    by Hoeffding (1956) it varies less than a binomial of the mean chance.
    """
    order = np.argsort(y)
    chances = []
    for part in np.array_split(order, BINS):
        for own in range(3):
            mean = float(np.clip(probabilities[own, part].mean(), 0, 1))
            hits = int((kind[part] == own).sum())
            law = stats.binom(len(part), mean)
            chances.append(2 * min(law.cdf(hits), law.sf(hits - 1)))
    return min(1.0, min(chances) * len(chances))


@pytest.mark.parametrize("name", SETTINGS)
def test_posteriors_are_frequencies(name):
    y, kind = drawn(*SETTINGS[name])

    assert p_value(kind, y, posteriors(y, *SETTINGS[name])) > FALSE_ALARM


@pytest.mark.full
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("wrong", ["stddev", "threshold"])
def test_the_check_can_fail(name, wrong):
    """Control: a parameter that is half as large again would be seen."""
    stddev, threshold = SETTINGS[name]
    y, kind = drawn(stddev, threshold)
    off = {"stddev": stddev, "threshold": threshold}
    off[wrong] *= 1.5

    assert p_value(kind, y, posteriors(y, **off)) < FALSE_ALARM


@pytest.mark.parametrize("name", SETTINGS)
def test_no_other_cut_offs_are_right_more_often(name):
    """The most probable hypothesis is the best guess there is.

    Among rules with two cut-offs, the empirical best of a fine grid may beat
    it by chance only: by less than 5 standard errors of its hit rate.
    """
    threshold = SETTINGS[name][1]
    y, kind = drawn(*SETTINGS[name])
    chosen = posteriors(y, *SETTINGS[name]).argmax(axis=0)
    hits = (chosen == kind).mean()
    cuts = np.linspace(-3 * threshold, 3 * threshold, 13)

    best = max(
        (np.where(y > up, 2, np.where(y < down, 0, 1)) == kind).mean()
        for down in cuts
        for up in cuts[cuts >= down]
    )

    slack = 5 * np.sqrt(0.25 / DRAWS)
    assert best < hits + slack
    always_stop = (kind == 1).mean()
    assert hits > always_stop + slack  # Control: it is no trivial rule.
