"""Gaussian sums, averages, and sums of parts that are clipped together."""

import dataclasses
from typing import Any

import keras

from keras_dp import _check, _nests
from keras_dp._override import override
from keras_dp.dp_queries.dp_query import Nest
from keras_dp.dp_queries.gaussian.gaussian_query import (
    GaussianQuery,
    checked_gamma,
    checked_numbers,
    checked_rescale,
)
from keras_dp.dp_queries.saving import register, set_fields
from keras_dp.dp_queries.wrapping_query import checked_denominator

_LARGEST_SCALE = 1e30  # Scaled records stay in the range of float32.
_RULE = "`scales` must have a structure that is a prefix of the record's."


@register
@dataclasses.dataclass(frozen=True, slots=True, init=False)
class GaussianSumQuery(GaussianQuery):
    """Sums records clipped to an L2 norm, and adds Gaussian noise.

    A record may be a nest of tensors. Its *joint* norm is the norm of all its
    tensors together, as one long vector.

    By default a record is clipped: if its norm is larger than the clip `C`, it
    is multiplied by `C / norm`. With a `gamma` every record is multiplied by
    `C / (norm + gamma)` instead (automatic clipping). All records that are long
    against `gamma` then have nearly the norm `C`. So `C` only sets the scale of
    the answer, like a learning rate, and need not be tuned.

    Guarantee: adding, removing or zeroing out one record moves the sum before
    noise by at most `l2_norm_clip` in joint L2 norm, and replacing one by at
    most twice that, for every record. This holds up to float rounding, a
    relative 1e-6 for tensors in float32; the clip is not lowered to make up for
    it. A record that is not finite, or whose norm is not, counts as zero. The
    answer is float64 if the template is, and float32 otherwise. The sum of each
    batch is rounded to integers, steps of a grid, and so is the noise. So sums
    of batches and replicas add up in any order, and the low bits of the answer
    tell nothing of the sum; see `grid`. Sums are cut off at 2^27 standard
    deviations of the noise. The bound of the event does not charge
    for the rounding of a batch.

    With `precision="proven"` the bound holds without "up to": for all records
    in float32, every order of addition and every device, what one record moves
    is at most `l2_norm_clip`, rounding included. It is a theorem about the
    program; `docs/finite_precision.md` has the proof, and what it assumes.
    Norms are then bounded from above, sums are added in blocks and in float64,
    and the clip gives up the part that rounding takes: 0.2 % of it in blocks of
    128 records. The ledger says so in its event.

    Attributes:
        l2_norm_clip: Bound on one record's norm, in the record's unit, >= 0.
        stddev: Standard deviation of the noise on the sum, in the record's
            unit: 0, or in [1e-30, 1e37] and at least 2^-20 times the clip. At 0
            the sum is released without noise, and every accountant says
            epsilon = inf. Less noise would cut sums off, or be rounded away.
        noise_multiplier: The ratio `stddev / l2_norm_clip`, which decides what
            a round costs. Give either this or `stddev`.
        gamma: `None` to clip, or a number for automatic clipping: the norm, in
            the record's unit, at which a record has half of its influence, in
            [1e-12, 1e6]. 0.01 in the paper. `l2_norm_clip / gamma` must be at
            most 1e20.
        rescale: Whether the answer is divided by `l2_norm_clip`. It is then in
            units of the clip: each record adds at most 1, and a learning rate
            that was found at one clip holds at another, as far as that one
            clips the same records. The clip must be in [1e-20, 1e20].
        precision: "proven", or "assumed" for the guarantee up to rounding.

    Raises:
        TypeError: Both or neither of `stddev` and `noise_multiplier` are given.
        ValueError: A number is negative, not finite, or out of its range.

    Source: Abadi et al. (2016), arXiv:1607.00133v2, Algorithm 1, without its
    division by the lot size; Bu et al. (2022), arXiv:2206.07136v3, "AUTO-S",
    for `gamma`; De et al. (2022), arXiv:2204.13650v2, for `rescale`.

    >>> import tensorflow as tf
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
    gamma: float | None
    rescale: bool
    precision: str

    def __init__(
        self,
        l2_norm_clip: float,
        stddev: float | None = None,
        *,
        noise_multiplier: float | None = None,
        gamma: float | None = None,
        rescale: bool = False,
        precision: str = "assumed",
    ) -> None:
        numbers = checked_numbers(
            l2_norm_clip,
            noise_multiplier,
            stddev=stddev,
            precision=precision,
        )
        set_fields(
            self,
            gamma=checked_gamma(gamma, l2_norm_clip),
            rescale=checked_rescale(l2_norm_clip, rescale=rescale),
            **numbers,
        )

    @property
    @override
    def noise_stddev(self) -> float:
        return self.stddev


@register
@dataclasses.dataclass(frozen=True, slots=True, init=False)
class GaussianAverageQuery(GaussianQuery):
    """Averages records: a `GaussianSumQuery` divided by a public number.

    It answers as `NormalizedQuery(GaussianSumQuery(l2_norm_clip, sum_stddev,
    gamma=..., rescale=...), denominator)` does.

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
        divisor = checked_denominator(denominator)
        numbers = checked_numbers(
            l2_norm_clip,
            noise_multiplier,
            denominator=divisor,
            sum_stddev=sum_stddev,
            precision=precision,
        )
        set_fields(
            self,
            denominator=divisor,
            gamma=checked_gamma(gamma, l2_norm_clip),
            rescale=checked_rescale(l2_norm_clip, rescale=rescale),
            **numbers,
        )

    @property
    @override
    def noise_stddev(self) -> float:
        return self.sum_stddev

    @property
    @override
    def divisor(self) -> float:
        return self.denominator


@register
@dataclasses.dataclass(frozen=True, slots=True, init=False)
class JointClipQuery(GaussianAverageQuery):
    """Averages records whose parts (groups) have norms of different scales.

    Let `v_g` be the part of a record in group g, and `s_g` the scale of the
    group. The vectors `v_g / s_g` of a record are clipped together, to one
    joint L2 norm, then summed over the records and noised. The noised sum of
    each group is multiplied by `s_g` again, and divided by the public
    denominator. A record that is large in one group only can use the whole
    norm for this group; with a clip for each group it could not.

    Guarantee: adding, removing or zeroing out one record moves the sum of the
    scaled records before noise by at most `l2_norm_clip` in joint L2 norm, and
    replacing one by at most twice that, up to float rounding (a relative 1e-6
    in float32). The answer is a function of this noised sum. So it costs what
    one Gaussian sum `(l2_norm_clip, sum_stddev)` costs. A record that is not
    finite in a group, or whose scaled norm is not finite, counts as zero in all
    groups.

    Attributes:
        scales: Nest of positive numbers: a typical norm of a record in each
            group, in the record's unit. The structure of the nest is a prefix
            of the record's structure. The noise on a group is proportional to
            its scale.
        l2_norm_clip: Bound on the joint norm of the scaled record,
            dimensionless, >= 0. A record whose norm in each group is the scale
            of the group has the scaled norm sqrt(number of groups).
        sum_stddev: Standard deviation of the noise on the scaled sum,
            dimensionless, >= 0. The average of group g has noise of standard
            deviation `s_g * sum_stddev / denominator`.
        noise_multiplier: The ratio `sum_stddev / l2_norm_clip`. Give either
            this or `sum_stddev`.
        denominator: The public constant, in records, > 0: the expected size of
            a sample; 1 for sums.
        gamma: As in `GaussianSumQuery`, for the norm of the scaled record;
            dimensionless.
        rescale: Whether the answer is divided by `l2_norm_clip`; see
            `GaussianSumQuery`.
        precision: "assumed" or "proven"; see `GaussianSumQuery`. It is about
            the scaled record.

    Source: McMahan et al. (2018), arXiv:1812.06210v2, section 2, "Joint
    clipping".

    >>> import tensorflow as tf
    >>> query = JointClipQuery({"conv": 1.0, "head": 100.0}, l2_norm_clip=1.0,
    ...                        sum_stddev=0.0, denominator=1.0)
    >>> state = query.initial_global_state()
    >>> records = {"conv": tf.constant([[3.0], [0.0]]),
    ...            "head": tf.constant([[0.0], [50.0]])}
    >>> sample = query.initial_sample_state(
    ...     {"conv": tf.zeros([1]), "head": tf.zeros([1])})
    >>> sample = query.accumulate_records(
    ...     query.derive_sample_params(state), sample, records)
    >>> value = query.get_noised_result(sample, state).value
    >>> float(value["conv"][0]), float(value["head"][0])
    (1.0, 50.0)
    """

    scales: Nest

    def __init__(
        self,
        scales: Nest,
        l2_norm_clip: float,
        sum_stddev: float | None = None,
        denominator: float | None = None,
        *,
        noise_multiplier: float | None = None,
        gamma: float | None = None,
        rescale: bool = False,
        precision: str = "assumed",
    ) -> None:
        each = _nests.leaves(scales)
        for scale in each:
            _check.within(1 / _LARGEST_SCALE, _LARGEST_SCALE, scales=scale)
        GaussianAverageQuery.__init__(
            self,
            l2_norm_clip,
            sum_stddev,
            denominator,
            noise_multiplier=noise_multiplier,
            gamma=gamma,
            rescale=rescale,
            precision=precision,
        )
        floats = _nests.join(scales, iter(map(float, each)))
        set_fields(self, scales=_nests.frozen(floats))

    @override
    def initial_sample_state(self, template: Nest) -> Nest:
        self.scales_of(template)  # Raises if it does not fit.
        return GaussianQuery.initial_sample_state(self, template)

    @override
    def scales_of(self, nest: Nest) -> list[float]:
        return self._of_leaves(nest, _nests.leaves(self.scales))

    @override
    def parts_of(self, nest: Nest) -> list[str]:
        return self._of_leaves(nest, _nests.paths(self.scales))

    def _of_leaves(self, nest: Nest, of_groups: list[Any]) -> list[Any]:
        parts = _nests.split(self.scales, nest, _RULE)
        return [
            each
            for part, each in zip(parts, of_groups, strict=True)
            for _ in keras.tree.flatten(part)
        ]
