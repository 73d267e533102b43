"""Trainings with correlated noise: their ledger, and what is refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dp
from keras_dp.accountants import Fourier
from keras_dp.budgets import RenyiFilter, open_account
from keras_dp.dp_queries import CorrelatedSumQuery, NormalizedQuery
from keras_dp.errors import CalibrationError
from keras_dp.ledger import BandedToeplitz
from keras_dp.planning import plan_correlated_noise
from keras_dp.sampling import (
    CyclicPoissonBatches,
    PoissonBatches,
    RandomMicrobatches,
)
from tests.private_models import private_of

RECORDS, CLASSES, PROBABILITY, ROUNDS = 60, 3, 0.5, 10
DELTA = 1e-5
SHAPES = [(4, 1), (1,)]
STRATEGY = BandedToeplitz((1.0, 0.6, 0.3))


def records():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(RECORDS, 4)).astype("float32")
    return x, (x[:, :1] > 0).astype("float32")


def samples():
    return CyclicPoissonBatches(
        records(), classes=CLASSES, sampling_probability=PROBABILITY
    )


def query(noise_multiplier=2.0, rounds=ROUNDS):
    specs = [tf.TensorSpec(shape) for shape in SHAPES]
    return NormalizedQuery(
        CorrelatedSumQuery(STRATEGY, 1.0, noise_multiplier, rounds, specs), 10
    )


def private_model(asked, ledger):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    return private_of(model, asked, ledger, loss=loss)


@pytest.fixture
def ledger():
    return keras_dp.PrivacyLedger.in_memory(dataset="test")


@pytest.mark.full
class TestATraining:
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

    def test_keeps_to_its_plan_in_microbatches(self, ledger) -> None:
        """An example moves two of them, in the plan as in the rounds."""
        grouped = PoissonBatches(
            records(),
            sampling_probability=0.5,
            microbatches=RandomMicrobatches(2),
        )

        private_model(query(rounds=3), ledger).fit(
            grouped, epochs=1, steps_per_epoch=3, verbose=0
        )

        (run,) = ledger.runs
        assert run.plan == run.rounds
        assert run.plan[0].round.queries[0].l2_norm_bound == 2.0


def bands_of(private):
    """Returns what was chosen of bands, and why."""
    return [
        (value, why)
        for name, value, why in private.settings.choices
        if name == "bands"
    ]


class TestMakePrivate:
    def made(self, ledger, given=None, model=None, **changes):
        generator = np.random.default_rng(0)
        x = generator.normal(size=(2_000, 4)).astype("float32")
        model = model or keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", loss="mse")
        arguments = {
            "ledger": ledger,
            "target_epsilon": 4.0,
            "delta": DELTA,
            "epochs": 1,
            "batch_size": 40,
            "noise": "correlated",
            **changes,
        }
        return keras_dp.make_private(model, given or (x, x[:, :1]), **arguments)

    @pytest.mark.full
    def test_takes_the_best_plan_and_says_so(self, ledger) -> None:
        best, *others = plan_correlated_noise(
            50, sampling_probability=0.02, target_epsilon=4.0, delta=DELTA
        )
        alone = next(each for each in others if each.classes == 1)

        private = self.made(ledger)
        private.fit(verbose=0)

        inner = private.optimizer.query.numerator_query
        assert (inner.strategy, inner.rounds) == (best.strategy, 50)
        assert inner.noise_multiplier == pytest.approx(
            best.noise_multiplier, rel=1e-5
        )
        assert private.settings.samples.classes == best.classes > 1
        assert private.settings.samples.expected_sample_size == pytest.approx(
            40
        )
        ((value, why),) = bands_of(private)
        assert f"{best.sum_noise / alone.sum_noise:.0%} of the noise" in why
        assert value == f"{best.classes} bands"
        ledger.verify()
        assert len(ledger) == 50
        epsilon = Fourier().epsilon(ledger, delta=DELTA)
        assert 4.0 * (1 - 1e-4) <= epsilon <= 4.0

    def test_takes_independent_noise_where_it_is_no_worse(self, ledger) -> None:
        size = {"batch_size": 400, "target_epsilon": 1.0}

        private = self.made(ledger, **size)

        other = keras_dp.PrivacyLedger.in_memory(dataset="other")
        plain = self.made(other, noise="independent", **size)
        assert private.optimizer.query == plain.optimizer.query
        assert isinstance(private.settings.samples, PoissonBatches)
        assert [value for value, _ in bands_of(private)] == ["none"]
        assert bands_of(plain) == []

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"noise": "pink"}, '`noise` must be .*"proven"'),
            ({"given": samples(), "batch_size": None}, "`noise` must be"),
            ({"l2_norm_clip": "automatic"}, "`l2_norm_clip` must be a number"),
            ({"account": True}, "`noise` must be independent"),
            ({"noise": [1.0] * 60}, "`noise` must be"),
            ({"noise": None}, "`noise` must be"),
        ],
        ids=["text", "sampler", "clip", "account", "numbers", "none"],
    )
    def test_refuses_what_does_not_go_together(
        self, ledger, changes, message
    ) -> None:
        if changes.pop("account", False):
            open_account(ledger, "all", RenyiFilter(8.0, DELTA))
        before = len(ledger), ledger.runs

        with pytest.raises(ValueError, match=f"^{message}"):
            self.made(ledger, **changes)

        assert (len(ledger), ledger.runs) == before

    def test_refuses_statistics_that_share_the_noise(self, ledger) -> None:
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.BatchNormalization()]
        )
        options = {"noise": STRATEGY, "batch_statistics": "auto"}

        with pytest.raises(ValueError, match=r"^`noise` must be independent"):
            self.made(ledger, model=model, **options)
        assert not ledger.runs

    @pytest.mark.full
    def test_after_a_crash_it_is_a_new_mechanism_and_says_so(
        self, ledger
    ) -> None:
        def stop(batch, logs):
            if batch == 5:
                raise KeyboardInterrupt

        first = self.made(ledger, noise=STRATEGY)
        with pytest.raises(KeyboardInterrupt):
            first.fit(
                verbose=0,
                callbacks=[keras.callbacks.LambdaCallback(on_batch_end=stop)],
            )
        spent = Fourier().epsilon(ledger, delta=DELTA)
        with pytest.raises(ValueError, match="44 rounds that are left of the"):
            first.fit(verbose=0)
        with pytest.raises(CalibrationError, match="correlated noise is never"):
            self.made(ledger, noise=STRATEGY)

        second = self.made(ledger, noise=STRATEGY, target_epsilon=8.0)
        second.fit(verbose=0)

        assert spent == pytest.approx(4.0, rel=1e-4)
        assert len(ledger) == 6 + 50
        first_id, second_id = (
            run.rounds[0].round.queries[0].mechanism_id for run in ledger.runs
        )
        assert first_id != second_id
        assert Fourier().epsilon(ledger, delta=DELTA) <= 8.0
        assert "is a new mechanism" in second.settings.choices[0].reason
