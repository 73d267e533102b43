"""The check finds nothing where the library keeps its promise."""

import contextlib
import sqlite3

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dp
from keras_dp import dp_queries
from keras_dp.auditing import check
from keras_dp.experimental.federation import FederatedModel, LocalTraining
from keras_dp.ledger import (
    BinaryTree,
    CoordinateBounds,
    FullDataset,
    GaussianSum,
)
from keras_dp.ledger.events.noise_families import StudentTNoise
from keras_dp.sampling import (
    FixedSizeBatches,
    PoissonBatches,
    RandomMicrobatches,
    ShuffledBatches,
    UserBatches,
)
from tests.audited import X, Y, average, dense, samples, training
from tests.private_models import adaptive_average, correlated_average
from tests.query_table import assert_equal

QUERIES = {
    "joint clip": lambda: dp_queries.JointClipQuery(
        {"hidden": 1.0, "head": 3.0},
        1.0,
        noise_multiplier=1.0,
        denominator=20,
    ),
    "adaptive clip and a sum, nested in groups": lambda: dp_queries.NestedQuery(
        {
            "hidden": adaptive_average(1.0, 20),
            "head": dp_queries.NormalizedQuery(
                dp_queries.GaussianSumQuery(1.0, 1.0), 20
            ),
        }
    ),
    "discretized and corrected": lambda: dp_queries.ErrorCorrectedQuery(
        dp_queries.NormalizedQuery(
            dp_queries.DiscretizedSumQuery(0.1, 1.0, noise_multiplier=1.0), 20
        ),
        threshold=0.05,
    ),
    "encoded, Student": lambda: dp_queries.NormalizedQuery(
        dp_queries.EncodedSumQuery(
            CoordinateBounds.from_vectors([[1.0] * 21, [3.0] * 3 + [0.1] * 18]),
            StudentTNoise(1.0, 4.0),
        ),
        20,
    ),
    "tree": lambda: correlated_average(
        dense(), BinaryTree(), 1.0, 50, 20, restart_after=4
    ),
}


SAMPLERS = {
    "shuffled": lambda: ShuffledBatches((X, Y), batch_size=20),
    "random microbatches": lambda: samples(
        microbatches=RandomMicrobatches(size=2)
    ),
    "users": lambda: UserBatches(
        (X, Y),
        user_ids=np.arange(200) % 50,
        sampling_probability=0.2,
        records_per_user=3,
    ),
    "weights of examples": lambda: PoissonBatches(
        (X, Y, np.ones(200, "float32")), sampling_probability=0.1
    ),
    "a batch": lambda: (X[:20], Y[:20]),
}


# A check takes so long for these that they wait for it, too.
LONG = {
    "adaptive clip and a sum, nested in groups",
    "discretized and corrected",
}


@pytest.mark.parametrize(
    ("sampler", "kind"),
    [
        pytest.param(
            *pair,
            marks=pytest.mark.nightly if pair[1] in LONG else pytest.mark.full,
        )
        for pair in zip(SAMPLERS, QUERIES, strict=True)
    ],
)
def test_every_query_and_sampler_pass(sampler, kind):
    """A query is that of the sampler beside it: each is checked once."""
    query, groups = QUERIES[kind](), None
    if isinstance(query, (dp_queries.NestedQuery, dp_queries.JointClipQuery)):
        groups = {"hidden": "*hidden/*", "head": "*head/*"}
    source = SAMPLERS[sampler]()
    unit = getattr(source, "unit", "example")
    options = {} if unit == "example" else {"private_metrics": {}}

    report = check(
        training(query=query, groups=groups, unit=unit, **options),
        source,
        records=2,
    )

    assert report.passed, str(report)


@pytest.mark.full
def test_federated_training_passes():
    private = FederatedModel(dense(), LocalTraining(0.1, batch_size=3))
    private.compile(
        keras_dp.DPSGD(
            1.0,
            query=average(),
            ledger=keras_dp.PrivacyLedger.in_memory(dataset="d", unit="user"),
        ),
        "mse",
        private_metrics={},
    )

    report = check(private, SAMPLERS["users"](), records=2)

    assert report.passed, str(report)


@pytest.mark.full
def test_seeds_states_and_several_physical_batches_pass():
    """Metrics without noise are no fault: they are named."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((3,)),
            layers.Dropout(0.4, seed=3),
            layers.Dense(4, activation="relu"),
            layers.GaussianNoise(0.1),
            layers.LayerNormalization(),
            layers.Dense(1),
        ]
    )

    private = training(model, private_metrics=None, metrics=["mae"])

    report = check(private, samples(physical_batch_size=8), records=2)

    assert report.passed, str(report)


def test_a_check_leaves_no_trace():
    """And passes: an average over samples of a fixed size."""
    private = training(optimizer=keras.optimizers.Adam(0.1))
    source = FixedSizeBatches((X, Y), sample_size=20)
    private.fit(source, epochs=1, verbose=0)
    before = [np.array(v) for v in private.variables]
    state = [np.array(v) for v in private.optimizer.variables]
    secrets = tf.nest.flatten(private.optimizer.read_state())
    rounds = len(private.optimizer.ledger)

    report = check(private, source, records=2)

    assert report.passed, str(report)
    for variable, value in zip(private.variables, before, strict=True):
        if "seed" not in variable.path:
            np.testing.assert_array_equal(variable, value)
    assert_equal(private.optimizer.variables, state)
    after = tf.nest.flatten(private.optimizer.read_state())
    assert_equal(after, secrets)
    assert len(private.optimizer.ledger) == rounds
    traces = private.trace_count
    private.fit(source, epochs=1, verbose=0)
    assert private.trace_count == traces
    assert len(private.optimizer.ledger) == 2 * rounds


@pytest.mark.full
@pytest.mark.parametrize("noise_multiplier", [1.0, 1e5])
def test_the_grid_of_sums_is_no_finding(noise_multiplier):
    """A loss is 2.4 steps of its grid, or the clip is 288.6 steps."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.set_weights([np.array([[1.0], [-2.0], [0.5]]), np.array([1.00107])])
    loss = average(9.02, noise_multiplier=noise_multiplier)
    private = training(
        model, private_metrics={"loss": keras_dp.PrivateLoss(loss)}
    )

    report = check(private, samples(), records=2)

    assert report.passed, str(report)


def _of_the_batch(targets, outputs):
    """A loss that divides by a statistic of the batch."""
    spread = 1 + keras.ops.stop_gradient(keras.ops.std(outputs))
    return keras.ops.mean(keras.ops.square(targets - outputs)) / spread


@pytest.mark.full
def test_a_ledger_that_was_tampered_with_is_found(tmp_path):
    """Before the step is looked at, which is refused: that is quick."""
    path = tmp_path / "run.ledger"
    private = training(loss=_of_the_batch)
    own = keras_dp.PrivacyLedger.open(path, dataset="d")
    private.optimizer.ledger = own
    with own.start_run("before") as run:
        run.record(FullDataset(), [GaussianSum("sum", 1.0, 1.0)], 9)
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute(
            "UPDATE log SET count = count - 1 WHERE kind = 'record'"
        )

    report = check(private, samples(), records=2)

    assert [each.question for each in report.findings] == ["record", "refusal"]
