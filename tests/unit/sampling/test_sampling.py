"""`PoissonBatches` does what its docstring says."""

import contextlib
import contextvars
import itertools
import subprocess
import sys
from concurrent import futures
from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats

from keras_dp.ledger import (
    CyclicPoissonSampling,
    DisjointBatches,
    FixedSizeWithoutReplacement,
    PoissonSampling,
    PoissonUserSampling,
    TruncatedPoissonSampling,
)
from keras_dp.sampling import (
    CyclicPoissonBatches,
    FixedSizeBatches,
    PoissonBatches,
    RandomMicrobatches,
    Sampler,
    ShuffledBatches,
    UserBatches,
)
from keras_dp.sampling.draw import Pass
from tests.waiting import let_others_run

SEED = 11
DATA = np.arange(100)


def one_sample(batches):
    """Returns the physical batches of one sample."""
    sample = []
    for batch in batches:
        sample.append(batch)
        if batch.ends_sample:
            return sample
    return None


def drawn(batches):
    """Returns who takes part in the first round, for a flat array."""
    sample = one_sample(iter(batches))
    return np.sort(np.concatenate([b.records[b.mask] for b in sample]))


def half_of(size):
    return PoissonBatches(np.arange(size), sampling_probability=0.5, seed=SEED)


class Source:
    """Records `i -> (i, [i, -i])`, of which none is stored."""

    def __init__(self, size):
        self.size = size
        self.asked = []

    def __len__(self):
        return self.size

    def __getitem__(self, indices):
        self.asked.append(indices)
        return indices, {"pair": np.stack([indices, -indices], axis=1)}


class Example(NamedTuple):
    x: np.ndarray
    y: np.ndarray


# Physical batches.


def test_an_empty_sample_is_one_batch_of_padding():
    source = Source(10)
    batches = PoissonBatches(
        source, sampling_probability=1e-15, physical_batch_size=4, seed=SEED
    )
    source.asked.clear()

    for batch in itertools.islice(batches, 5):
        assert batch.ends_sample is True
        assert batch.mask.dtype == bool
        assert not batch.mask.any()
        assert batch.records[0].shape == (4,)
        assert not batch.records[1]["pair"].any()
    assert source.asked == []


# Where records come from.


def test_nested_arrays_keep_structure_dtypes_and_correspondence():
    ids = np.arange(200)
    data = (
        {"a": ids.astype(np.float32), "b": [ids[:, None] * np.ones((1, 3))]},
        Example(x=ids.astype(np.uint8), y=np.array([f"s{i}" for i in ids])),
    )
    batches = PoissonBatches(data, sampling_probability=0.1, seed=SEED)

    (inputs, example), mask, _ = next(iter(batches))

    assert isinstance(example, Example)
    assert inputs["a"].dtype == np.float32
    assert inputs["b"][0].dtype == np.float64
    assert inputs["b"][0].shape == (batches.physical_batch_size, 3)
    real = inputs["a"][mask].astype(int)
    assert len(real)
    np.testing.assert_array_equal(example.x[mask], real)
    np.testing.assert_array_equal(inputs["b"][0][mask, 2], real)
    assert list(example.y[mask]) == [f"s{i}" for i in real]


def test_a_source_is_asked_only_for_what_was_drawn():
    source = Source(10**12)
    batches = PoissonBatches(source, sampling_probability=1e-10, seed=SEED)

    (ids, nested), mask, _ = one_sample(batches)[-1]

    probe, indices = source.asked
    np.testing.assert_array_equal(probe, [0])
    assert indices.dtype == np.int64
    assert (np.diff(indices) > 0).all()  # In the order of the data.
    np.testing.assert_array_equal(np.sort(ids[mask]), indices)
    np.testing.assert_array_equal(nested["pair"][mask][:, 1], -ids[mask])


def test_all_kinds_of_data_are_drawn_and_placed_alike(tmp_path):
    numbers = np.arange(1, 401)
    path = tmp_path / "x.npy"
    np.save(path, numbers)
    kinds = [
        numbers,
        numbers.astype(">i8"),
        np.stack([numbers, numbers], axis=1)[:, 1],
        np.load(path, mmap_mode="r"),
        np.load(path, mmap_mode="r+"),
    ]

    options = {"sampling_probability": 0.3, "physical_batch_size": 48}

    first, *others = (
        next(iter(PoissonBatches(data, seed=SEED, **options))) for data in kinds
    )

    np.testing.assert_array_equal(first.mask, first.records > 0)
    for batch in others:
        np.testing.assert_array_equal(batch.records, first.records)
        np.testing.assert_array_equal(batch.mask, first.mask)


def test_array_likes_are_converted():
    class Tensor:
        def __array__(self, dtype=None, copy=None):
            return np.arange(6.0)

    batches = PoissonBatches((Tensor(), np.arange(6)), sampling_probability=1.0)

    (records, _), mask, _ = next(iter(batches))
    assert sorted(records[mask].tolist()) == [0, 1, 2, 3, 4, 5]


# Randomness.


@pytest.mark.parametrize("made", [True, False])
def test_a_seed_is_noticed_when_the_sampler_is_made(made):
    """Draws may run in a thread, which does not see the caller's context."""
    outside = contextvars.Context().run

    if made:
        samples = [outside(drawn, half_of(2000)) for _ in range(2)]
    else:
        samples = [drawn(outside(half_of, 2000)) for _ in range(2)]

    assert np.array_equal(*samples) == made


def test_iterators_share_no_draw_however_they_interleave():
    together = half_of(300)
    first, second = iter(together), iter(together)
    mixed = [next(it).records for it in (first, second, first, second)]
    apart = half_of(300)
    alone = list(itertools.islice(apart, 2)), list(itertools.islice(apart, 2))

    assert not np.array_equal(mixed[0], mixed[1])
    for one, two in zip(mixed[0::2], alone[0], strict=True):
        np.testing.assert_array_equal(one, two.records)
    for one, two in zip(mixed[1::2], alone[1], strict=True):
        np.testing.assert_array_equal(one, two.records)


def test_importing_and_drawing_loads_no_tensorflow():
    code = (
        "import sys, numpy as np; from keras_dp import sampling; "
        "next(iter(sampling.PoissonBatches(np.ones(9), "
        "sampling_probability=.5))); "
        "assert not {'tensorflow', 'keras', 'scipy.stats'} & set(sys.modules)"
    )

    subprocess.run([sys.executable, "-c", code], check=True)


# Public attributes.


PASS = Pass.new()
EVERY = {
    "poisson": (
        PoissonBatches(DATA, sampling_probability=np.float64(0.3)),
        PoissonSampling(0.3, True),
        {"expected_sample_size": 30, "rounds_per_epoch": 3},
    ),
    "truncated": (
        PoissonBatches(
            DATA, sampling_probability=0.1, truncate_at=np.int64(32)
        ),
        TruncatedPoissonSampling(0.1, 32, 100, True),
        {
            "expected_sample_size": 10,
            "physical_batch_size": 32,
            "truncate_at": 32,
        },
    ),
    "fixed size": (
        FixedSizeBatches(DATA, sample_size=np.int64(8)),
        FixedSizeWithoutReplacement(8, 100, True),
        {
            "sample_size": 8,
            "expected_sample_size": 8.0,
            "physical_batch_size": 8,
            "rounds_per_epoch": 12,
        },
    ),
    "shuffled": (
        ShuffledBatches(DATA, batch_size=np.int64(8)),
        DisjointBatches(PASS.epoch_id, True),
        {
            "batch_size": 8,
            "expected_sample_size": 8.0,
            "physical_batch_size": 8,
            "rounds_per_epoch": 13,
            "rounds_per_pass": 13,
        },
    ),
    "cyclic": (
        CyclicPoissonBatches(DATA, classes=10, sampling_probability=0.5),
        CyclicPoissonSampling(PASS.epoch_id, 10, 0.5, True),
        {
            "classes": 10,
            "expected_sample_size": 5,
            "rounds_per_epoch": 20,
            "rounds_per_pass": 10,
        },
    ),
    "users": (
        UserBatches(
            DATA,
            user_ids=DATA // 25,
            sampling_probability=0.5,
            records_per_user=3,
        ),
        PoissonUserSampling(0.5, True),
        {
            "population_size": 4,
            "expected_sample_size": 2,
            "rounds_per_epoch": 2,
            "unit": "user",
        },
    ),
}


@pytest.mark.parametrize("name", EVERY)
def test_attributes_of_every_sampler(name):
    sampler, event, numbers = EVERY[name]
    others = {"population_size": 100, "rounds_per_pass": None}

    assert isinstance(sampler, Sampler)
    assert sampler.sampling_of(PASS) == event
    for attribute, expected in (others | numbers).items():
        assert getattr(sampler, attribute) == expected
    assert len(sampler) == sampler.rounds_per_epoch
    assert f"physical_batch_size={sampler.physical_batch_size}" in repr(sampler)
    assert not sampler.seeded
    assert sampler.rows_of_record.are_apart == (name != "users")
    if sampler.rounds_per_pass is None:
        assert sampler.planned(7) == [(sampler.sampling_event, 7)]


def test_the_structure_of_a_record():
    batches = PoissonBatches(
        (np.zeros((400, 5, 2), np.float32), {"y": np.zeros(400, np.int64)}),
        sampling_probability=0.3,
    )

    x, y = batches.records.structure
    assert (x.shape, x.dtype) == ((5, 2), np.float32)
    assert (y["y"].shape, y["y"].dtype) == ((), np.int64)


@pytest.mark.parametrize(
    "name",
    ["sampling_probability", "sampling_event", "unit", "seeded", "positions"],
)
def test_what_a_ledger_is_told_cannot_be_set(name):
    """It would change what is recorded, and not what is drawn."""
    batches = PoissonBatches(np.ones(9), sampling_probability=0.1)

    with pytest.raises(AttributeError):
        setattr(batches, name, getattr(batches, name))


@pytest.mark.parametrize("microbatches", [None, RandomMicrobatches(2)])
def test_the_event_is_of_the_draw_by_force_too(microbatches):
    """No attribute can make them disagree: the draw is frozen."""
    batches = PoissonBatches(
        np.arange(20_000), sampling_probability=0.5, microbatches=microbatches
    )

    for holder in (batches, batches.draw, batches.sampling_event):
        for name in ("_probability", "probability", *dir(holder)):
            with contextlib.suppress(AttributeError, TypeError):
                if getattr(holder, name, 0.5) == 0.5:
                    setattr(holder, name, 0.25)

    taken = drawn(batches)
    assert batches.sampling_event.probability == 0.5
    assert 9_000 < len(taken) < 11_000  # Ten standard deviations of pairs.


@pytest.mark.parametrize("size", [1, 7, 40, 1000, 10**6])
@pytest.mark.parametrize("mean", [1e-4, 0.3, 1, 2.48, 7.9, 31, 500, 9e5])
def test_by_default_one_sample_of_10_000_needs_a_second_batch(size, mean):
    """And the batch is less than 8 records larger than it must be."""
    if mean > size:
        return
    q = mean / size
    batches = PoissonBatches(Source(size), sampling_probability=q)
    physical = batches.physical_batch_size

    assert physical % 8 == 0
    assert stats.binom.sf(physical, size, q) <= 1e-4
    assert physical == 8 or stats.binom.sf(physical - 8, size, q) > 1e-4


class Slow(int):
    """Counts up slowly, so that other threads read it in between."""

    def __add__(self, other):
        let_others_run()
        return Slow(int(self) + other)


def test_iterators_of_several_threads_have_streams_of_their_own():
    """Of one seed, two would draw the same samples otherwise."""
    batches = half_of(1000)
    batches._streams = Slow()

    with futures.ThreadPoolExecutor(8) as pool:
        randomness = list(pool.map(lambda _: batches.randomness(), range(8)))

    first = [next(batches.draws(each)).rows.tobytes() for each in randomness]
    assert len(set(first)) == 8
