"""The lemmas of `docs/finite_precision.md`, in exact rational arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from keras_dp._rounding import Proven, joint
from keras_dp.dp_queries import (
    AdaptiveClipSumQuery,
    GaussianSumQuery,
    JointClipQuery,
    QuantileAdaptiveClipSumQuery,
)
from keras_dp.gradients.records import cost_model
from keras_dp.gradients.records.outer_product_records import (
    Arrangement,
    OuterProductRecords,
)
from keras_dp.gradients.records.proven_bounds import upper_squares
from keras_dp.gradients.records.records import MaterializedRecords
from keras_dp.gradients.records.table_records import (
    RowRecords,
    TiedTableRecords,
)

law = settings(max_examples=25)

# Entries of all sizes, and of sizes that are rounded against each other.
ENTRIES = st.one_of(
    st.floats(-4, 4, width=32),
    st.floats(-(2.0**60), 2.0**60, width=32),
    st.sampled_from([1.0, -1.0, 1 + 2**-23, 2.0**-12, -(2.0**-13), 2.0**-140]),
)


def arrays(*shape):
    return hnp.arrays(np.float32, shape, elements=ENTRIES)


def exact(array):
    """Returns the numbers of an array as fractions."""
    array = np.asarray(array, np.float64)
    fractions = [Fraction(float(each)) for each in array.ravel()]
    return np.array(fractions, object).reshape(array.shape)


def square(array):
    return sum((each * each for each in array.ravel()), Fraction(0))


def kernel(left, right):
    """Returns the records of a dense kernel that sees some positions."""
    *_, rows, _, lefts = left.shape
    shape = (rows, lefts, right.shape[-1])
    return OuterProductRecords(
        tf.convert_to_tensor(left),
        tf.convert_to_tensor(right),
        Arrangement(shape, (0, 1, 2), shape),
    )


def exact_kernels(left, right):
    return np.einsum("brtp,brtq->brpq", exact(left), exact(right))


@law
@given(arrays(3, 7))
def test_norms_are_bounded_from_above(rows):
    """Lemma 5: no rounding makes a bound smaller than the norm."""
    bounds = upper_squares(tf.constant(rows)).numpy()

    for row, bound in zip(rows, bounds, strict=True):
        assert np.isinf(bound) or Fraction(float(bound)) >= square(exact(row))


def test_a_computed_norm_alone_is_no_bound():
    """The control: some float32 norms are below the true ones."""
    rows = np.float32(1) + np.arange(64, dtype=np.float32)[:, np.newaxis] / 97
    rows = np.tile(rows, [1, 7])
    computed = np.linalg.norm(rows, axis=1)

    assert any(
        Fraction(float(norm)) ** 2 < square(exact(row))
        for norm, row in zip(computed, rows, strict=True)
    )


KINDS = ("one product", "ghost norms", "built", "rows", "tied")


def records_of(kind, left, right):
    """Returns records, and the vectors that they stand for, exactly."""
    batch, _, shared, lefts = left.shape
    if kind == "one product":
        left, right = left[:, :, :1], right[:, :, :1]
    if kind in {"one product", "ghost norms"}:
        return kernel(left, right), exact_kernels(left, right)
    if kind == "built":
        return MaterializedRecords(tf.constant(left)), exact(left)
    ids = np.arange(batch * shared).reshape(batch, shared) * 7 % 4
    ids = np.sort(ids, axis=1)
    table = RowRecords(tf.constant(ids), tf.constant(left[:, 0]), 4)
    own, updates = table._by_row()
    found = np.full((batch, 4, lefts), Fraction(0), object)
    for i in range(batch):
        for row, update in zip(own[i].numpy(), exact(updates[i]), strict=True):
            found[i, row] += update
    if kind == "rows":
        return table, found
    logits = np.zeros([batch, 1, shared, 4], np.float32)
    logits[:, :, :, : right.shape[-1]] = right[:, :1]
    projection = kernel(logits, left[:, :1])
    shape = (4, lefts)
    projection.arrangement = Arrangement((1, *shape), (0, 1, 2), shape)
    tied = TiedTableRecords(table, projection)
    return tied, found + exact_kernels(logits, left[:, :1])[:, 0]


@pytest.fixture(autouse=True, scope="module")
def ghost_norms():
    """Kernels so small would be built."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cost_model, "instantiates", lambda *_: False)
        yield


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
@law
@given(arrays(6, 2, 3, 2), arrays(6, 2, 3, 3))
def test_norms_and_sums_are_as_proven(kind, left, right):
    """Lemmas 3 to 7: norms from above, and sums within their error."""
    records, vectors = records_of(kind, left, right)
    proven = records.proven()
    squares = proven.squares.numpy()

    for bound, vector in zip(squares, vectors, strict=True):
        assert np.isinf(bound) or Fraction(float(bound)) >= square(vector)
    weights = np.float32(1 / (1 + np.sqrt(squares)))
    weights[~np.isfinite(squares)] = 0
    if not weights.any():
        return
    sums = exact(np.sum(np.float64(proven.sums(tf.constant(weights))), 0))
    true = sum(
        (w * v for w, v in zip(exact(weights), vectors, strict=True) if w),
        np.full(vectors.shape[1:], Fraction(0), object),
    )
    length = max(
        float(w) * np.sqrt(s)
        for w, s in zip(weights, squares, strict=True)
        if w
    )
    limit = max(proven.blocks, 1) * (length * proven.error + proven.absolute)
    assert square(sums.reshape(true.shape) - true) <= Fraction(limit) ** 2


def moved(query, records, keep):
    """Returns by how much one record moves the sum, squared and exact."""
    params = query.derive_sample_params(query.initial_global_state(0))
    template = tf.nest.map_structure(
        lambda leaf: tf.zeros(
            leaf.materialize().shape[1:]
            if hasattr(leaf, "materialize")
            else leaf.shape[1:]
        ),
        records,
    )
    batch = len(keep)

    def total(mask):
        empty = query.initial_sample_state(template)
        return query.accumulate_records(params, empty, records, mask)

    both = total(tf.ones([batch], tf.bool)), total(tf.constant(keep))
    pairs = zip(*(tf.nest.flatten(each) for each in both), strict=True)
    steps = sum(square(exact(one) - exact(other)) for one, other in pairs)
    return steps * Fraction(float(params.spacing)) ** 2


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
@law
@given(
    arrays(6, 2, 3, 2),
    arrays(6, 2, 3, 3),
    st.integers(0, 5),
    st.floats(2.0**-20, 2.0**20),
    st.sampled_from([None, 0.01]),
)
def test_a_record_moves_the_sum_by_at_most_the_clip(
    kind, left, right, row, clip, gamma
):
    """Theorem 1, for every kind of records."""
    records, _ = records_of(kind, left, right)
    query = GaussianSumQuery(
        clip, noise_multiplier=1.0, gamma=gamma, precision="proven"
    )

    assert moved(query, records, np.arange(6) != row) <= Fraction(clip) ** 2


@law
@given(arrays(6, 2), arrays(6, 3), st.integers(0, 5), st.floats(1e-6, 1e6))
def test_groups_move_together_by_at_most_the_clip(one, two, row, scale):
    """Theorem 1 for groups of different scales."""
    query = JointClipQuery(
        [1.0, scale],
        1.0,
        noise_multiplier=1.0,
        denominator=1,
        precision="proven",
    )
    records = [tf.constant(one), tf.constant(two)]

    assert moved(query, records, np.arange(6) != row) <= 1


def test_no_precision_takes_an_overflow_for_a_short_record():
    """A part of a sum of products of Gram matrices may be -inf."""
    left = np.full([16, 1, 4, 3], 2.0**30, np.float32)
    right = np.zeros([16, 1, 4, 4], np.float32)
    right[:, :, :3, :3] = 9.3e9 * np.eye(3)
    right[:, :, 3, :3] = -9.3e9 / np.sqrt(3)
    records = [kernel(left, right)]

    for precision in ("assumed", "proven"):
        query = GaussianSumQuery(1.0, noise_multiplier=1.0, precision=precision)
        assert moved(query, records, np.arange(16) != 0) <= 1 + 1e-5


@pytest.mark.full
@pytest.mark.parametrize(
    "query",
    [
        QuantileAdaptiveClipSumQuery(
            0.7, 1.0, 0.5, 0.2, 3.0, 6.0, precision="proven"
        ),
        AdaptiveClipSumQuery(0.7, 1.0, 1.0, 6.0, precision="proven"),
    ],
    ids=["quantile", "mean"],
)
@law
@given(arrays(6, 5), st.integers(0, 5))
def test_both_sums_of_an_adaptive_clip_keep_to_their_bounds(
    query, records, row
):
    """Theorem 1 for the sum of records, and for the one that moves the clip."""
    state = query.initial_global_state(0)
    params = query.derive_sample_params(state)
    empty = query.initial_sample_state(tf.zeros([5]))
    keep = np.arange(6) != row
    both = [
        query.mechanisms(
            query.accumulate_records(
                params, empty, tf.constant(records), tf.constant(mask)
            ),
            state,
        )
        for mask in (np.ones(6, bool), keep)
    ]
    events = query.ledger_events(query.planned_event(state))

    for one, other, event in zip(*both, events, strict=True):
        own = one.query.derive_sample_params(one.global_state)
        steps = np.atleast_1d(
            exact(one.sample_state) - exact(other.sample_state)
        )
        change = square(steps) * Fraction(float(own.spacing)) ** 2
        assert change <= Fraction(event.l2_norm_bound) ** 2


def test_the_assumed_precision_lets_more_than_the_clip_through():
    """The control of theorem 1: plain float32 sums break it."""
    rows = np.random.default_rng(0).normal(size=(64, 4096))
    records = [tf.constant(rows, tf.float32)]
    keep = np.arange(64) != 17  # It is rounded upwards, most of all.
    plain, proven = (
        moved(
            GaussianSumQuery(1.0, noise_multiplier=1.0, precision=precision),
            records,
            keep,
        )
        for precision in ("assumed", "proven")
    )

    assert plain > 1
    assert 0.97 < proven <= 1


@pytest.mark.parametrize(
    ("scale", "clip", "gamma", "batch"),
    [(1e-30, 1e37, None, 69), (1e30, 1e8, 1e-12, 7)],
)
def test_sums_do_not_overflow(scale, clip, gamma, batch):
    """The last record would make a float32 sum infinite."""
    query = JointClipQuery(
        [scale],
        clip,
        noise_multiplier=1.0,
        denominator=1,
        gamma=gamma,
        precision="proven",
    )
    left = np.full([batch, 1, 1, 2], 2.0**39, np.float32)
    found = moved(query, [kernel(left, left)], np.arange(batch) != 0)

    assert found <= Fraction(clip) ** 2


@pytest.mark.parametrize("compiled", [False, True])
def test_a_record_that_is_not_finite_moves_nothing(compiled):
    """Not even the last bits of sums of the other blocks."""
    query = GaussianSumQuery(1.0, noise_multiplier=1.0, precision="proven")
    params = query.derive_sample_params(query.initial_global_state(0))
    generator = np.random.default_rng(3)
    left = generator.normal(size=(32, 1, 48, 24)).astype(np.float32)
    right = generator.normal(size=(32, 1, 48, 40)).astype(np.float32)
    bad = left.copy()
    bad[5, 0, 3, 2] = np.nan

    @tf.function(jit_compile=compiled, autograph=False)
    def total(left, right, mask):
        records = kernel(left, right)
        assert records.proven().blocks > 1
        empty = query.initial_sample_state(tf.zeros([1, 24, 40]))
        return query.accumulate_records(params, empty, records, mask)

    without = total(left, right, np.arange(32) != 5)

    np.testing.assert_array_equal(total(bad, right, np.ones(32, bool)), without)


def test_a_sum_of_other_blocks_is_joined_like_no_other():
    """Lemma 4: no record need be in the blocks of both."""
    plain = Proven(1.0, 1, 3.0, 0.0, None)
    mixed = Proven(1.0, 0, 4.0, 0.0, None)

    assert joint([plain, plain]).error < 3.1
    assert joint([plain, mixed]).error >= 5
    assert joint([mixed, mixed, plain]).error >= np.sqrt(41)
