"""Trainings whose noise and samples follow a schedule."""

import math

import keras
import numpy as np
import pytest

import keras_dp
from keras_dp.accountants import AnalyticGaussian, Fourier
from keras_dp.dp_queries import NestedQuery, ScheduledQuery
from keras_dp.errors import BudgetExceededError, CalibrationError
from keras_dp.ledger import FullDataset, GaussianSum, PrivacyLedger, Round
from keras_dp.optimizers import DPOptimizer

ROUNDS, DELTA = 12, 1e-5
DECAY = keras.optimizers.schedules.PolynomialDecay(1.0, ROUNDS, 0.5)
GROWTH = keras.optimizers.schedules.PiecewiseConstantDecay([5], [1.0, 2.0])


def data(records=400):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(records, 5)).astype("float32")
    return x, (x.sum(1) > 0).astype("float32")[:, np.newaxis]


def model():
    found = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
    found.compile(keras.optimizers.SGD(0.1), loss="mse")
    return found


def average(multiplier=2.0):
    return keras_dp.GaussianAverageQuery(
        1.0, noise_multiplier=multiplier, denominator=100
    )


def private(query, ledger=None):
    if ledger is None:
        ledger = PrivacyLedger.in_memory(dataset="d")
    found = keras_dp.PrivateModel(model())
    found.compile(
        DPOptimizer(keras.optimizers.SGD(0.1), query=query, ledger=ledger),
        loss="mse",
    )
    return found


def samples(**options):
    return keras_dp.PoissonBatches(data(), sampling_probability=0.25, **options)


def growing(rounds=ROUNDS):
    return samples(probability_schedule=GROWTH, scheduled_rounds=rounds)


def numbers(run):
    """Returns probability, clip and noise multiplier of each round."""
    return [
        (
            round_.sampling.probability,
            query.l2_norm_bound,
            query.noise_stddev / query.l2_norm_bound,
        )
        for round_, count in run.rounds
        for query in round_.queries
        for _ in range(count)
    ]


class TestATraining:
    def test_records_what_it_planned_before_the_first_round(self) -> None:
        query = ScheduledQuery(
            average(), ROUNDS, noise=DECAY, clip=lambda step: 1.0 + step % 2
        )
        found = private(query)
        plans = []
        keep = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: plans.append(
                found.optimizer.ledger.runs[0].plan
            )
        )

        found.fit(growing(), epochs=3, verbose=0, callbacks=[keep])

        (run,) = found.optimizer.ledger.runs
        assert run.outcome == "finished"
        assert run.plan == run.rounds == plans[0]
        np.testing.assert_allclose(
            numbers(run),
            [
                (
                    0.25 if step <= 5 else 0.5,
                    1.0 + step % 2,
                    2.0 * (1 - 0.5 * step / ROUNDS),
                )
                for step in range(ROUNDS)
            ],
            rtol=1e-5,
        )

    def test_covers_larger_samples_before_they_are_answered(self) -> None:
        """Blocks of rounds are reserved ahead; none spans two probabilities."""
        growth = keras.optimizers.schedules.PiecewiseConstantDecay(
            [40, 100], [0.4, 0.8, 1.2]
        )
        found = private(average())
        held = []
        keep = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: held.append(
                [
                    round_.sampling.probability
                    for round_, count in found.optimizer.ledger.rounds
                    for _ in range(count)
                ]
            )
        )

        found.fit(
            samples(probability_schedule=growth, scheduled_rounds=150),
            epochs=1,
            steps_per_epoch=150,
            verbose=0,
            callbacks=[keep],
        )

        expected = [0.1] * 41 + [0.2] * 60 + [0.3] * 49
        for number, probabilities in enumerate(held):
            assert probabilities[: number + 1] == expected[: number + 1]
        assert any(len(each) > n + 1 for n, each in enumerate(held))
        (run,) = found.optimizer.ledger.runs
        assert [p for p, _, _ in numbers(run)] == expected

    def test_goes_on_where_an_earlier_fit_left_the_noise(self) -> None:
        found = private(ScheduledQuery(average(), ROUNDS, noise=DECAY))

        for _ in range(3):
            found.fit(samples(), epochs=1, verbose=0)

        runs = found.optimizer.ledger.runs
        noises = [noise for run in runs for _, _, noise in numbers(run)]
        assert len(noises) == ROUNDS
        np.testing.assert_allclose(
            noises,
            [2.0 * (1 - 0.5 * step / ROUNDS) for step in range(ROUNDS)],
            rtol=1e-5,
        )
        with pytest.raises(ValueError, match=r"^`rounds` must be at least"):
            found.fit(samples(), epochs=1, verbose=0)
        assert len(found.optimizer.ledger) == ROUNDS

    @pytest.mark.parametrize(
        ("query", "sampler"),
        [
            (ScheduledQuery(average(), 11, noise=[1.0] * 11), samples()),
            (
                NestedQuery(
                    [ScheduledQuery(average(), 11, noise=[1.0] * 11)] * 2
                ),
                samples(),
            ),
            (average(), growing(11)),
        ],
        ids=["noise", "nest", "samples"],
    )
    def test_is_no_longer_than_its_schedule(self, query, sampler) -> None:
        found = private(query)

        with pytest.raises(ValueError, match=r"must be at least|must not end"):
            found.fit(sampler, epochs=3, verbose=0)

        assert not found.optimizer.ledger.runs

    def test_ends_before_it_would_exceed_the_target(self) -> None:
        found = private(ScheduledQuery(average(), ROUNDS, noise=DECAY))

        found.fit(
            growing(), epochs=3, verbose=0, target_epsilon=2.0, delta=DELTA
        )

        (run,) = found.optimizer.ledger.runs
        rounds = [r for r, count in run.rounds for _ in range(count)]
        assert 0 < len(rounds) < ROUNDS
        assert run.plan == run.rounds
        assert Fourier().epsilon(run, delta=DELTA) <= 2.0
        assert found.optimizer.ledger.runs[0].outcome in ("finished", "budget")


class TestMakePrivate:
    def made(self, given=None, **changes):
        arguments = {
            "ledger": PrivacyLedger.in_memory(dataset="d"),
            "target_epsilon": 3.0,
            "delta": DELTA,
            "epochs": 3,
            "verbose": False,
            **changes,
        }
        return keras_dp.make_private(model(), given or data(), **arguments)

    @pytest.mark.parametrize("grows", [False, True])
    def test_spends_the_target_in_the_rounds_of_a_schedule(self, grows) -> None:
        given, size = (
            (growing(), {}) if grows else (data(), {"batch_size": 100})
        )
        found = self.made(given, noise=DECAY, **size)

        found.fit(verbose=0)

        own = found.optimizer.ledger
        (run,) = own.runs
        assert (len(run), run.plan) == (ROUNDS, run.rounds)
        assert 3 * (1 - 2e-5) <= Fourier().epsilon(own, delta=DELTA) <= 3
        factors = [noise for _, _, noise in numbers(run)]
        np.testing.assert_allclose(
            np.array(factors) / factors[0],
            [1 - 0.5 * step / ROUNDS for step in range(ROUNDS)],
            rtol=1e-5,
        )
        with pytest.raises((BudgetExceededError, ValueError)):
            found.fit(verbose=0)

    def test_takes_factors_in_an_array(self) -> None:
        factors = np.linspace(1.0, 0.5, ROUNDS)

        listed, in_array = (
            self.made(noise=noise, batch_size=100).optimizer.query
            for noise in (factors.tolist(), factors)
        )

        assert in_array == listed

    def test_says_that_an_interrupted_schedule_does_not_go_on(self) -> None:
        """The plan of the first call has spent nearly all of the target."""

        def stop(batch, logs):
            first.stop_training = True

        first = self.made(noise=DECAY, batch_size=100)
        stopping = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
        first.fit(verbose=0, callbacks=[stopping])
        own = first.optimizer.ledger

        with pytest.raises(CalibrationError, match="go on with a schedule"):
            self.made(noise=DECAY, batch_size=100, ledger=own)

    def test_costs_what_the_closed_form_says_without_sampling(self) -> None:
        """Gaussian sums of all records add up as 1 / z^2."""
        found = self.made(
            batch_size=400, noise=lambda step: 1 / (1 + step), epochs=4
        )

        z = found.optimizer.query.query.noise_multiplier
        together = z / math.sqrt(sum((1 + step) ** 2 for step in range(4)))
        alone = Round(FullDataset(), (GaussianSum("all", 1.0, together),))
        assert AnalyticGaussian().epsilon(
            [(alone, 1)], delta=DELTA
        ) == pytest.approx(3.0, rel=1e-4)

    def test_divides_by_what_samples_have_on_average(self) -> None:
        query = self.made(growing()).optimizer.query

        assert query.divisor == tuple([1.0] * 6 + [2.0] * 6)
        assert (query.noise, query.query.denominator) == (None, 100)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"noise": [1.0] * 11}, "`noise` must have"),
            ({"noise": [0.0] * 12}, "`noise` must be finite"),
            ({"given": growing(11)}, "`scheduled_rounds` must be at least"),
        ],
        ids=["short", "zero", "samples"],
    )
    def test_refuses_what_cannot_be(self, changes, message) -> None:
        ledger = PrivacyLedger.in_memory(dataset="d")
        size = {} if "given" in changes else {"batch_size": 100}

        with pytest.raises(ValueError, match=f"^{message}"):
            self.made(ledger=ledger, **size, **changes)

        assert not ledger.runs
