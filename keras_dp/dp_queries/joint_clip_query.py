"""Vectors of different scales, clipped together."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Self

import tensorflow as tf

from keras_dp import _check, _nests
from keras_dp._override import override
from keras_dp.dp_queries import records as records_lib
from keras_dp.dp_queries.dp_query import (
    DPQuery,
    LeafNoise,
    Nest,
    QueryResult,
)
from keras_dp.dp_queries.gaussian_sum_query import (
    GaussianGlobalState,
    GaussianSumQuery,
    checked_gamma,
    checked_rescale,
    ratio,
    stddev_from,
)
from keras_dp.dp_queries.normalized_query import checked_denominator
from keras_dp.dp_queries.proven_sum import checked_precision, proven_sum
from keras_dp.dp_queries.saving import register, set_fields
from keras_dp.dp_queries.summing_query import (
    SummingQuery,
    SumParams,
    on_grid,
)
from keras_dp.dp_queries.wrapping_query import WrappingQuery

_LARGEST_SCALE = 1e30
_RULE = "`scales` must have a structure that is a prefix of the record's."


@register
@dataclasses.dataclass(frozen=True, slots=True, init=False)
class JointClipQuery(SummingQuery, WrappingQuery):
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
    l2_norm_clip: float
    sum_stddev: float
    denominator: float
    gamma: float | None
    rescale: bool
    precision: str

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
            _check.finite_positive(scales=scale)
            if not 1 / _LARGEST_SCALE <= scale <= _LARGEST_SCALE:
                raise ValueError(
                    f"`scales` must be in [{1 / _LARGEST_SCALE}, "
                    f"{_LARGEST_SCALE}], to stay in the range of float32. "
                    f"Received: scales={scale!r}."
                )
        _check.finite_non_negative(l2_norm_clip=l2_norm_clip)
        stddev = stddev_from(
            l2_norm_clip,
            noise_multiplier,
            checked_denominator(denominator),
            sum_stddev=sum_stddev,
        )
        floats = _nests.join(scales, iter(map(float, each)))
        set_fields(
            self,
            scales=_nests.frozen(floats),
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

    @override
    def get_config(self) -> dict[str, Any]:
        scales = _nests.to_config(self.scales, float)
        return {**DPQuery.get_config(self), "scales": scales}

    @classmethod
    @override
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        scales = _nests.from_config(config["scales"], float)
        return cls(**{**config, "scales": scales})

    @property
    @override
    def inner(self) -> GaussianSumQuery:
        """The query that sums the scaled records."""
        return GaussianSumQuery(
            self.l2_norm_clip,
            self.sum_stddev,
            gamma=self.gamma,
            rescale=self.rescale,
            precision=self.precision,
        )

    @override
    def initial_sample_state(self, template: Nest) -> Nest:
        self._split(template)  # Raises if it does not fit.
        return self.inner.initial_sample_state(template)

    @override
    def get_noised_result(
        self, sample_state: Nest, global_state: GaussianGlobalState
    ) -> QueryResult:
        result = self.inner.get_noised_result(sample_state, global_state)
        return result._replace(
            value=self.scaled(
                result.value, lambda scale: scale / self.denominator
            )
        )

    @override
    def result_noise(
        self, global_state: GaussianGlobalState, value: Nest
    ) -> list[LeafNoise]:
        noise, *_ = self.inner.result_noise(global_state, value)
        return [
            noise._replace(
                scale=noise.scale * scale / self.denominator, group=path
            )
            for path, scale, part in zip(
                _nests.paths(self.scales),
                _nests.leaves(self.scales),
                self._split(value),
                strict=True,
            )
            for _ in tf.nest.flatten(part)
        ]

    def _split(self, nest: Nest) -> list[Any]:
        return _nests.split(self.scales, nest, _RULE)

    @override
    def bounded_sum(
        self,
        params: SumParams,
        like: Nest,
        records: Nest,
        mask: tf.Tensor | None,
    ) -> Nest:
        scales = _nests.leaves(self.scales)
        parts = self._split(records)
        if self.is_proven:
            each = [
                scale
                for part, scale in zip(parts, scales, strict=True)
                for _ in tf.nest.flatten(part)
            ]
            return proven_sum(like, records, params, mask, self.gamma, each)
        norms = records_lib.joint_norms(
            [
                records_lib.norms(tf.nest.flatten(part)) / scale
                for part, scale in zip(parts, scales, strict=True)
            ]
        )
        clip, spacing = params
        sums = records_lib.clipped_sum(records, norms, clip, mask, self.gamma)
        return on_grid(
            like, self.scaled(sums, lambda scale: 1 / scale), spacing
        )

    def scaled(self, nest: Nest, factor: Callable[[float], float]) -> Nest:
        """Returns a nest with each group multiplied by a number of its own.

        Args:
            nest: Nest of tensors in the structure of a record.
            factor: Maps the scale of the group to this number.
        """
        scales = _nests.leaves(self.scales)
        parts = [
            tf.nest.map_structure(
                functools.partial(_times, factor=factor(scale)), part
            )
            for part, scale in zip(self._split(nest), scales, strict=True)
        ]
        return _nests.join(self.scales, iter(parts))


def _times(leaf: tf.Tensor, *, factor: float) -> tf.Tensor:
    return leaf * tf.constant(factor, leaf.dtype)
