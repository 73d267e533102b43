"""Queries whose sample is a sum of what its records contribute."""

import abc

import tensorflow as tf
from typing_extensions import override

from keras_dp.dp_queries import records as records_lib
from keras_dp.dp_queries.dp_query import DPQuery, Nest, add, zeros_like_record


class SummingQuery(DPQuery):
    """Adds up what records contribute, bounded in one place, `bounded_sum`.

    Samples are joined by adding their states. What is done with the sum, its
    noise and its events, is left to the subclass; one that takes these from
    another query is also a `WrappingQuery`, which it names second.
    """

    __slots__ = ()

    @abc.abstractmethod
    def bounded_sum(
        self, params: Nest, like: Nest, records: Nest, mask: tf.Tensor | None
    ) -> Nest:
        """Returns the sum of what each record contributes.

        This is the only place where a query bounds records, so that its
        guarantee can be checked here.

        Args:
            params: From `derive_sample_params`.
            like: A sample state. Only its structure, shapes and dtypes count,
                which are those of the sum.
            records: Nest with leaves `[batch, ...]` or `LazyRecords`. The
                batch may be empty.
            mask: Shape `[batch]`, boolean: false for padding, which counts as
                no record. `None` if all are records.
        """

    @override
    def initial_sample_state(self, template: Nest) -> Nest:
        return empty_sum(template)

    @override
    def preprocess_record(self, params: Nest, record: Nest) -> Nest:
        like = self.initial_sample_state(record)
        batch = records_lib.batch_of_one(record)
        return self.bounded_sum(params, like, batch, mask=None)

    @override
    def accumulate_preprocessed_record(
        self, sample_state: Nest, preprocessed_record: Nest
    ) -> Nest:
        return add(sample_state, preprocessed_record)

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


def empty_sum(template: Nest) -> Nest:
    """Returns zeros like one record, floating, float32 at least.

    Raises:
        TypeError: A leaf of `template` is not floating-point.
    """
    return tf.nest.map_structure(
        records_lib.in_float, zeros_like_record(template)
    )
