"""Per-example gradients times factors of the axes, without building them."""

import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from keras_dp.gradients.engine import GradientEngine
from keras_dp.gradients.records import (
    convolution_records,
    cost_model,
    outer_product_records,
    table_records,
)
from keras_dp.gradients.records import records as records_lib
from tests.slow_loop import (
    BATCH,
    IN_GROUPS,
    WEIGHTS,
    losses_of,
    model_of,
    normal,
)

IDS = np.array([[1, 2, 2], [0, 0, 5], [6, 1, 6], [3, 4, 3]], "int32")


def factors_of(shape, seed=0):
    draws = np.random.default_rng(seed)
    return [tf.constant(np.exp(draws.normal(size=size))) for size in shape]


def product_of(factors):
    product = np.ones([])
    for factor in factors:
        product = product[..., None] * np.asarray(factor)
    return product


def squares(tensor):
    tensor = np.asarray(tensor, "float64")
    return np.square(tensor).reshape([len(tensor), -1]).sum(1)


def assert_scaled(records):
    """The definition, from built gradients."""
    built = np.asarray(records.materialize(), "float64")
    factors = factors_of(built.shape[1:])
    want = built * product_of(factors)
    size = np.sqrt(squares(want).max()) + 1e-30

    got = records.scaled(factors)

    assert type(got) is type(records)
    np.testing.assert_allclose(got.materialize() / size, want / size, atol=1e-5)
    norms = np.sqrt(got.squared_norms())
    assert np.all(norms >= np.sqrt(squares(got.materialize())) * (1 - 1e-5))
    assert np.all(norms <= np.sqrt(squares(want)) * 1.2 + 1e-5 * size)
    total = got.weighted_sum(tf.constant(WEIGHTS, tf.float32))
    np.testing.assert_allclose(
        total / size, np.tensordot(WEIGHTS, want, 1) / size, atol=3e-5
    )
    weights = tf.constant(IN_GROUPS, tf.float32)
    one = records.grouped(2, weights).scaled(factors).materialize()
    other = got.grouped(2, weights).materialize()
    np.testing.assert_allclose(one / size, other / size, atol=1e-5)


def records_of(model, data):
    engine = GradientEngine(model)
    data = [tf.constant(each) for each in data]
    return engine.gradients(data, losses_of, BATCH).records


CONVOLUTIONS = {
    "plain": lambda: layers.Conv2D(6, (3, 2)),
    "grouped": lambda: layers.Conv2D(6, 3, groups=2),
    "strided": lambda: layers.Conv2D(6, 3, strides=2, padding="same"),
    "transposed": lambda: layers.Conv2DTranspose(6, (3, 2)),
    "one tap": lambda: layers.Conv2D(6, 1),
}


@pytest.mark.parametrize("builds", [True, False])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_of_a_convolution_by_either_way(name, builds, monkeypatch) -> None:
    monkeypatch.setattr(cost_model, "instantiates", lambda *_: builds)
    model = model_of(CONVOLUTIONS[name](), (5, 6, 4))

    kernel, bias = records_of(model, [normal(5, 6, 4)])

    assert isinstance(
        kernel,
        convolution_records.SplitKernelRecords
        if builds and name not in {"grouped", "one tap"}
        else outer_product_records.OuterProductRecords,
    )
    assert_scaled(kernel)
    assert_scaled(bias)


ARRANGEMENTS = {
    "a kernel": ((1, 3, 4), (1, 0, 2), (3, 4), 1, 3),
    "taps of one side": ((1, 12, 4), (1, 0, 2), (2, 2, 3, 4), 1, 12),
    "groups of filters": ((2, 3, 4), (1, 0, 2), (3, 8), 2, 3),
    "heads of an input": ((2, 3, 4), (0, 1, 2), (2, 3, 4), 1, 6),
    "heads of an output": ((3, 2, 4), (0, 1, 2), (3, 2, 4), 1, 3),
    "axes of size one": ((3, 4), (0, 1), (1, 1, 3, 1, 4, 1), 1, 3),
    "the sides swapped": ((3, 4), (1, 0), (4, 3), 1, 3),
    "a row for each channel": ((5, 3, 1), (1, 0, 2), (3, 5), 5, 3),
    "all of size one": ((1, 1), (0, 1), (1, 1, 1), 1, 1),
    "axes cut elsewhere": ((6, 4), (0, 1), (2, 3, 4), 1, 6),
    "one side, cut elsewhere": ((3, 4, 5), (0, 1, 2), (2, 6, 5), 1, 12),
}


@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_of_an_arrangement(name) -> None:
    inner, order, shape, rows, left = ARRANGEMENTS[name]
    right = int(np.prod(inner)) // rows // left
    records = outer_product_records.OuterProductRecords(
        tf.constant(normal(rows, 2, left)),
        tf.constant(normal(rows, 2, right)),
        outer_product_records.Arrangement(inner, order, shape),
    )

    assert_scaled(records)


def test_an_axis_of_both_sides_has_no_factors_and_is_built() -> None:
    inner, order, shape = (3, 4), (0, 1), (12,)
    records = outer_product_records.OuterProductRecords(
        tf.constant(normal(1, 2, 3)),
        tf.constant(normal(1, 2, 4)),
        outer_product_records.Arrangement(inner, order, shape),
    )
    factors = factors_of(shape)

    got = records.scaled(factors)

    assert isinstance(got, records_lib.MaterializedRecords)
    want = records.materialize() * product_of(factors)
    np.testing.assert_allclose(got.materialize(), want, rtol=1e-6)


@pytest.mark.parametrize("uses", ["both", "lookups", "projections"])
def test_of_a_tied_table(uses) -> None:
    table = (7, 4)
    lookups = table_records.RowRecords(
        tf.constant(IDS), tf.constant(normal(3, 4)), rows=7
    )
    projections = outer_product_records.OuterProductRecords(
        tf.constant(normal(1, 2, 7)),
        tf.constant(normal(1, 2, 4)),
        outer_product_records.Arrangement(table, (0, 1), table),
    )

    assert_scaled(
        table_records.TiedTableRecords(
            None if uses == "projections" else lookups,
            None if uses == "lookups" else projections,
        )
    )


def test_of_a_loss_that_was_scaled() -> None:
    inner = records_lib.MaterializedRecords(tf.constant(normal(3, 2)))

    assert_scaled(records_lib.ScaledRecords(inner, 2.0**-7))


@pytest.mark.parametrize("size", [1e-38, 1e-19, 1.0, 1e19, 1e38])
@pytest.mark.parametrize("scale", [1e-12, 1e12])
@pytest.mark.parametrize("builds", [True, False])
def test_no_size_hides_from_the_norm(size, scale, builds, monkeypatch) -> None:
    """What the clip lets through is at most the clip, after it is scaled."""
    monkeypatch.setattr(cost_model, "instantiates", lambda *_: builds)
    factors = [tf.fill([4], tf.constant(scale, tf.float64)), tf.ones([3])]
    left, right = np.float32(size) * normal(1, 2, 4), normal(1, 2, 3)
    each = [
        outer_product_records.OuterProductRecords(
            tf.constant(left),
            tf.constant(right),
            outer_product_records.Arrangement((4, 3), (0, 1), (4, 3)),
        ),
        records_lib.MaterializedRecords(
            tf.constant(np.float32(size) * normal(4, 3))
        ),
        table_records.RowRecords(
            tf.constant(IDS % 4),
            tf.constant(np.float32(size) * normal(3, 3)),
            rows=4,
        ),
    ]

    for records in each:
        got = records.scaled(factors)
        norms = np.sqrt(got.squared_norms())
        clips = np.where(
            np.isfinite(norms), 1 / np.maximum(norms, np.float32(1)), 0
        )
        for one in range(BATCH):
            weights = np.zeros(BATCH, "float32")
            weights[one] = clips[one]
            moved = np.asarray(got.weighted_sum(tf.constant(weights)))
            assert np.linalg.norm(moved.astype("float64")) <= 1 + 1e-5
