"""Moments on a line of integration beside those of 40 digits."""

import math

import mpmath
import numpy as np
import pytest

from keras_dp.accountants.compose import line_moments
from keras_dp.accountants.compose.composition import Composition
from keras_dp.accountants.loss.mixture import MixtureLoss, ReplaceOneLoss

# Between points of the trapezoidal rule, in noise stddevs.
STEP = mpmath.mpf(1) / 128


def poisson(noise, q):
    m = mpmath.mpf(1) / noise

    def ratio(u):
        return 1 - q + q * mpmath.exp(m * u - m * m / 2)

    return (
        MixtureLoss(noise, (1 - q, q), is_added=False),
        (lambda u: mpmath.log(ratio(u))),
        (lambda u: mpmath.mpf(1)),
    )


def replaced(noise, q):
    m = mpmath.mpf(1) / noise

    def ratio(u):
        return 1 - q + q * mpmath.exp(m * u - m * m / 2)

    return (
        ReplaceOneLoss(noise, q),
        (lambda u: mpmath.log(ratio(u)) - mpmath.log(ratio(-u))),
        (lambda u: ratio(-u)),
    )


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "noise", "q", "tilt", "end"),
    [
        (poisson, 1.0, 0.01, 8.0, 40.0),
        (poisson, 4.0, 0.25, 60.0, 90.0),
        (replaced, 5.23825169214, 0.00728037734723, 268.8, 100.0),
    ],
    ids=["a few nats", "tens of nats", "hundreds of nats"],
)
def test_the_rounding_of_a_moment_has_a_bound(
    kind, noise, q, tilt, end
) -> None:
    loss, of_output, density = kind(noise, q)
    farthest = 300.0
    paths = line_moments.paths(Composition((loss,), np.ones(1)), tilt, 2.0**20)
    (tilted,) = paths.tilted
    with mpmath.workdps(40):
        outputs = [
            STEP * i for i in range(math.ceil(-16 / STEP), int(end / STEP))
        ]
        losses = [of_output(u) for u in outputs]
        weights = [
            density(u) * mpmath.exp((1 + tilt) * each - u * u / 2)
            for u, each in zip(outputs, losses, strict=True)
        ]
        total = mpmath.fsum(weights)
        off = []
        for t in (1.0, 30.0, farthest):
            logs, errors = line_moments.log_ratios(paths, t / 64, 65)
            waves = [mpmath.expj(t * (each - tilted.mean)) for each in losses]
            exact = mpmath.fdot(weights, waves) / total
            found = mpmath.exp(mpmath.mpc(complex(logs[64])))
            off.append(float(abs(1 - exact / found) / math.expm1(errors[64])))
    assert max(off) < 1
    # Control: it is not that large a bound that it would always hold.
    assert max(off) > 1e-4
