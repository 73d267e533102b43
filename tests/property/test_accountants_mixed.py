"""Laws of ledgers that mix all kinds of events. The docstring is the law."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_dp.accountants import RDP
from keras_dp.accountants.normalize.normalize import normalize
from keras_dp.ledger import (
    BandedToeplitz,
    CoordinateBounds,
    CorrelatedSum,
    DisjointBatches,
    EncodedSum,
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

# Searches stop within 1e-8 of their minimum, sums are rounded up by 1e-10.
SEARCH = 1 + 1e-7
LAW = settings(max_examples=40)
ACCOUNTANTS = [RDP(), RDP(conversion="moments")]

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
samplings = st.one_of(
    st.builds(PoissonSampling, st.floats(1e-3, 0.9)),
    st.just(FullDataset()),
    st.just(UnverifiedSampling()),
    st.builds(DisjointBatches, st.sampled_from("ef")),
)


@st.composite
def rounds(draw):
    taken = draw(
        st.lists(queries, min_size=1, max_size=3, unique_by=lambda q: q.name)
    )
    return Round(draw(samplings), tuple(taken)), draw(st.integers(1, 20))


ledgers = st.lists(rounds(), min_size=2, max_size=4)


def epsilon(accountant, ledger) -> float:
    return accountant.epsilon(ledger, delta=1e-5, neighbours="zero_out")


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
class TestMixed:
    @pytest.mark.full
    def test_composing(self, accountant) -> None:
        """More rounds never cost less, whatever span they join."""

        @LAW
        @given(ledgers)
        def law(ledger):
            few, many = (
                epsilon(accountant, each) for each in (ledger[:-1], ledger)
            )
            assert few <= many * SEARCH

        law()

    @pytest.mark.full
    def test_order(self, accountant) -> None:
        """The order of the rounds, and of the queries, is irrelevant."""

        @LAW
        @given(ledgers)
        def law(ledger):
            turned = [
                (Round(event.sampling, event.queries[::-1]), count)
                for event, count in ledger[::-1]
            ]
            assert normalize(turned, "zero_out") == normalize(
                ledger, "zero_out"
            )
            assert epsilon(accountant, turned) == epsilon(accountant, ledger)

        law()

    def test_repetition(self, accountant) -> None:
        """A count is as many rounds."""

        @LAW
        @given(ledgers)
        def law(ledger):
            spread = [
                (event, 1) for event, count in ledger for _ in range(count)
            ]
            assert epsilon(accountant, spread) == epsilon(accountant, ledger)

        law()

    def test_noise(self, accountant) -> None:
        """More noise never costs more."""

        @LAW
        @given(ledgers, st.floats(1.0, 3.0))
        def law(ledger, factor):
            louder = [
                (
                    Round(
                        event.sampling,
                        tuple(louder_query(q, factor) for q in event.queries),
                    ),
                    count,
                )
                for event, count in ledger
            ]
            assert (
                epsilon(accountant, louder)
                <= epsilon(accountant, ledger) * SEARCH
            )

        law()


def louder_query(query, factor):
    if isinstance(query, EncodedSum):
        return dataclasses.replace(query, noise=query.noise.scaled(factor))
    return dataclasses.replace(query, noise_stddev=query.noise_stddev * factor)


@LAW
@given(st.lists(levels, min_size=1, max_size=3), levels, laws)
def test_bounds(vectors, another, law) -> None:
    """More vectors, and larger ones, never cost less."""

    def priced(each):
        encoding = CoordinateBounds.from_arrays(each, [1, 100])
        query = EncodedSum("encoded", encoding, law)
        return epsilon(RDP(), [(Round(PoissonSampling(0.1), (query,)), 10)])

    price = priced(vectors)

    larger = [[level * 1.5 for level in vector] for vector in vectors]
    assert price <= priced([*vectors, another]) * SEARCH
    assert price <= priced(larger) * SEARCH


@LAW
@given(ledgers)
def test_relations(ledger) -> None:
    """Zeroing a record costs what removing it does, where that is defined."""
    free = [
        (event, count)
        for event, count in ledger
        if not isinstance(event.sampling, DisjointBatches | UnverifiedSampling)
    ]

    assert normalize(free, "zero_out") == normalize(free, "add_or_remove_one")
