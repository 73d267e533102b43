"""Samplers and distribution functions of the noise families, in TensorFlow.

Draws are functions of random 64-bit words, from the generator of the seed. We
do not draw with TensorFlow Probability, even from its laws, for two reasons.
It leaves the choice of the generator to TensorFlow, which takes one that is not
cryptographic, and far slower under XLA on CPU. And TensorFlow's normal
variables stop at 5.7 standard deviations, whatever their dtype. `grid.draws`
draws Gaussian noise.

A word becomes a signed uniform variable `u`, with `2^-64 <= |u| <= 1`. For most
families, the sign of `u` is the sign of the noise, and `|u|` is the probability
of noise of a larger size. So draws are right far into the tails, in float32
too. For Student's t, `v` gives a radius, and a second uniform variable `w` the
sign and an angle.

| family | size from `v = abs(u)` | largest, at scale 1 |
| --- | --- | --- |
| Gaussian | `sqrt(-2 log v) cos(angle)` | about 16 |
| Student's t | `sqrt(df (v^(-2/df) - 1)) sin(pi w/2)` | `sqrt(df) 2^(64/df)` |
| Laplace | `-log v` | 44.4 |
| TensorFlow Probability | from a table, by `-log v` | `quantile(2^-65)` |

Larger noise has a probability of at most `2^-64`, 5.4e-20, and is never drawn.

Source: Bailey (1994), "Polar generation of random variates with the
t-distribution", Mathematics of Computation 62, for Student's t; the limit of
many degrees of freedom is the method of Box and Muller (1958). Others are
inverse distribution functions.
"""

import functools
import math

import tensorflow as tf

from keras_dp import ledger
from keras_dp.ledger.events.noise_families import (
    GaussianNoise,
    LaplaceNoise,
    StudentTNoise,
)
from keras_dp.ledger.events.tfp_noise import CubicCurve, TFPNoise
from keras_dp.noise import grid, seeds, streams

# In floats, Student's t with more degrees of freedom is the normal one. Twice
# this number is still a float32.
_MOST_DF = 1e30
# From so many on, the normal cdf is closer than what `tf.math.betainc` rounds.
_NORMAL_DF = 3e7
# The square of a larger number is no float64.
_FARTHEST = 1e150


@functools.singledispatch
def sample(
    noise: ledger.NoiseDistribution, like: tf.Tensor, seed: tf.Tensor
) -> tf.Tensor:
    """Returns independent noise of the shape and dtype of `like`.

    `sample.register` adds a sampler for another family. The dtype is float32 or
    float64. The seed must not be used again.
    """
    raise TypeError(
        "`noise` must be of a family that has a sampler. "
        f"Received: noise={noise!r}. Use a family of `keras_dp.ledger`, or "
        "register a sampler with `samplers.sample.register`."
    )


@functools.singledispatch
def cdf(noise: ledger.NoiseDistribution, x: tf.Tensor) -> tf.Tensor:
    """Returns the probability of noise below `x`, as float64.

    The error is at most 1e-8, and far smaller but for Student's t with millions
    of degrees of freedom. `cdf.register` adds the function of another family,
    which `KSDenoisedQuery` needs.
    """
    raise TypeError(
        "`noise` must be of a family that has a distribution function. "
        f"Received: noise={noise!r}. Use a family of `keras_dp.ledger`, or "
        "register a function with `samplers.cdf.register`."
    )


def signed_uniform(like: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Returns uniform variables in [-1, 1], symmetric about 0 and never 0.

    Near 0, where the noise becomes large, they keep all digits of a float.
    """
    words = streams.words(streams.size_of(like), seed)
    words = tf.cast(tf.reshape(words, tf.shape(like)), like.dtype)
    return (words + tf.constant(0.5, like.dtype)) * 2.0**-63


def _two_uniform(
    like: tf.Tensor, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    one, two = seeds.split(seed, 2)
    return signed_uniform(like, one), signed_uniform(like, two)


def _scaled(draw: tf.Tensor, noise: ledger.NoiseDistribution) -> tf.Tensor:
    return draw * tf.constant(noise.scale, draw.dtype)


@sample.register
def _(noise: GaussianNoise, like: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    one = tf.ones([], tf.float64)
    (steps,), _ = grid.draws([like], one, seed)
    drawn = tf.cast(steps, tf.float64) * grid.spacing(one)
    return _scaled(tf.cast(drawn, like.dtype), noise)


@sample.register
def _(noise: StudentTNoise, like: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    return _scaled(student_t(*_two_uniform(like, seed), noise.df), noise)


@sample.register
def _(noise: LaplaceNoise, like: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    return _scaled(laplace(signed_uniform(like, seed)), noise)


@sample.register
def _(noise: TFPNoise, like: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    # In float64: a step of the table is small beside the rounding of float32.
    u = signed_uniform(tf.zeros(tf.shape(like), tf.float64), seed)
    log_size = _on_curve(
        noise.table.draws, tf.math.log(-tf.math.log(tf.abs(u)))
    )
    draw = tf.sign(u) * tf.exp(log_size) * noise.scale
    return tf.ensure_shape(tf.cast(draw, like.dtype), like.shape)


def _on_curve(curve: CubicCurve, x: tf.Tensor) -> tf.Tensor:
    """Returns what the curve itself returns for arrays."""
    last = len(curve.pieces)
    place = tf.clip_by_value((x - curve.start) / curve.step, 0.0, float(last))
    index = tf.minimum(tf.cast(place, tf.int32), last - 1)
    share = place - tf.cast(index, place.dtype)
    a, b, c, d = tf.unstack(
        tf.gather(tf.constant(curve.pieces), index), axis=-1
    )
    return a + share * (b + share * (c + share * d))


def student_t(u: tf.Tensor, angle: tf.Tensor, df: float) -> tf.Tensor:
    """Returns Student's t variables, each from two signed uniform variables."""
    df = min(df, _MOST_DF)
    log = tf.math.log(tf.abs(u)) / df
    # A power of `u` is a float where its square is none.
    radius = tf.sqrt(-df * tf.math.expm1(2 * log)) * tf.exp(-log)
    return radius * tf.sin(0.5 * math.pi * angle)


def laplace(u: tf.Tensor) -> tf.Tensor:
    """Returns standard Laplace variables from signed uniform ones."""
    return -tf.sign(u) * tf.math.log(tf.abs(u))


def _standardized(noise: ledger.NoiseDistribution, x: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, tf.float64) / tf.constant(noise.scale, tf.float64)


def _two_sided(z: tf.Tensor, tail: tf.Tensor) -> tf.Tensor:
    return tf.where(z < 0, tail, 1 - tail)


@cdf.register
def _(noise: GaussianNoise, x: tf.Tensor) -> tf.Tensor:
    z = _standardized(noise, x)
    return 0.5 * tf.math.erfc(-z / math.sqrt(2))


@cdf.register
def _(noise: StudentTNoise, x: tf.Tensor) -> tf.Tensor:
    if noise.df > _NORMAL_DF:
        return cdf(GaussianNoise(noise.scale), x)
    z = _standardized(noise, x)
    square = tf.square(tf.clip_by_value(z, -_FARTHEST, _FARTHEST))
    df = tf.constant(noise.df, tf.float64)
    half = tf.constant(0.5, tf.float64)
    inside = tf.math.betainc(half, df / 2, square / (df + square))
    return 0.5 + 0.5 * tf.sign(z) * inside


@cdf.register
def _(noise: LaplaceNoise, x: tf.Tensor) -> tf.Tensor:
    z = _standardized(noise, x)
    return _two_sided(z, 0.5 * tf.exp(-tf.abs(z)))


@cdf.register
def _(noise: TFPNoise, x: tf.Tensor) -> tf.Tensor:
    z = _standardized(noise, x)
    tails = noise.table.tails
    log_size = tf.math.log(tf.abs(z))
    w = tf.where(
        log_size < tails.start,
        tf.zeros_like(z),
        tf.exp(_on_curve(tails, log_size)),
    )
    return _two_sided(z, 0.5 * tf.exp(-w))
