"""A simulation has the signal and the noise of the private training."""

import keras
import numpy as np
import pytest

import keras_dp
from keras_dp.dp_queries import GaussianSumQuery, ScheduledQuery
from keras_dp.errors import PrivateTrainingError


def private_model(**options):
    """Returns a private training of 4 rounds on 64 records."""
    x = np.ones([64, 3], "float32")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    given = {
        "loss": "mse",
        "target_epsilon": 3.0,
        "epochs": 2,
        "batch_size": 32,
        "ledger": keras_dp.PrivacyLedger.in_memory(dataset="private"),
        "verbose": False,
        **options,
    }
    return keras_dp.make_private(model, (x, x[:, :1]), **given)


def public(records=16):
    x = np.zeros([records, 3], "float32")
    return x, x[:, :1]


class TestSimulation:
    def test_divides_samples_and_noise_and_keeps_the_rest(self) -> None:
        private = private_model(l2_norm_clip=0.5)

        found = keras_dp.simulation_of(private, public(), divided_by=4)

        query, of = found.optimizer.query, private.optimizer.query
        assert found.samples.expected_sample_size == 8
        assert query.denominator == of.denominator / 4
        assert query.sum_stddev == of.sum_stddev / 4
        assert query.l2_norm_clip == 0.5
        inner = found.optimizer.inner.get_config()
        assert inner == private.optimizer.inner.get_config()

    def test_trains_a_copy_for_as_many_rounds(self) -> None:
        private = private_model()
        before = private.model.get_weights()
        found = keras_dp.simulation_of(private, public())
        at_begin = found.model.get_weights()

        history = found.fit(verbose=0)

        assert found.optimizer.rounds_released == 4
        assert len(private.optimizer.required_ledger()) == 0
        for one, other in zip(before, at_begin, strict=True):
            np.testing.assert_array_equal(one, other)
        for one, other in zip(before, private.model.get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)
        assert np.any(found.model.get_weights()[0] != before[0])
        assert "epsilon" not in history.history

    def test_walks_as_far_as_the_private_training(self) -> None:
        """Without gradients, only noise moves the weights.

        The root mean square of 2,000 weights has a relative standard error of
        1.6 %.
        """
        x = np.zeros([64, 2000], "float32")
        model = keras.Sequential(
            [keras.Input((2000,)), keras.layers.Dense(1, "linear", False)]
        )
        private = keras_dp.make_private(
            model,
            (x, x[:, :1]),
            loss="mse",
            optimizer=keras.optimizers.SGD(0.1),
            target_epsilon=3.0,
            epochs=2,
            batch_size=32,
            average=None,
            ledger=keras_dp.PrivacyLedger.in_memory(dataset="zeros"),
            verbose=False,
        )
        simulation = keras_dp.simulation_of(private, (x, x[:, :1]))
        query = private.optimizer.query
        start = model.get_weights()[0]
        simulation.fit(verbose=0)
        private.fit(verbose=0)

        def walked(of):
            return np.sqrt(np.mean((of.model.get_weights()[0] - start) ** 2))

        stddev = 0.1 * query.sum_stddev / query.denominator * 2
        assert walked(private) == pytest.approx(stddev, rel=0.1)
        assert walked(simulation) == pytest.approx(stddev, rel=0.1)

    def test_follows_a_schedule_of_noise(self) -> None:
        private = private_model(noise=[1.0, 1.0, 2.0, 2.0])

        query = keras_dp.simulation_of(private, public()).optimizer.query

        assert isinstance(query, ScheduledQuery)
        assert query.noise == (1.0, 1.0, 2.0, 2.0)

    def test_says_nothing_of_its_small_noise(self, caplog) -> None:
        private = private_model()
        simulation = keras_dp.simulation_of(private, public(), divided_by=16)
        caplog.clear()

        simulation.fit(verbose=0)

        assert not caplog.records

    def test_while_such_noise_is_warned_of_elsewhere(self, caplog) -> None:
        """A control of the test above."""
        simulation = keras_dp.simulation_of(
            private_model(), public(), divided_by=16
        )
        private = keras_dp.PrivateModel(simulation.model)
        private.compile(simulation.optimizer, "mse")

        private.fit(simulation.samples, verbose=0)

        assert "is only" in caplog.text


class TestRefusals:
    def test_of_other_data(self) -> None:
        simulation = keras_dp.simulation_of(private_model(), public())
        samples = keras_dp.PoissonBatches(public(), sampling_probability=0.5)

        with pytest.raises(PrivateTrainingError, match="public data"):
            simulation.fit(samples, verbose=0)
        with pytest.raises(PrivateTrainingError, match="public data"):
            simulation.train_on_batch(*public())

    @pytest.mark.parametrize("divided_by", [1.0, 64.0])
    def test_of_samples_that_are_too_large_or_small(self, divided_by) -> None:
        with pytest.raises(ValueError, match="at most all 16 public records"):
            keras_dp.simulation_of(
                private_model(), public(), divided_by=divided_by
            )

    def test_of_a_model_without_samples(self) -> None:
        with pytest.raises(ValueError, match="by make_private"):
            keras_dp.simulation_of(
                keras_dp.PrivateModel(keras.Sequential()), public()
            )

    def test_of_samples_as_data(self) -> None:
        private = private_model()

        with pytest.raises(TypeError, match="public records"):
            keras_dp.simulation_of(private, private.samples)

    def test_of_other_samples(self) -> None:
        private = private_model()
        private.samples = keras_dp.sampling.ShuffledBatches(
            public(64), batch_size=32
        )

        with pytest.raises(PrivateTrainingError, match="ShuffledBatches"):
            keras_dp.simulation_of(private, public())

    def test_of_other_queries(self) -> None:
        private = private_model()
        private.compile(
            keras_dp.DPOptimizer(
                keras.optimizers.SGD(0.1),
                query=GaussianSumQuery(1.0, 1.0),
                ledger=private.optimizer.required_ledger(),
            ),
            "mse",
        )

        with pytest.raises(PrivateTrainingError, match="GaussianAverage"):
            keras_dp.simulation_of(private, public())
