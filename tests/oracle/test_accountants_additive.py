"""Encoded sums against their integrals and limits."""

import functools
import math

import mpmath as mp
import numpy as np
import pytest
from scipy import special

from keras_dp.accountants.normalize.mechanisms import AdditiveNoise, Encoding
from keras_dp.accountants.renyi import encoded
from keras_dp.accountants.renyi.divergences import rdp
from keras_dp.ledger import CoordinateBounds, GaussianNoise
from keras_dp.ledger.events.noise_families import LaplaceNoise, StudentTNoise

ORDERS = encoded.ORDERS


def student(df):
    constant = mp.gamma((df + 1) / mp.mpf(2)) / mp.gamma(df / mp.mpf(2))
    constant /= mp.sqrt(df * mp.pi)
    return lambda x: constant * (1 + x * x / df) ** (-(df + 1) / mp.mpf(2))


# Laws of scale 1, and their densities, written down once more.
LAWS = [
    (LaplaceNoise(1.0), lambda x: mp.exp(-abs(x)) / 2),
    (StudentTNoise(1.0, 3.0), student(3)),
    (StudentTNoise(1.0, 9.0), student(9)),
    (StudentTNoise(1.0, 1.0), lambda x: 1 / (mp.pi * (1 + x * x))),
]
NAMES = [type(law).__name__ for law, _ in LAWS]


def log_moment_in_many_digits(density, shift, order) -> float:
    # The smallest moment is 1e-9 away from 1, and seen to 1e-7 of that.
    with mp.workdps(25):
        t = mp.mpf(shift)
        points = [-mp.inf, -100, -10, -1, 0, t / 4, t / 2, 3 * t / 4, t]
        points += [t + mp.mpf(2) ** i for i in range(-7, 8, 2)] + [mp.inf]
        moment = mp.quad(
            lambda x: (density(x - t) / density(x)) ** order * density(x),
            points,
        )
        return float(mp.log(moment))


SHIFTS = [(3e-5, 2), (0.0033, 32), (0.21, 256), (1.7, 5), (9.0, 2), (60.0, 256)]


def _shifted():
    """Every law and every shift once before the night."""
    for row, (shift, order) in enumerate(SHIFTS):
        for column, (law, density) in enumerate(LAWS):
            once = column % len(SHIFTS) == row
            yield pytest.param(
                law,
                density,
                shift,
                order,
                id=f"{NAMES[column]}-{shift}-{order}",
                marks=pytest.mark.full if once else pytest.mark.nightly,
            )


@pytest.mark.parametrize(("law", "density", "shift", "order"), [*_shifted()])
def test_moments_of_a_shift(law, density, shift, order) -> None:
    """Never below, and above by the 1e-6 that is added, within a tenth."""
    exact = log_moment_in_many_digits(density, shift, order)

    (found,) = encoded.log_moments(law, np.array([shift]))

    ratio = found[order == ORDERS][0] / exact - 1
    assert 0.9e-6 < ratio < 1.1e-6


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e6])
def test_moments_of_laplace_noise_have_a_closed_form(scale) -> None:
    """From 1e-12 to 1e3 scales, at all orders; within 1 % for tiny ones.

    `(k e^((k-1) t) + (k-1) e^(-k t)) / (2k-1)`, in 40 digits.
    """
    shifts = np.geomspace(1e-12, 1e3, 40)
    found = encoded.log_moments(LaplaceNoise(scale), shifts * scale)

    for row, shift in zip(found, shifts, strict=True):
        for value, order in list(zip(row, ORDERS, strict=True))[::9]:
            with mp.workdps(60):
                t, k = mp.mpf(shift), int(order)
                rising = k * mp.exp((k - 1) * t)
                falling = (k - 1) * mp.exp(-k * t)
                exact = mp.log((rising + falling) / (2 * k - 1))
                ratio = float(value / exact - 1)
            assert 0 < ratio < (1e-2 if shift < 1e-5 else 1.1e-6)


def additive(vectors, counts, law, probability=1.0, z=math.inf):
    bounds = CoordinateBounds.from_arrays(vectors, counts)
    return AdditiveNoise(z, probability, (Encoding(bounds, law),))


@pytest.mark.parametrize(("law", "_density"), LAWS, ids=NAMES)
@pytest.mark.parametrize("probability", [1.0, 0.01])
def test_many_small_coordinates_cost_their_fisher_information(
    law, _density, probability
) -> None:
    """D_a is that of Gaussian noise with the same Fisher information.

    Laplace noise comes near it like the root of the number of coordinates.
    """
    orders = np.array([2.0, 7.0])
    count = 10**14
    level = 0.3 / math.sqrt(count)

    found = rdp(additive([[level]], [count], law, probability), orders)

    gaussian = law.fisher_information * 0.3**2
    k = np.arange(0, 8)
    for order, value in zip(orders, found, strict=True):
        inside = k[k <= order]
        expected = special.logsumexp(
            inside * (inside - 1) / 2 * gaussian,
            b=special.comb(order, inside)
            * probability**inside
            * (1 - probability) ** (order - inside)
            if probability < 1
            else (inside == order),
        ) / (order - 1)
        assert value == pytest.approx(expected, rel=3e-6)


EDGES = np.array([0.0, 0.5, 1.5, 4.0, 12.0, 40.0, 200.0, 2e3, 1e5, 1e8])
POINTS, WEIGHTS = np.polynomial.legendre.leggauss(12)


def line(shift, law):
    """Nodes with weights, and logs of the density and of the moved one."""
    edges = np.unique([*-EDGES, *(EDGES + shift), shift / 2])
    middle, half = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
    x = (middle[:, None] + half[:, None] * POINTS).ravel()
    log_weight = np.log((half[:, None] * WEIGHTS).ravel())
    log_density = law.log_density(x)
    return log_density + log_weight, law.log_density(x - shift) - log_density


@functools.lru_cache(maxsize=1)
def product_of_rules(shifts, laws):
    """Logs of weights and of ratios in all coordinates."""
    log_weight, log_ratio = np.zeros(1), np.zeros(1)
    for shift, law in zip(shifts, laws, strict=True):
        weight, ratio = line(shift, law)
        log_weight = (log_weight[:, None] + weight).ravel()
        log_ratio = (log_ratio[:, None] + ratio).ravel()
        kept = log_weight > -60
        log_weight, log_ratio = log_weight[kept], log_ratio[kept]
    return log_weight, log_ratio


def sampled_divergences(shifts, laws, probability, order):
    """Both directions of the sampled pair."""
    log_weight, log_ratio = product_of_rules(tuple(shifts), tuple(laws))
    mixture = np.log1p(probability * np.expm1(log_ratio))
    return [
        special.logsumexp(log_weight + power * mixture) / (order - 1)
        for power in (order, 1 - order)
    ]


HEAVY = StudentTNoise(0.7, 3.0)
SHARP = LaplaceNoise(0.6)


@pytest.mark.parametrize("probability", [0.02, 0.3])
@pytest.mark.parametrize("law", [HEAVY, SHARP])
@pytest.mark.parametrize("shifts", [(0.8,), (0.8, 0.3), (0.5, 0.3, 0.1)])
class TestSampledDivergence:
    @pytest.mark.full
    def test_at_integer_orders(self, law, shifts, probability) -> None:
        """Equal in the larger direction, and not above in the other."""
        mechanism = additive([shifts], [1] * len(shifts), law, probability)

        for order in (2.0, 3.0, 6.0):
            stated = rdp(mechanism, np.array([order]))[0]
            forward, back = sampled_divergences(
                shifts, [law] * len(shifts), probability, order
            )
            # Bounds are float32, rounded up.
            assert stated == pytest.approx(forward, rel=2e-5)
            assert forward <= stated * (1 + 1e-9)
            assert back < forward

    @pytest.mark.full
    def test_at_other_orders_the_chord_is_above(
        self, law, shifts, probability
    ) -> None:
        mechanism = additive([shifts], [1] * len(shifts), law, probability)

        for order in (1.2, 2.5, 4.7):
            stated = rdp(mechanism, np.array([order]))[0]
            exact = sampled_divergences(
                shifts, [law] * len(shifts), probability, order
            )
            assert max(exact) <= stated


def test_the_prefactor_of_the_paper_would_be_too_small() -> None:
    """Control: `1/a` in place of `1/(a-1)` is below the truth."""
    mechanism = additive([[0.8]], [1], HEAVY, 0.3)

    stated = rdp(mechanism, np.array([3.0]))[0] * 2 / 3

    assert stated < 0.7 * sampled_divergences([0.8], [HEAVY], 0.3, 3.0)[0]


@pytest.mark.full
def test_smaller_vectors_in_any_order_are_covered() -> None:
    rng = np.random.default_rng(20261121)
    bounds = np.array([0.9, 0.4, 0.2])
    stated = rdp(additive([bounds], [1, 1, 1], SHARP, 0.2), np.array([4.0]))

    for _ in range(8):
        vector = rng.permutation(bounds) * rng.uniform(-1, 1, 3)
        # Noise is symmetric: signs do not matter.
        exact = sampled_divergences(np.abs(vector), [SHARP] * 3, 0.2, 4.0)
        assert max(exact) <= stated[0]


def test_the_largest_over_the_vectors_is_taken_for_each_order() -> None:
    """Few coordinates cost more at low orders, many at high ones."""
    few, many = [[1.0, 0.0]], [[0.0, 0.1**0.5 / 100]]
    law, counts = LaplaceNoise(0.5**0.5), [1, 10_000]
    orders = np.array([2.0, 5.0, 32.0])

    first, second, both = (
        rdp(additive(vectors, counts, law, 0.5), orders)
        for vectors in (few, many, few + many)
    )

    assert first[0] > 2 * second[0]
    assert second[2] > 2 * first[2]
    np.testing.assert_array_equal(both, np.maximum(first, second))


def test_sums_of_one_round_multiply_their_moments() -> None:
    """A Laplace, a Student and a Gaussian sum, and q once for all three."""
    q, z = 0.2, 1.6
    mechanism = AdditiveNoise(
        z,
        q,
        (
            Encoding(CoordinateBounds.from_arrays([[0.5]], [1]), SHARP),
            Encoding(CoordinateBounds.from_arrays([[0.8]], [1]), HEAVY),
        ),
    )

    for order in (2.0, 4.0):
        forward, back = sampled_divergences(
            [0.5, 0.8, 1.0], [SHARP, HEAVY, GaussianNoise(z)], q, order
        )
        stated = rdp(mechanism, np.array([order]))[0]
        assert stated == pytest.approx(forward, rel=2e-5)
        assert back < forward <= stated * (1 + 1e-9)


def test_choices_beyond_the_limit_are_bounded_together() -> None:
    """Never below the largest of all choices, and near to it."""
    rng = np.random.default_rng(20261121)
    counts = np.array([1, 30, 1000])
    vectors = rng.dirichlet([1, 1, 1], 40) ** 0.5 / np.sqrt(counts)
    parts = [
        Encoding(CoordinateBounds.from_arrays(vectors, counts), law)
        for law in (SHARP, HEAVY)
    ]
    orders = np.array([2.0, 6.0, 20.0])

    stated = rdp(AdditiveNoise(math.inf, 0.1, tuple(parts)), orders)

    each = np.zeros(3)
    for _ in range(100):
        single = tuple(
            Encoding(
                CoordinateBounds.from_arrays(
                    vectors[[rng.integers(40)]], counts
                ),
                part.noise,
            )
            for part in parts
        )
        one = rdp(AdditiveNoise(math.inf, 0.1, single), orders)
        each = np.maximum(each, one)
    assert np.all(each <= stated)
    assert np.all(stated <= 1.3 * each)
