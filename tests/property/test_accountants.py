"""Laws of accounting. The docstring of a test is the law."""

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_dp.accountants import RDP, Fourier
from keras_dp.accountants.normalize.normalize import normalize
from keras_dp.ledger import (
    BandedToeplitz,
    CoordinateBounds,
    CorrelatedSum,
    DisjointBatches,
    EncodedSum,
    FixedSizeWithoutReplacement,
    FullDataset,
    GaussianSum,
    PoissonSampling,
    Round,
    UnverifiedSampling,
)
from keras_dp.ledger.events.noise_families import (
    GaussianNoise,
    LaplaceNoise,
    StudentTNoise,
)
from tests.analytic_gaussian import AnalyticGaussian

# Both searches of RDP stop within 1e-8 of their minimum.
SEARCH = 1 + 1e-7
LAW = settings(max_examples=40)
# Twice the widths of the bounds.
WIDTH = 1 + 1e-6
# Few rounds are composed on a grid, which takes seconds.
SLOW = settings(max_examples=8)

counts = st.integers(1, 5000)
pairs = st.tuples(st.floats(0.01, 5.0), st.floats(0.5, 50.0))
bounds = st.floats(0.05, 3.0)
stddevs = st.floats(0.5, 40.0)
levels = st.lists(st.floats(0.0, 1.0), min_size=2, max_size=2)
encoded_bounds = st.builds(
    CoordinateBounds.from_arrays,
    st.lists(levels, min_size=1, max_size=3),
    st.just([1, 100]),
)
laws = st.one_of(
    st.builds(LaplaceNoise, stddevs),
    st.builds(StudentTNoise, stddevs, st.just(5.0)),
    st.builds(StudentTNoise, stddevs, st.just(1.0)),
    st.builds(GaussianNoise, stddevs),
)
queries = st.one_of(
    st.builds(GaussianSum, st.just("gaussian"), bounds, stddevs),
    st.builds(EncodedSum, st.just("encoded"), encoded_bounds, laws),
    st.builds(
        CorrelatedSum,
        st.just("row"),
        bounds,
        stddevs,
        st.just(BandedToeplitz((1.0, 0.5))),
        st.just(100),
        st.sampled_from("abc"),
    ),
)
kinds = st.one_of(
    st.builds(PoissonSampling, st.floats(1e-3, 0.9)),
    st.just(FullDataset()),
    st.just(UnverifiedSampling()),
    st.builds(DisjointBatches, st.sampled_from("ef")),
)

poisson = st.builds(PoissonSampling, st.floats(1e-4, 0.9))
full = st.just(FullDataset())
fixed = st.builds(
    FixedSizeWithoutReplacement, st.integers(1, 50), st.integers(51, 10_000)
)


@st.composite
def rounds(draw, sampling):
    """Returns a round of Gaussian sums, and how often it ran."""
    tuples = draw(st.lists(pairs, min_size=1, max_size=3))
    queries = (GaussianSum(f"{i}", *pair) for i, pair in enumerate(tuples))
    return Round(draw(sampling), tuple(queries)), draw(counts)


@st.composite
def rounds_of_one_sum(draw):
    """Returns what the Fourier accountant composes in little time."""
    sampling = st.builds(PoissonSampling, st.floats(1e-3, 0.9)) | full
    query = GaussianSum("sum", 1.0, draw(st.floats(0.7, 50.0)))
    return Round(draw(sampling), (query,)), draw(counts)


@st.composite
def mixed_rounds(draw):
    """Returns a round of any kind of event."""
    taken = draw(
        st.lists(queries, min_size=1, max_size=3, unique_by=lambda q: q.name)
    )
    return Round(draw(kinds), tuple(taken)), draw(st.integers(1, 20))


# An accountant, rounds that it can replay, and under which relation.
EXACT = [
    (RDP(), rounds(poisson | full), "add_or_remove_one"),
    (RDP(), rounds(poisson | full | fixed), "replace_one"),
    (RDP(conversion="moments"), rounds(poisson | full), "zero_out"),
]
ALL = [
    *EXACT,
    (RDP(), mixed_rounds(), "zero_out"),
    (RDP(conversion="moments"), mixed_rounds(), "zero_out"),
    (Fourier(), rounds_of_one_sum(), "add_or_remove_one"),
    (Fourier(), rounds_of_one_sum(), "replace_one"),
]
NAMES = ["accountant", "counted", "neighbours"]


def settings_of(accountant):
    return (SLOW, WIDTH) if accountant == Fourier() else (LAW, SEARCH)


def louder(event, factor):
    """Returns the round with more noise in each sum."""

    def query_of(query):
        if isinstance(query, EncodedSum):
            return dataclasses.replace(query, noise=query.noise.scaled(factor))
        stddev = query.noise_stddev * factor
        return dataclasses.replace(query, noise_stddev=stddev)

    return Round(event.sampling, tuple(map(query_of, event.queries)))


@pytest.mark.parametrize(NAMES, ALL)
class TestAccountant:
    @pytest.mark.full
    def test_composing(self, accountant, counted, neighbours) -> None:
        """More rounds never cost less, whatever span they join."""
        law, slack = settings_of(accountant)

        @law
        @given(st.lists(counted, min_size=2, max_size=4))
        def holds(ledger):
            few, many = (
                accountant.epsilon(each, delta=1e-5, neighbours=neighbours)
                for each in (ledger[:-1], ledger)
            )
            assert few <= many * slack

        holds()

    @pytest.mark.full
    def test_noise(self, accountant, counted, neighbours) -> None:
        """More noise never costs more."""
        law, slack = settings_of(accountant)

        @law
        @given(st.lists(counted, min_size=1, max_size=2), st.floats(1.0, 3.0))
        def holds(ledger, factor):
            quieter = [(louder(event, factor), n) for event, n in ledger]
            quiet, loud = (
                accountant.epsilon(each, delta=1e-5, neighbours=neighbours)
                for each in (ledger, quieter)
            )
            assert loud <= quiet * slack

        holds()

    def test_repetition(self, accountant, counted, neighbours) -> None:
        """A count is as many rounds, and no order matters."""
        law, _ = settings_of(accountant)

        @law
        @given(st.lists(counted, min_size=2, max_size=3))
        def holds(ledger):
            few = [(event, count % 5 + 1) for event, count in ledger]
            spread = [
                (Round(event.sampling, event.queries[::-1]), 1)
                for i in range(5)
                for event, count in reversed(few)
                if i < count
            ]
            one, two = (
                accountant.epsilon(each, delta=1e-5, neighbours=neighbours)
                for each in (spread, few)
            )
            assert one == two

        holds()


@pytest.mark.parametrize(NAMES, EXACT)
def test_inverse(accountant, counted, neighbours) -> None:
    """`delta(epsilon(delta))` is `delta`, where epsilon is not 0."""

    @LAW
    @given(counted, st.floats(-300, -1))
    def holds(ledger, exponent):
        delta = 10.0**exponent
        epsilon = accountant.epsilon(
            [ledger], delta=delta, neighbours=neighbours
        )
        back = accountant.delta(
            [ledger], epsilon=epsilon, neighbours=neighbours
        )
        # The searches for the best order, and the rounding of epsilon, seen
        # through the slope of log(delta).
        assert epsilon == 0 or math.log(back) == pytest.approx(
            math.log(delta), abs=1e-6, rel=2e-5
        )

    holds()


@SLOW
@given(
    rounds_of_one_sum(),
    st.floats(-100, -2),
    st.sampled_from(["add_or_remove_one", "replace_one"]),
)
def test_bounds_are_inverse(counted, exponent, neighbours) -> None:
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


@SLOW
@given(
    st.lists(rounds_of_one_sum(), min_size=2, max_size=3), st.floats(-50, -2)
)
def test_bounds_contain_each_other(ledger, exponent) -> None:
    """No bound is below the lower one, and none below the upper one."""
    delta = 10.0**exponent

    lower, upper = Fourier().epsilon_bounds(ledger, delta=delta)

    assert 0 <= lower <= upper
    for accountant in (RDP(), RDP(conversion="moments")):
        assert upper <= accountant.epsilon(ledger, delta=delta) * (1 + 1e-9)


@SLOW
@given(
    st.lists(st.floats(0.7, 50.0), min_size=1, max_size=4), st.floats(-300, -2)
)
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


@LAW
@given(st.lists(levels, min_size=1, max_size=3), levels, laws)
def test_vectors(vectors, another, law) -> None:
    """More vectors, and larger ones, never cost less."""

    def priced(each):
        encoding = CoordinateBounds.from_arrays(each, [1, 100])
        query = EncodedSum("encoded", encoding, law)
        step = Round(PoissonSampling(0.1), (query,))
        return RDP().epsilon([(step, 10)], delta=1e-5, neighbours="zero_out")

    price = priced(vectors)

    larger = [[level * 1.5 for level in vector] for vector in vectors]
    assert price <= priced([*vectors, another]) * SEARCH
    assert price <= priced(larger) * SEARCH


@LAW
@given(st.lists(mixed_rounds(), min_size=2, max_size=4))
def test_relations(ledger) -> None:
    """Zeroing a record costs what removing it does, where that is defined."""
    free = [
        (event, count)
        for event, count in ledger
        if not isinstance(event.sampling, DisjointBatches | UnverifiedSampling)
    ]

    assert normalize(free, "zero_out") == normalize(free, "add_or_remove_one")


@LAW
@given(
    st.floats(1e-80, 1e80, allow_subnormal=False),
    st.sampled_from(["add_or_remove_one", "replace_one"]),
)
def test_noise_multipliers_are_rounded_down(stddev, neighbours) -> None:
    """By less than a unit of the twelfth digit."""
    distance = 2 if neighbours == "replace_one" else 1
    event = Round(FullDataset(), (GaussianSum("sum", 1.0, stddev),))

    z = normalize([(event, 1)], neighbours)[0].mechanism.noise_multiplier

    # 1/(1/x) is x up to an ulp.
    assert z * distance <= stddev * (1 + 4e-16)
    assert z * distance >= stddev * (1 - 1e-11)
    assert float(f"{z:.11e}") == z
