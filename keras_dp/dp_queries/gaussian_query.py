"""Gaussian sums and averages of clipped records."""

import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf
from typing_extensions import override

from keras_dp import _check, ledger
from keras_dp.dp_queries import records as records_lib
from keras_dp.dp_queries.dp_query import (
    DPQuery,
    GaussianEvent,
    LeafNoise,
    Nest,
    QueryResult,
    add,
    register,
    zeros_like_record,
)
from keras_dp.noise import seeds

# Noise is at least a million times the smallest float32.
_SMALLEST_STDDEV = 1e-30
# Ten times as much is still finite.
_LARGEST_STDDEV = 1e37


class GaussianGlobalState(NamedTuple):
    """The state of a `GaussianSumQuery`: public numbers, and the secret seed.

    Attributes:
        l2_norm_clip: Scalar float64.
        stddev: Scalar float64.
        seed: See `seeds.fresh`. Never saved.
    """

    l2_norm_clip: tf.Tensor
    stddev: tf.Tensor
    seed: tf.Tensor


@register
@dataclasses.dataclass(frozen=True, slots=True)
class GaussianSumQuery(DPQuery):
    """Sums records clipped to an L2 norm, and adds Gaussian noise.

    A record may be a nest of tensors; its norm is the joint one over all.

    Guarantee: adding or removing one record (zero-out alike) moves the sum
    before noise by at most `l2_norm_clip` in joint L2 norm, and replacing one
    by at most twice that, for every record, up to float rounding (in float32
    a relative 1e-6 for tensors; the clip is not lowered to make up for it). A
    record that is not finite, or whose norm is not, counts as zero. Sum and
    noise are float64 if the template is, and float32 otherwise. The noise is of
    the generator that the seed is of, by default ChaCha20.

    Attributes:
        l2_norm_clip: Bound on one record's norm, in the record's unit, >= 0.
        stddev: Standard deviation of the noise on the sum, same unit, >= 0.
            At 0 the sum is bare, and any accountant says epsilon = inf; below
            1e-30 float32 would round the noise away.

    Source: Abadi et al. (2016), arXiv:1607.00133v2, Algorithm 1, without its
    division by the lot size.

    >>> query = GaussianSumQuery(l2_norm_clip=5.0, stddev=0.0)
    >>> state = query.initial_global_state()
    >>> params = query.derive_sample_params(state)
    >>> sample = query.initial_sample_state(tf.zeros([2]))
    >>> sample = query.accumulate_record(params, sample, tf.constant([6., 8.]))
    >>> query.get_noised_result(sample, state).value.numpy().tolist()
    [3.0, 4.0]
    """

    l2_norm_clip: float
    stddev: float

    def __post_init__(self) -> None:
        _check.finite_non_negative(
            l2_norm_clip=self.l2_norm_clip, stddev=self.stddev
        )
        _check_stddev(stddev=self.stddev)
        _as_floats(self, "l2_norm_clip", "stddev")

    @override
    def initial_global_state(
        self, seed: int | None = None
    ) -> GaussianGlobalState:
        return GaussianGlobalState(
            l2_norm_clip=tf.constant(self.l2_norm_clip, tf.float64),
            stddev=tf.constant(self.stddev, tf.float64),
            seed=seeds.fresh(seed),
        )

    @override
    def derive_sample_params(
        self, global_state: GaussianGlobalState
    ) -> tf.Tensor:
        return global_state.l2_norm_clip

    @override
    def initial_sample_state(self, template: Nest) -> Nest:
        return tf.nest.map_structure(
            records_lib.in_float, zeros_like_record(template)
        )

    @override
    def preprocess_record(self, params: tf.Tensor, record: Nest) -> Nest:
        batch = records_lib.batch_of_one(record)
        return self._clipped_sum(params, batch, mask=None)

    @override
    def accumulate_preprocessed_record(
        self, sample_state: Nest, preprocessed_record: Nest
    ) -> Nest:
        return add(sample_state, preprocessed_record)

    @override
    def accumulate_records(
        self,
        params: tf.Tensor,
        sample_state: Nest,
        records: Nest,
        mask: tf.Tensor | None = None,
    ) -> Nest:
        return add(sample_state, self._clipped_sum(params, records, mask))

    @override
    def merge_sample_states(self, state_1: Nest, state_2: Nest) -> Nest:
        return add(state_1, state_2)

    @override
    def planned_event(self, global_state: GaussianGlobalState) -> GaussianEvent:
        return GaussianEvent(global_state.l2_norm_clip, global_state.stddev)

    @override
    def get_noised_result(
        self, sample_state: Nest, global_state: GaussianGlobalState
    ) -> QueryResult:
        leaves = tf.nest.flatten(sample_state)
        following, own = seeds.split(global_state.seed, 2)
        noise = seeds.normals(leaves, own, global_state.stddev)
        noised = [leaf + each for leaf, each in zip(leaves, noise, strict=True)]
        return QueryResult(
            value=tf.nest.pack_sequence_as(sample_state, noised),
            global_state=global_state._replace(seed=following),
            event=self.planned_event(global_state),
        )

    @override
    def ledger_events(
        self, event: GaussianEvent, name: str = "records"
    ) -> tuple[ledger.SumQueryEvent, ...]:
        return (
            ledger.GaussianSum(
                name=name,
                l2_norm_bound=float(event.l2_norm_bound),
                noise_stddev=float(event.noise_stddev),
            ),
        )

    @override
    def result_noise(
        self, global_state: GaussianGlobalState, value: Nest
    ) -> list[LeafNoise]:
        law = LeafNoise(ledger.GaussianNoise(1.0), global_state.stddev)
        return [law for _ in tf.nest.flatten(value)]

    def _clipped_sum(
        self, clip: tf.Tensor, records: Nest, mask: tf.Tensor | None
    ) -> Nest:
        """The one place where records are clipped."""
        norms = records_lib.norms(tf.nest.flatten(records))
        return records_lib.clipped_sum(records, norms, clip, mask)


@register
@dataclasses.dataclass(frozen=True, slots=True)
class GaussianAverageQuery(DPQuery):
    """A `GaussianSumQuery` divided by a fixed, public number.

    Guarantee: that of the sum. The division is by a constant chosen before
    any data is seen, such as the expected size of a Poisson sample, and never
    by the realized number of records, which is private.

    Attributes:
        l2_norm_clip: Bound on one record's norm, in the record's unit, >= 0.
        sum_stddev: Standard deviation of the noise on the *sum*, same unit,
            >= 0. The average has noise of `sum_stddev / denominator`.
        denominator: Public constant, > 0, in records.

    >>> query = GaussianAverageQuery(5.0, sum_stddev=0.0, denominator=2)
    >>> state = query.initial_global_state()
    >>> sample = query.accumulate_records(
    ...     query.derive_sample_params(state),
    ...     query.initial_sample_state(tf.zeros([2])),
    ...     tf.constant([[6.0, 8.0], [1.0, 0.0]]))
    >>> query.get_noised_result(sample, state).value.numpy().tolist()
    [2.0, 2.0]
    """

    l2_norm_clip: float
    sum_stddev: float
    denominator: float

    def __post_init__(self) -> None:
        _check.finite_non_negative(
            l2_norm_clip=self.l2_norm_clip, sum_stddev=self.sum_stddev
        )
        _check_stddev(sum_stddev=self.sum_stddev)
        _check.finite_positive(denominator=self.denominator)
        _as_floats(self, "l2_norm_clip", "sum_stddev", "denominator")

    @property
    def numerator(self) -> GaussianSumQuery:
        """The query that makes the sum."""
        return GaussianSumQuery(self.l2_norm_clip, self.sum_stddev)

    @override
    def initial_global_state(
        self, seed: int | None = None
    ) -> GaussianGlobalState:
        return self.numerator.initial_global_state(seed)

    @override
    def derive_sample_params(
        self, global_state: GaussianGlobalState
    ) -> tf.Tensor:
        return self.numerator.derive_sample_params(global_state)

    @override
    def initial_sample_state(self, template: Nest) -> Nest:
        return self.numerator.initial_sample_state(template)

    @override
    def preprocess_record(self, params: tf.Tensor, record: Nest) -> Nest:
        return self.numerator.preprocess_record(params, record)

    @override
    def accumulate_preprocessed_record(
        self, sample_state: Nest, preprocessed_record: Nest
    ) -> Nest:
        return add(sample_state, preprocessed_record)

    @override
    def accumulate_records(
        self,
        params: tf.Tensor,
        sample_state: Nest,
        records: Nest,
        mask: tf.Tensor | None = None,
    ) -> Nest:
        return self.numerator.accumulate_records(
            params, sample_state, records, mask
        )

    @override
    def merge_sample_states(self, state_1: Nest, state_2: Nest) -> Nest:
        return add(state_1, state_2)

    @override
    def planned_event(self, global_state: GaussianGlobalState) -> GaussianEvent:
        return self.numerator.planned_event(global_state)

    @override
    def get_noised_result(
        self, sample_state: Nest, global_state: GaussianGlobalState
    ) -> QueryResult:
        result = self.numerator.get_noised_result(sample_state, global_state)
        return result._replace(
            value=tf.nest.map_structure(self._divide, result.value)
        )

    @override
    def ledger_events(
        self, event: GaussianEvent, name: str = "records"
    ) -> tuple[ledger.SumQueryEvent, ...]:
        return self.numerator.ledger_events(event, name)

    @override
    def result_noise(
        self, global_state: GaussianGlobalState, value: Nest
    ) -> list[LeafNoise]:
        noise = self.numerator.result_noise(global_state, value)
        return [n._replace(scale=n.scale / self.denominator) for n in noise]

    def _divide(self, total: Any) -> tf.Tensor:
        return total / tf.constant(self.denominator, total.dtype)


def _check_stddev(**named: float) -> None:
    for name, value in named.items():
        if value and not _SMALLEST_STDDEV <= value <= _LARGEST_STDDEV:
            raise ValueError(
                f"`{name}` must be 0, or in [{_SMALLEST_STDDEV}, "
                f"{_LARGEST_STDDEV}]. Received: {name}={value!r}."
            )


def _as_floats(query: DPQuery, *fields: str) -> None:
    """Makes numpy scalars and ints equal, and saved, as Python floats."""
    for field in fields:
        object.__setattr__(query, field, float(getattr(query, field)))
