"""Searches, compared with every output of small ones and with dp_accounting."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from keras_dp.accountants import RDP, Fourier, searches
from keras_dp.accountants.compose.composition import Composition
from keras_dp.accountants.compose.curve import Curve
from keras_dp.accountants.loss.mixture import FiniteLoss
from keras_dp.accountants.normalize.mechanisms import (
    CountedMechanism,
    Gaussian,
    Selected,
)
from keras_dp.ledger import (
    FullDataset,
    GaussianSum,
    PoissonSampling,
    Round,
    Selection,
    TruncatedNegativeBinomial,
)
from tests.trial_laws import generating

LAWS: list[TruncatedNegativeBinomial] = [
    TruncatedNegativeBinomial(-0.5, 4),
    TruncatedNegativeBinomial(0, 20),
    TruncatedNegativeBinomial(1, 3),
    TruncatedNegativeBinomial(1, 20),
    TruncatedNegativeBinomial(4, 10),
]
# The trial of a search in these tests; its accountant knows what it is.
TRIAL = ((CountedMechanism(Gaussian(1.0), 1),),)


@dataclasses.dataclass(frozen=True)
class Trial:
    """A trial with finitely many outputs, which bounds itself.

    Attributes:
        p: The probabilities of the outputs on one data set.
        q: On a neighbouring one.
    """

    p: tuple[float, ...]
    q: tuple[float, ...]

    def supports(self, rounds: object) -> bool:
        return True

    def profile_of(self, rounds: object) -> Callable[[float], float]:
        return self.delta_at

    def delta_at(self, epsilon: float) -> float:
        return max(
            divergence(self.p, self.q, epsilon),
            divergence(self.q, self.p, epsilon),
        )

    def epsilon_of(self, rounds: object, delta: float) -> float:
        low, high = 0.0, 100.0
        if self.delta_at(low) <= delta:
            return 0.0
        if self.delta_at(high) > delta:
            return math.inf
        for _ in range(60):
            middle = (low + high) / 2
            if self.delta_at(middle) <= delta:
                high = middle
            else:
                low = middle
        return high


def divergence(p: Sequence[float], q: Sequence[float], epsilon: float) -> float:
    """The hockey-stick divergence from its definition."""
    grown = math.exp(epsilon)
    return math.fsum(max(x - grown * y, 0) for x, y in zip(p, q, strict=True))


def best(
    law: TruncatedNegativeBinomial, p: Sequence[float], scores: Sequence[int]
) -> list[float]:
    """The probability of each output to win, from the generating function."""
    found = []
    for mass, score in zip(p, scores, strict=True):
        equal = math.fsum(
            x for x, s in zip(p, scores, strict=True) if s == score
        )
        worse = math.fsum(
            x for x, s in zip(p, scores, strict=True) if s < score
        )
        level = generating(law, min(worse + equal, 1)) - generating(law, worse)
        found.append(level * mass / equal if equal else 0.0)
    return found


TRIALS = [
    # Randomized response, pure.
    Trial((0.75, 0.25), (0.25, 0.75)),
    # A rare output that tells, beside small differences.
    Trial((0.001, 0.499, 0.5), (0.0001, 0.55, 0.4499)),
    Trial((0.01, 0.3, 0.29, 0.4), (0.0, 0.2, 0.5, 0.3)),
    Trial((1e-6, 0.4, 0.6 - 1e-6), (1e-8, 0.6, 0.4 - 1e-8)),
    # Nothing but a slack.
    Trial((0.02, 0.98, 0.0), (0.0, 0.98, 0.02)),
    # A Gaussian, cut into pieces.
    Trial(
        *(
            tuple(np.diff([0.0, *map(cdf, np.linspace(-2.5, 3, 5)), 1.0]))
            for cdf in (
                lambda x: 0.5 * math.erfc(-x / math.sqrt(2)),
                lambda x: 0.5 * math.erfc(-(x - 0.5) / math.sqrt(2)),
            )
        )
    ),
]


@functools.cache
def profile_of(
    trial: Trial, law: TruncatedNegativeBinomial, delta: float
) -> searches.SearchProfile | None:
    return searches.profile(Selected(TRIAL, law), trial, searches.decade(delta))


def exact(
    trial: Trial, law: TruncatedNegativeBinomial, epsilon: float
) -> float:
    """The largest divergence of all orders of the outputs, with ties."""
    orders = itertools.product(range(len(trial.p)), repeat=len(trial.p))
    found = 0.0
    for scores in orders:
        p, q = best(law, trial.p, scores), best(law, trial.q, scores)
        found = max(found, divergence(p, q, epsilon), divergence(q, p, epsilon))
    return found


@pytest.mark.parametrize("law", LAWS, ids=repr)
@pytest.mark.parametrize("trial", TRIALS[:5], ids=range(5))
class TestEveryOrderOfOutputs:
    def test_is_below_the_bound(self, trial, law) -> None:
        for epsilon in (0.0, 0.3, 1.0, 2.0, 3.5, 6.0):
            largest = exact(trial, law, epsilon)
            for near in (1e-1, 1e-6):
                found = profile_of(trial, law, near)
                # Without a profile, delta is 1.
                assert found is None or found.delta(epsilon) >= largest

    def test_is_below_its_pair(self, trial, law) -> None:
        found = profile_of(trial, law, 1e-6)
        pair = found and searches.profile_pair(found, 1e-6)
        if not pair:
            return
        q = np.array(pair[0].masses)
        p = q * np.exp(pair[0].losses)

        # The masses of both are those of distributions.
        assert q.sum() == pytest.approx(1, abs=1e-9)
        assert p.sum() == pytest.approx(1, abs=1e-9)
        for epsilon in (0.0, 0.3, 1.0, 2.0, 3.5, 6.0):
            for one, other in ((p, q), (q, p)):
                of_pair = divergence(one, other, epsilon)
                # Rounding of a hundred masses.
                assert of_pair + pair[1] >= exact(trial, law, epsilon) - 1e-12


@pytest.mark.parametrize("law", LAWS[1:5], ids=repr)
def test_a_price_without_the_ratio_is_too_small(
    law: TruncatedNegativeBinomial,
) -> None:
    """Control: some order of outputs exceeds `m delta(epsilon)`."""
    excess = [
        exact(trial, law, epsilon) - law.largest_mean * trial.delta_at(epsilon)
        for trial in TRIALS[:4]
        for epsilon in (0.0, 0.3, 1.0, 1.5)
    ]

    assert max(excess) > 1e-4


@pytest.mark.parametrize("shape", [-0.5, 0.0, 1.0, 3.0])
@pytest.mark.parametrize("pure", [0.1, 1.0])
def test_a_pure_trial_costs_its_epsilon_shape_plus_two_times(
    shape: float, pure: float
) -> None:
    high = 1 / (1 + math.exp(-pure))
    trial = Trial((high, 1 - high), (1 - high, high))

    few = profile_of(trial, TruncatedNegativeBinomial(shape, 3), 1e-12)
    many = profile_of(trial, TruncatedNegativeBinomial(shape, 1e7), 1e-12)

    assert few is not None
    assert many is not None
    # Cells of places are 0.4 % wide, for each factor of the law.
    slack = 0.01 * (shape + 2)
    assert few.epsilon(1e-12) <= (shape + 2) * pure + slack
    assert many.epsilon(1e-12) <= (shape + 2) * pure + slack
    # Shape -1/2 needs more trials still.
    assert many.epsilon(1e-12) >= (shape + 2) * pure * 0.95


def test_searches_compose_as_their_pairs_do() -> None:
    trial, law = TRIALS[5], LAWS[2]
    found = profile_of(trial, law, 1e-6)
    assert found is not None
    pair, _ = searches.profile_pair(found, 1e-6) or (None, 0)
    assert pair is not None
    losses, q = np.array(pair.losses), np.array(pair.masses)
    p = q * np.exp(losses)
    both = np.add.outer(losses, losses).ravel()
    twice = Composition(
        (FiniteLoss(pair.losses, pair.masses),), np.array([2.0])
    )

    for epsilon in (0.1, 0.5, 1.0):
        expected = float(
            np.multiply.outer(p, p).ravel()
            @ np.maximum(-np.expm1(epsilon - both), 0.0)
        )
        curve = Curve(twice)
        curve.prepare(epsilon, 1e-4)
        log_delta = curve.log_delta(epsilon)

        assert log_delta.lower <= math.log(expected) <= log_delta.upper
        assert log_delta.upper - log_delta.lower < 1e-3


def full(noise_multiplier: float) -> list[tuple[Round, int]]:
    release = GaussianSum("all", 1.0, noise_multiplier)
    return [(Round(FullDataset(), (release,)), 1)]


@pytest.mark.parametrize("gamma", [0.01, 0.1, 0.9])
@pytest.mark.parametrize("rho", [0.01, 1.0])
@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 5.0])
def test_no_more_than_dp_accounting_asks(
    gamma: float, rho: float, shape: float
) -> None:
    """Its own Gaussian cases, of `test_repeat_select_gaussian_...`."""
    pytest.importorskip("dp_accounting")
    from dp_accounting.rdp import rdp_privacy_accountant as peer

    from keras_dp.interchange import to_dp_event

    mean = peer._truncated_negative_binomial_mean(gamma, shape)
    law = TruncatedNegativeBinomial(shape, mean)
    ledger = [(Selection([full(math.sqrt(0.5 / rho))], law).round, 1)]
    accountant = peer.RdpAccountant()
    accountant.compose(to_dp_event(ledger))
    theirs = accountant.get_epsilon(1e-6)

    assert law.gamma == pytest.approx(gamma, rel=1e-6)
    assert RDP().epsilon(ledger, delta=1e-6) <= theirs
    assert Fourier().epsilon(ledger, delta=1e-6) <= theirs


def test_plans_cost_what_the_worst_of_them_does() -> None:
    law = LAWS[3]
    step = Round(PoissonSampling(0.01), (GaussianSum("all", 1.0, 1.0),))
    alone = [
        Fourier().epsilon([(Selection([plan], law).round, 1)], delta=1e-6)
        for plan in (full(5), [(step, 100)])
    ]
    both = Selection([full(5), [(step, 100)]], law).round
    together = Fourier().epsilon([(both, 1)], delta=1e-6)

    assert max(alone) * (1 - 1e-3) <= together
    assert together <= max(alone) * 1.2
