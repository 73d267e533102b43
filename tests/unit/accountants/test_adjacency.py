"""Every sampling event against every adjacency relation: one table."""

import pytest

from keras_dp import ledger
from keras_dp.accountants import available_accountants
from keras_dp.accountants.normalize import samplings as module
from keras_dp.accountants.normalize.normalize import normalize
from keras_dp.accountants.normalize.samplings import strongest_neighbours
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import (
    BandedToeplitz,
    CoordinateBounds,
    CorrelatedSum,
    CyclicPoissonSampling,
    DisjointBatches,
    EncodedSum,
    FixedSizeWithoutReplacement,
    FullDataset,
    GaussianSum,
    PoissonSampling,
    PoissonUserSampling,
    Round,
    SamplingByContents,
    SamplingEvent,
    ThresholdedSum,
    TruncatedPoissonSampling,
    UnverifiedSampling,
)
from keras_dp.ledger.events.noise_families import LaplaceNoise

ADD, REPLACE, ZERO = "add_or_remove_one", "replace_one", "zero_out"
RELATIONS = (ADD, REPLACE, ZERO)
SAMPLINGS = {
    "poisson": PoissonSampling(0.1),
    "poisson of users": PoissonUserSampling(0.1),
    "certain poisson": PoissonSampling(1.0),
    "truncated": TruncatedPoissonSampling(0.1, 30, 100),
    "full": FullDataset(),
    "unverified": UnverifiedSampling(),
    "by contents": SamplingByContents(),
    "disjoint": DisjointBatches("epoch"),
    "cyclic": CyclicPoissonSampling("draw-0", 5, 0.1),
    "fixed": FixedSizeWithoutReplacement(5, 20),
    "fixed, all": FixedSizeWithoutReplacement(20, 20),
}
BOUNDS = CoordinateBounds.from_vectors([[0.5, 0.2]])
QUERIES = {
    "gaussian": GaussianSum("sum", 1.0, 4.0),
    "encoded": EncodedSum("sum", BOUNDS, LaplaceNoise(2.0)),
    "thresholded": ThresholdedSum("sum", 1.0, 4.0, 10, 25.0),
    "correlated": CorrelatedSum(
        "sum", 1.0, 4.0, BandedToeplitz((1.0, 0.5)), 5, "one"
    ),
}
EVERY, NOT_ADDED = {ADD, REPLACE, ZERO}, {REPLACE, ZERO}
ONLY_REPLACED, NONE = {REPLACE}, set()
# Which relations have a bound. Rows as `SAMPLINGS`, columns as `QUERIES`.
SUPPORTED = {
    "poisson": [EVERY, {ADD, ZERO}, EVERY, EVERY],
    "poisson of users": [EVERY, {ADD, ZERO}, EVERY, EVERY],
    "truncated": [EVERY, {ADD, ZERO}, EVERY, EVERY],
    "certain poisson": [EVERY, {ADD, ZERO}, EVERY, EVERY],
    "full": [EVERY, {ADD, ZERO}, EVERY, EVERY],
    "unverified": [NOT_ADDED, {ZERO}, NOT_ADDED, NOT_ADDED],
    "by contents": [{ZERO}] * 4,
    "disjoint": [NOT_ADDED, {ZERO}, NOT_ADDED, NOT_ADDED],
    "cyclic": [EVERY, NONE, NONE, EVERY],
    "fixed": [ONLY_REPLACED, NONE, NONE, NONE],
    "fixed, all": [ONLY_REPLACED, NONE, NONE, NONE],
}
CELLS = [
    (sampling, query, row[column])
    for sampling, row in SUPPORTED.items()
    for column, query in enumerate(QUERIES)
]


def ledger_of(*samplings, query="gaussian"):
    return [
        (Round(SAMPLINGS[each], (QUERIES[query],)), 3) for each in samplings
    ]


class TestTheTable:
    def test_has_every_sampling_event(self) -> None:
        kinds = {
            each for each in vars(ledger).values() if isinstance(each, type)
        }
        known = {each for each in kinds if issubclass(each, SamplingEvent)}
        known.remove(SamplingEvent)

        assert module.SAMPLINGS.keys() == known
        assert {type(each) for each in SAMPLINGS.values()} == known
        assert module.RELATIONS == RELATIONS

    @pytest.mark.parametrize("neighbours", RELATIONS)
    @pytest.mark.parametrize(("sampling", "query", "supported"), CELLS)
    def test_is_what_normalization_accepts(
        self, sampling, query, supported, neighbours
    ) -> None:
        rounds = ledger_of(sampling, query=query)

        if neighbours in supported:
            assert normalize(rounds, neighbours)
            return
        with pytest.raises(UnsupportedEventError) as error:
            normalize(rounds, neighbours)
        message = str(error.value)
        assert f"neighbours={neighbours!r}" in message
        support, _, _ = message.partition("Received")
        assert {
            each for each in RELATIONS if repr(each) in support
        } == supported

    @pytest.mark.parametrize(("sampling", "query", "supported"), CELLS)
    def test_tells_the_strongest_relation(
        self, sampling, query, supported
    ) -> None:
        rounds = ledger_of(sampling, query=query)

        if supported:
            strongest = min(supported, key=RELATIONS.index)
            assert strongest_neighbours(rounds) == strongest
            assert normalize(rounds) == normalize(rounds, strongest)
            return
        for function in (strongest_neighbours, normalize):
            with pytest.raises(UnsupportedEventError):
                function(rounds)


class TestTheStrongest:
    @pytest.mark.parametrize(
        ("samplings", "strongest"),
        [
            ([], ADD),
            (["poisson", "full"], ADD),
            (["poisson", "unverified"], REPLACE),
            (["full", "disjoint", "fixed"], REPLACE),
        ],
    )
    def test_is_supported_by_all_rounds(self, samplings, strongest) -> None:
        assert strongest_neighbours(ledger_of(*samplings)) == strongest

    def test_can_be_neither_of_two_rounds_strongest(self) -> None:
        """An encoded sum is not for replacing, batches not for adding."""
        rounds = ledger_of("poisson", query="encoded")
        rounds += ledger_of("unverified")

        assert strongest_neighbours(rounds) == ZERO

    def test_may_not_exist(self) -> None:
        rounds = ledger_of("fixed") + ledger_of("full", query="encoded")

        with pytest.raises(UnsupportedEventError, match="`ledger`"):
            strongest_neighbours(rounds)
        assert available_accountants(rounds) == ()

    def test_reads_an_iterator_once(self) -> None:
        rounds = ledger_of("unverified")

        assert normalize(iter(rounds)) == normalize(rounds, REPLACE)
