"""Where the samples of every sampler come from: the kernel, or a seed.

A seed gives the same samples, in the same rows, in every version. The digests
were made once. Who changes one changes what a seed means.
"""

import hashlib
import itertools
import pickle

import numpy as np
import pytest

from keras_dp import _reproducible
from keras_dp.sampling import (
    CyclicPoissonBatches,
    FixedSizeBatches,
    PoissonBatches,
    RandomMicrobatches,
    ShuffledBatches,
    UserBatches,
    random_words,
)

DATA = np.arange(1, 1201)
POISSON = {"sampling_probability": 0.05}
SAMPLERS = {
    "poisson": (PoissonBatches, POISSON),
    "small batches": (PoissonBatches, POISSON | {"physical_batch_size": 16}),
    "rare": (PoissonBatches, {"sampling_probability": 2e-3}),
    "truncated": (PoissonBatches, POISSON | {"truncate_at": 50}),
    "random microbatches": (
        PoissonBatches,
        POISSON | {"microbatches": RandomMicrobatches(4)},
    ),
    "fixed size": (FixedSizeBatches, {"sample_size": 60}),
    "shuffled": (
        ShuffledBatches,
        {"batch_size": 350, "physical_batch_size": 100},
    ),
    "cyclic": (CyclicPoissonBatches, {"classes": 3}),
    "cyclic samples": (
        CyclicPoissonBatches,
        {"classes": 3, "sampling_probability": 0.3},
    ),
    "users": (
        UserBatches,
        {
            "user_ids": DATA * 7 % 101,
            "sampling_probability": 0.2,
            "records_per_user": 5,
        },
    ),
}
EXPECTED = {
    "poisson": "5a255754bac92d36",
    "small batches": "e55f1f163d72a14c",
    "rare": "e95e8ce1262ebb05",
    "truncated": "dc0f25b486a2b801",
    "random microbatches": "fdae2b5f64b0d3bd",
    "fixed size": "bc0e65698338da3e",
    "shuffled": "5fbb4dbf4ea1505c",
    "cyclic": "63de503435f8d012",
    "cyclic samples": "d408ef60b2e5d9d9",
    "users": "59572b2d611b41a8",
    "shards": ["4f97a081f6f0ab8f", "2636d2785468c386", "92a1ddb7aac15574"],
}


def digest(sampler):
    """Returns a digest of the first batches of two iterators."""
    found = hashlib.sha256()
    for _ in range(2):
        for batch in itertools.islice(sampler, 9):
            rows = np.where(batch.mask, batch.records, 0)
            found.update(rows.astype("<i8").tobytes())
            found.update(bytes([batch.ends_sample]))
    return found.hexdigest()[:16]


@pytest.mark.parametrize("name", SAMPLERS)
def test_are_drawn_by_each_sampler_here_and_where_it_is_sent(name):
    kind, options = SAMPLERS[name]
    sampler = kind(DATA, seed=5, **options)
    sent = pickle.loads(pickle.dumps(sampler))

    assert digest(sampler) == digest(sent) == EXPECTED[name]


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_seed_counts_in_tests_only(name, monkeypatch):
    kind, options = SAMPLERS[name]
    other = kind(DATA, seed=6, **options)
    monkeypatch.setattr(_reproducible, "is_on", lambda: False)
    sampler = kind(DATA, seed=5, **options)

    assert sampler.seeded
    found = {digest(each) for each in (sampler, sampler, other)}
    assert len(found | {EXPECTED[name]}) == 4


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("is_replaced", [True, False])
def test_without_a_seed_all_words_are_the_operating_systems(
    name, is_replaced, monkeypatch
):
    """Control: they differ where they are its own."""
    kind, options = SAMPLERS[name]
    found = set()
    for _ in range(2):
        if is_replaced:
            words = np.random.default_rng(3).bytes
            monkeypatch.setattr(random_words.os, "urandom", words)
        found.add(digest(kind(DATA, **options)))

    assert (len(found) == 1) == is_replaced


def test_are_drawn_by_each_shard():
    whole = PoissonBatches(DATA, seed=5, **POISSON)

    assert [digest(whole.shard(i, 3)) for i in range(3)] == EXPECTED["shards"]
