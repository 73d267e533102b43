"""Queries whose sample state is a sum over its records."""

import abc
import dataclasses
import itertools
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_dp import ledger
from keras_dp._override import override
from keras_dp.dp_queries import records as records_lib
from keras_dp.dp_queries.dp_query import (
    DPQuery,
    Nest,
    QueryResult,
    add,
    check_structure,
)
from keras_dp.dp_queries.saving import register
from keras_dp.noise import grid


class SumParams(NamedTuple):
    """The public numbers of a round of a Gaussian sum, as float64 scalars.

    The spacing of the grid of sums is a power of two.
    """

    l2_norm_clip: tf.Tensor
    spacing: tf.Tensor


class SummingQuery(DPQuery):
    """Sums the bounded contributions of records.

    Contributions are bounded in one place, `bounded_sum`. Two samples are
    merged by adding their states. The noise and the events are left to the
    subclass.
    """

    __slots__ = ()

    @abc.abstractmethod
    def bounded_sum(
        self, params: Nest, like: Nest, records: Nest, mask: tf.Tensor | None
    ) -> Nest:
        """Returns the sum of the bounded contributions of some records.

        This is the only place where a query bounds records. So its guarantee
        can be checked here.

        The sum has the structure, shapes and dtypes of the sample state `like`,
        whose values are not used. The other arguments are those of
        `accumulate_records`.
        """

    @override
    def initial_sample_state(self, template: Nest) -> Nest:
        return empty_sum(template)

    @override
    def accumulate_records(
        self,
        params: Nest,
        sample_state: Nest,
        records: Nest,
        mask: tf.Tensor | None = None,
    ) -> Nest:
        total = self.bounded_sum(params, sample_state, records, mask)
        return add(sample_state, total)

    @override
    def merge_sample_states(self, state_1: Nest, state_2: Nest) -> Nest:
        return add(state_1, state_2)


@register
@dataclasses.dataclass(frozen=True, slots=True)
class NoPrivacySumQuery(SummingQuery):
    """Sums records without a bound and without noise, for comparison.

    Guarantee: none. Each release is recorded as non-private, and every
    accountant returns epsilon = inf for a ledger with such a release. Records
    that are not finite are added as they are. Records may be integers.

    >>> query = NoPrivacySumQuery()
    >>> query.ledger_events(query.planned_event(()), name="loss")
    (NonPrivateSum(name='loss'),)
    """

    @override
    def initial_global_state(self, seed: int | None = None) -> tuple[()]:
        del seed  # Nothing is drawn.
        return ()

    @override
    def derive_sample_params(self, global_state: Nest) -> tuple[()]:
        return ()

    @override
    def initial_sample_state(self, template: Nest) -> Nest:
        return zeros_like_record(template)

    @override
    def bounded_sum(
        self, params: Nest, like: Nest, records: Nest, mask: tf.Tensor | None
    ) -> Nest:
        first = keras.tree.flatten(records)[0]
        weights = records_lib.masked(records_lib.ones(first), mask)
        return records_lib.weighted_sums(records, weights)

    @override
    def planned_event(self, global_state: Nest) -> tuple[()]:
        return ()

    @override
    def get_noised_result(
        self, sample_state: Nest, global_state: Nest
    ) -> QueryResult:
        return QueryResult(sample_state, global_state, event=())

    @override
    def ledger_events(
        self, event: Nest, name: str = "records"
    ) -> tuple[ledger.SumQueryEvent, ...]:
        return (ledger.NonPrivateSum(name=name),)


def zeros_like_record(template: Nest) -> Nest:
    """Returns zeros of the shape and dtype of each leaf of `template`.

    For a leaf in half precision, the zeros are float32. In half precision, a
    large sum is rounded to few bits: one record could move it by many times its
    bound, or not at all.
    """

    def zeros(leaf: Any) -> tf.Tensor:
        if not hasattr(leaf, "dtype"):
            leaf = tf.convert_to_tensor(leaf)
        dtype = tf.as_dtype(leaf.dtype)
        half = dtype.is_floating and dtype not in {tf.float32, tf.float64}
        return tf.zeros(leaf.shape, tf.float32 if half else dtype)

    if not keras.tree.flatten(template):
        raise ValueError(
            "`template` must have at least one leaf. Received: an empty "
            f"{type(template).__name__}."
        )
    return keras.tree.map_structure(zeros, template)


def empty_sum(template: Nest) -> Nest:
    """Returns zeros in the shapes of one record, at least float32."""
    return keras.tree.map_structure(
        records_lib.in_float, zeros_like_record(template)
    )


def empty_steps(template: Nest) -> Nest:
    """Returns the empty sum in steps of a grid, for a query with noise.

    It is int64, and the answer float32. If the template is float64, the sum and
    the answer are, in the unit of the records.
    """
    return keras.tree.map_structure(
        lambda leaf: (
            leaf if leaf.dtype == tf.float64 else tf.zeros(leaf.shape, tf.int64)
        ),
        empty_sum(template),
    )


def on_grid(like: Nest, sums: Nest, spacing: tf.Tensor) -> Nest:
    """Returns sums of a batch as the sample state `like` holds them."""
    check_structure(like, sums)

    def rounded(part: tf.Tensor) -> tf.Tensor:
        return grid.steps(tf.expand_dims(part, 0), spacing)

    totals, parts = keras.tree.flatten(like), keras.tree.flatten(sums)
    whole = [total.dtype == tf.int64 for total in totals]
    kept = list(itertools.compress(parts, whole))
    joined = grid.Joined(kept, [None] * len(kept))
    steps = iter(joined.apart(list(map(rounded, joined.together(kept)))))
    leaves = [
        next(steps)
        if total.dtype == tf.int64
        else tf.round(tf.cast(part, tf.float64) / spacing) * spacing
        if total.dtype == tf.float64
        else part
        for total, part in zip(totals, parts, strict=True)
    ]
    return keras.tree.pack_sequence_as(like, leaves)
