"""Trainings with correlated noise: their ledger, and what is refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dp
from keras_dp.accountants import Fourier
from keras_dp.dp_queries import (
    CorrelatedSumQuery,
    GaussianSumQuery,
    NestedQuery,
    NormalizedQuery,
)
from keras_dp.errors import LedgerWriteError
from keras_dp.ledger import BandedToeplitz
from keras_dp.planning import calibrate_correlated_noise
from keras_dp.sampling import CyclicPoissonBatches

RECORDS, CLASSES, PROBABILITY, ROUNDS = 60, 3, 0.5, 10
DELTA = 1e-5
SHAPES = [(4, 1), (1,)]
STRATEGY = BandedToeplitz((1.0, 0.6, 0.3))


def samples():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(RECORDS, 4)).astype("float32")
    y = (x[:, :1] > 0).astype("float32")
    return CyclicPoissonBatches(
        (x, y), classes=CLASSES, sampling_probability=PROBABILITY
    )


def query(noise_multiplier=2.0, rounds=ROUNDS):
    specs = [tf.TensorSpec(shape) for shape in SHAPES]
    return NormalizedQuery(
        CorrelatedSumQuery(STRATEGY, 1.0, noise_multiplier, rounds, specs), 10
    )


def private_model(asked, ledger, **options):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    private = keras_dp.PrivateModel(model, self_check_examples=0)
    private.compile(
        keras_dp.DPOptimizer(
            keras.optimizers.SGD(0.1), query=asked, ledger=ledger
        ),
        keras.losses.BinaryCrossentropy(from_logits=True),
        **options,
    )
    return private


@pytest.fixture
def ledger():
    return keras_dp.PrivacyLedger.in_memory(dataset="test")


@pytest.mark.full
class TestATraining:
    def test_costs_what_it_was_planned_for(self, ledger) -> None:
        noise = calibrate_correlated_noise(
            STRATEGY,
            ROUNDS,
            target_epsilon=3.0,
            delta=DELTA,
            classes=CLASSES,
            sampling_probability=PROBABILITY,
        )

        private_model(query(noise), ledger).fit(
            samples(), epochs=2, steps_per_epoch=ROUNDS // 2, verbose=0
        )

        ledger.verify()
        assert len(ledger) == ROUNDS
        epsilon = Fourier().epsilon(ledger, delta=DELTA)
        assert 3.0 * (1 - 1e-5) <= epsilon <= 3.0
        cycles = [each.round.sampling.cycle for each in ledger.rounds]
        assert cycles == [0, 1, 2, 3]
        assert [each.count for each in ledger.rounds] == [3, 3, 3, 1]

    def test_meets_a_target_by_its_whole_price(self, ledger) -> None:
        private_model(query(), ledger).fit(
            samples(),
            epochs=1,
            steps_per_epoch=4,
            verbose=0,
            target_epsilon=100.0,
            delta=DELTA,
        )

        one = Fourier().epsilon(ledger, delta=DELTA)
        other = keras_dp.PrivacyLedger.in_memory(dataset="other")
        private_model(query(), other).fit(
            samples(), epochs=1, steps_per_epoch=ROUNDS, verbose=0
        )
        assert one == pytest.approx(Fourier().epsilon(other, delta=DELTA))

    def test_does_not_begin_if_a_target_is_below_it(self, ledger) -> None:
        private = private_model(query(0.1), ledger)

        with pytest.raises(keras_dp.errors.BudgetExceededError):
            private.fit(
                samples(),
                epochs=1,
                steps_per_epoch=4,
                verbose=0,
                target_epsilon=1.0,
                delta=DELTA,
            )
        assert len(ledger) == 0

    def test_does_not_begin_with_too_few_rounds(self, ledger) -> None:
        with pytest.raises(ValueError, match="schedule must not end before"):
            private_model(query(), ledger).fit(
                samples(), epochs=1, steps_per_epoch=ROUNDS + 1, verbose=0
            )
        assert len(ledger) == 0

    def test_does_not_go_on_with_other_classes(self, ledger) -> None:
        private = private_model(query(), ledger)
        private.fit(samples(), epochs=1, steps_per_epoch=3, verbose=0)
        weights = private.get_weights()

        with pytest.raises(LedgerWriteError, match="The mechanism"):
            private.fit(samples(), epochs=1, steps_per_epoch=3, verbose=0)
        assert len(ledger) == 3
        for one, two in zip(weights, private.get_weights(), strict=True):
            np.testing.assert_array_equal(one, two)

    def test_with_groups_and_other_sums_is_amplified_once(self, ledger) -> None:
        groups = {"kernel": ["kernel"], "bias": ["bias"]}
        asked = NestedQuery(
            {
                "kernel": NormalizedQuery(
                    CorrelatedSumQuery(
                        STRATEGY, 1.0, 4.0, ROUNDS, [tf.TensorSpec((4, 1))]
                    ),
                    10,
                ),
                "bias": GaussianSumQuery(1.0, 4.0),
            }
        )
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        private = keras_dp.PrivateModel(model, self_check_examples=0)
        private.compile(
            keras_dp.DPOptimizer(
                keras.optimizers.SGD(0.1),
                query=asked,
                ledger=ledger,
                groups=groups,
            ),
            keras.losses.BinaryCrossentropy(from_logits=True),
        )

        private.fit(samples(), epochs=1, steps_per_epoch=ROUNDS, verbose=0)

        assert len(ledger) == ROUNDS
        assert Fourier().epsilon(ledger, delta=DELTA) < 5


def test_answers_add_up_to_sums_with_little_noise() -> None:
    """The strategy of prefix sums leaves the noise of the last round alone."""
    rounds, size = 6, 10_000
    strategy = BandedToeplitz((1.0,) * rounds)
    asked = CorrelatedSumQuery(
        strategy, 1.0, 2.0, rounds, tf.TensorSpec([size])
    )
    state, total = asked.initial_global_state(), np.zeros(size)
    for _ in range(rounds):
        value, state, _ = asked.get_noised_result(tf.zeros([size]), state)
        total += value.numpy()

    assert np.std(total) == pytest.approx(2.0, rel=0.05)
    independent = 2.0 * rounds**0.5
    assert np.std(total) < independent / 2
