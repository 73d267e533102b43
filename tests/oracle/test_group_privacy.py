"""Group privacy against definitions: quadrature, enumeration, closed forms."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, stats

from keras_dp.accountants import groups as module
from keras_dp.accountants.normalize.mechanisms import (
    CountedMechanism,
    SampledGaussian,
)
from keras_dp.ledger import FullDataset, GaussianSum, Round
from tests.analytic_gaussian import AnalyticGaussian


@pytest.mark.parametrize("sensitivity", [0.01, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("records", [2, 3, 10])
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_textbook_bound_of_a_gaussian_is_above_its_pair(
    monkeypatch, sensitivity, records, delta
) -> None:
    """The pair is exact, so that a lower bound would be false."""
    query = GaussianSum("sum", 1.0, 1 / sensitivity)
    ledger = [(Round(FullDataset(), (query,)), 1)]
    by = AnalyticGaussian()
    pair = by.group(ledger, None, records)
    monkeypatch.setattr(module, "k_fold", lambda *_: None)

    textbook = by.group(ledger, None, records)

    assert pair.is_pair
    assert not textbook.is_pair
    epsilon = textbook.epsilon(delta)
    assert pair.epsilon(delta) <= epsilon * (1 + 2e-12)
    if sensitivity * records == 30:  # Beyond the least float delta.
        assert epsilon == math.inf
        return
    inverse = textbook.delta(epsilon)
    assert delta * (1 - 1e-5) <= inverse <= delta * (1 + 1e-11)


def hockey_stick(weights, means, stddev, epsilon, *, is_reversed=False):
    """Returns delta of a mixture of normal laws and `N(0, stddev^2)`."""

    def excess(x):
        mixture = np.dot(weights, stats.norm.pdf(x, means, stddev))
        alone = stats.norm.pdf(x, 0, stddev)
        first, other = (alone, mixture) if is_reversed else (mixture, alone)
        return max(0.0, first - math.exp(epsilon) * other)

    reach = 12 * stddev + np.max(np.abs(means))
    return integrate.quad(
        excess, -reach, reach, limit=1000, points=np.linspace(-5, 8, 27)
    )[0]


@pytest.mark.full
@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("epsilon", [0.0, 0.2, 1.0])
def test_equal_records_are_the_worst_group_of_a_sample(
    is_reversed, epsilon
) -> None:
    """Three records of any size and sign, all subsets of them enumerated."""
    z, q, k = 0.8, 0.3, 3
    (pair, _), *_ = module.k_fold(
        (CountedMechanism(SampledGaussian(z, q), 1),), k
    )
    binomial = stats.binom.pmf(np.arange(k + 1), pair.records, q)
    worst = hockey_stick(
        binomial, np.arange(k + 1.0), z, epsilon, is_reversed=is_reversed
    )
    generator = np.random.default_rng(5)
    groups = [generator.uniform(-1, 1, k) for _ in range(15)]
    groups += [np.array([1.0, 1.0, -1.0]), np.array([1.0, 1.0, 0.99])]

    found = []
    for records in groups:
        subsets = list(itertools.product([0, 1], repeat=k))
        weights = [q ** sum(s) * (1 - q) ** (k - sum(s)) for s in subsets]
        means = [np.dot(s, records) for s in subsets]
        found.append(
            hockey_stick(weights, means, z, epsilon, is_reversed=is_reversed)
        )

    assert worst > 1e-3
    assert max(found) <= worst + 1e-7  # That of the quadrature.
    assert max(found) > 0.9 * worst  # Of records that nearly are the worst.
