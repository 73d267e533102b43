"""The line integral for few rounds: against quadrature and closed forms."""

import math

import numpy as np
import pytest
from scipy import special

from benchmarks.strong_composition import least_epsilon
from keras_dp.accountants import Fourier
from keras_dp.accountants.compose import composition, integral, root
from keras_dp.accountants.compose.composition import Composition
from keras_dp.accountants.compose.curve import LINE, Curve
from keras_dp.accountants.loss import gaussian_profile
from keras_dp.accountants.loss.fixed_size import FixedSizeLoss
from keras_dp.accountants.loss.mixture import MixtureLoss, ReplaceOneLoss
from keras_dp.ledger import FixedSizeWithoutReplacement, GaussianSum, Round

WIDTH = 1e-8


def law_of(noise_multiplier, probability, is_added) -> MixtureLoss:
    return MixtureLoss(
        noise_multiplier, (1 - probability, probability), is_added
    )


def rounds_of(law, count, gaussian=0.0):
    return Composition((law,), np.array([float(count)]), gaussian)


class CurveByOneMethod(Curve):
    """Delta by a line alone, or by a grid; no closed form."""

    def __init__(self, composition, method) -> None:
        super().__init__(composition)
        self.method = method

    def _closed(self, epsilon):
        found = super()._closed(epsilon)
        return found if found and found.upper == -math.inf else None

    def _ways(self, tilt):
        return [(self.method, 0.0)]


def epsilon_bounds(composition, log_delta, width, method=LINE):
    side = CurveByOneMethod(composition, method)
    return root.epsilon_bounds(side, log_delta, width)[:2]


def log_delta_bounds(composition, epsilon, width, method=LINE):
    side = CurveByOneMethod(composition, method)
    side.prepare(epsilon, width)
    return side.log_delta(epsilon)[:2]


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
    end = math.log1p(-law.probabilities[1]) * (1 if law.is_added else -1)
    losses, masses = outputs_of(law, epsilon + (count - 1) * end, fineness)
    if count == 2:
        return float(masses @ one_round(epsilon - losses, law))
    inner = [
        composed_by_quadrature(law, count - 1, epsilon - loss, fineness)
        for loss in losses
    ]
    return float(masses @ np.array(inner))


@pytest.mark.full
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


@pytest.mark.parametrize("log_delta", [-1.0, -11.5, -69.0])
@pytest.mark.parametrize(
    ("noise_multiplier", "count"), [(1.0, 1), (0.3, 2), (3.0, 7), (30.0, 1000)]
)
def test_gaussian_rounds_have_their_closed_form(
    noise_multiplier, count, log_delta
) -> None:
    law = MixtureLoss(noise_multiplier, (0.0, 1.0), is_added=False)
    mu = math.sqrt(count) / noise_multiplier
    true = float(least_epsilon(np.asarray(mu), np.asarray(log_delta)))

    lower, upper = epsilon_bounds(rounds_of(law, count), log_delta, WIDTH)

    # What the closed form is rounded up by.
    assert lower <= true
    assert true * (1 - 3e-12) <= upper
    assert upper - lower <= 1e-7 * upper


def test_gaussian_part_is_one_of_the_rounds() -> None:
    """Five rounds at z = 2 as a part, and two as a law, are seven."""
    law = MixtureLoss(2.0, (0.0, 1.0), is_added=False)
    true = float(least_epsilon(np.asarray(math.sqrt(7) / 2), np.asarray(-11.5)))

    lower, upper = epsilon_bounds(rounds_of(law, 2, 5 / 4), -11.5, WIDTH)

    assert lower <= true <= upper * (1 + 3e-12)


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
    # A probability that is below every float is no bound on the loss.
    assert MixtureLoss(1.0, (0.0, 1.0), is_added=True).largest == math.inf


@pytest.mark.parametrize("is_added", [False, True])
@pytest.mark.parametrize(
    ("noise_multiplier", "probability"),
    [(1.0, 0.5), (0.5, 0.9), (5.0, 0.01), (30.0, 1e-3), (0.4, 1e-6)],
)
def test_the_variance_bounds_one_round(
    monkeypatch, noise_multiplier, probability, is_added
) -> None:
    """By the closed form, at epsilons from 0 to where delta is tiny.

    Control: with half of the variance, rounds of much noise exceed the bound.
    """
    law = law_of(noise_multiplier, probability, is_added)
    one, scale = rounds_of(law, 1), probability / noise_multiplier
    exceeds, whole = [], composition.variance
    for halved in (False, True):
        if halved:
            monkeypatch.setattr(
                composition, "variance", lambda of: whole(of) / 2
            )
        for epsilon in scale * np.array([0.0, 0.01, 0.3, 1.0, 3.0]):
            true = float(one_round(float(epsilon), law))
            if true <= 1e-14:
                continue
            most = composition.variance_log_delta(one, float(epsilon))
            is_less = math.log(true) > most + 1e-6
            assert halved or not is_less
            exceeds.append(is_less)

    assert any(exceeds) or noise_multiplier < 5


def test_many_gaussian_rounds_are_below_their_variance() -> None:
    law = MixtureLoss(30.0, (0.0, 1.0), is_added=False)
    for count, epsilon in ((1, 0.001), (10, 0.05), (100, 0.3)):
        mu = np.asarray(math.sqrt(count) / 30)
        true = float(gaussian_profile.log_delta(mu, np.asarray(epsilon)))

        found = composition.variance_log_delta(rounds_of(law, count), epsilon)

        assert true <= found


def test_epsilon_next_to_nothing_is_bounded_by_the_variance() -> None:
    """By moments and the line alone, 0.028 is the bound."""
    sampling = FixedSizeWithoutReplacement(64, 64_000_000)
    step = Round(sampling, (GaussianSum("sum", 1.0, 5.0),))

    lower, upper = Fourier().epsilon_bounds([(step, 10)], delta=1e-8)

    assert lower <= upper <= 6e-5


def always_smoothed(monkeypatch, width) -> None:
    monkeypatch.setattr(integral, "width_of", lambda *arguments: width)


@pytest.mark.parametrize("width", [0.3, 0.03, 0.003])
@pytest.mark.parametrize("count", [1, 4])
def test_smoothing_keeps_the_truth_between(monkeypatch, width, count) -> None:
    """Whatever its width; both bounds are off by its square."""
    law = MixtureLoss(2.0, (0.0, 1.0), is_added=False)
    true = float(least_epsilon(np.asarray(count**0.5 / 2), np.asarray(-11.5)))
    always_smoothed(monkeypatch, width)

    lower, upper = epsilon_bounds(rounds_of(law, count), -11.5, 1e-6)

    assert lower <= true <= upper * (1 + 3e-12)
    assert upper - true > 1e-3 * width**2
    if width < 0.1:
        assert upper - lower < 30 * width**2


def test_control_smoothing_alone_is_no_lower_bound(monkeypatch) -> None:
    """What it adds has to be taken off."""
    always_smoothed(monkeypatch, 0.1)
    smoothed = integral.smoothed
    monkeypatch.setattr(
        integral, "smoothed", lambda *both: (*smoothed(*both)[:2], 1e-9)
    )
    law = MixtureLoss(1.0, (0.0, 1.0), is_added=False)
    true = float(least_epsilon(np.asarray(2.0), np.asarray(-11.5)))

    lower, _ = epsilon_bounds(rounds_of(law, 4), -11.5, 1e-4)

    assert lower > true * (1 + 1e-9)


LOSSES = [
    law_of(1.0, 0.01, is_added=False),
    law_of(1.0, 0.3, is_added=True),
    MixtureLoss(2.0, (0.81, 0.18, 0.01), is_added=False),
    ReplaceOneLoss(1.5, 0.2),
    FixedSizeLoss(law_of(2.0, 0.2, False)),
    FixedSizeLoss(law_of(1.0, 0.02, False)),
]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("frequency", [0.5, 3.0])
def test_moments_on_a_path_are_those_on_the_real_line(loss, frequency) -> None:
    """To 1e-13 of `M(Re s)`, where real nodes still do."""

    def moment(nodes, s):
        powers = np.expm1((1 + s) * nodes.losses)
        terms = powers - (1 + s) * np.expm1(nodes.losses)
        return 1 + np.exp(nodes.log_weights) @ terms

    for tilt in (0.5, 2.0):
        real, path = loss.nodes(tilt), loss.nodes(tilt, 1e4)
        assert path.losses.imag.min() >= 0
        difference = moment(path, tilt + 1j * frequency)
        difference -= moment(real, tilt + 1j * frequency)
        assert abs(difference) < 1e-13 * moment(real, tilt)


@pytest.mark.parametrize("loss", LOSSES)
def test_no_characteristic_function_exceeds_its_decay(loss) -> None:
    decay = loss.decay(1.0)
    path = loss.nodes(1.0, 1e4)
    weights = np.exp(2 * path.losses + path.log_weights)
    weights /= weights.sum()

    for frequency in np.geomspace(1e-3, 1e4, 60):
        size = abs(weights @ np.exp(1j * frequency * path.losses))
        assert size <= math.exp(decay.log_size(frequency)) + 1e-13
