"""Laws of accounting. The docstring of a test is the law."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_dp.accountants import RDP
from keras_dp.accountants.normalize.normalize import normalize
from keras_dp.ledger import (
    FixedSizeWithoutReplacement,
    FullDataset,
    GaussianSum,
    PoissonSampling,
    Round,
)
from tests.analytic_gaussian import AnalyticGaussian

# Both searches of RDP stop within 1e-8 of their minimum.
SEARCH = 1 + 1e-7
LAW = settings(max_examples=40)

noises = st.floats(0.3, 50.0)
probabilities = st.floats(1e-6, 0.999)
counts = st.integers(1, 5000)
pairs = st.tuples(st.floats(0.01, 5.0), st.floats(0.5, 50.0))


@st.composite
def rounds(draw, sampling):
    tuples = draw(st.lists(pairs, min_size=1, max_size=3))
    queries = (GaussianSum(f"{i}", *pair) for i, pair in enumerate(tuples))
    return Round(draw(sampling), tuple(queries)), draw(counts)


poisson = st.builds(PoissonSampling, st.floats(1e-4, 0.9))
full = st.just(FullDataset())
fixed = st.builds(
    FixedSizeWithoutReplacement, st.integers(1, 50), st.integers(51, 10_000)
)
# An accountant, what it can replay, and under which relation.
ACCOUNTANTS = [
    (RDP(), poisson | full, "add_or_remove_one"),
    (RDP(), poisson | full | fixed, "replace_one"),
    (RDP(conversion="moments"), poisson | full, "zero_out"),
    (AnalyticGaussian(), full, "replace_one"),
]


@pytest.mark.parametrize(("accountant", "sampling", "neighbours"), ACCOUNTANTS)
class TestAccountant:
    @pytest.mark.full
    def test_composing(self, accountant, sampling, neighbours) -> None:
        """More rounds never cost less."""

        @LAW
        @given(st.lists(rounds(sampling), min_size=2, max_size=3))
        def law(ledger):
            few, many = (
                accountant.epsilon(each, delta=1e-5, neighbours=neighbours)
                for each in (ledger[:-1], ledger)
            )
            assert few <= many * SEARCH

        law()

    def test_noise(self, accountant, sampling, neighbours) -> None:
        """More noise never costs more."""

        @LAW
        @given(rounds(sampling), st.floats(1.0, 3.0))
        def law(counted, factor):
            event, count = counted
            louder = Round(
                event.sampling,
                tuple(
                    GaussianSum(
                        query.name,
                        query.l2_norm_bound,
                        query.noise_stddev * factor,
                    )
                    for query in event.queries
                ),
            )
            quiet, loud = (
                accountant.epsilon(
                    [(each, count)], delta=1e-5, neighbours=neighbours
                )
                for each in (event, louder)
            )
            assert loud <= quiet * SEARCH

        law()

    def test_repetition(self, accountant, sampling, neighbours) -> None:
        """A count is as many rounds, and their order does not matter."""

        @LAW
        @given(st.lists(rounds(sampling), min_size=2, max_size=3))
        def law(ledger):
            spread = [
                (event, 1)
                for i in range(max(count % 9 for _, count in ledger))
                for event, count in reversed(ledger)
                if i < count % 9
            ]
            counted = [(e, count % 9) for e, count in ledger if count % 9]
            assert accountant.epsilon(
                spread, delta=1e-5, neighbours=neighbours
            ) == accountant.epsilon(counted, delta=1e-5, neighbours=neighbours)

        law()

    def test_inverse(self, accountant, sampling, neighbours) -> None:
        """`delta(epsilon(delta))` is `delta`, where epsilon is not 0."""

        @LAW
        @given(rounds(sampling), st.floats(-300, -1))
        def law(counted, exponent):
            delta = 10.0**exponent
            epsilon = accountant.epsilon(
                [counted], delta=delta, neighbours=neighbours
            )
            back = accountant.delta(
                [counted], epsilon=epsilon, neighbours=neighbours
            )
            # The searches for the best order, and the rounding of epsilon, seen
            # through the slope of log(delta).
            assert epsilon == 0 or math.log(back) == pytest.approx(
                math.log(delta), abs=1e-6, rel=2e-5
            )

        law()


@LAW
@given(st.lists(pairs, min_size=1, max_size=6), st.floats(1e-4, 0.9), counts)
def test_groups_of_a_round_are_one_query(tuples, probability, count) -> None:
    """G sums over one sample are one sum with `z` of equation 1.

    To 1e-10: `z` is rounded to 12 digits after different roundings.
    """
    sampling = PoissonSampling(probability)
    queries = tuple(GaussianSum(f"{i}", *pair) for i, pair in enumerate(tuples))
    z = sum((bound / stddev) ** 2 for bound, stddev in tuples) ** -0.5
    merged = GaussianSum("all", 1.0, z)

    nested, single = (
        RDP().epsilon([(Round(sampling, each), count)], delta=1e-5)
        for each in (queries, (merged,))
    )

    assert nested == pytest.approx(single, rel=1e-10)


def test_groups_of_a_round_are_not_samples_of_their_own() -> None:
    """Ten tensors in one sample: 421 (truth), not 20 (Three Tools paper)."""
    queries = tuple(GaussianSum(f"{i}", 2.0, 2 * 0.7225) for i in range(10))
    sampling, steps, delta = PoissonSampling(128 / 50_000), 23_437, 5e4**-1.1

    together = RDP().epsilon([(Round(sampling, queries), steps)], delta=delta)
    apart = RDP(conversion="moments").epsilon(
        [(Round(sampling, (query,)), steps) for query in queries], delta=delta
    )

    assert together > 421.0
    assert apart == pytest.approx(19.87, abs=0.005)  # What they published.


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


@LAW
@given(rounds(poisson | full), st.floats(1e-12, 0.1))
def test_zeroing_a_record_costs_what_removing_it_costs(counted, delta) -> None:
    """And replacing it costs more."""
    removed, zeroed, replaced = (
        RDP().epsilon([counted], delta=delta, neighbours=neighbours)
        for neighbours in ("add_or_remove_one", "zero_out", "replace_one")
    )

    assert removed == zeroed
    assert removed <= replaced * SEARCH


@LAW
@given(rounds(full), st.floats(1e-300, 0.1))
def test_the_exact_price_of_full_rounds_is_not_above_other_bounds(
    counted, delta
) -> None:
    exact, *bounds = (
        accountant.epsilon([counted], delta=delta)
        for accountant in (
            AnalyticGaussian(),
            RDP(),
            RDP(conversion="moments"),
        )
    )

    # All round up by about 1e-12.
    assert all(exact <= bound * (1 + 1e-11) for bound in bounds)


@LAW
@given(rounds(full))
def test_delta_at_epsilon_zero_is_above_the_total_variation(counted) -> None:
    exact, bound = (
        accountant.delta([counted], epsilon=0)
        for accountant in (AnalyticGaussian(), RDP())
    )

    assert exact <= bound * (1 + 1e-11)
