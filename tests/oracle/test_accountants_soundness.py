"""Single rounds against the hockey-stick divergence from its definition."""

import numpy as np
import pytest
from scipy import optimize, special

from keras_dp.accountants import RDP, Fourier
from keras_dp.ledger import (
    FixedSizeWithoutReplacement,
    FullDataset,
    GaussianSum,
    PoissonSampling,
    Round,
)
from tests.analytic_gaussian import AnalyticGaussian
from tests.replays import replays


def true_delta(probability, means, noise, epsilon) -> float:
    """The larger of both directions of a pair of mixtures.

    The likelihood ratio rises in x as `means` fall, so that the integrand is
    positive to one side of one point; good to 1e-12.
    """

    def log_ratio(x):
        first, second = (
            np.logaddexp(
                np.log1p(-probability) if probability < 1 else -np.inf,
                np.log(probability) + (x * mean - mean**2 / 2 / noise) / noise,
            )
            for mean in means
        )
        return first - second

    def tails(x, sign):
        return (
            (1 - probability) * special.ndtr(sign * x)
            + probability * special.ndtr(sign * (x - mean / noise))
            for mean in means
        )

    up = optimize.brentq(lambda x: log_ratio(x) - epsilon, -999, 999)
    first, second = tails(up, -1)
    forward = first - np.exp(epsilon) * second
    if log_ratio(-999) > -epsilon:
        return float(forward)
    down = optimize.brentq(lambda x: log_ratio(x) + epsilon, -999, 999)
    first, second = tails(down, 1)
    return float(max(forward, second - np.exp(epsilon) * first))


# Sampling and relation, then q and the means of the record in two data sets
# that exist, in units of its bound.
CASES = [
    (PoissonSampling(0.3), "add_or_remove_one", 0.3, (1, 0)),
    (PoissonSampling(0.3), "zero_out", 0.3, (1, 0)),
    (PoissonSampling(0.3), "replace_one", 0.3, (1, -1)),
    (PoissonSampling(0.9), "replace_one", 0.9, (1, -1)),
    (FixedSizeWithoutReplacement(3, 10), "replace_one", 0.3, (2, 0)),
    (FullDataset(), "add_or_remove_one", 1.0, (1, 0)),
    (FullDataset(), "replace_one", 1.0, (1, -1)),
]


ACCOUNTANTS = [RDP(), RDP(conversion="moments"), AnalyticGaussian()]


def one_round(sampling, noise):
    return [(Round(sampling, (GaussianSum("sum", 1.0, noise),)), 1)]


@pytest.mark.parametrize("noise", [0.7, 2.0])
@pytest.mark.parametrize(
    ("accountant", "sampling", "neighbours", "probability", "means"),
    [
        (accountant, *case)
        for accountant in ACCOUNTANTS
        for case in CASES
        if replays(accountant, one_round(case[0], 1.0), neighbours=case[1])
    ],
)
def test_no_single_round_is_worse_than_stated(
    accountant, sampling, neighbours, probability, means, noise
) -> None:
    """To 1e-7: what cancels in the oracle, 1e-12, over the least delta."""
    for delta in (0.1, 1e-2, 1e-4):
        epsilon = accountant.epsilon(
            one_round(sampling, noise), delta=delta, neighbours=neighbours
        )
        found = true_delta(probability, means, noise, epsilon)
        assert found <= delta * (1 + 1e-7)


@pytest.mark.parametrize("delta", [0.1, 1e-2, 1e-4])
def test_the_check_above_can_fail(delta) -> None:
    """Control: replacing a record, priced as if it were removed."""
    ledger = one_round(PoissonSampling(0.3), 0.7)

    epsilon = Fourier().epsilon(ledger, delta=delta)

    assert true_delta(0.3, (1, -1), 0.7, epsilon) > 1.05 * delta
