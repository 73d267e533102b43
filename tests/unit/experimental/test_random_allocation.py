"""Passes in which records pick their batches: who is where, and the price."""

import functools
import itertools
import math

import numpy as np
import pytest
from scipy import stats

from keras_dp.accountants import (
    RDP,
    Fourier,
    available_accountants,
)
from keras_dp.accountants.normalize.mechanisms import (
    Gaussian,
    RandomAllocationGaussian,
)
from keras_dp.accountants.normalize.normalize import normalize
from keras_dp.budgets import (
    FixedPlan,
    GaussianFilter,
    RenyiFilter,
    charge_of,
    open_account,
)
from keras_dp.errors import BudgetExceededError, UnsupportedEventError
from keras_dp.experimental.random_allocation import AllocatedBatches
from keras_dp.ledger import (
    FullDataset,
    GaussianSum,
    PrivacyLedger,
    RandomAllocation,
    Round,
)
from keras_dp.planning import rounds_left
from keras_dp.sampling.random_subset import random_subsets
from keras_dp.sampling.sampler import Pass

SEED = 9
FALSE_ALARM = 1e-6
PASSES, RECORDS, BATCHES = 4000, 8, 3


def picks_of(batches, passes):
    """Returns the batch of each record, shape `[passes, records]`."""
    found = np.full((passes, batches.population_size), -1)
    stream = iter(batches)
    for row in found:
        for number in range(batches.batches):
            ends = False
            while not ends:
                batch = next(stream)
                assert (row[batch.records[batch.mask]] == -1).all()
                row[batch.records[batch.mask]] = number
                ends = batch.ends_sample
    assert (found >= 0).all()
    return found


def sets_of(batches, passes):
    """Returns who is in which batch, boolean `[passes, records, batches]`."""
    shape = passes, batches.population_size, batches.batches
    found = np.zeros(shape, bool)
    stream = iter(batches)
    for one_pass in found:
        for number in range(batches.batches):
            ends = False
            while not ends:
                batch = next(stream)
                records = batch.records[batch.mask]
                assert not one_pass[records, number].any()
                one_pass[records, number] = True
                ends = batch.ends_sample
    return found


class TestSeveralBatchesARecord:
    @pytest.mark.parametrize(
        ("count", "picks"), [(1, 1), (2, 2), (7, 3), (7, 5), (30, 29), (9, 9)]
    )
    @pytest.mark.parametrize("physical", [None, 3])
    def test_are_different_ones(self, count, picks, physical) -> None:
        batches = AllocatedBatches(
            np.arange(10),
            batches=count,
            batches_per_record=picks,
            physical_batch_size=physical,
        )

        assert (sets_of(batches, 4).sum(axis=2) == picks).all()

    @pytest.mark.standard
    @pytest.mark.parametrize("picks", [2, 3, 4])
    def test_are_all_sets_of_them_equally_often(self, picks) -> None:
        """All records, and pairs of records as well (Bonferroni)."""
        takes = sets_of(
            AllocatedBatches(
                np.arange(4), batches=5, batches_per_record=picks, seed=SEED
            ),
            PASSES,
        )
        of_set = np.full(2**5, -1)
        for number, chosen in enumerate(
            itertools.combinations(range(5), picks)
        ):
            of_set[sum(1 << each for each in chosen)] = number
        sets = of_set[takes @ (1 << np.arange(5))]
        assert (sets >= 0).all()
        kinds = math.comb(5, picks)
        found = [
            stats.chisquare(np.bincount(sets[:, record], minlength=kinds))
            for record in range(4)
        ]
        found += [
            stats.chisquare(
                np.bincount(sets[:, one] * kinds + sets[:, two], None, kinds**2)
            )
            for one, two in itertools.combinations(range(4), 2)
        ]

        assert min(each.pvalue for each in found) * len(found) > FALSE_ALARM

    def test_leave_the_draw_of_one_what_it_was(self) -> None:
        """The picks of one batch are one word each."""
        counts = iter(range(10**6))
        words = lambda n: np.array([next(counts) for _ in range(n)], np.uint64)  # noqa: E731

        assert (random_subsets(9, 1, 4, words)[:, 0] == np.arange(9) % 4).all()


class TestPasses:
    @pytest.mark.parametrize("count", [1, 2, 7, 30])
    @pytest.mark.parametrize("physical", [None, 2])
    def test_hold_every_record_once(self, count, physical) -> None:
        batches = AllocatedBatches(
            np.arange(10), batches=count, physical_batch_size=physical
        )

        assert picks_of(batches, 4).shape == (4, 10)

    def test_have_ids_of_their_own(self) -> None:
        """Also where a seed makes two iterators draw alike."""

        def ids(batches):
            found = itertools.islice(batches.rounds_of_passes(), 6)
            return [batches.sampling_of(of).epoch_id for _, of in found]

        one, two = (
            ids(AllocatedBatches(np.arange(9), batches=3, seed=SEED))
            for _ in range(2)
        )

        assert [*map(one.index, one)] == [0, 0, 0, 3, 3, 3]
        assert not {*one} & {*two}


def counts_of(picks, *columns):
    code = picks[:, columns] @ (BATCHES ** np.arange(len(columns)))
    return np.bincount(code, minlength=BATCHES ** len(columns))


def uniform(picks):
    """Each record picks each batch equally often (Bonferroni)."""
    found = [
        stats.chisquare(counts_of(picks, record)).pvalue
        for record in range(RECORDS)
    ]
    return min(found) * RECORDS


def independent(picks):
    """Any two records pick independently (Bonferroni)."""
    pairs = [*itertools.combinations(range(RECORDS), 2)]
    found = [stats.chisquare(counts_of(picks, *pair)).pvalue for pair in pairs]
    return min(found) * len(pairs)


def passes(picks):
    """A pass tells nothing of the next one."""
    table = np.zeros((BATCHES, BATCHES))
    np.add.at(table, (picks[0::2].ravel(), picks[1::2].ravel()), 1)
    return stats.chi2_contingency(table).pvalue


@functools.cache
def library():
    return picks_of(
        AllocatedBatches(np.arange(RECORDS), batches=BATCHES, seed=SEED), PASSES
    )


def shuffled():
    """Batches of equal size: records know of each other."""
    order = np.random.default_rng(1).random((PASSES, RECORDS)).argsort(axis=1)
    return order * BATCHES // RECORDS


def uneven():
    """A word modulo the number of batches, of words of few bits."""
    words = np.random.default_rng(2).integers(0, 8, (PASSES, RECORDS))
    return words % BATCHES


def drawn_once():
    picks = np.random.default_rng(3).integers(
        0, BATCHES, (PASSES // 2, RECORDS)
    )
    return np.repeat(picks, 2, axis=0)


@pytest.mark.parametrize("check", [uniform, independent, passes])
def test_records_pick_uniformly_and_independently(check) -> None:
    assert check(library()) > FALSE_ALARM


@pytest.mark.parametrize(
    ("check", "wrong"),
    [(uniform, uneven), (independent, shuffled), (passes, drawn_once)],
)
def test_the_checks_can_fail(check, wrong) -> None:
    """Control: picks that are nearly right would have been seen."""
    assert check(wrong()) < FALSE_ALARM


class TestSampler:
    def test_event_and_sizes(self) -> None:
        batches = AllocatedBatches(np.ones(1000), batches=np.int64(20))
        of = Pass.new()

        assert batches.sampling_of(of) == RandomAllocation(
            of.epoch_id, 20, drawn_by_library=True
        )
        assert batches.expected_sample_size == 50.0
        assert len(batches) == batches.rounds_per_pass == 20
        assert [count for _, count in batches.planned(45)] == [20, 20, 5]
        assert "batches=20" in repr(batches)

    def test_event_and_sizes_of_several_batches_a_record(self) -> None:
        batches = AllocatedBatches(
            np.ones(1000), batches=20, batches_per_record=np.int64(3)
        )
        of = Pass.new()

        assert batches.sampling_of(of) == RandomAllocation(
            of.epoch_id, 20, 3, drawn_by_library=True
        )
        assert batches.expected_sample_size == 150.0
        assert len(batches) == batches.rounds_per_pass == 20
        assert "batches_per_record=3" in repr(batches)

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ({"batches": 0}, ValueError, "integer >= 1 .*=0"),
            ({"batches_per_record": 0}, ValueError, "integer >= 1 .*=0"),
            ({"batches_per_record": 3}, ValueError, "at most batches=2.*=3"),
            ({"physical_batch_size": 0}, ValueError, "integer >= 1 .*=0"),
        ],
    )
    def test_refuses_other_arguments(self, arguments, error, message) -> None:
        (name,) = arguments
        arguments = {"batches": 2, **arguments}

        with pytest.raises(error, match=f"^`{name}` must be .*{message}"):
            AllocatedBatches(np.ones(4), **arguments)


def epoch(name, stddev=4.0, batches=10, bound=1.0, picks=1):
    query = GaussianSum("sum", bound, stddev)
    return Round(RandomAllocation(name, batches, picks), (query,))


class TestPrice:
    def test_is_that_of_whole_epochs(self) -> None:
        (found,) = normalize([(epoch("a"), 3), (epoch("b"), 10)])

        assert found == (RandomAllocationGaussian(4.0, 10), 2)

    def test_of_more_rounds_than_batches_is_that_of_more_epochs(self) -> None:
        ((_, count),) = normalize([(epoch("a"), 11)])

        assert count == 2

    def test_of_an_epoch_is_that_of_its_least_private_round(self) -> None:
        (found,) = normalize([(epoch("a", 4.0), 3), (epoch("a", 2.0), 1)])

        assert found.mechanism.noise_multiplier == 2.0

    def test_of_one_batch_is_that_of_all_records(self) -> None:
        assert normalize([(epoch("a", batches=1), 1)])[0] == (Gaussian(4.0), 1)

    def test_of_all_batches_is_that_of_each_round(self) -> None:
        rounds = [
            (epoch("a", 4.0, picks=10), 3),
            (epoch("a", 2.0, picks=10), 1),
        ]

        assert normalize(rounds) == ((Gaussian(2.0), 1), (Gaussian(4.0), 3))

    def test_of_several_batches_a_record_is_of_an_epoch(self) -> None:
        (found,) = normalize(
            [(epoch("a", picks=3), 4), (epoch("b", picks=3), 1)]
        )

        assert found == (RandomAllocationGaussian(4.0, 10, 3), 2)

    @pytest.mark.parametrize("batches", [1, 2, 7, 10])
    def test_rises_with_the_batches_of_a_record(self, batches) -> None:
        found = [
            Fourier().epsilon(
                [(epoch("a", 2.0, batches, 1.0, k), batches)], delta=1e-5
            )
            for k in range(1, batches + 1)
        ]

        assert found == sorted(found)
        every = (
            [(epoch("a", 2.0, 1), 1)]
            if batches == 1
            else [
                (Round(FullDataset(), (GaussianSum("sum", 1.0, 2.0),)), batches)
            ]
        )
        assert found[-1] == Fourier().epsilon(every, delta=1e-5)

    def test_does_not_tell_data_sets_by_their_size(self) -> None:
        """Removing, adding and zeroing a record are one pair, both ways."""
        rounds = [(epoch("a", 1.0, 7, 1.0, 2), 7)]

        assert Fourier().epsilon(
            rounds, delta=1e-5, neighbours="zero_out"
        ) == Fourier().epsilon(
            rounds, delta=1e-5, neighbours="add_or_remove_one"
        )

    def test_of_a_replaced_record_is_refused_with_what_to_ask(self) -> None:
        with pytest.raises(UnsupportedEventError, match="a group of 2"):
            Fourier().epsilon(
                [(epoch("a"), 1)], delta=1e-5, neighbours="replace_one"
            )

    def test_of_nothing_is_nothing(self) -> None:
        assert normalize([(epoch("a", bound=0.0), 10)]) == ()

    def test_of_a_bare_sum_is_infinite(self) -> None:
        assert Fourier().epsilon([(epoch("a", 0.0), 1)], delta=0.1) == math.inf

    def test_falls_with_the_number_of_batches(self) -> None:
        found = [
            Fourier().epsilon([(epoch("a", 1.0, t), 1)], delta=1e-5)
            for t in (1, 2, 5, 20)
        ]

        assert found == sorted(found, reverse=True)
        assert found[-1] < found[0] / 2

    def test_is_known_to_fourier_alone(self) -> None:
        rounds = [(epoch("a"), 10)]

        assert [type(each) for each in available_accountants(rounds)] == [
            Fourier
        ]
        with pytest.raises(UnsupportedEventError, match="Use `Fourier`"):
            RDP().epsilon(rounds, delta=1e-5)

    def test_of_a_group_is_the_textbook_bound(self) -> None:
        rounds = [(epoch("a"), 10)]

        found = Fourier().group(rounds, None, 2)

        assert not found.is_pair
        assert found.epsilon(1e-5) > 2 * Fourier().epsilon(rounds, delta=1e-5)

    def test_says_how_many_rounds_are_left(self) -> None:
        planned = epoch("a", 2.0)

        found = rounds_left(
            [], planned, target_epsilon=1.0, delta=1e-5, rounds_per_pass=10
        )

        epochs, rest = divmod(found, 10)
        assert rest == 0
        fits, not_so = (
            Fourier().epsilon([(planned, 10 * n)], delta=1e-5)
            for n in (epochs, epochs + 1)
        )
        assert fits <= 1.0 < not_so

    @pytest.mark.parametrize("picks", [1, 3])
    @pytest.mark.parametrize(
        "stddev",
        [
            1e-30,
            1e-2,
            pytest.param(0.05, marks=pytest.mark.standard),
            50.0,
            1e6,
            1e9,
            1e12,
            1e100,
        ],
    )
    def test_is_known_for_every_noise(self, stddev, picks) -> None:
        """It is at most that of an epoch that hides no batches."""
        rounds = [(epoch("a", stddev, 5, 1.0, picks), 5)]
        told = [(Round(FullDataset(), rounds[0][0].queries), picks)]

        epsilons = Fourier().epsilon_bounds(rounds, delta=1e-8)
        deltas = Fourier().delta_bounds(rounds, epsilon=0.5)

        most = Fourier().epsilon(told, delta=1e-8)
        assert 0 <= epsilons.lower <= epsilons.upper <= most + 1e-8
        assert 0 <= deltas.lower <= deltas.upper <= 1
        is_told = not 0.04 < stddev < 1e10
        assert ("as if it were known" in epsilons.method) == is_told

    @pytest.mark.standard
    @pytest.mark.parametrize(
        ("batches", "stddevs", "apart"),
        [
            pytest.param(1000, (0.05,), 1.001, marks=pytest.mark.full),
            pytest.param(100, (50.0, 0.05), 1.001, marks=pytest.mark.nightly),
            pytest.param(
                *(100, (1e6, 5.0, 0.5), 1.001), marks=pytest.mark.full
            ),
            (100, (1e12, 1.0), 1.001),
            pytest.param(
                *(10, tuple(np.linspace(1.0, 1.1, 12)), 1.05),
                marks=pytest.mark.full,
            ),
            (50, (0.01, 50.0), math.inf),
        ],
    )
    def test_of_kinds_that_differ_much_takes_no_longer(
        self, batches, stddevs, apart
    ) -> None:
        """A grid that is fine enough for one would not hold the other."""
        rounds = [
            (epoch(f"{stddev}", stddev, batches), batches) for stddev in stddevs
        ]

        lower, upper = Fourier().epsilon_bounds(rounds, delta=1e-6)

        assert 0 < lower <= upper <= apart * lower
        assert upper < math.inf
        assert upper >= max(
            Fourier().epsilon_bounds([each], delta=1e-6)[0] for each in rounds
        )

    @pytest.mark.parametrize("picks", [500, 999])
    @pytest.mark.parametrize("stddev", [0.1, 3.0])
    def test_of_almost_all_batches_is_nearly_that_of_all(
        self, stddev, picks
    ) -> None:
        rounds = [(epoch("a", stddev, 1000, 1.0, picks), 1000)]
        told = [(Round(FullDataset(), rounds[0][0].queries), picks)]

        lower, upper = Fourier().epsilon_bounds(rounds, delta=1e-6)

        assert 0 < lower <= upper
        assert upper <= Fourier().epsilon(told, delta=1e-6) * (1 + 1e-9)

    @pytest.mark.parametrize("stddev", [1e2, 1e4, 1e6])
    def test_of_much_noise_is_that_of_the_sum_of_all_rounds(
        self, stddev
    ) -> None:
        rounds = [(epoch("a", stddev, 100), 100)]
        query = GaussianSum("sum", 1.0, 10 * stddev)
        true = Fourier().delta([(Round(FullDataset(), (query,)), 1)], epsilon=0)

        lower, upper = Fourier().delta_bounds(rounds, epsilon=0)

        assert 0.97 * true <= lower <= true <= upper <= 1.01 * true


@pytest.mark.parametrize("kind", [RenyiFilter, GaussianFilter])
def test_filters_refuse_epochs(kind) -> None:
    ledger = PrivacyLedger.in_memory(dataset="d")
    account = open_account(ledger, "all", kind(6.0, 1e-6))

    with pytest.raises(UnsupportedEventError, match="epoch is private as a wh"):
        charge_of(account, epoch("a"))


def test_a_plan_pays_for_its_own_epoch_alone() -> None:
    plan = FixedPlan([(epoch("a"), 10)], 2.0, 1e-5)

    assert plan.cost == Fourier().epsilon([(epoch("a"), 10)], delta=1e-5)
    assert plan.prices(epoch("a")) == ((0, 1),)
    with pytest.raises(BudgetExceededError, match="id of an epoch is drawn"):
        plan.prices(epoch("b"))
