"""The tests of `check` on noise and on samples: false alarms, and controls."""

import numpy as np
import pytest
import scipy.stats

from keras_dp.auditing import draw, noise, normal_draws
from keras_dp.ledger import (
    CoordinateBounds,
    EncodedSum,
    GaussianSum,
)
from keras_dp.ledger.events.noise_families import LaplaceNoise, StudentTNoise
from keras_dp.sampling import FixedSizeBatches, PoissonBatches, UserBatches

NUMBERS = np.random.Generator(np.random.Philox(0))
BOUNDS = CoordinateBounds.from_vectors([[1.0] * 100])
# The number of tests in `departure`, and in each of the samplers here.
TESTS_OF_DRAWS, TESTS_OF_SAMPLES = 6, 6


def false_alarms_are_rare(alarms: int, trials: int, chance: float) -> bool:
    """Whether so many alarms are plausible: 1 in 10^6 if the chance is true."""
    return bool(scipy.stats.binom.sf(alarms - 1, trials, chance) > 1e-6)


@pytest.mark.parametrize("shape", [(400, 1), (2000, 100), (8, 26_010)])
def test_normal_draws_raise_as_few_alarms_as_stated(shape, monkeypatch) -> None:
    """With a probability of 1e-2 in place of 1e-10, to see some."""
    monkeypatch.setattr(normal_draws, "FALSE_ALARM", 1e-2)

    alarms = sum(
        normal_draws.departure(NUMBERS.normal(size=shape)) is not None
        for _ in range(30)
    )

    assert false_alarms_are_rare(alarms, 30, 1e-2 * TESTS_OF_DRAWS)
    assert not false_alarms_are_rare(15, 30, 1e-2 * TESTS_OF_DRAWS)


def one_round_without(draws):
    draws[77] = 0


def one_coordinate_halved(draws):
    draws[:, 5] /= 2


def cut_at_three(draws):
    np.clip(draws, -3, 3, out=draws)


def half_of_the_tail_lost(draws):
    far = np.flatnonzero(np.abs(draws) > 3)
    draws.ravel()[far[::2]] = 0


def a_round_again(draws):
    draws[1200] = -draws[40]


def a_coordinate_again(draws):
    draws[:, 9] = draws[:, 30]


def a_tenth_of_another(draws):
    draws[:, 1:] = np.sqrt(0.99) * draws[:, 1:] + 0.1 * draws[:, :-1]


FAULTS = (
    one_round_without,
    one_coordinate_halved,
    cut_at_three,
    half_of_the_tail_lost,
    a_round_again,
    a_coordinate_again,
    a_tenth_of_another,
    lambda draws: np.multiply(draws, 0.98, out=draws),
)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_draws_is_found(fault) -> None:
    draws = NUMBERS.normal(size=(2000, 100)).astype(np.float32)
    event = GaussianSum("all", 1.0, 1.0)
    assert noise.departure(event, [draws * 1.0]) is None

    fault(draws)

    assert noise.departure(event, [draws * 1.0]) is not None


KINDS = {
    "Gaussian": (
        GaussianSum("all", 1.0, 3.0),
        lambda size: NUMBERS.normal(size=size) * 3,
    ),
    "Student": (
        EncodedSum("all", BOUNDS, StudentTNoise(2.0, 4.0)),
        lambda size: NUMBERS.standard_t(4.0, size) * 2,
    ),
    "Laplace": (
        EncodedSum("all", BOUNDS, LaplaceNoise(2.0)),
        lambda size: NUMBERS.laplace(scale=2.0, size=size),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_noise_of_every_kind_becomes_normal(kind) -> None:
    event, draw_noise = KINDS[kind]

    right = [draw_noise((2000, 100))]
    wrong = [1.02 * draw_noise((2000, 100))]

    assert noise.departure(event, right) is None
    assert "times that in the ledger" in str(noise.departure(event, wrong))


X = np.zeros([200, 1], np.float32)
SAMPLERS = {
    "few records": lambda: PoissonBatches((X, X), sampling_probability=0.02),
    "Poisson": lambda: PoissonBatches((X, X), sampling_probability=0.1),
    "half": lambda: PoissonBatches((X, X), sampling_probability=0.5),
    "truncated": lambda: PoissonBatches(
        (X, X), sampling_probability=0.1, truncate_at=40
    ),
    "fixed size": lambda: FixedSizeBatches((X, X), sample_size=20),
    "users": lambda: UserBatches(
        (X, X),
        user_ids=np.arange(200) % 50,
        sampling_probability=0.2,
        records_per_user=3,
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("kind", SAMPLERS)
def test_samples_raise_as_few_alarms_as_stated(kind, monkeypatch) -> None:
    monkeypatch.setattr(draw, "FALSE_ALARM", 1e-2)
    monkeypatch.setattr(draw, "_MOST_ROUNDS", 1000)
    samples = SAMPLERS[kind]()

    alarms = sum(len(draw.departures(samples)) for _ in range(15))

    assert false_alarms_are_rare(alarms, 15, 1e-2 * TESTS_OF_SAMPLES)
