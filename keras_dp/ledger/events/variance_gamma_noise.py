"""Sums of Laplace variables as a noise family."""

import dataclasses
import functools
import math

import numpy as np
from scipy import special

from keras_dp import _check
from keras_dp._override import override
from keras_dp.ledger.events.noise_distribution import Array, NoiseDistribution

# The coefficients of the density are floats up to here.
_LARGEST_SHAPE = 100
# Newton's method doubles its digits once it is near; it needs a dozen steps.
_MOST_STEPS = 100


@dataclasses.dataclass(frozen=True, slots=True)
class VarianceGammaNoise(NoiseDistribution):
    """The sum of `shape` independent Laplace variables.

    With `shape=1` it is the Laplace distribution; with a large `shape` it is
    nearly normal. The absolute value of the sum is distributed as a mixture of
    Erlang variables. So the density is a polynomial in `|x|` times
    `exp(-|x| / scale)`; for `shape=2` and `scale=1` it is
    `(1 + |x|) exp(-|x|) / 4`.

    Attributes:
        scale: Mean absolute value of each Laplace variable, > 0.
        shape: Number of Laplace variables, in [1, 100].

    >>> VarianceGammaNoise(1.0, shape=2).variance
    4.0
    """

    shape: int = 2

    def __post_init__(self) -> None:
        _check.integer_at_least(1, shape=self.shape)
        if self.shape > _LARGEST_SHAPE:
            raise ValueError(
                f"`shape` must be an integer <= {_LARGEST_SHAPE}. "
                f"Received: shape={self.shape!r}. Use `GaussianNoise`, which "
                "such a sum comes near to."
            )
        object.__setattr__(self, "shape", int(self.shape))
        NoiseDistribution.__post_init__(self)

    @property
    def tail_polynomial(self) -> Array:
        """The polynomial `P(|x| > z) exp(z)` in `z`, at scale 1.

        Its coefficients, the constant one first.
        """
        # P(Erlang_j > z) = exp(-z) sum_(i < j) z^i / i!
        later = np.cumsum(_weights(self.shape)[::-1])[::-1]
        return np.asarray(later / special.factorial(np.arange(self.shape)))

    @override
    def standard_log_density(self, z: Array) -> Array:
        near, far = _coefficients(self.shape)
        # Powers of whichever is at most 1.
        inverse = 1 / np.maximum(z, 1.0)
        log_z = np.log(np.clip(z, 1.0, np.finfo(np.float64).max))
        polynomial = np.where(
            z <= 1,
            np.polynomial.polynomial.polyval(np.minimum(z, 1.0), near),
            np.polynomial.polynomial.polyval(inverse, far),
        )
        power = (self.shape - 1) * log_z
        return np.asarray(np.log(polynomial) + power - z - math.log(2))

    @override
    def standard_tail(self, z: Array) -> Array:
        each = _weights(self.shape)
        order = np.arange(1, self.shape + 1)
        return np.asarray(special.gammaincc(order, z[..., None]) @ each) / 2

    @override
    def standard_size(self, tail: Array) -> Array:
        # Newton's method on the log of a log-concave function: from beyond the
        # root on, which is after one step, it comes back without crossing it.
        z = np.zeros_like(tail)
        target = np.log(2 * tail)
        for _ in range(_MOST_STEPS):
            log_survival = self._log_survival(z)
            slope = np.exp(
                self.standard_log_density(z) + math.log(2) - log_survival
            )
            step = (log_survival - target) / slope
            step = np.where(np.isfinite(step), step, 0.0)
            z = np.maximum(z + step, 0.0)
            if (np.abs(step) <= 1e-15 * (1 + z)).all():
                break
        return np.where(tail > 0, z, np.inf)

    def _log_survival(self, z: Array) -> Array:
        terms = np.polynomial.polynomial.polyval(z, self.tail_polynomial)
        return np.asarray(np.log(terms) - z)

    @property
    @override
    def standard_variance(self) -> float:
        return 2.0 * self.shape

    @property
    @override
    def standard_fisher_information(self) -> float:
        return _fisher_information(self.shape)


@functools.cache
def _weights(shape: int) -> Array:
    """Returns the weights of the Erlang variables of orders 1 to `shape`."""
    each = [
        math.comb(count, shape - 1) / 2**count
        for count in range(2 * shape - 2, shape - 2, -1)
    ]
    return np.array(each)


@functools.cache
def _coefficients(shape: int) -> tuple[Array, Array]:
    """Returns twice the density over `exp(-z)`: a polynomial, in two orders.

    The first result has the coefficients of rising powers of `z`. The second
    has those of rising powers of `1 / z`, after division by the highest power.
    """
    near = _weights(shape) / special.factorial(np.arange(shape))
    return near, near[::-1].copy()


@functools.cache
def _fisher_information(shape: int) -> float:
    """Returns the Fisher information at scale 1.

    It is the integral of `(1 - P' / P)^2 P exp(-z)` over `z > 0`, where `P` is
    the polynomial of `_coefficients`. It is computed by the trapezoidal rule in
    `u`, after the substitution `z = exp(u - exp(-u))`, to within 1e-13. For
    `shape=2` it is `e E_1(1) / 2`.
    """
    near, _ = _coefficients(shape)
    u = np.linspace(-5.0, 7.0, 1201)
    log_z = u - np.exp(-u)
    z = np.exp(log_z)
    polynomial = np.polynomial.Polynomial(near)
    score = 1 - polynomial.deriv()(z) / polynomial(z)
    terms = score**2 * polynomial(z) * np.exp(log_z - z) * (1 + np.exp(-u))
    return float(terms.sum() * (u[1] - u[0]))
