"""Laws of every sampler, for any sizes and seed: who is drawn, and the event.

Sizes need not divide each other: a pass has a smaller last batch, a sample more
than one physical batch, or none of some records.
"""

import itertools
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_dp.ledger import (
    CyclicPoissonSampling,
    DisjointBatches,
    FixedSizeWithoutReplacement,
    PoissonUserSampling,
    TruncatedPoissonSampling,
)
from keras_dp.sampling import (
    CyclicPoissonBatches,
    FixedSizeBatches,
    PoissonBatches,
    ShuffledBatches,
    UserBatches,
)

law = settings(max_examples=80)

SIZES, SEEDS = st.integers(1, 60), st.integers(0, 2**40)
PASSES = 3


class Drawn(NamedTuple):
    """A round, with its physical batches."""

    event: object
    batches: list

    @property
    def records(self):
        return np.concatenate([b.records[0][b.mask] for b in self.batches])


def rounds_of(sampler, count):
    """Returns the first rounds of an iterator."""
    return [
        Drawn(sampler.sampling_of(sample.pass_), [*sampler.batches_of(sample)])
        for sample in itertools.islice(sampler.draws(), count)
    ]


def passes_of(sampler):
    """Returns the rounds of some passes, by pass."""
    size = sampler.rounds_per_pass
    rounds = rounds_of(sampler, PASSES * size)
    return [
        rounds[start : start + size] for start in range(0, len(rounds), size)
    ]


def data_of(size):
    return np.arange(size), np.arange(1.0, size + 1)


@st.composite
def fixed_sizes(draw):
    size = draw(SIZES)
    return FixedSizeBatches, size, {"sample_size": draw(st.integers(1, size))}


@st.composite
def samples(draw):
    probabilities = st.floats(2.0**-60, 1.0) | st.sampled_from([0.1, 0.9, 1.0])
    return (
        PoissonBatches,
        draw(st.integers(1, 300)),
        {"sampling_probability": draw(probabilities)},
    )


@st.composite
def shuffles(draw):
    size = draw(SIZES)
    return ShuffledBatches, size, {"batch_size": draw(st.integers(1, size))}


@st.composite
def truncations(draw):
    return (
        PoissonBatches,
        draw(SIZES),
        {
            "sampling_probability": draw(st.floats(1e-9, 1.0)),
            "truncate_at": draw(st.integers(1, 70)),
        },
    )


@st.composite
def users(draw):
    size = draw(SIZES)
    ids = draw(st.lists(st.integers(0, 9), min_size=size, max_size=size))
    return (
        UserBatches,
        size,
        {
            "user_ids": ids,
            "sampling_probability": draw(st.floats(1e-9, 1.0)),
            "records_per_user": draw(st.integers(1, 6)),
        },
    )


@st.composite
def cycles(draw):
    return (
        CyclicPoissonBatches,
        draw(SIZES),
        {
            "classes": draw(st.integers(1, 20)),
            "sampling_probability": draw(st.floats(1e-9, 1.0)),
        },
    )


EVERY = st.one_of(
    samples(), fixed_sizes(), shuffles(), truncations(), users(), cycles()
)


def built(chosen, physical, seed):
    kind, size, options = chosen
    if physical is not None:
        rows = options.get("records_per_user", 1)
        options = {**options, "physical_batch_size": physical * rows}
    return kind(data_of(size), seed=seed, **options)


PHYSICAL = st.none() | st.integers(1, 20)


@law
@given(EVERY, PHYSICAL, SEEDS)
def test_no_sample_has_a_record_twice(chosen, physical, seed):
    for each in rounds_of(built(chosen, physical, seed), 4):
        assert len(set(each.records.tolist())) == len(each.records)
        assert ((each.records >= 0) & (each.records < chosen[1])).all()


@law
@given(EVERY, PHYSICAL, SEEDS)
def test_every_batch_has_the_shape_that_was_announced(chosen, physical, seed):
    """A sample takes as few batches as hold it; padding is zero."""
    sampler = built(chosen, physical, seed)
    rows = sampler.rows_of_record.rows

    for each in rounds_of(sampler, 4):
        held = sum(
            int(batch.mask.reshape(-1, rows).any(axis=1).sum())
            for batch in each.batches
        )
        most = sampler.physical_batch_size // rows
        assert len(each.batches) == max(1, -(-held // most))
        for batch in each.batches:
            first, second = batch.records
            assert batch.mask.shape == (sampler.physical_batch_size,)
            np.testing.assert_array_equal(
                second, np.where(batch.mask, first + 1.0, 0.0)
            )


@law
@given(EVERY, st.integers(1, 30), SEEDS)
def test_plans_are_of_the_events_that_are_drawn(chosen, count, seed):
    """Two iterators have ids of their own, and the same events otherwise."""
    sampler = built(chosen, None, seed)
    drawn = [each.event for each in rounds_of(sampler, count)]

    planned = [event for event, n in sampler.planned(count) for _ in range(n)]

    assert len(planned) == len(drawn) == count
    for one, two in zip(planned, drawn, strict=True):
        assert type(one) is type(two)
        assert one == two or one.epoch_id != two.epoch_id
    ids = [
        [getattr(e, "epoch_id", "") for e in each] for each in (planned, drawn)
    ]
    assert [*map(ids[0].index, ids[0])] == [*map(ids[1].index, ids[1])]


@law
@given(fixed_sizes(), PHYSICAL, SEEDS)
def test_samples_of_fixed_size_have_that_size(chosen, physical, seed):
    for each in rounds_of(built(chosen, physical, seed), 4):
        assert each.event == FixedSizeWithoutReplacement(
            len(each.records), chosen[1], drawn_by_library=True
        )


@law
@given(shuffles(), PHYSICAL, SEEDS)
def test_shuffled_batches_are_disjoint_and_cover_all(chosen, physical, seed):
    sampler = built(chosen, physical, seed)
    ids = set()

    for each in passes_of(sampler):
        sizes = [len(round_.records) for round_ in each]
        assert set(sizes[:-1]) <= {sampler.batch_size}
        assert 1 <= sizes[-1] <= sampler.batch_size
        everyone = np.concatenate([round_.records for round_ in each])
        assert sorted(everyone) == [*range(chosen[1])]
        (event,) = {round_.event for round_ in each}
        assert event == DisjointBatches(event.epoch_id, drawn_by_library=True)
        ids.add(event.epoch_id)
    assert len(ids) == PASSES


@law
@given(cycles(), PHYSICAL, SEEDS)
def test_classes_take_turns(chosen, physical, seed):
    """A record is in rounds of one class only, and its cycles are numbered."""
    sampler = built(chosen, physical, seed)
    classes, own = sampler.classes, {}

    for number, each in enumerate(rounds_of(sampler, PASSES * classes)):
        for record in each.records.tolist():
            assert own.setdefault(record, number % classes) == number % classes
        assert each.event == CyclicPoissonSampling(
            each.event.epoch_id,
            classes,
            sampler.sampling_probability,
            drawn_by_library=True,
        )
        assert each.event.cycle == number // classes
    if sampler.sampling_probability == 1:
        assert len(own) == chosen[1]


@law
@given(truncations(), PHYSICAL, SEEDS)
def test_truncated_samples_fit_into_one_batch(chosen, physical, seed):
    """By default; in smaller ones they are no larger."""
    sampler = built(chosen, physical, seed)

    for each in rounds_of(sampler, 4):
        assert physical is not None or len(each.batches) == 1
        assert len(each.records) <= sampler.truncate_at
        assert each.event == TruncatedPoissonSampling(
            sampler.sampling_probability,
            sampler.truncate_at,
            chosen[1],
            drawn_by_library=True,
        )


@pytest.mark.full
@law
@given(samples(), st.integers(1, 70), st.integers(1, 70), SEEDS)
def test_physical_batches_do_not_change_samples(chosen, one, two, seed):
    """Neither rows nor batches have an influence on who takes part."""
    for a, b in zip(
        rounds_of(built(chosen, one, seed), 4),
        rounds_of(built(chosen, two, seed), 4),
        strict=True,
    ):
        np.testing.assert_array_equal(np.sort(a.records), np.sort(b.records))


@law
@given(users(), PHYSICAL, SEEDS)
def test_users_have_their_rows_together_and_not_more(chosen, physical, seed):
    _, _, options = chosen
    ids, most = np.array(options["user_ids"]), options["records_per_user"]
    sizes = np.bincount(ids, minlength=10)
    sampler = built(chosen, physical, seed)

    for each in rounds_of(sampler, 4):
        taken = np.bincount(ids[each.records], minlength=10)
        # Whoever takes part does with all records, or as many as are allowed.
        assert ((taken == 0) | (taken == np.minimum(sizes, most))).all()
        for batch in each.batches:
            blocks = np.where(batch.mask, ids[batch.records[0]], -1)
            for block in blocks.reshape(-1, most):
                assert len({*block.tolist()} - {-1}) <= 1
        places = list(
            itertools.chain.from_iterable(
                {*np.where(b.mask, ids[b.records[0]], -1)[i : i + most]} - {-1}
                for b in each.batches
                for i in range(0, sampler.physical_batch_size, most)
            )
        )
        assert len(places) == len(set(places))
        assert each.event == PoissonUserSampling(
            sampler.sampling_probability, drawn_by_library=True
        )
