"""Answers that are corrected by what is known of their noise.

`ErrorCorrectedQuery` rounds them to up, stop or down, whichever is most
probable. `KSDenoisedQuery` scales them down where they look like pure noise.
"""

import dataclasses
import math
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
from keras_dp.dp_queries.saving import as_floats, register
from keras_dp.dp_queries.wrapping_query import WrappingQuery
from keras_dp.noise import samplers

# An asymptotic series of `_TERMS` terms has all digits for larger arguments.
_ASYMPTOTIC = 10.0
_TERMS = 20
# Largest value in units of the noise whose square is still a float64.
_MOST = 1e150


@register
@dataclasses.dataclass(frozen=True, slots=True)
class ErrorCorrectedQuery(WrappingQuery):
    """Replaces each coordinate of an answer by `threshold`, 0 or `-threshold`.

    A released coordinate is y = x + z, with x the value before noise and z
    Gaussian noise of standard deviation s. With nu the `threshold`, there are
    three hypotheses: up, x > nu; stop, |x| <= nu; and down, x < -nu. The query
    computes which hypothesis is most probable given y, and releases nu for up,
    0 for stop, and -nu for down. A tie becomes 0.

    This needs a distribution of x under each hypothesis. Under stop, x is
    uniform. Under up, `x - nu` is exponential with mean nu; down is the mirror
    image. With Phi the normal distribution function, `u = (y - nu) / s` and
    `r = s / nu`, the likelihoods are

    * `p(y | stop) = (Phi((y + nu) / s) - Phi((y - nu) / s)) / (2 nu)`;
    * `p(y | up) = exp(r^2 / 2 - u r) Phi(u - r) / nu`, the integral of
      `exp(-(x - nu) / nu) phi((y - x) / s) / (nu s)` over x > nu;
    * `p(y | down)` is `p(-y | up)`;

    All three are equally probable before y is known. There is one value of y
    above which up is most probable, and one below which down is (Karlin 1968,
    variation diminishing kernels).

    Guarantee: the guarantee of `query`, with the same events. The decision uses
    the released value and public numbers only, so it is post-processing, for
    every adjacency relation. A record that is not finite counts as it does in
    `query`. The answer is no longer a sum plus noise. So `result_noise` raises,
    and no other query can correct the answer again.

    | value | becomes |
    | --- | --- |
    | with noise of scale 0 | nu, 0 or -nu by the value itself |
    | infinite | nu or -nu |
    | NaN | 0 |

    Logarithms of likelihoods are float64. Their error is at most 1e-9 plus
    1e-14 of their size, for `threshold / s` from 1e-4 to 1e4. The values of y
    at which the decision changes are right to 1e-3 s if `threshold / s` is at
    least 1e-5; far below, they are not.

    Attributes:
        query: The query whose answers are corrected. The noise in each leaf
            must be Gaussian; else a release raises TypeError.
        threshold: The value that is released for up, in the unit of the answers
            of `query`, > 0.

    Source: Nasr, Shokri, Generalizable Deep Learning with Differential
    Privacy, section 3.2 and Algorithm 3. The paper does not say how x is
    distributed under each hypothesis; the distributions are ours.

    >>> from keras_dp.dp_queries.gaussian.gaussian_sums import GaussianSumQuery
    >>> query = ErrorCorrectedQuery(GaussianSumQuery(9.0, 0.0), threshold=0.5)
    >>> state = query.initial_global_state()
    >>> sample = tf.constant([2.0, 0.5, -0.1, -0.7])
    >>> query.get_noised_result(sample, state).value.numpy().tolist()
    [0.5, 0.0, 0.0, -0.5]
    """

    query: DPQuery
    threshold: float

    def __post_init__(self) -> None:
        _check.kind(DPQuery, query=self.query)
        _check.finite_positive(threshold=self.threshold)
        as_floats(self, "threshold")

    @override
    def get_noised_result(
        self, sample_state: Nest, global_state: Nest
    ) -> QueryResult:
        result, noise = self.released(sample_state, global_state)
        corrected = [
            self._corrected(tf.convert_to_tensor(leaf), _stddev(own))
            for leaf, own in zip(
                keras.tree.flatten(result.value), noise, strict=True
            )
        ]
        return result._replace(
            value=keras.tree.pack_sequence_as(result.value, corrected)
        )

    def log_likelihoods(
        self, value: tf.Tensor, stddev: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns `log p(y | down)`, of stop and of up, float64.

        Args:
            value: The released y, finite, of any shape.
            stddev: Standard deviation of the noise in it, scalar, > 0.
        """
        value = tf.cast(value, tf.float64)
        stddev = tf.cast(stddev, tf.float64)
        return (
            self._log_up(-value, stddev),
            self._log_stop(value, stddev),
            self._log_up(value, stddev),
        )

    def _log_up(self, value: tf.Tensor, stddev: tf.Tensor) -> tf.Tensor:
        tail = tf.constant(self.threshold, tf.float64)
        u, r = (value - self.threshold) / stddev, stddev / tail
        # Two forms of the same, each without differences of large numbers.
        above = r * (0.5 * r - u) + _log_ndtr(tf.maximum(u - r, 0.0))
        below = -0.5 * u * u + _log_scaled_tail(tf.maximum(r - u, 0.0))
        return tf.where(u > r, above, below) - tf.math.log(tail)

    def _log_stop(self, value: tf.Tensor, stddev: tf.Tensor) -> tf.Tensor:
        size = tf.abs(value)
        near = (size - self.threshold) / stddev
        far = (size + self.threshold) / stddev
        inside = tf.math.erf(far / math.sqrt(2)) - tf.math.erf(
            tf.minimum(near, 0.0) / math.sqrt(2)
        )
        # log(Q(near) - Q(far)) with Q = 1 - Phi, from logs of both.
        start = tf.maximum(near, 0.0)
        ratio = (
            -self.threshold / stddev * (start + far)
            + _log_scaled_tail(far)
            - _log_scaled_tail(start)
        )
        outside = (
            -0.5 * start * start
            + _log_scaled_tail(start)
            + tf.math.log(-tf.math.expm1(ratio))
        )
        log = tf.where(near > 0, outside, tf.math.log(0.5 * inside))
        return log - math.log(2 * self.threshold)

    def _corrected(self, value: tf.Tensor, stddev: tf.Tensor) -> tf.Tensor:
        known = tf.where(stddev > 0, stddev, tf.ones_like(stddev))
        most = _MOST * known
        finite = tf.clip_by_value(tf.cast(value, tf.float64), -most, most)
        down, stop, up = self.log_likelihoods(finite, known)
        nu = tf.constant(self.threshold, value.dtype)
        noisy = stddev > 0
        is_up = tf.where(noisy, (up > down) & (up > stop), value > nu)
        is_down = tf.where(noisy, (down > up) & (down > stop), value < -nu)
        stopped = tf.zeros_like(value)
        return tf.where(is_up, nu, tf.where(is_down, -nu, stopped))


def _stddev(noise: LeafNoise) -> tf.Tensor:
    if not isinstance(noise.family, ledger.GaussianNoise):
        raise TypeError(
            "`query` must have Gaussian noise on each leaf to be corrected. "
            f"Received: noise of {noise.family!r}."
        )
    return tf.cast(noise.scale, tf.float64)


def _log_ndtr(x: tf.Tensor) -> tf.Tensor:
    """Returns `log Phi(x)` for x >= 0."""
    return tf.math.log1p(-0.5 * tf.math.erfc(x / math.sqrt(2)))


def _log_scaled_tail(x: tf.Tensor) -> tf.Tensor:
    """Returns `log Phi(-x) + x^2 / 2` for x >= 0."""
    low = tf.minimum(x, _ASYMPTOTIC)
    exact = 0.5 * low * low + tf.math.log(
        0.5 * tf.math.erfc(low / math.sqrt(2))
    )
    # 1 - 1/x^2 (1 - 3/x^2 (1 - 5/x^2 (...))).
    high = tf.maximum(x, _ASYMPTOTIC)
    inverse = 1 / high / high
    series = tf.ones_like(x)
    for term in range(_TERMS, 0, -1):
        series = 1 - (2 * term - 1) * inverse * series
    far = tf.math.log(series / high) - 0.5 * math.log(2 * math.pi)
    return tf.where(x < _ASYMPTOTIC, exact, far)


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
    """Returns the Kolmogorov-Smirnov distance `sup_t |F_n(t) - F(t)|`, float64.

    F_n(t) is the share of coordinates of the vector up to t, and F the
    distribution function of the noise. Without coordinates the result is -inf.
    """
    # Just before and at each jump of the empirical distribution function.
    below = samplers.cdf(noise, tf.sort(vector))
    count = tf.size(vector)
    steps = tf.cast(tf.range(count + 1), tf.float64) / tf.cast(
        tf.maximum(count, 1), tf.float64
    )
    return tf.reduce_max(tf.maximum(steps[1:] - below, below - steps[:-1]))
