"""Gradients whose factors are far apart in size, and layers inside others."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from keras_dp._devices import outside_xla
from keras_dp.dp_queries import records as query_records
from keras_dp.gradients import GradientEngine
from keras_dp.gradients.records import cost_model
from keras_dp.gradients.records.outer_product_records import (
    Arrangement,
    OuterProductRecords,
)
from keras_dp.gradients.records.table_records import (
    RowRecords,
    TiedTableRecords,
)
from tests.slow_loop import assert_model_agrees, compiled, normal

MODES = ["eager", "graph", "jit"]


def _norm_and_sum(left, right, mode):
    widths = (left.shape[-1], right.shape[-1])

    def answers(left, right):
        records = OuterProductRecords(
            left, right, Arrangement(widths, (0, 1), widths)
        )
        with outside_xla(mode != "jit"):
            return records.squared_norms(), records.weighted_sum(tf.ones([1]))

    squares, total = compiled(answers, mode)(
        tf.constant(left), tf.constant(right)
    )
    return np.sqrt(squares.numpy()[0]), np.linalg.norm(total.numpy())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("tiny_is_left", [True, False])
@pytest.mark.parametrize("terms", [1, 3])
def test_a_tiny_factor_cannot_hide_a_large_one(
    terms, tiny_is_left, mode, monkeypatch
) -> None:
    """The squares of the one are 0 in float32, and of the other nearly inf."""
    monkeypatch.setattr(cost_model, "instantiates", lambda *_: False)
    tiny = np.full([1, 1, terms, 784], 1e-19, "float32")
    large = np.full([1, 1, terms, 1], 1.8e19, "float32")
    left, right = (tiny, large) if tiny_is_left else (large, tiny)

    norm, of_sum = _norm_and_sum(left, right, mode)

    assert of_sum == pytest.approx(terms * 1.8 * 28, rel=1e-5)
    assert norm == pytest.approx(of_sum, rel=1e-3)


@pytest.mark.parametrize("mode", MODES)
def test_nor_can_terms_whose_factors_differ_in_opposite_ways(
    mode, monkeypatch
) -> None:
    monkeypatch.setattr(cost_model, "instantiates", lambda *_: False)
    left = np.zeros([1, 1, 2, 3], "float32")
    right = np.zeros([1, 1, 2, 3], "float32")
    left[0, 0, :, 0] = [1, 1e-25]
    right[0, 0, :, 0] = [1, 1e25]

    norm, of_sum = _norm_and_sum(left, right, mode)

    assert of_sum == pytest.approx(2, rel=1e-5)
    assert norm == pytest.approx(2, rel=1e-3)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("right", [1.0, 1e6])
def test_a_norm_is_bounded_where_squares_vanish(mode, right):
    """Of one entry, of some, and of all. Some are summed in float32, too."""
    sizes = np.geomspace(1e-22, 1e-17, 51)
    left = np.zeros((3, len(sizes), 400))
    for part, entries in zip(left, (1, 20, 400), strict=True):
        part[:, :entries] = sizes[:, None]
    left[1, :, 0] = 1.2e-19
    left = left.reshape(-1, 1, 1, 400).astype("float32")
    widths = 400, 1

    def squares(left):
        records = OuterProductRecords(
            left,
            tf.fill([left.shape[0], 1, 1, 1], right),
            Arrangement(widths, (0, 1), widths),
        )
        with outside_xla(mode != "jit"):
            return records.squared_norms()

    norms = np.sqrt(compiled(squares, mode)(tf.constant(left)))

    true = right * np.linalg.norm(left[:, 0, 0].astype(np.float64), axis=1)
    # The square of less than this is zero.
    assert np.all(norms + 1.1e-19 >= true * (1 - 1e-5))
    assert np.all(norms <= np.maximum(true * (1 + 1e-5), 1e-10))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("entry", [np.nan, np.inf, -np.inf])
def test_a_norm_is_not_finite_if_an_entry_is_not(entry, rows, mode):
    """Whichever factor and row it is in; the other records stay as they are."""
    rng = np.random.default_rng(0)
    whole = [
        rng.normal(size=(2 * rows + 1, rows, 1, width)).astype("float32")
        for width in (8, 4)
    ]
    for record in range(2 * rows):
        side, row = divmod(record, rows)
        whole[side][record, row, 0, -1] = entry

    def squares(*factors):
        shape = rows, 8, 4
        records = OuterProductRecords(
            *factors, Arrangement(shape, (0, 1, 2), shape)
        )
        with outside_xla(mode != "jit"):
            return records.squared_norms()

    found = compiled(squares, mode)(*map(tf.constant, whole)).numpy()

    assert np.isfinite(found).tolist() == [False] * 2 * rows + [True]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows", [1, 2])
def test_a_norm_is_the_same_whatever_the_size_of_the_others(rows, mode):
    """Factors out of range are balanced for their own records alone."""
    rng = np.random.default_rng(0)
    left, right = (
        rng.normal(size=(8, rows, 1, width)).astype("float32")
        for width in (105, 3)
    )
    sizes = np.ones((8, rows, 1, 1), "float32")  # A second row is in range.
    sizes[:, 0, 0, 0] = [1, 0, 1e-11, 1e14, 1e-13, 1e16, 1e-30, 1e30]
    left = np.abs(left) * sizes
    left[7] *= -1
    right[1:] /= np.where(sizes > 0, sizes, 1)[1:]

    def squares(chosen):
        records = OuterProductRecords(
            tf.gather(left, chosen),
            tf.gather(right, chosen),
            Arrangement((rows, 105, 3), (0, 1, 2), (rows, 105, 3)),
        )
        with outside_xla(mode != "jit"):
            return records.squared_norms()

    squares = compiled(squares, mode)
    of_all = squares(tf.range(8)).numpy()

    products = np.einsum("brtl,brtm->brlm", left, right, dtype=np.float64)
    np.testing.assert_allclose(
        of_all, np.square(products).sum(axis=(1, 2, 3)), rtol=1e-5, atol=1e-30
    )
    of_usual = squares(tf.constant([0, 1, 2, 3, 3, 2, 1, 0])).numpy()
    np.testing.assert_array_equal(of_usual[:4], of_all[:4])


@pytest.mark.parametrize("size", [1e-36, 1.0, 1e36])
def test_factors_far_apart_add_up_with_the_lookups_of_a_tied_table(size):
    table = (3, 4)
    left = np.zeros([1, 1, 2, 3], np.float32)
    left[0, 0, :, 1] = size
    right = np.full([1, 1, 2, 4], 0.05 / size, np.float32)
    updates = np.full([1, 1, 4], 0.1, np.float32)
    records = TiedTableRecords(
        RowRecords(tf.constant([[1]]), tf.constant(updates), rows=3),
        OuterProductRecords(
            tf.constant(left),
            tf.constant(right),
            Arrangement(table, (0, 1), table),
        ),
    )

    norm = np.sqrt(records.squared_norms()[0])

    # Both uses add 0.1 to the 4 entries of a row.
    assert norm == pytest.approx(0.4, rel=1e-5)
    assert norm >= np.linalg.norm(records.materialize())


@pytest.mark.parametrize("gamma", [None, 1e-12, 0.01])
def test_a_record_of_extreme_size_is_clipped(gamma) -> None:
    model = keras.Sequential([keras.Input((784,)), layers.Dense(1)])
    x = np.zeros([4, 784], "float32")
    x[2] = 1e-19
    scale = tf.constant([1.0, 1.0, 1.8e19, 1.0])
    engine = GradientEngine(model)
    records = engine.gradients(
        tf.constant(x), lambda outputs: outputs[:, 0] * scale, 4
    ).records[:1]  # Of the kernel alone: that of the bias is large.

    norms = query_records.norms(records)
    (total,) = query_records.clipped_sum(
        records, norms, tf.constant(1.0), None, gamma
    )

    assert np.linalg.norm(total.numpy()) <= 1 + 1e-5


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("terms", [1, 3])
def test_a_factor_above_1_never_meets_a_large_part_of_a_record(
    terms, mode, monkeypatch
) -> None:
    """A record is 0, because one of its factors is; the other is nearly inf.

    With gamma = 0.01 the factor of such a record is 100 times the clip.
    """
    monkeypatch.setattr(cost_model, "instantiates", lambda *_: False)
    left = np.zeros([2, 1, terms, 3], np.float32)
    right = np.full([2, 1, terms, 3], 1e37, np.float32)
    left[1], right[1] = 1.0, 2.0

    def added(left, right):
        records = OuterProductRecords(
            left, right, Arrangement((3, 3), (0, 1), (3, 3))
        )
        with outside_xla(mode != "jit"):
            norms = query_records.norms([records])
            careless = records.weighted_sum(1 / (norms + 0.01))
            (total,) = query_records.clipped_sum(
                [records], norms, tf.constant(1.0), None, 0.01
            )
        return careless, total

    careless, total = compiled(added, mode)(
        tf.constant(left), tf.constant(right)
    )

    assert np.linalg.norm(total) == pytest.approx(1, rel=1e-2)
    assert not np.isfinite(careless).all()  # The control.


class _Whole(layers.Layer):
    """Owns a weight, and calls another layer."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.own = self.add_weight(shape=(4,), initializer="ones")

    def call(self, x):
        return self.inner(x) * self.own


def _used_inside_of_a_whole():
    inputs = keras.Input((4,))
    inner = layers.Dense(4, activation="tanh")
    x = inner(inputs)
    return keras.Model(inputs, _Whole(inner)(x))


def _used_over_time():
    inputs = keras.Input((3, 4))
    inner = layers.Dense(4, activation="tanh")
    return keras.Model(inputs, layers.TimeDistributed(inner)(inner(inputs)))


@pytest.mark.parametrize("make", [_used_inside_of_a_whole, _used_over_time])
def test_a_layer_that_others_call_as_well_is_counted_once(make) -> None:
    model = make()

    assert_model_agrees(model, normal(*model.input_shape[1:]), "eager")


class TestTheCostModel:
    def test_takes_the_way_with_less_memory_where_one_needs_too_much(self):
        pixels, depth, filters = 56 * 56, 9 * 256, 256
        assert cost_model.instantiates(64, 1, pixels, depth, filters, 4)
        assert not cost_model.instantiates(32, 1, 128, 4096, 4096, 4)

    def test_takes_the_faster_way_otherwise(self):
        assert cost_model.instantiates(64, 1, 128, 256, 256, 4)
        assert not cost_model.instantiates(64, 1, 4, 256, 256, 4)

    def test_never_builds_a_single_outer_product(self):
        assert not cost_model.instantiates(1, 1, 1, 2, 2, 4)
