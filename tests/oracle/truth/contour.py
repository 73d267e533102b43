"""Epsilon of a composition from a contour integral, in many digits.

With `r = (1-q) + q e^((2x-1)/(2z^2))` and `K(a) = E_(x ~ N(0, z^2))[r^a]`,
the moments of one round are `E_P[(P/Q)^s] = K(1 + s)` where a record is
removed and `K(-s)` where it is added. Both are

    delta(eps) = 1/(2 pi i) int prod_i K_i(a)^(T_i) e^(-eps s) / (a (a-1)) da,

with `s = a - 1` on a line `Re a > 1`, or `s = -a` on a line `Re a < 0`.

The losses nearly have an atom (rounds that did not sample the record), so
that the integrand hardly decays along a line. Both contours are bent: that of
`a` into a hyperbola to the right, and that of `x` off the real line, below
the nearest zero of `r`, in such a way that everything decays.
"""

import functools
from typing import NamedTuple

import mpmath as mp
import numpy as np

from tests.oracle.truth.sums import Nodes

ORDERS = ("remove", "add")


class Shape(NamedTuple):
    """Where the contours run, and how finely they are sampled.

    Results must not depend on any of these. The first four are angles in
    radians, `tilt` is relative to the saddle.
    """

    hyperbola: float
    offset: float
    slope: float
    tilt: float = 1.0
    step: float = 0.10
    fineness: float = 1.0


# Each is tried until two agree.
STRAIGHT = (
    Shape(1.4, 0.0, 0.0, step=0.1),
    Shape(1.3, 0.0, 0.0, tilt=0.85, step=0.071, fineness=1.3),
    Shape(1.5, 0.0, 0.0, tilt=0.7, step=0.03, fineness=1.2),
    Shape(1.45, 0.0, 0.0, tilt=0.55, step=0.021, fineness=1.1),
    Shape(1.5, 0.0, 0.0, tilt=0.98, step=0.013, fineness=1.2),
    Shape(1.45, 0.0, 0.0, tilt=0.95, step=0.01, fineness=1.3),
)
BENT = (
    Shape(1.25, 1.75, 0.5, tilt=0.9, step=0.03),
    Shape(1.2, 1.6, 0.42, tilt=0.6, step=0.022, fineness=1.2),
    Shape(1.35, 1.7, 0.45, tilt=0.45, step=0.013, fineness=1.1),
    Shape(1.45, 1.65, 0.4, tilt=0.97, step=0.009, fineness=1.2),
    Shape(1.4, 1.7, 0.4, tilt=0.93, step=0.006, fineness=1.1),
    Shape(1.3, 1.7, 0.4, tilt=0.35, step=0.006, fineness=1.2),
)


LARGE = 2.7


class Full:
    """A Gaussian that everybody takes part in: `K` in closed form."""

    def __init__(self, z) -> None:
        self.z = mp.mpf(z)

    def prepare(self, shape, low, high) -> None:
        """Nothing to do."""

    def moment(self, a):
        return mp.exp(a * (a - 1) / (2 * self.z**2))

    def rough(self, a):
        """`log K` at real `a` and its first two derivatives, in doubles."""
        z2 = float(self.z) ** 2
        return a * (a - 1) / 2 / z2, (a - 0.5) / z2, 1 / z2


class Poisson:
    """`(1-q) N(0, z^2) + q N(1, z^2)` against `N(0, z^2)`."""

    def __init__(self, q, z) -> None:
        self.q, self.z = mp.mpf(q), mp.mpf(z)

    def log_ratio(self, x, zero):
        """`log r`, continuous on contours that pass below the zero of `r`."""
        y = (2 * x - 1) / (2 * self.z**2)
        odds = mp.log(self.q) - mp.log1p(-self.q)
        if mp.re(x) < zero:
            return mp.log1p(-self.q) + _log1p(mp.exp(y + odds))
        return mp.log(self.q) + y + _log1p(mp.exp(-y - odds))

    def prepare(self, shape, low, high) -> None:
        """Chooses the nodes for contours that cross between two real `a`."""
        z, digits = self.z, mp.mp.dps
        if z > LARGE:  # No zero of `r` comes near where the mass is.
            shape = shape._replace(offset=0.0, slope=0.0)
        nats = digits * mp.log(10)
        zero = mp.mpf(1) / 2 + z**2 * mp.log((1 - self.q) / self.q)
        # Nearest singularity in units of z^2: r has zeros at +- pi.
        strip = mp.pi - shape.offset
        if shape.offset:
            strip = min(strip, shape.offset)
        strip = min(strip * mp.mpf("0.9") * z**2, 2 * z * mp.sqrt(nats))
        width = z * mp.sqrt(2 * nats)
        step = 2 * mp.pi * strip / (nats + strip**2 / (2 * z**2))
        step /= shape.fineness
        first, last = min(low, 0) - width, max(high, 0) + width
        if shape.slope:
            spread = mp.cos(2 * shape.slope)
            last = max(last, zero) + width / mp.sqrt(spread)
            last += max(high - zero, 0) * (1 / spread - 1)
        # The corner of the contour of x is as round as the strip is wide.
        corner, tangent = z**2, mp.tan(shape.slope)
        logs, weights = [], []
        for k in range(int((last - first) / step) + 1):
            u = first + k * step
            bend = corner * _log1p(mp.exp((u - zero) / corner))
            rise = mp.exp((u - zero) / corner)
            derivative = 1 + 1j * tangent * rise / (1 + rise)
            x = u + 1j * (z**2 * shape.offset + tangent * bend)
            logs.append(self.log_ratio(x, zero))
            weights.append(mp.npdf(x / z) / z * derivative * step)
        self.nodes = Nodes(logs, weights)

    def moment(self, a):
        return self.nodes.moment(a)

    def rough(self, a):
        q, z = float(self.q), float(self.z)
        x = np.linspace(min(a, 0) - 9 * z, max(a, 0) + 9 * z, 4001)
        y = (2 * x - 1) / (2 * z * z)
        log = np.logaddexp(np.log1p(-q) if q < 1 else -np.inf, np.log(q) + y)
        return _rough(-(x**2) / (2 * z * z), log, a)


class Replace:
    """`(1-q) N(0, z^2) + q N(1, z^2)` against its mirror image in 0."""

    def __init__(self, q, z) -> None:
        self.q, self.z = mp.mpf(q), mp.mpf(z)

    def prepare(self, shape, low, high) -> None:
        if shape.offset or shape.slope:
            raise ValueError("no bent contour for a replaced record")
        q, z = self.q, self.z
        nats = mp.mp.dps * mp.log(10)
        strip = min(mp.pi * z**2 * 0.9, 2 * z * mp.sqrt(nats))
        width = z * mp.sqrt(2 * nats)
        step = 2 * mp.pi * strip / (nats + strip**2 / (2 * z**2))
        step /= shape.fineness
        reach = max(high, -low) + width + 1
        logs, weights = [], []
        count = int(reach / step) + 1
        for k in range(-count, count + 1):
            x = k * step
            up, down = (
                1 - q + q * mp.exp((sign * 2 * x - 1) / (2 * z**2))
                for sign in (1, -1)
            )
            logs.append(mp.log(up / down))
            weights.append(mp.npdf(x / z) / z * down * step)
        self.nodes = Nodes(logs, weights)

    def moment(self, a):
        return self.nodes.moment(a)

    def rough(self, a):
        q, z = float(self.q), float(self.z)
        reach = abs(a) + 2 + 9 * z
        x = np.linspace(-reach, reach, 4001)
        up, down = (
            np.logaddexp(np.log1p(-q), np.log(q) + (s * 2 * x - 1) / (2 * z**2))
            for s in (1, -1)
        )
        return _rough(-(x**2) / (2 * z * z) + down, up - down, a)


def _log1p(x):
    return mp.log1p(x) if abs(x) < mp.mpf("0.5") else mp.log(1 + x)


def _rough(log_density, log, a):
    exponent = log_density + a * log
    top = exponent.max()
    mass = np.exp(exponent - top)
    total = mass.sum()
    mean = (mass * log).sum() / total
    variance = (mass * (log - mean) ** 2).sum() / total
    weight = np.exp(log_density - log_density.max()).sum()
    return (
        top + np.log(total) - np.log(weight) - log_density.max(),
        mean,
        variance,
    )


class Composition:
    """Rounds of several kinds: pairs of a law and a count."""

    def __init__(self, rounds) -> None:
        self.rounds = rounds

    def rough(self, a):
        parts = np.array([np.array(law.rough(a)) * n for law, n in self.rounds])
        return parts.sum(axis=0)

    def saddle(self, order, delta) -> tuple[float, float, float]:
        """Returns `s`, epsilon and curvature of the integrand, roughly."""

        def at(s):
            log, slope, curvature = self.rough(_alpha(order, s))
            slope = slope if order == "remove" else -slope
            eps = slope - 1 / s - 1 / (1 + s)
            curvature += 1 / s**2 + 1 / (1 + s) ** 2
            height = log - s * eps - np.log(s * (1 + s))
            return height - np.log(2 * np.pi * curvature) / 2, eps, curvature

        low, high = np.log(1e-4), np.log(1e6)
        for _ in range(60):
            middle = (low + high) / 2
            if at(np.exp(middle))[0] > np.log(delta):
                low = middle
            else:
                high = middle
        return np.exp(low), *at(np.exp(low))[1:]

    def log_bound(self, order, eps) -> float:
        """At least `log delta`, as `(1 - e^(eps-L))_+ <= e^(s (L-eps))`."""
        tilts = np.geomspace(1e-3, 1e5, 400)
        return min(self.rough(_alpha(order, s))[0] - s * eps for s in tilts)

    def integrand(self, order, shape, saddle):
        """Returns the points `s`, and the integrand at epsilon 0."""
        s0, eps, curvature = saddle
        s0 *= shape.tilt
        width = 2 / np.sqrt(curvature)
        height = mp.mpf(min(width, 1.2 * s0))
        across = height / mp.tan(shape.hyperbola)
        crossing = _alpha(order, mp.mpf(s0))
        for law, _ in self.rounds:
            law.prepare(shape, crossing, crossing)
        points, values = [], []
        peak, k, small = mp.mpf(0), 0, 0
        floor = mp.mpf(10) ** (14 - mp.mp.dps)
        while small < 6:
            u = mp.mpf(k) * shape.step
            a = crossing + across * (mp.cosh(u) - 1) + 1j * height * mp.sinh(u)
            da = across * mp.sinh(u) + 1j * height * mp.cosh(u)
            s = a - 1 if order == "remove" else -a
            power = functools.reduce(
                lambda x, y: x * y,
                (law.moment(a) ** n for law, n in self.rounds),
            )
            value = power * da / (a * (a - 1)) * shape.step / (2j * mp.pi)
            value = value / 2 if k == 0 else value
            points.append(s)
            values.append(value)
            size = abs(value * mp.exp(-s * mp.mpf(eps)))
            peak = max(peak, size)
            small = small + 1 if size < peak * floor else 0
            k += 1
            if k > 4000:
                raise ArithmeticError("the integrand does not decay")
        return points, values

    def epsilon(self, order, shape, delta):
        """Returns epsilon where delta is met."""
        saddle = self.saddle(order, delta)
        while True:
            points, values = self.integrand(order, shape, saddle)
            eps = self.solve(points, values, delta, saddle[1])
            last = abs(values[-1] * mp.exp(-points[-1] * eps))
            if last < delta * mp.mpf(10) ** (18 - mp.mp.dps):
                return eps
            saddle = saddle[0], eps, saddle[2]

    def solve(self, points, values, delta, eps):
        eps, delta = mp.mpf(eps), mp.mpf(delta)
        for _ in range(60):
            terms = [
                v * mp.exp(-s * eps)
                for s, v in zip(points, values, strict=True)
            ]
            got = 2 * mp.re(mp.fsum(terms))
            slope = -2 * mp.re(
                mp.fsum(s * t for s, t in zip(points, terms, strict=True))
            )
            if got <= 0:
                raise ArithmeticError("the integral is not positive")
            step = got * mp.log(got / delta) / slope
            step = max(min(step, eps / 2), -eps / 2)
            eps -= step
            if abs(step) < abs(eps) * mp.mpf(10) ** (20 - mp.mp.dps):
                return eps
        raise ArithmeticError("Newton's method does not converge")


def _alpha(order, s):
    return 1 + s if order == "remove" else -s
