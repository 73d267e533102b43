"""Few rounds on a grid: against quadrature, closed forms and the line."""

import math

import mpmath as mp
import numpy as np
import pytest
from scipy import special

from keras_dp.accountants.compose.composition import Composition
from keras_dp.accountants.compose.grid import pessimistic
from keras_dp.accountants.compose.grid.bounds import (
    epsilon_bounds,
    log_delta_bounds,
)
from keras_dp.accountants.compose.line import integral
from keras_dp.accountants.loss.gaussian_profile import least_epsilon
from keras_dp.accountants.loss.mixture import MixtureLaw

WIDTH = 1e-8


def law_of(noise_multiplier, probability, is_added) -> MixtureLaw:
    return MixtureLaw(
        noise_multiplier, (1 - probability, probability), is_added
    )


def rounds_of(law, count, gaussian=0.0) -> Composition:
    return Composition([law], np.array([float(count)]), gaussian)


def log_ratio(x, law):
    """`log R` at outputs `x`, in noise stddevs."""
    q, m = law.probabilities[1], 1 / law.noise_multiplier
    return np.log(1 - q + q * np.exp(m * x - m * m / 2))


def one_round(epsilon, law):
    """Delta of one round for any real epsilon, from its half-line."""
    q, z = law.probabilities[1], law.noise_multiplier
    bound = np.exp(-epsilon if law.is_added else epsilon)
    inside = bound > 1 - q
    share = np.where(inside, (bound - 1 + q) / q, 1.0)
    with np.errstate(divide="ignore"):
        edge = z * np.log(share) + 1 / (2 * z)
    edge = np.where(inside, edge, -np.inf)
    side = 1 if law.is_added else -1
    single = special.ndtr(side * edge)
    mixed = (1 - q) * single + q * special.ndtr(side * (edge - 1 / z))
    first, second = (single, mixed) if law.is_added else (mixed, single)
    return first - np.exp(epsilon) * second


NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)
NEARER = 2.0 ** -np.arange(0.0, 40.0)


def outputs_of(law, loss, fineness):
    """Losses and masses of `P` at nodes, close together near `loss`.

    There delta of the other rounds is not analytic.
    """
    q, z = law.probabilities[1], law.noise_multiplier
    edges = np.linspace(-11.0, 1 / z + 11, fineness * (30 + int(1 / z)))
    share = (math.exp(-loss if law.is_added else loss) - 1 + q) / q
    if share > 0:
        edge = z * math.log(share) + 1 / (2 * z)
        edges = np.concatenate([edges, edge - NEARER, edge + NEARER, [edge]])
        edges = np.unique(edges)
    half = np.diff(edges)[:, None] / 2
    x = (edges[:-1, None] + half + half * NODES).ravel()
    ratio = log_ratio(x, law)
    density = (half * WEIGHTS).ravel() * np.exp(-x * x / 2)
    density /= math.sqrt(2 * math.pi)
    if law.is_added:
        return -ratio, density
    return ratio, density * np.exp(ratio)


def composed_by_quadrature(law, count, epsilon, fineness):
    """`E_P[delta_(T-1)(epsilon - l)]`, nested down to one round."""
    end = -law.support[0] if not law.is_added else -law.support[1]
    losses, masses = outputs_of(law, epsilon + (count - 1) * end, fineness)
    if count == 2:
        return float(masses @ one_round(epsilon - losses, law))
    inner = [
        composed_by_quadrature(law, count - 1, epsilon - loss, fineness)
        for loss in losses
    ]
    return float(masses @ np.array(inner))


@pytest.mark.parametrize("is_added", [False, True])
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize(
    ("noise_multiplier", "probability"),
    [(1.0, 0.5), (0.5, 0.9), (1.0, 0.01), (0.4, 1e-3)],
)
def test_bounds_hold_what_nested_quadrature_gives(
    noise_multiplier, probability, count, is_added
) -> None:
    """To 1e-9 of delta; other panels give the same to 1e-10."""
    law = law_of(noise_multiplier, probability, is_added)
    epsilon = epsilon_bounds(rounds_of(law, count), math.log(1e-4), 1e-6)[1]

    lower, upper = log_delta_bounds(rounds_of(law, count), epsilon, WIDTH)

    true = composed_by_quadrature(law, count, epsilon, 1)
    if count == 2:
        finer = composed_by_quadrature(law, count, epsilon, 2)
        assert finer == pytest.approx(true, rel=1e-10)
    assert lower - 1e-9 <= math.log(true) <= upper + 1e-9
    assert upper - lower <= 2e-7


@pytest.mark.parametrize(
    ("law", "epsilon"),
    [
        (law_of(1.0, 0.5, is_added=False), 15.0),
        (law_of(1.0, 0.5, is_added=True), 1.3855),
        (law_of(0.3, 1e-5, is_added=False), 28.0),
        (law_of(100.0, 0.01, is_added=False), 0.0014),
    ],
)
def test_delta_is_relatively_precise_far_out(law, epsilon) -> None:
    """Two rounds with delta below 1e-20, in 40 digits."""
    with mp.workdps(40):
        z, q = mp.mpf(law.noise_multiplier), mp.mpf(law.probabilities[1])

        def edge_of(loss):
            bound = mp.exp(-loss if law.is_added else loss)
            if bound <= 1 - q:
                return -mp.inf
            return z * mp.log((bound - (1 - q)) / q) + 1 / (2 * z)

        def one(loss):
            side = 1 if law.is_added else -1
            single = mp.ncdf(side * edge_of(loss))
            mixed = q * mp.ncdf(side * (edge_of(loss) - 1 / z))
            mixed += (1 - q) * single
            if law.is_added:
                return single - mp.exp(loss) * mixed
            return mixed - mp.exp(loss) * single

        def integrand(x):
            ratio = mp.log(1 - q + q * mp.exp(x / z - 1 / (2 * z * z)))
            if law.is_added:
                return mp.npdf(x) * one(mp.mpf(epsilon) + ratio)
            return mp.npdf(x) * mp.exp(ratio) * one(mp.mpf(epsilon) - ratio)

        end = -mp.log(1 - q)
        kink = edge_of(epsilon - end if law.is_added else epsilon + end)
        points = [mp.mpf(k) for k in range(-16, 18 + int(1 / z), 2)]
        total = mp.quad(integrand, sorted([*points, kink]))
        true = float(mp.log(total))

    lower, upper = log_delta_bounds(rounds_of(law, 2), epsilon, WIDTH)

    assert true < math.log(1e-20)
    assert lower <= true <= upper
    assert upper - lower < 1e-6


@pytest.mark.parametrize("log_delta", [-1.0, -11.5, -69.0])
@pytest.mark.parametrize(
    ("noise_multiplier", "count"), [(1.0, 1), (0.3, 2), (3.0, 7), (30.0, 1000)]
)
def test_gaussian_rounds_have_their_closed_form(
    noise_multiplier, count, log_delta
) -> None:
    law = MixtureLaw(noise_multiplier, (0.0, 1.0), is_added=False)
    mu = math.sqrt(count) / noise_multiplier
    true = float(least_epsilon(np.asarray(mu), np.asarray(log_delta)))

    lower, upper = epsilon_bounds(rounds_of(law, count), log_delta, WIDTH)

    # What the closed form is rounded up by.
    assert lower <= true
    assert true * (1 - 3e-12) <= upper
    assert upper - lower <= 1e-7 * upper


def test_gaussian_part_is_one_of_the_rounds() -> None:
    """Five rounds at z = 2 as a part, and two as a law, are seven."""
    law = MixtureLaw(2.0, (0.0, 1.0), is_added=False)
    true = float(least_epsilon(np.asarray(math.sqrt(7) / 2), np.asarray(-11.5)))

    lower, upper = epsilon_bounds(rounds_of(law, 2, 5 / 4), -11.5, WIDTH)

    assert lower <= true <= upper * (1 + 3e-12)


@pytest.mark.parametrize("is_added", [False, True])
@pytest.mark.parametrize(
    ("noise_multiplier", "probability", "count"),
    [(5.0, 0.9, 20), (1.0, 0.01, 100), (0.8, 0.02, 200)],
)
def test_the_line_gives_the_same(
    noise_multiplier, probability, count, is_added
) -> None:
    composition = rounds_of(
        law_of(noise_multiplier, probability, is_added), count
    )
    line = integral.epsilon_bounds(composition, math.log(1e-5), 1e-9)

    lower, upper = epsilon_bounds(composition, math.log(1e-5), WIDTH)

    assert lower <= line[1]
    assert line[0] <= upper
    assert upper - lower <= 1e-7 * upper


def test_published_digits_of_a_line() -> None:
    """z = 5, q = .9, 20 rounds, delta = 1e-5, removed: from 25 digits."""
    composition = rounds_of(law_of(5.0, 0.9, is_added=False), 20)

    lower, upper = epsilon_bounds(composition, math.log(1e-5), WIDTH)

    assert lower <= 3.44334840902
    assert upper >= 3.44334840859
    assert upper - lower <= WIDTH * upper


def test_different_laws_are_composed() -> None:
    laws = [law_of(0.5 + 0.3 * i, 0.01 * (i + 1), False) for i in range(10)]
    composition = Composition(laws, np.arange(1.0, 11.0), 0.3)
    line = integral.epsilon_bounds(composition, math.log(1e-6), 1e-9)

    lower, upper = epsilon_bounds(composition, math.log(1e-6), WIDTH)

    assert lower <= line[1]
    assert line[0] <= upper
    assert upper - lower <= WIDTH * upper


@pytest.mark.parametrize("is_added", [False, True])
@pytest.mark.parametrize(
    ("noise_multiplier", "probability", "count", "delta"),
    [
        (0.3, 1e-5, 2, 1e-8),
        (0.3, 1e-5, 10, 1e-6),
        (0.3, 1e-5, 10, 1e-30),
        (0.3, 1e-3, 100, 1e-5),
        (1.0, 0.5, 4, 1e-5),
        (100.0, 0.01, 3, 1e-5),
        (0.5, 0.9, 5, 1e-30),
        (0.1, 0.01, 3, 1e-6),
    ],
)
def test_near_atoms_and_little_noise_are_tight(
    noise_multiplier, probability, count, delta, is_added
) -> None:
    """To 1e-7 of epsilon, and delta at the ends is what was asked for."""
    composition = rounds_of(
        law_of(noise_multiplier, probability, is_added), count
    )
    log_delta = math.log(delta)

    lower, upper = epsilon_bounds(composition, log_delta, WIDTH)

    assert 0 < lower <= upper
    assert upper - lower <= 1e-7 * upper
    if not is_added:  # There delta jumps next to the largest loss.
        assert log_delta_bounds(composition, lower, 1e-4)[1] >= log_delta
        assert log_delta_bounds(composition, upper, 1e-4)[0] <= log_delta


@pytest.mark.parametrize("is_added", [False, True])
def test_many_rounds_are_bounded_too(is_added) -> None:
    """Wide, as they are the line's business: 1e-3 at 1e5 rounds."""
    composition = rounds_of(law_of(5.0, 0.01, is_added), 100_000)
    line = integral.epsilon_bounds(composition, math.log(1e-5), 1e-9)

    lower, upper = epsilon_bounds(composition, math.log(1e-5), 1e-4)

    assert lower <= line[1]
    assert line[0] <= upper
    assert upper - lower <= 1e-3 * upper


@pytest.mark.parametrize("is_added", [False, True])
def test_epsilon_is_nothing_where_delta_allows_everything(is_added) -> None:
    composition = rounds_of(law_of(1.0, 0.5, is_added), 2)
    at_zero = log_delta_bounds(composition, 0.0, 1e-3)

    assert epsilon_bounds(composition, at_zero[1] + 0.05, WIDTH) == (0, 0)
    assert epsilon_bounds(composition, math.log(0.9), WIDTH) == (0, 0)
    assert epsilon_bounds(composition, at_zero[0] - 0.05, 1e-3)[0] > 0


def test_delta_is_nothing_beyond_the_largest_loss() -> None:
    """Two rounds at q = 1/2 lose at most 2 log 2 = 1.38629."""
    composition = rounds_of(law_of(1.0, 0.5, is_added=True), 2)

    assert log_delta_bounds(composition, 1.3863, WIDTH)[1] == -math.inf
    assert log_delta_bounds(composition, 1.3862, WIDTH)[1] > -1e6


@pytest.mark.parametrize("is_added", [False, True])
def test_a_finer_grid_tightens_both(is_added) -> None:
    """The bounds for 1e-7 lie within those for 1e-3."""
    composition = rounds_of(law_of(1.0, 0.5, is_added), 4)

    wide = epsilon_bounds(composition, math.log(1e-5), 1e-3)
    narrow = epsilon_bounds(composition, math.log(1e-5), 1e-7)

    assert wide[0] <= narrow[0] <= narrow[1] <= wide[1]
    assert narrow[1] - narrow[0] < 0.1 * (wide[1] - wide[0])


def test_control_rounding_down_is_no_upper_bound(monkeypatch) -> None:
    """Cells that are moved to their lower ends give less than the truth."""
    connected = pessimistic._connected
    monkeypatch.setattr(
        pessimistic,
        "_connected",
        lambda mass, share, power: connected(mass, 0 * share, power),
    )
    law = MixtureLaw(1.0, (0.0, 1.0), is_added=False)
    true = float(least_epsilon(np.asarray(2.0), np.asarray(-11.5)))

    upper = epsilon_bounds(rounds_of(law, 4), -11.5, 1e-4)[1]

    assert upper < true * (1 - 1e-9)


def test_control_one_gap_less_is_no_lower_bound(monkeypatch) -> None:
    """Without the lowering, the pair below is the one above."""
    law = MixtureLaw(1.0, (0.0, 1.0), is_added=False)
    true = float(least_epsilon(np.asarray(2.0), np.asarray(-11.5)))
    monkeypatch.setattr(
        pessimistic,
        "_lowered",
        lambda mass, share, kept, anchor, step, tilt: pessimistic._connected(
            mass, share, math.exp((1 + tilt) * step)
        ),
    )

    lower = epsilon_bounds(rounds_of(law, 4), -11.5, 1e-4)[0]

    assert lower > true * (1 + 1e-9)
