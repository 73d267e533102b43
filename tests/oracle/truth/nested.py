"""Delta of a few rounds from its definition, by nested integrals.

A second method, for what `contour` says: no transform, no complex number.
"""

import mpmath as mp


def removed_delta(q, z, count, eps):
    """Delta at `eps` of equal rounds, where a record is removed.

        delta_T(eps) = E_(x ~ P)[delta_(T-1)(eps - log r(x))]

    with one round in closed form. Losses are above `log(1-q)`.
    """
    q, z, eps = mp.mpf(q), mp.mpf(z), mp.mpf(eps)
    least = mp.log1p(-q)
    if eps <= count * least:
        return -mp.expm1(eps)
    if count == 1:
        return _one(q, z, eps)

    def integrand(x):
        y = mp.exp((2 * x - 1) / (2 * z**2))
        density = mp.npdf(x / z) / z * (1 - q + q * y)
        loss = mp.log1p(q * (y - 1))
        return density * removed_delta(q, z, count - 1, eps - loss)

    # Where the rest is certain: left of it, the integrand is not analytic.
    edge = _output(q, z, eps - (count - 1) * least)
    reach = z * mp.sqrt(2 * mp.log(10) * (mp.mp.dps + 8))
    ends = [-reach, 1 + reach] + ([edge] if -reach < edge < 1 + reach else [])
    ends += [k * z for k in range(-8, int(1 / z) + 9)]
    return mp.quad(integrand, sorted(ends))


def replaced_delta(q, z, eps):
    """Delta at `eps` of two equal rounds, where a record is replaced."""
    q, z, eps = mp.mpf(q), mp.mpf(z), mp.mpf(eps)
    scale = q * mp.exp(-1 / (2 * z**2))

    def one(eps):
        # The likelihood ratio is e^eps at a root of a quadratic in e^(x/z^2).
        half = (1 - q) * mp.expm1(eps) / 2
        root = half + mp.sqrt(half**2 + scale**2 * mp.exp(eps))
        at = z**2 * mp.log(root / scale)
        nothing = (1 - q) * mp.ncdf(-at / z)
        old = nothing + q * mp.ncdf((1 - at) / z)
        return old - mp.exp(eps) * (nothing + q * mp.ncdf((-1 - at) / z))

    def integrand(x):
        y = mp.exp(x / z**2)
        density = mp.npdf(x / z) / z * (1 - q + scale * y)
        loss = mp.log((1 - q + scale * y) / (1 - q + scale / y))
        return density * one(eps - loss)

    reach = z * mp.sqrt(2 * mp.log(10) * (mp.mp.dps + 8))
    ends = [-reach, *(k * z for k in range(-7, int(1 / z) + 8)), 1 + reach]
    return mp.quad(integrand, ends)


def _one(q, z, eps):
    at = _output(q, z, eps)
    with_record = (1 - q) * mp.ncdf(-at / z) + q * mp.ncdf((1 - at) / z)
    return with_record - mp.exp(eps) * mp.ncdf(-at / z)


def _output(q, z, loss):
    """The output at which the loss of one round is `loss`."""
    return mp.mpf(1) / 2 + z**2 * mp.log((mp.expm1(loss) + q) / q)
