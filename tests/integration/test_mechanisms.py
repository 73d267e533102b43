"""Every mechanism trains a Keras model, and ends in a ledger that replays."""

import functools
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from keras_dp.accountants import available_accountants
from keras_dp.dp_queries import (
    AdaptiveClipSumQuery,
    AdaptiveScaleQuery,
    DiscretizedSumQuery,
    EncodedSumQuery,
    ErrorCorrectedQuery,
    GaussianAverageQuery,
    GaussianSumQuery,
    JointClipQuery,
    KSDenoisedQuery,
    NestedQuery,
    NormalizedQuery,
    PreselectedVectors,
    QuantileAdaptiveClipSumQuery,
)
from keras_dp.ledger import (
    BandedToeplitz,
    BinaryTree,
    GaussianNoise,
    LaplaceNoise,
    StudentTNoise,
)
from keras_dp.sampling import PoissonBatches
from tests.private_models import CROSS_ENTROPY, correlated_average, private_of

RECORDS, FEATURES, BATCH = 64, 5, 16.0
SHAPES = [(FEATURES, 4), (4,), (4, 2), (2,)]
SIZE = sum(math.prod(shape) for shape in SHAPES)
VECTORS = PreselectedVectors(GaussianNoise(1.0), 5, SIZE, 1.0)


def network():
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [keras.Input((FEATURES,)), layers.Dense(4, "tanh"), layers.Dense(2)]
    )


def averaged(query):
    return NormalizedQuery(query, BATCH)


def adaptive(clip=1.0):
    return AdaptiveClipSumQuery(clip, 1.0, 2.0, expected_num_records=BATCH)


def quantile(clip=1.0):
    return QuantileAdaptiveClipSumQuery(clip, 1.0, 0.5, 0.2, 1.0, BATCH)


def correlated(strategy, rounds, restart_after=None):
    return correlated_average(
        network(), strategy, 4.0, rounds, BATCH, restart_after
    )


QUERIES = {
    "average": GaussianAverageQuery(1.0, 1.0, BATCH),
    "sum": GaussianSumQuery(1.0, 1.0),
    "joint-clip": JointClipQuery([1.0, 0.1, 2.0, 0.3], 1.0, 1.0, BATCH),
    "discretized": averaged(DiscretizedSumQuery(0.01, 1.0, 1.0)),
    "discretized-in-chunks": averaged(
        DiscretizedSumQuery(0.01, 1.0, 1.0, chunk_bytes=4 * SIZE * 3)
    ),
    "corrected": ErrorCorrectedQuery(
        averaged(DiscretizedSumQuery(0.01, 1.0, 1.0)), 0.05
    ),
    "encoded": averaged(EncodedSumQuery(VECTORS, GaussianNoise(1.0))),
    "encoded-student": averaged(
        EncodedSumQuery(VECTORS, StudentTNoise(1.0, df=9.0))
    ),
    "encoded-laplace-denoised": KSDenoisedQuery(
        averaged(EncodedSumQuery(VECTORS, LaplaceNoise(1.0)))
    ),
    "denoised": KSDenoisedQuery(GaussianAverageQuery(1.0, 1.0, BATCH)),
    "adaptive": averaged(adaptive()),
    "quantile": averaged(quantile()),
    "scaled": AdaptiveScaleQuery(
        GaussianAverageQuery(1.0, 1.0, BATCH),
        [tf.TensorSpec(shape) for shape in SHAPES],
        first_rounds=2,
    ),
    "tree-restarted": correlated(BinaryTree(), 100, restart_after=3),
    "correlated": correlated(BandedToeplitz((1.0, 0.5, 0.25)), 8),
    "five-levels": NestedQuery(
        [
            NestedQuery(averaged(NestedQuery(averaged(adaptive())))),
            KSDenoisedQuery(averaged(quantile(0.1))),
            averaged(DiscretizedSumQuery(0.01, 1.0, 1.0)),
            NestedQuery(averaged(GaussianSumQuery(1.0, 1.0))),
        ]
    ),
}
ADAPTIVE = {"adaptive", "quantile", "tree-restarted", "five-levels"}
# Name, and whether XLA compiles the step. The files of the queries compile each
# one alone, and so do the contract tests.
TRAINED = [
    *((name, False) for name in QUERIES),
    ("encoded-laplace-denoised", True),
    pytest.param("scaled", True, marks=pytest.mark.nightly),
    pytest.param("correlated", True, marks=pytest.mark.nightly),
    pytest.param("five-levels", True, marks=pytest.mark.full),
]


def data():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(RECORDS, FEATURES)).astype("float32")
    return x, generator.integers(0, 2, size=RECORDS)


def private_model(query, **options):
    # The self-check does not depend on the query.
    return private_of(network(), query, loss=CROSS_ENTROPY, **options)


def batches(**options):
    return PoissonBatches(data(), sampling_probability=0.25, **options)


@functools.cache
def trained(name, jit_compile=False):
    """Returns a model that was trained with a query, once."""
    private = private_model(QUERIES[name], jit_compile=jit_compile)
    private.fit(batches(), epochs=2, verbose=0)
    return private


class TestTraining:
    @pytest.mark.full
    @pytest.mark.parametrize(("name", "jit_compile"), TRAINED)
    def test_ends_in_a_ledger_that_replays(self, name, jit_compile) -> None:
        """Adaptive queries release something else in every round."""
        private = trained(name, jit_compile)
        ledger = private.optimizer.ledger

        assert len(ledger) == 8
        assert ledger.unsettled == 0
        ledger.verify()
        best, *_ = available_accountants(ledger)
        assert 0 < best.epsilon(ledger, delta=1e-5) < np.inf
        for weights in private.get_weights():
            assert np.isfinite(weights).all()
        kinds = {each.queries for each, _ in ledger.rounds}
        assert (len(kinds) > 1) == (name in ADAPTIVE)

    @pytest.mark.full
    @pytest.mark.parametrize("name", ["scaled", "five-levels"])
    def test_runs_in_several_physical_batches(self, name) -> None:
        """The contract tests add up the records of each query in parts."""
        private = private_model(QUERIES[name])

        private.fit(
            batches(physical_batch_size=6), steps_per_epoch=3, verbose=0
        )

        assert len(private.optimizer.ledger) == 3


class TestAdaptiveClips:
    @pytest.mark.parametrize("name", ["adaptive", "quantile"])
    def test_are_shown_and_are_those_of_the_ledger(self, name) -> None:
        private, seen = private_model(QUERIES[name]), []
        each = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda _, logs: seen.append(logs["clip"])
        )

        history = private.fit(
            batches(), epochs=2, verbose=0, callbacks=[each]
        ).history

        recorded = [
            r.round.queries[0].l2_norm_bound
            for r in private.optimizer.ledger.rounds
            for _ in range(r.count)
        ]
        assert recorded[0] == 1.0
        # What is shown after a round is the clip of the next one.
        assert seen[:-1] == pytest.approx(recorded[1:], rel=1e-6)
        assert history["clip"] == pytest.approx([seen[3], seen[7]])
