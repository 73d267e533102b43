"""Laws of Rényi curves and of the search for an order."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from keras_dp.accountants import RDP
from keras_dp.accountants.loss.loss_distribution import log_excess_power
from keras_dp.accountants.normalize.mechanisms import (
    FixedSizeGaussian,
    Gaussian,
    SampledGaussian,
    SampledGaussianReplaceOne,
)
from keras_dp.accountants.renyi.divergences import LOG_MOMENTS, rdp
from keras_dp.ledger import FullDataset, GaussianSum, Round

LAW = settings(max_examples=40)

noises = st.floats(0.3, 50.0)
probabilities = st.floats(1e-6, 0.999)


@pytest.mark.full
@LAW
@given(probabilities, noises)
@pytest.mark.parametrize(
    "kind", [SampledGaussian, SampledGaussianReplaceOne, FixedSizeGaussian]
)
def test_divergence_grows_with_the_order(kind, probability, noise) -> None:
    """And stays below that without sampling. To the 1e-10 it is rounded up."""
    orders = 1 + np.geomspace(1e-6, 1e6, 80)

    curve = rdp(kind(noise, probability), orders)

    distance = 2 if kind is SampledGaussianReplaceOne else 1
    unsampled = rdp(Gaussian(noise / distance), orders)
    assert np.all(curve > 0)
    assert np.all(curve[:-1] <= curve[1:] * (1 + 1e-10))
    assert np.all(curve <= unsampled * (1 + 1e-12))


@LAW
@given(probabilities, st.floats(1.0, 100.0), noises)
@pytest.mark.parametrize(
    "kind", [SampledGaussian, SampledGaussianReplaceOne, FixedSizeGaussian]
)
def test_rarer_samples_diverge_less(kind, probability, factor, noise) -> None:
    orders = 1 + np.geomspace(1e-3, 1e3, 20)

    more = rdp(kind(noise, probability), orders)
    less = rdp(kind(noise, probability / factor), orders)

    assert np.all(less <= more * (1 + 1e-10))


def log_ratio(probability, noise, x):
    """Returns the log of `1 - q + q e^(x/z - 1/(2 z^2))`."""
    w = x / noise - 0.5 / noise**2
    near = np.log1p(probability * np.expm1(np.minimum(w, 1.0)))
    far = np.logaddexp(np.log1p(-probability), np.log(probability) + w)
    return np.where(w < 1.0, near, far)


def log_moment_over_everything(probability, noise, excess, mean):
    """By the trapezoid rule with half the steps; None if that takes too long.

    Over all x where any of these integrands can be seen.
    """
    steps = 0.2 * min(1, noise)
    if mean:
        steps /= math.sqrt(1 + excess / (4 * noise**2))
    end = (1 + excess - mean * excess) / noise + 2 / noise + 16
    if (end + 16 + 2 / noise) / steps > 300_000:
        return None
    x = np.arange(-16 - 2 / noise, end, steps)
    u = log_ratio(probability, noise, x)
    v = log_ratio(probability, noise, -x) if mean else np.zeros_like(x)
    excesses = np.full_like(x, excess)
    values = v - x * x / 2 + log_excess_power(excesses, u - v)
    area = np.logaddexp.reduce(values) + math.log(steps)
    return np.logaddexp(0, area - math.log(2 * math.pi) / 2)


def log_moment(probability, noise, mean, excess):
    kind = SampledGaussianReplaceOne if mean else SampledGaussian
    return LOG_MOMENTS[kind](kind(noise, probability), excess)


@LAW
@given(
    st.floats(1e-8, 1 - 1e-8),
    st.floats(-0.7, 3.0),
    st.floats(-3.0, 5.0),
    st.sampled_from([0.0, -1.0]),
)
def test_nodes_miss_nothing(probability, log_noise, log_excess, mean) -> None:
    """The integral is that over everything.

    To 1e-12, ten times the rounding errors of both.
    """
    noise, excess = 10.0**log_noise, 10.0**log_excess
    everything = log_moment_over_everything(probability, noise, excess, mean)
    assume(everything is not None)

    got = log_moment(probability, noise, mean, np.array([excess]))

    assert got[0] == pytest.approx(everything, rel=1e-12)


@pytest.mark.parametrize("excess", [4_285_500.0, 4_286_085.0, 4_286_500.0])
def test_nodes_cover_two_peaks_of_one_height(excess) -> None:
    """A thousand apart, with a valley that only `v` makes between them."""
    got = log_moment(0.1, 1000.0, -1.0, np.array([excess]))

    everything = log_moment_over_everything(0.1, 1000.0, excess, -1.0)
    assert got[0] == pytest.approx(everything, rel=1e-12)


@pytest.mark.parametrize(
    ("noise", "count", "delta"),
    [(1e4, 1, 1e-300), (0.02, 10**6, 1e-3), (1.0, 1, 1e-5), (1e6, 1, 1e-200)],
)
def test_the_best_order_is_found_wherever_it_is(noise, count, delta) -> None:
    """From 1.0004 to 3e7 here. As good as the best of a million orders.

    By 1e-8, what the search may miss.
    """
    excess = np.geomspace(1e-9, 1e10, 1_000_000)
    epsilons = (
        count * (1 + excess) / (2 * noise**2)
        - (math.log(delta) + np.log1p(excess)) / excess
        - np.log1p(1 / excess)
    )
    query = GaussianSum("sum", 1.0, noise)

    found = RDP().epsilon(
        [(Round(FullDataset(), (query,)), count)], delta=delta
    )

    assert epsilons.min() * (1 - 1e-9) <= found <= epsilons.min() * (1 + 1e-8)
