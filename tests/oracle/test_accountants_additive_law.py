"""The loss of encoded rounds against quadrature, closed forms and limits."""

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from scipy import integrate, optimize, special

from keras_dp.accountants.loss.encoded.coordinates import worst_shift
from keras_dp.accountants.loss.encoded.law import additive_laws
from keras_dp.accountants.normalize.mechanisms import AdditiveNoise, Encoding
from keras_dp.accountants.renyi import encoded
from keras_dp.accountants.renyi.mixture_pairs import log_excess_power
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import CoordinateBounds, GaussianNoise
from keras_dp.ledger.noise_families import (
    CauchyNoise,
    HyperbolicSecantNoise,
    LaplaceNoise,
    LogisticNoise,
    StudentTNoise,
    VarianceGammaNoise,
)
from tests.noise_table import RippledLaplace, name_of

FAMILIES = [
    LaplaceNoise(1.0),
    StudentTNoise(1.0, 3.0),
    StudentTNoise(1.0, 9.0),
    CauchyNoise(1.0),
    LogisticNoise(1.0),
    HyperbolicSecantNoise(1.0),
    VarianceGammaNoise(1.0, 2),
]
each_family = pytest.mark.parametrize("law", FAMILIES, ids=name_of)
REMOVED, ADDED = 0, 1


def additive(vectors, counts, law, probability=1.0, z=math.inf):
    bounds = CoordinateBounds.from_arrays(vectors, counts)
    return AdditiveNoise(z, probability, (Encoding(bounds, law),))


def log_ratio(law, shift, x):
    return law.log_density(np.asarray(x - shift)) - law.log_density(
        np.asarray(x)
    )


def excess(law, shift, level):
    """`int max(z(x-v) - a z(x), 0) dx` from the definition."""
    log_level = math.log(level)

    def above(x):
        return float(log_ratio(law, shift, x)) - log_level

    x = np.concatenate([-np.geomspace(1e8, 1e-3, 400), [0.0]])
    x = np.concatenate([x, np.linspace(0, shift, 200), shift - x])
    x = np.unique(x)
    signs = np.sign(log_ratio(law, shift, x) - log_level)
    ends = [
        optimize.brentq(above, a, b, xtol=1e-14, rtol=1e-15)
        for a, b, first, last in zip(
            x[:-1], x[1:], signs[:-1], signs[1:], strict=True
        )
        if first * last < 0
    ]
    # Between two ends the sign of the integrand is the same.
    total = 0.0
    for a, b in itertools.pairwise([-math.inf, *ends, math.inf]):
        middle = min(max(a, -1e9), 1e9) / 2 + min(max(b, -1e9), 1e9) / 2
        if above(middle) > 0:
            moved = law.cdf(np.array([b - shift, shift - b, a - shift]))
            own = law.cdf(np.array([b, -b, a]))
            moved_mass, own_mass = moved[0] - moved[2], own[0] - own[2]
            if a > shift:
                tails = law.cdf(np.array([shift - a, -a]))
                moved_mass, own_mass = tails[0] - moved[1], tails[1] - own[1]
            total += float(moved_mass - level * own_mass)
    return total


def excess_of_two(law, shifts, level):
    """The same of two coordinates, by an integral over the first."""
    first, second = shifts

    def term(x):
        ratio = math.exp(float(log_ratio(law, first, x)))
        height = math.exp(float(law.log_density(np.asarray(x))))
        return height * ratio * excess(law, second, level / ratio)

    def outside(u):
        d = math.exp(u - math.exp(-u))
        fall = d * (1 + math.exp(-u))
        return fall * (term(-d) + term(first + d))

    parts = [integrate.quad(term, 0, first, epsabs=1e-9, limit=60)[0]]
    points = [-3.0, -1.0, 0.0, 1.0, 2.0, 4.0, 8.0, 16.0]
    for a, b in itertools.pairwise(points):
        parts.append(integrate.quad(outside, a, b, epsabs=1e-9, limit=60)[0])
    return math.fsum(parts)


def sampled_delta(excess_at, probability, epsilon, order):
    """Delta of the sampled pair from that of the pair."""
    q = probability
    if order == REMOVED:
        return q * excess_at((math.exp(epsilon) - 1 + q) / q)
    level = (math.exp(-epsilon) - 1 + q) / q
    if level <= 0:
        return 0.0
    # E[max(b - X, 0)], as E[X] = 1.
    return math.exp(epsilon) * q * (excess_at(level) - 1 + level)


def delta_of(law, epsilon):
    log_p, log_q = law.log_masses(np.array([epsilon]))
    return math.exp(log_p[1]) - math.exp(epsilon + log_q[1])


def log_moment_of(nodes, tilt):
    terms = nodes.log_weights + log_excess_power(np.float64(tilt), nodes.losses)
    return float(np.logaddexp(0, special.logsumexp(terms)))


@each_family
@pytest.mark.parametrize("probability", [1.0, 0.2])
@pytest.mark.parametrize("order", [REMOVED, ADDED])
@pytest.mark.parametrize("shift", [0.5, 3.0])
def test_one_coordinate(law, probability, order, shift) -> None:
    """To 1e-9; a control with the orders exchanged is far off."""
    found = additive_laws(additive([[shift]], [1], law, probability))

    for epsilon in (0.03, 0.11, 0.3):
        exact = sampled_delta(
            lambda a: excess(law, shift, a), probability, epsilon, order
        )
        assert delta_of(found[order], epsilon) == pytest.approx(exact, abs=1e-9)
        other = delta_of(found[1 - order], epsilon)
        if probability < 1 and epsilon == 0.03:
            assert abs(other - exact) > 1e-4


@pytest.mark.parametrize(
    "law",
    [LaplaceNoise(1.0), StudentTNoise(1.0, 9.0), LogisticNoise(1.0)],
    ids=name_of,
)
def test_two_coordinates(law) -> None:
    """To 1e-7, as far as nested quadrature with kinks goes."""
    found = additive_laws(additive([[0.75, 0.5]], [1, 1], law, 0.3))

    for order in (REMOVED, ADDED):
        exact = sampled_delta(
            lambda a: excess_of_two(law, (0.75, 0.5), a), 0.3, 0.06, order
        )
        assert delta_of(found[order], 0.06) == pytest.approx(exact, abs=1e-7)


def excess_of_laplace(shift, count, level):
    """Of equal coordinates, by the piecewise closed form of one."""
    if count == 1:
        low, high = math.exp(-shift), math.exp(shift)
        if level <= low:
            return 1 - level
        if level >= high:
            return 0.0
        # Atoms at both ends, exp(-(y + v) / 2) / 4 between.
        root = math.sqrt(level)
        rise = math.sqrt(high) - root
        fall = level * (1 / math.sqrt(high) - 1 / root)
        return low / 2 * (high - level) + math.sqrt(low) / 2 * (rise + fall)

    def rest(y):
        return excess_of_laplace(shift, count - 1, level * math.exp(-y))

    atoms = (rest(shift) + math.exp(-shift) * rest(-shift)) / 2
    kinks = math.log(level) + shift * np.arange(-3, 4)
    inside, _ = integrate.quad(
        lambda y: math.exp((y - shift) / 2) / 4 * rest(y),
        -shift,
        shift,
        points=kinks[np.abs(kinks) < shift] if count == 2 else None,
        epsabs=1e-12 if count == 2 else 1e-8,
        limit=100,
    )
    return atoms + inside


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 0.9])
def test_laplace_coordinates_have_atoms(count, epsilon) -> None:
    """Atoms and what is between them: to 1e-10, or 1e-7 for three."""
    first, _ = additive_laws(additive([[0.5]], [count], LaplaceNoise(1.0)))

    exact = excess_of_laplace(0.5, count, math.exp(epsilon))

    tolerance = 1e-10 if count < 3 else 1e-7
    assert delta_of(first, epsilon) == pytest.approx(exact, abs=tolerance)
    assert first.support == pytest.approx((-0.5 * count, 0.5 * count), abs=1e-4)


EDGES = np.concatenate([[0.0], 2.0 ** np.arange(-2, 60)])


def product_rule(shifts, law):
    """Log weights and log ratios of a tensor rule over all coordinates."""
    points, weights = np.polynomial.legendre.leggauss(18)
    log_weight, loss = np.zeros(1), np.zeros(1)
    for shift in shifts:
        edges = np.unique([*-EDGES, *(EDGES + shift), shift / 2])
        middle, half = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
        x = (middle[:, None] + half[:, None] * points).ravel()
        weight = np.log((half[:, None] * weights).ravel()) + law.log_density(x)
        loss = (loss[:, None] + log_ratio(law, shift, x)).ravel()
        log_weight = (log_weight[:, None] + weight).ravel()
        kept = log_weight > -60
        log_weight, loss = log_weight[kept], loss[kept]
    return log_weight, loss


@each_family
@pytest.mark.parametrize(
    ("shifts", "probability"),
    [((0.75,), 0.05), ((0.75, 0.25), 0.3), ((3.0,), 1.0)],
)
def test_moments_at_complex_points(law, shifts, probability) -> None:
    """Within what `log_error` says, and the error of the tensor rule."""
    found = additive_laws(
        additive([shifts], [1] * len(shifts), law, probability)
    )
    log_weight, y = product_rule(shifts, law)
    sampled = np.log1p(probability * np.expm1(y))
    own = np.exp(log_weight), np.exp(log_weight + sampled)

    for order, sign in ((REMOVED, 1), (ADDED, -1)):
        nodes = found[order].nodes(0.5, 6.0, 5.0)
        assert nodes.log_error < math.log(1e-7)
        losses, weights = sign * sampled, own[order]
        for s in (0.5, 2.5, 6.0, 0.5 + 5j, 3 + 2j):
            exact = excess_moment(weights, losses, s)
            value = excess_moment(np.exp(nodes.log_weights), nodes.losses, s)
            size = 1 + abs(excess_moment(weights, losses, complex(s).real))
            assert abs(value - exact) < size * math.exp(
                nodes.log_error
            ) + 1e-10 * abs(exact)


@each_family
def test_moments_of_three_coordinates_multiply(law) -> None:
    shifts = (0.5, 0.25, 0.125)
    first, _ = additive_laws(additive([shifts], [1] * 3, law))
    nodes = first.nodes(0.5, 6.0, 5.0)

    for s in (0.5, 6.0, 3 + 2j):
        exact, size = 1.0, 1.0
        for shift in shifts:
            log_weight, y = product_rule((shift,), law)
            exact *= 1 + excess_moment(np.exp(log_weight), y, s)
            size *= 1 + excess_moment(np.exp(log_weight), y, complex(s).real)
        value = 1 + excess_moment(np.exp(nodes.log_weights), nodes.losses, s)
        assert abs(value - exact) < size * (math.exp(nodes.log_error) + 1e-10)


def excess_moment(weights, losses, s):
    a = 1 + s
    return weights @ (np.expm1(a * losses) - a * np.expm1(losses))


def log_gaussian_delta(sensitivity, epsilon):
    with mp.workdps(60):
        mu, e = mp.mpf(sensitivity), mp.mpf(epsilon)
        return mp.ncdf(mu / 2 - e / mu) - mp.exp(e) * mp.ncdf(-mu / 2 - e / mu)


@pytest.mark.parametrize(
    ("level", "count", "z"),
    [(1.0, 1, math.inf), (0.5, 4, 1.0), (1e-3, 250_000, math.inf)],
)
@pytest.mark.parametrize("probability", [1.0, 0.01])
def test_normal_noise_has_a_closed_form(level, count, z, probability) -> None:
    """Delta to 1e-9 of itself, down to 1e-40."""
    mechanism = additive([[level]], [count], GaussianNoise(1.0), probability, z)
    exact_level = float(np.float32(level))
    exact_level += (exact_level < level) * float(np.spacing(np.float32(level)))
    mu = math.sqrt(exact_level**2 * count + z**-2)
    removed, added = additive_laws(mechanism)

    for target in (0.01, 1.0, 5.0, 12.0):
        with mp.workdps(60):
            q = mp.mpf(probability)
            epsilon = float(mp.log(1 + q * (mp.exp(mu * target) - 1)))
            level_ = (mp.exp(epsilon) - 1 + q) / q
            exact = q * log_gaussian_delta(mu, mp.log(level_))
        log_p, log_q = removed.log_masses(np.array([epsilon]))
        with mp.workdps(60):
            value = mp.exp(log_p[1]) - mp.exp(epsilon + log_q[1])
            # P and Q lose what they are larger than their difference.
            slack = 1e-9 * exact + 1e-10 * mp.exp(log_p[1])
            assert abs(value - exact) < slack
        assert exact > 1e-45

    nodes = removed.nodes(0.5, 20.0, 0.0)
    if probability == 1:
        for s in (0.5, 7.0, 20.0):
            assert log_moment_of(nodes, s) == pytest.approx(
                s * (s + 1) / 2 * mu * mu, rel=1e-12
            )
        assert added is removed


EQUAL = [
    (LaplaceNoise(1.0), 10**5, 31.848),
    (StudentTNoise(1.0, 9.0), 10**5, 17.127),
]


@pytest.mark.parametrize(("law", "count", "printed"), EQUAL)
def test_equal_coordinates_of_unit_norm(law, count, printed) -> None:
    """D_32, to the digits printed. Source: computed for this project."""
    law = law.scaled(law.variance**-0.5)
    mechanism = additive([[count**-0.5]], [count], law)

    nodes = additive_laws(mechanism)[0].nodes(31.0, 31.0, 0.0)

    assert log_moment_of(nodes, 31.0) / 31 == pytest.approx(printed, abs=6e-4)


@each_family
@pytest.mark.parametrize("count", [10**5, 10**7])
@pytest.mark.parametrize("probability", [1.0, 1e-3])
def test_many_coordinates(law, count, probability) -> None:
    """RDP at integer orders is above, by the few 1e-6 it is rounded up."""
    mechanism = additive([[0.7 * count**-0.5]], [count], law, probability)
    removed, added = additive_laws(mechanism)
    orders = np.array([1.0, 2.0, 7.0, 31.0])
    bound = encoded.log_moment(mechanism, orders)

    nodes = removed.nodes(1.0, 31.0, 0.0)
    others = added.nodes(1.0, 31.0, 0.0)

    for excess_, above in zip(orders, bound, strict=True):
        value = log_moment_of(nodes, excess_)
        other = log_moment_of(others, excess_)
        # M - 1 to 4e-6 each of its factors.
        assert above * (1 - 3e-5) < value < above
        assert other <= value * (1 + 1e-11)
    # Central limit: a normal law of the same Fisher information, to a share
    # that falls like the root of the number for Laplace noise.
    fisher = law.fisher_information * 0.49
    if probability == 1:
        assert log_moment_of(nodes, 1.0) == pytest.approx(
            fisher, rel=10 * count**-0.5
        )


def test_ten_million_coordinates_of_normal_sizes() -> None:
    """500 levels, and with a Gaussian sum beside them."""
    levels = special.ndtri(0.5 + (np.arange(500) + 0.5) / 1000)
    levels /= math.sqrt(np.sum(levels**2) * 20_000)
    mechanism = additive(
        [levels], [20_000] * 500, LogisticNoise(0.6), 0.01, 2.0
    )
    orders = np.array([2.0, 12.0])

    nodes = additive_laws(mechanism)[0].nodes(2.0, 12.0, 10.0)

    bound = encoded.log_moment(mechanism, orders)
    found = np.array([log_moment_of(nodes, each) for each in orders])
    assert np.all(found < bound)
    assert np.all(found > bound * (1 - 1e-5))
    assert nodes.log_error < math.log(1e-9)


CASES = [
    additive([[0.7]], [1], LaplaceNoise(1.0), 0.1),
    additive([[0.7]], [3], StudentTNoise(1.0, 9.0), 0.3),
    additive([[0.1]], [100], LaplaceNoise(1.0), 0.02),
    additive([[0.01]], [10**4], HyperbolicSecantNoise(1.0), 0.02),
    additive([[0.4]], [3], VarianceGammaNoise(1.0), 0.5, 1.5),
]


@pytest.mark.parametrize("mechanism", CASES)
@pytest.mark.parametrize("order", [REMOVED, ADDED])
class TestOneLaw:
    def test_masses_and_nodes_are_of_one_law(self, mechanism, order) -> None:
        """Masses times the ends of their cells enclose the moments."""
        law = additive_laws(mechanism)[order]
        low, high = law.support
        edges = np.linspace(max(low, -6.0), min(high, 6.0), 40_001)
        log_p, log_q = law.log_masses(edges)
        step = edges[1] - edges[0]

        assert np.logaddexp.reduce(log_p) == pytest.approx(0, abs=1e-10)
        assert np.logaddexp.reduce(log_q) == pytest.approx(0, abs=1e-10)
        ends = np.append(edges, edges[-1])
        # P is e^l times Q within every cell.
        inside = np.isfinite(log_q[1:-1]) & (log_q[1:-1] > -300)
        ratio = log_p[1:-1][inside] - log_q[1:-1][inside]
        assert np.all(ratio <= edges[1:][inside] + 1e-6)
        assert np.all(ratio >= edges[:-1][inside] - 1e-6)
        nodes = law.nodes(0.5, 4.0, 0.0)
        for tilt in (0.5, 4.0):
            upper = special.logsumexp(log_p + tilt * ends)
            assert upper - tilt * step - 1e-6 <= log_moment_of(nodes, tilt)
            assert log_moment_of(nodes, tilt) <= upper + 1e-6

    def test_layers_bound_the_characteristic_function(
        self, mechanism, order
    ) -> None:
        law = additive_laws(mechanism)[order]
        layers = law.layers(2.0)
        nodes = law.nodes(2.0, 2.0, 300.0)
        tilted = special.softmax(nodes.log_weights + 3 * nodes.losses)

        assert 0.05 < layers.probabilities.sum() <= 1
        for t in np.geomspace(0.01, 300, 60):
            size = abs(tilted @ np.exp(1j * t * nodes.losses))
            sinc = np.abs(np.sinc(t * layers.widths / (2 * np.pi)))
            assert size <= 1 - layers.probabilities @ (1 - sinc) + 1e-9

    def test_rdp_is_not_below(self, mechanism, order) -> None:
        law = additive_laws(mechanism)[order]
        orders = np.array([1.0, 3.0, 10.0])
        bound = encoded.log_moment(mechanism, orders)

        nodes = law.nodes(1.0, 10.0, 0.0)

        for excess_, above in zip(orders, bound, strict=True):
            assert log_moment_of(nodes, excess_) < above


@each_family
def test_a_larger_shift_costs_more_at_every_threshold(law) -> None:
    """In both orders, sampled, beside a coordinate that stays."""
    epsilons = np.array([0.02, 0.1, 0.3])
    rows = []
    for shift in (0.125, 0.5, 2.0):
        laws = additive_laws(additive([[shift]], [1], law, 0.5, 4.0))
        rows.append([delta_of(each, e) for each in laws for e in epsilons])

    assert np.all(np.diff(rows, axis=0) > -1e-9)
    assert np.all(np.array(rows[-1]) > 0.01)


def test_rippled_noise_may_cost_less_further_away() -> None:
    """Control: its density is not unimodal, and no vector is the worst."""
    noise = object.__new__(RippledLaplace)
    object.__setattr__(noise, "scale", 1.0)
    x = np.linspace(-300, 300, 2_000_001)
    own = np.exp(noise.log_density(x))

    near, far = (
        np.maximum(np.exp(noise.log_density(x - t)) - own, 0).sum()
        * (x[1] - x[0])
        for t in (0.314, 0.628)
    )

    assert near > 5 * far


def test_one_vector_counts_for_those_below_it() -> None:
    """Sorted [3, 1, 1] is above [1, 2, 1] and [0, 0, 3]."""
    law = LaplaceNoise(4.0)
    bounds = [[3.0, 1.0], [1.0, 2.0]]

    several = worst_shift(additive([[1, 1, 3], [2, 1, 1]], [1, 1, 1], law))
    single = worst_shift(additive([[3.0, 1.0]], [1, 2], law))

    assert set(several.coordinates) == set(single.coordinates)
    with pytest.raises(UnsupportedEventError, match="cross"):
        additive_laws(additive(bounds, [1, 2], law))


def test_equal_coordinates_of_different_sums_are_one_group() -> None:
    bounds = CoordinateBounds.from_arrays([[0.5]], [3])
    twice = CoordinateBounds.from_arrays([[1.0]], [2])
    mechanism = AdditiveNoise(
        math.inf,
        1.0,
        (
            Encoding(bounds, LaplaceNoise(1.0)),
            Encoding(twice, LaplaceNoise(2.0)),
            Encoding(bounds, GaussianNoise(0.5)),
        ),
    )

    shift = worst_shift(mechanism)

    (group,) = shift.coordinates
    assert (group.shift, group.count) == (0.5, 5)
    assert shift.normal == pytest.approx(math.sqrt(3))


def test_records_that_contribute_nothing_lose_nothing() -> None:
    for law in additive_laws(additive([[0.0]], [7], LaplaceNoise(1.0), 0.1)):
        nodes = law.nodes(0.5, 3.0, 10.0)
        log_p, log_q = law.log_masses(np.array([-1.0, 1.0]))

        assert law.support == (0.0, 0.0)
        assert log_moment_of(nodes, 2.0) == 0
        assert log_p.tolist() == log_q.tolist() == [-math.inf, 0, -math.inf]
        assert law.layers(1.0).widths.size == 0


def test_a_wave_too_fast_to_resolve_is_said_to_be_unknown() -> None:
    law, _ = additive_laws(additive([[1e-3]], [10**6], LogisticNoise(1.0), 0.1))

    assert law.nodes(1.0, 1.0, 1e9).log_error > 0
