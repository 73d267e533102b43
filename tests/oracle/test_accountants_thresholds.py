"""Thresholded sums against the definition: tiny data sets, every outcome.

A mechanism's output is enumerated as cells: each key is not released, or its
noised sum lies in one of many small intervals above the threshold. Sums over
cells bound the true divergence from below, and converge to it.
"""

import itertools
import math

import numpy as np
import pytest
from scipy import special

from keras_dp.accountants import Fourier
from keras_dp.accountants.normalize.mechanisms import Exposure
from keras_dp.accountants.normalize.normalize import normalize
from keras_dp.ledger import FullDataset, PoissonSampling, Round, ThresholdedSum
from tests.analytic_gaussian import AnalyticGaussian

EPSILONS = (0.0, 0.3, 1.0, 2.0, 4.0)
STDDEV = 1.5
# Two keys, and two rounds, have the square of it.
CELLS = 150


def query(threshold, max_keys=2):
    return ThresholdedSum("keys", 1.0, STDDEV, max_keys, threshold)


def key_cells(total, threshold):
    """The chances of the cells of one key; `total` is None if nobody holds it.

    The first is that the key is not released.
    """
    if total is None:
        return np.eye(CELLS + 2)[0]
    ends = threshold + 14 * STDDEV * np.linspace(0, 1, CELLS + 1)
    above = special.ndtr((total - ends) / STDDEV)
    inside = above[:-1] - above[1:]
    below = special.ndtr((threshold - total) / STDDEV)
    return np.concatenate([[below], inside, above[-1:]])


def cells(held, threshold):
    """The chances of all cells of some keys, each with its sum or None."""
    joint = np.ones(1)
    for total in held:
        joint = np.outer(joint, key_cells(total, threshold)).ravel()
    return joint


def record(*keys, of):
    """The sums of one record that holds some keys, with equal weights."""
    return [1 / math.sqrt(len(keys)) if key in keys else None for key in of]


def added(*sums):
    """The sums of several records, None where nobody holds a key."""
    return [
        sum(each for each in column if each is not None)
        if any(each is not None for each in column)
        else None
        for column in zip(*sums, strict=True)
    ]


def divergence(p, q, epsilon):
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


# The other records' sums of two keys, None where none holds it.
OTHERS = [
    [None, None],
    [1.0, None],
    [6.0, None],
    [30.0, None],
    [0.5, 4.0],
    [25.0, 25.0],
]
RECORDS = [("a",), ("b",), ("a", "b")]


def pairs(neighbours):
    """Sums of two neighbouring data sets, and of the records in both."""
    for others in OTHERS:
        for keys in RECORDS:
            one = added(others, record(*keys, of="ab"))
            if neighbours != "replace_one":
                yield one, others, others
                continue
            for other_keys in RECORDS:
                if other_keys != keys:
                    other = added(others, record(*other_keys, of="ab"))
                    yield one, other, others


def largest_divergence(threshold, neighbours, probability, epsilon):
    """The most that any of the tiny data sets shows, in either order."""
    found = 0.0
    for one, other, rest in pairs(neighbours):
        out = cells(rest, threshold)
        p = probability * cells(one, threshold) + (1 - probability) * out
        q = probability * cells(other, threshold) + (1 - probability) * out
        found = max(found, divergence(p, q, epsilon), divergence(q, p, epsilon))
    return found


@pytest.mark.parametrize("probability", [1.0, 0.3])
@pytest.mark.parametrize("neighbours", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize("threshold", [1.2, 3.0, 6.0])
def test_no_data_set_exceeds_delta(threshold, neighbours, probability) -> None:
    """And one of them comes near: within 4 times for a replaced record.

    The bound takes the worst of the keys that others hold and of those that
    nobody holds for one record, and moves a replaced one by 2 where positive
    weights move by sqrt(2) at most.
    """
    ledger = [(Round(PoissonSampling(probability), (query(threshold),)), 1)]
    ratios = []
    for epsilon in EPSILONS:
        delta = Fourier().delta(ledger, epsilon=epsilon, neighbours=neighbours)
        largest = largest_divergence(
            threshold, neighbours, probability, epsilon
        )
        assert largest <= delta
        ratios.append(largest / delta)

    assert max(ratios) > (0.5 if neighbours == "add_or_remove_one" else 0.25)


@pytest.mark.parametrize("threshold", [1.2, 3.0])
def test_keys_of_one_record_alone_are_what_slack_is(threshold) -> None:
    """With no other record delta is the chance to pass, at every epsilon."""
    nobody = [None]
    p = cells(record("a", of="a"), threshold)
    q = cells(nobody, threshold)
    (slack,) = [
        each
        for each in normalize(
            [(Round(FullDataset(), (query(threshold, 1),)), 1)], "zero_out"
        )
        if isinstance(each.mechanism, Exposure)
    ]

    for epsilon in EPSILONS:
        assert divergence(p, q, epsilon) == pytest.approx(
            slack.mechanism.chance, rel=1e-9
        )


@pytest.mark.parametrize("threshold", [1.5, 4.0])
def test_rounds_compose(threshold) -> None:
    """Two rounds; in each others hold the key often, once or never."""
    ledger = [(Round(FullDataset(), (query(threshold, 1),)), 2)]
    one_round = []
    for others in ([None], [1.0], [25.0]):
        one = added(others, record("a", of="a"))
        one_round.append((cells(one, threshold), cells(others, threshold)))
    for epsilon in EPSILONS:
        delta = AnalyticGaussian().delta(
            ledger, epsilon=epsilon, neighbours="zero_out"
        )
        largest = 0.0
        for (p, q), (r, s) in itertools.product(one_round, repeat=2):
            first, second = np.outer(p, r), np.outer(q, s)
            largest = max(
                largest,
                divergence(first, second, epsilon),
                divergence(second, first, epsilon),
            )
        assert delta / 3 < largest <= delta
