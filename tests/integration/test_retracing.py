"""Each kind of physical batch is traced once, with static shapes, for XLA."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dp
from keras_dp.gradients import GradientEngine
from keras_dp.sampling import PoissonBatches
from keras_dp.sampling.draw import EACH_ROW
from keras_dp.training.step.batch_computation import BatchComputation
from tests.private_models import private_of

RECORDS, FEATURES = 200, 5
QUERY = keras_dp.GaussianAverageQuery(1.0, 1.0, denominator=20.0)


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(RECORDS, FEATURES)).astype("float32")
    return x, (x[:, :1] > 0).astype("float32")


def private_model():
    keras.utils.set_random_seed(2)
    model = keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(4, activation="relu"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    return private_of(
        model,
        QUERY,
        seed=1,
        loss="binary_crossentropy",
        metrics=["accuracy"],
        jit_compile="auto",
    )


def batches(physical_batch_size, rounds=20):
    return PoissonBatches(
        data(),
        sampling_probability=0.1,
        physical_batch_size=physical_batch_size,
        rounds_per_epoch=rounds,
        seed=4,
    )


@pytest.mark.full
@pytest.mark.parametrize(
    ("physical_batch_size", "kinds"),
    [
        pytest.param(200, 1, id="a sample is one batch"),
        # Of 20 records on average: a step for its batches, and a release.
        pytest.param(4, 2, id="a sample is several"),
    ],
)
def test_samples_of_any_size_are_traced_once_a_kind(
    physical_batch_size, kinds
) -> None:
    private = private_model()

    private.fit(batches(physical_batch_size), epochs=1, verbose=0)
    after_one = private.trace_count
    private.fit(batches(physical_batch_size), epochs=2, verbose=0)

    assert len(private.optimizer.ledger) == 60
    assert private.trace_count == after_one == kinds


@pytest.mark.full
def test_the_count_above_can_grow() -> None:
    """Control: another length of the last batch is another trace."""
    private = private_model()
    x, y = data()

    private.fit(x[:40], y[:40], batch_size=20, verbose=0)
    assert private.trace_count == 1
    private.fit(x[:50], y[:50], batch_size=20, verbose=0)
    assert private.trace_count == 2


def _undefined_shapes(function, *arguments) -> list[str]:
    graph = function.get_concrete_function(*arguments).graph
    return [
        tensor.name
        for operation in graph.get_operations()
        for tensor in operation.outputs
        if tensor.dtype not in (tf.resource, tf.variant)
        and not tensor.shape.is_fully_defined()
    ]


@pytest.mark.full
@pytest.mark.parametrize("is_whole", [True, False])
def test_what_xla_compiles_has_static_shapes(is_whole) -> None:
    """As accelerators that compile everything need it."""
    private = private_model()
    private.fit(batches(4, rounds=2), epochs=1, verbose=0)
    computation = BatchComputation(private.step_parts())
    computation.make_sums()

    @tf.function(autograph=False)
    def core(x, y, mask):
        given = (x, y, None), mask, EACH_ROW
        if is_whole:
            result = computation.of_sample(*given, private.optimizer.plan())
        else:
            result = computation.of_part(*given, tf.constant(True))
        return result.losses.total, result.outputs, result.released

    x, y = (tf.constant(part[:4]) for part in data())
    assert _undefined_shapes(core, x, y, tf.ones([4], tf.bool)) == []


def test_the_check_above_can_fail() -> None:
    """Control: rows that a mask picks."""

    @tf.function(autograph=False)
    def picked(x, mask):
        return tf.reduce_sum(tf.boolean_mask(x, mask))

    assert _undefined_shapes(picked, tf.ones([4]), tf.ones([4], tf.bool))


@pytest.mark.full
@pytest.mark.parametrize(
    ("layers", "loss_scale", "passes"),
    [
        pytest.param([], None, 1, id="shared"),
        pytest.param([keras.layers.LSTM], None, 1, id="an unused seed"),
        pytest.param([keras.layers.Dropout], None, 2, id="random numbers"),
        pytest.param([], 2.0, 2, id="a loss scale"),
    ],
)
def test_the_check_and_the_step_share_a_trace_of_the_model(
    layers, loss_scale, passes, monkeypatch
) -> None:
    made, trained = [], GradientEngine.hooked_pass

    def hooked_pass(engine, *args, **options):
        made.append(tf.compat.v1.get_default_graph())
        return trained(engine, *args, **options)

    monkeypatch.setattr(GradientEngine, "hooked_pass", hooked_pass)
    x, y = data()
    inside = [kind(4 if kind is keras.layers.LSTM else 0.5) for kind in layers]
    model = keras.Sequential(
        [
            keras.Input((FEATURES, 1)),
            *inside,
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    private = private_of(model, QUERY, checks=2, loss_scale=loss_scale)

    private.fit(x[..., None], y, batch_size=20, verbose=0)

    assert len(made) == passes
