"""Gaussian averages of clipped records."""

import dataclasses

from keras_dp import _check
from keras_dp._override import override
from keras_dp.dp_queries.dp_query import (
    LeafNoise,
    Nest,
)
from keras_dp.dp_queries.gaussian_sum_query import (
    GaussianSumQuery,
    checked_gamma,
    checked_rescale,
    ratio,
    stddev_from,
)
from keras_dp.dp_queries.normalized_query import (
    NormalizedQuery,
    checked_denominator,
)
from keras_dp.dp_queries.proven_sum import checked_precision
from keras_dp.dp_queries.saving import register, set_fields
from keras_dp.dp_queries.wrapping_query import WrappingQuery


@register
@dataclasses.dataclass(frozen=True, slots=True, init=False)
class GaussianAverageQuery(WrappingQuery):
    """Averages records: a `GaussianSumQuery` divided by a public number.

    It is `NormalizedQuery(GaussianSumQuery(l2_norm_clip, sum_stddev, gamma=...,
    rescale=...), denominator)`.

    Guarantee: the guarantee of `GaussianSumQuery` for the sum. The division
    adds no cost, because `denominator` is a constant that is chosen before any
    data is seen, such as the expected size of a Poisson sample. It is never the
    number of records that were drawn, which is private.

    Attributes:
        l2_norm_clip: Bound on one record's norm, in the record's unit, >= 0.
        sum_stddev: Standard deviation of the noise on the *sum*, in the
            record's unit, >= 0. The noise on the average has the standard
            deviation `sum_stddev / denominator`.
        noise_multiplier: The ratio `sum_stddev / l2_norm_clip`, which decides
            what a round costs. Give either this or `sum_stddev`.
        denominator: The public constant, in records, > 0: the expected size of
            a sample. It must be given.
        gamma: See `GaussianSumQuery`.
        rescale: Whether the average is divided by `l2_norm_clip`; see
            `GaussianSumQuery`.
        precision: "assumed" or "proven"; see `GaussianSumQuery`.

    Raises:
        TypeError: `denominator` is missing; or both or neither of `sum_stddev`
            and `noise_multiplier` are given.
        ValueError: A number is negative, not finite, or out of its range.

    >>> import tensorflow as tf
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
    gamma: float | None
    rescale: bool
    precision: str

    def __init__(
        self,
        l2_norm_clip: float,
        sum_stddev: float | None = None,
        denominator: float | None = None,
        *,
        noise_multiplier: float | None = None,
        gamma: float | None = None,
        rescale: bool = False,
        precision: str = "assumed",
    ) -> None:
        _check.finite_non_negative(l2_norm_clip=l2_norm_clip)
        stddev = stddev_from(
            l2_norm_clip,
            noise_multiplier,
            checked_denominator(denominator),
            sum_stddev=sum_stddev,
        )
        set_fields(
            self,
            l2_norm_clip=float(l2_norm_clip),
            sum_stddev=float(stddev),
            denominator=checked_denominator(denominator),
            gamma=checked_gamma(gamma, l2_norm_clip),
            rescale=checked_rescale(l2_norm_clip, rescale=rescale),
            precision=checked_precision(precision, stddev),
        )

    @property
    def noise_multiplier(self) -> float:
        """The stddev of the noise, divided by the bound on one record."""
        return ratio(self.sum_stddev, self.l2_norm_clip)

    @property
    @override
    def inner(self) -> NormalizedQuery:
        total = GaussianSumQuery(
            self.l2_norm_clip,
            self.sum_stddev,
            gamma=self.gamma,
            rescale=self.rescale,
            precision=self.precision,
        )
        return NormalizedQuery(total, self.denominator)

    @override
    def result_noise(self, global_state: Nest, value: Nest) -> list[LeafNoise]:
        return self.inner.result_noise(global_state, value)
