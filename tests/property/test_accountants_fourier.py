"""Laws of the Fourier accountant. The docstring of a test is the law."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_dp.accountants import RDP, Fourier
from keras_dp.ledger import FullDataset, GaussianSum, PoissonSampling, Round
from tests.analytic_gaussian import AnalyticGaussian

# Few rounds are composed on a grid, which takes seconds.
LAW = settings(max_examples=8)
# Twice the widths of the bounds.
WIDTH = 1 + 1e-6

samplings = st.builds(PoissonSampling, st.floats(1e-3, 0.9)) | st.just(
    FullDataset()
)
noises = st.floats(0.7, 50.0)
relations = st.sampled_from(["add_or_remove_one", "replace_one"])


@st.composite
def rounds(draw):
    queries = (GaussianSum("sum", 1.0, draw(noises)),)
    return Round(draw(samplings), queries), draw(st.integers(1, 5000))


ledgers = st.lists(rounds(), min_size=2, max_size=3)


@pytest.mark.full
@LAW
@given(ledgers, relations)
def test_composing(ledger, neighbours) -> None:
    """More rounds never cost less."""
    few, many = (
        Fourier().epsilon(each, delta=1e-5, neighbours=neighbours)
        for each in (ledger[:-1], ledger)
    )

    assert few <= many * WIDTH


@LAW
@given(rounds(), st.floats(1.0, 3.0), relations)
def test_noise(counted, factor, neighbours) -> None:
    """More noise never costs more."""
    event, count = counted
    (query,) = event.queries
    louder = GaussianSum("sum", 1.0, query.noise_stddev * factor)

    quiet, loud = (
        Fourier().epsilon(
            [(Round(event.sampling, (each,)), count)],
            delta=1e-5,
            neighbours=neighbours,
        )
        for each in (query, louder)
    )

    assert loud <= quiet * WIDTH


@LAW
@given(ledgers)
def test_repetition(ledger) -> None:
    """A count is as many rounds, and their order does not matter."""
    few = [(event, count % 4 + 1) for event, count in ledger]
    spread = [(event, 1) for event, count in few for _ in range(count)]

    assert Fourier().epsilon(spread[::-1], delta=1e-5) == Fourier().epsilon(
        few, delta=1e-5
    )


@LAW
@given(rounds(), st.floats(-100, -2), relations)
def test_inverse(counted, exponent, neighbours) -> None:
    """Delta at the bounds of epsilon is on both sides of `delta`."""
    delta = 10.0**exponent

    bounds = Fourier().epsilon_bounds(
        [counted], delta=delta, neighbours=neighbours
    )

    at_lower, at_upper = (
        Fourier().delta_bounds([counted], epsilon=each, neighbours=neighbours)
        for each in bounds
    )
    assert at_upper.lower <= delta * WIDTH
    assert bounds.lower == 0 or at_lower.upper >= delta / WIDTH


@LAW
@given(ledgers, st.floats(-50, -2))
def test_bounds_contain_each_other(ledger, exponent) -> None:
    """No bound is below the lower one, and none below the upper one."""
    delta = 10.0**exponent

    lower, upper = Fourier().epsilon_bounds(ledger, delta=delta)

    assert 0 <= lower <= upper
    for accountant in (RDP(), RDP(conversion="moments")):
        assert upper <= accountant.epsilon(ledger, delta=delta) * (1 + 1e-9)


@LAW
@given(st.lists(noises, min_size=1, max_size=4), st.floats(-300, -2))
def test_the_analytic_gaussian_is_between(stddevs, exponent) -> None:
    """Without sampling both are exact."""
    delta = 10.0**exponent
    ledger = [
        (Round(FullDataset(), (GaussianSum("sum", 1.0, stddev),)), 1)
        for stddev in stddevs
    ]

    lower, upper = Fourier().epsilon_bounds(ledger, delta=delta)

    exact = AnalyticGaussian().epsilon(ledger, delta=delta)
    assert lower <= exact * (1 + 1e-11)
    assert exact == pytest.approx(upper, rel=1e-10)
    assert math.isfinite(exact)
