"""Answers that are scaled down where they look like pure noise."""

import dataclasses
from collections.abc import Hashable

import keras
import tensorflow as tf

from keras_dp import _check, ledger
from keras_dp._override import override
from keras_dp.dp_queries.dp_query import (
    DPQuery,
    LeafNoise,
    Nest,
    QueryResult,
)
from keras_dp.dp_queries.saving import register
from keras_dp.dp_queries.wrapping_query import WrappingQuery
from keras_dp.noise import samplers


@register
@dataclasses.dataclass(frozen=True, slots=True)
class KSDenoisedQuery(WrappingQuery):
    """Scales the answers of a query down where they look like noise.

    A released vector is multiplied by a factor in [0, 1]: the
    Kolmogorov-Smirnov distance between its coordinates, divided by the scale of
    their noise, and the distribution of this noise. The factor is nearly 0 if
    the coordinates could be noise alone, and near 1 if they could not. For `n`
    coordinates of noise alone it is about `0.9 / sqrt(n)`. A vector is made of
    the leaves that one query answers together with noise of one family; see
    `LeafNoise.part`.

    Guarantee: the guarantee of `query`, with the same events. The factor
    depends on the released value and on the public distribution of the noise,
    never on the noise itself. So it is post-processing, for every adjacency
    relation. A record that is not finite counts as it does in `query`. The
    answer is biased towards 0, and is no longer a sum plus noise. So
    `result_noise` raises, and the answer cannot be denoised a second time.

    | vector | factor |
    | --- | --- |
    | with a leaf without noise (scale 0) | 1: there is nothing to remove |
    | without coordinates | 1 |
    | with a coordinate that is not finite | any; this coordinate stays so |

    Attributes:
        query: The query whose answers are scaled. Its `result_noise` must be
            known.

    Raises:
        TypeError: `query` is not a DPQuery. A release raises it if the noise of
            `query` is not known.

    Source: Nasr, Shokri, Houmansadr (2020), arXiv:2007.11524v1, section 3.2.
    The paper has the same noise on all coordinates. We divide each coordinate
    by the scale of its own noise.

    >>> from keras_dp.dp_queries.gaussian.gaussian_sums import GaussianSumQuery
    >>> query = KSDenoisedQuery(GaussianSumQuery(1.0, stddev=1.0))
    >>> state = query.initial_global_state()
    >>> sample = query.initial_sample_state(tf.zeros([10_000]))
    >>> noise_only = query.get_noised_result(sample, state).value
    >>> bool(tf.math.reduce_std(noise_only) < 0.1)
    True
    """

    query: DPQuery

    def __post_init__(self) -> None:
        _check.kind(DPQuery, query=self.query)

    @property
    @override
    def inner(self) -> DPQuery:
        return self.query

    @override
    def get_noised_result(
        self, sample_state: Nest, global_state: Nest
    ) -> QueryResult:
        result, noise = self.released(sample_state, global_state)
        return result._replace(value=self._denoised(result.value, noise))

    def _denoised(self, value: Nest, noise: list[LeafNoise]) -> Nest:
        leaves = [tf.convert_to_tensor(v) for v in keras.tree.flatten(value)]
        vectors: dict[Hashable, list[int]] = {}
        for place, (_, own) in enumerate(zip(leaves, noise, strict=True)):
            key = (own.part, own.family)
            vectors.setdefault(key, []).append(place)
        for places in vectors.values():
            factor = _factor(
                [leaves[place] for place in places],
                [noise[place] for place in places],
            )
            for place in places:
                leaf = leaves[place]
                leaves[place] = leaf * tf.cast(factor, leaf.dtype)
        return keras.tree.pack_sequence_as(value, leaves)


def _factor(leaves: list[tf.Tensor], noise: list[LeafNoise]) -> tf.Tensor:
    """Returns the factor of the vector that `leaves` form together."""
    scales = [tf.cast(own.scale, tf.float64) for own in noise]
    noisy = tf.reduce_all(tf.stack(scales) > 0)
    ones = [tf.where(scale > 0, scale, 1.0) for scale in scales]
    vector = tf.concat(
        [
            tf.reshape(tf.cast(leaf, tf.float64), [-1]) / scale
            for leaf, scale in zip(leaves, ones, strict=True)
        ],
        axis=0,
    )
    usable = noisy & (tf.size(vector) > 0)
    distance = ks_distance(vector, noise[0].family)
    return tf.where(usable, distance, tf.ones_like(distance))


def ks_distance(
    vector: tf.Tensor, noise: ledger.NoiseDistribution
) -> tf.Tensor:
    """Returns the Kolmogorov-Smirnov distance `sup_t |F_n(t) - F(t)|`.

    Args:
        vector: Shape `[n]`, float64, n >= 1; F_n is the share of coordinates up
            to t. Without coordinates the result is -inf.
        noise: The distribution, with the distribution function F.
    """
    # Just before and at each jump of the empirical distribution function.
    below = samplers.cdf(noise, tf.sort(vector))
    count = tf.size(vector)
    steps = tf.cast(tf.range(count + 1), tf.float64) / tf.cast(
        tf.maximum(count, 1), tf.float64
    )
    return tf.reduce_max(tf.maximum(steps[1:] - below, below - steps[:-1]))
