"""Data and arguments that samplers refuse."""

import numpy as np
import pytest

from keras_dp import sampling
from keras_dp.sampling import (
    CyclicPoissonBatches,
    FixedSizeBatches,
    PoissonBatches,
    RandomMicrobatches,
    ShuffledBatches,
    UserBatches,
)


class Source:
    """As many records as asked for."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, indices):
        return indices


def test_errors_never_show_data():
    with pytest.raises(TypeError) as raised:
        PoissonBatches(([123456.0],), sampling_probability=0.1)

    assert "123456" not in str(raised.value)


@pytest.mark.parametrize(
    "base",
    [
        getattr(sampling, name)
        for name in sampling.__all__
        if name.endswith(("Batches", "Sampler", "Microbatches"))
    ],
)
def test_nothing_else_may_say_that_the_library_drew(base):
    """A subclass could repeat a batch, and its event would claim a fresh one.

    Control: other classes, such as sources of records, may have subclasses.
    """
    with pytest.raises(TypeError, match="class Own"):
        type("Own", (base,), {"__module__": __name__})

    type("Own", (sampling.TFRecordShards,), {"__module__": __name__})


def test_no_other_law_is_drawn_by():
    draw = built(POISSON).draw

    with pytest.raises(TypeError, match="abstract"):
        sampling.Sampler(np.ones(4), lambda count: draw)


@pytest.mark.parametrize(
    "data",
    [
        [],
        np.ones((0, 3)),
        Source(0),
        [1.0, 2.0],
        {"x": "abc"},
        "abc",
        None,
        iter([1]),
        np.float32(1),
        np.array([None, 1]),
        (np.ones((3, 2)), np.ones(4)),
    ],
)
def test_bad_data(data):
    with pytest.raises((TypeError, ValueError), match="`data"):
        PoissonBatches(data, sampling_probability=0.1)


class Lying(Source):
    """Keeps its word for one record only."""

    def __init__(self, answer):
        super().__init__(50)
        self.answer = answer

    def __getitem__(self, indices):
        if len(indices) == 1:
            return np.ones(1), np.ones((1, 2))
        return self.answer(len(indices))


@pytest.mark.parametrize(
    "answer",
    [
        lambda n: np.ones(n),
        lambda n: (np.ones(n),),
        lambda n: ((np.ones(n),), np.ones((n, 2))),
        lambda n: (np.ones(n - 1), np.ones((n, 2))),
        lambda n: (np.ones(n), np.ones((n, 3))),
        lambda n: (np.ones(n, int), np.ones((n, 2))),
    ],
)
def test_a_source_that_answers_something_else(answer):
    batches = PoissonBatches(Lying(answer), sampling_probability=1.0)

    with pytest.raises(ValueError, match=r"`data.indices.` must have"):
        next(iter(batches))


def test_a_source_of_batches_instead_of_records():
    class Batches(Source):
        def __getitem__(self, index):
            return np.ones(32), np.ones(32)

    message = r"equal length .* shapes \(32,\), \(32,\) for 1 index"
    with pytest.raises(ValueError, match=message):
        PoissonBatches(Batches(10), sampling_probability=0.1)


POISSON = (PoissonBatches, {"sampling_probability": 0.1})
CYCLIC = (CyclicPoissonBatches, {"classes": 2})
FIXED = (FixedSizeBatches, {"sample_size": 2})
SHUFFLED = (ShuffledBatches, {"batch_size": 2})
USERS = (
    UserBatches,
    {
        "user_ids": ["ann", "bob", "ann", "cid"],
        "sampling_probability": 0.5,
        "records_per_user": 3,
    },
)


def built(sampler, data=None, **changes):
    kind, options = sampler
    return kind(np.ones(4) if data is None else data, **(options | changes))


@pytest.mark.parametrize(
    ("sampler", "name", "value"),
    [
        *[
            (sampler, "sampling_probability", q)
            for sampler in (POISSON, CYCLIC, USERS)
            for q in (0, -0.1, 1.1, float("nan"), float("inf"), "1")
        ],
        *[
            (sampler, name, value)
            for sampler in (POISSON, CYCLIC, FIXED, SHUFFLED, USERS)
            for name, value in [
                ("physical_batch_size", 0),
                ("physical_batch_size", 2.5),
                ("seed", -1),
                ("seed", 0.5),
                ("rounds_per_epoch", 0),
                ("map", 3),
                ("views", 0),
            ]
        ],
        (POISSON, "sampling_probability", 1e-20),
        (POISSON, "truncate_at", 0),
        (POISSON, "truncate_at", 2.5),
        (CYCLIC, "classes", 0),
        (CYCLIC, "classes", 2.5),
        (FIXED, "sample_size", 0),
        (FIXED, "sample_size", 5),
        (FIXED, "sample_size", 2.0),
        (SHUFFLED, "batch_size", 0),
        (SHUFFLED, "batch_size", 5),
        (USERS, "user_ids", ["ann", "bob", "ann"]),
        (USERS, "user_ids", [["ann", "bob", "ann", "cid"]]),
        (USERS, "user_ids", ["ann", "bob", "ann", None]),
        (USERS, "user_ids", np.arange(4) / 1.0),
        (USERS, "records_per_user", 0),
        (USERS, "physical_batch_size", 4),
    ],
    ids=str,
)
def test_bad_arguments(sampler, name, value):
    with pytest.raises((TypeError, ValueError), match=f"`{name}` must"):
        built(sampler, **{name: value})


def test_numbers_that_do_not_fit_together():
    with pytest.raises(ValueError, match="`truncate_at` must"):
        built(POISSON, truncate_at=4, microbatches=RandomMicrobatches(2))
    with pytest.raises(ValueError, match="`population_size` must"):
        built(POISSON, data=Source(2**46 + 1))


@pytest.mark.parametrize(
    ("sampler", "options"),
    [
        (POISSON, {}),
        (POISSON, {"map": abs, "microbatches": RandomMicrobatches(2)}),
        (USERS, {"map": abs}),
    ],
    ids=["without a map", "microbatches", "users"],
)
def test_views_that_are_refused(sampler, options):
    """Control: a map of single records has views."""
    built(POISSON, map=abs, views=2)

    with pytest.raises(ValueError, match="`views` must be 1"):
        built(sampler, views=2, **options)


@pytest.mark.parametrize(
    ("sampler", "index", "count", "name"),
    [
        (built(POISSON), 2, 2, "index"),
        (built(POISSON), -1, 2, "index"),
        (built(POISSON), 0, 0, "count"),
        (built(POISSON), 0, 5, "count"),
        (built(POISSON).shard(0, 2), 0, 2, "shard"),
        (
            built(POISSON, microbatches=RandomMicrobatches(4)),
            0,
            2,
            "microbatches",
        ),
        (built(POISSON, truncate_at=3), 0, 2, "truncate_at"),
        *[
            (built(other), 0, 2, "shard")
            for other in (CYCLIC, FIXED, SHUFFLED, USERS)
        ],
    ],
)
def test_bad_shards(sampler, index, count, name):
    with pytest.raises(ValueError, match=f"`{name}` must"):
        sampler.shard(index, count)
