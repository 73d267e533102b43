"""Own loops get what `fit` would apply, and the ledger covers all of it."""

import contextlib
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import keras_dp
from keras_dp import _reproducible
from keras_dp.accountants.replay import Replay
from keras_dp.errors import (
    BudgetExceededError,
    LedgerWriteError,
    PrivateTrainingError,
    UnsupportedLayerError,
)
from keras_dp.keras_internals import seed_generators_of
from tests.private_models import adaptive_average, private_of
from tests.slow_loop import flat

RECORDS, FEATURES, RATE = 60, 5, 0.5
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def data():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(RECORDS, FEATURES)).astype("float32")
    return x, generator.integers(0, 3, size=RECORDS)


def samples(**options):
    return keras_dp.PoissonBatches(
        data(), sampling_probability=0.5, seed=5, **options
    )


def new_model(*hidden):
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            layers.Dense(4, activation="tanh", kernel_regularizer="l2"),
            *hidden,
            layers.Dense(3),
        ]
    )


def new_ledger():
    return keras_dp.PrivacyLedger.in_memory(dataset="test")


def average(noise_multiplier=0.0):
    return keras_dp.GaussianAverageQuery(
        1.0, noise_multiplier=noise_multiplier, denominator=30
    )


def gradients_of(model, ledger=None, query=None, **options):
    options.setdefault("self_check_examples", 0)
    return keras_dp.PrivateGradients(
        model,
        LOSS,
        query=query or average(),
        ledger=ledger or new_ledger(),
        **options,
    )


class TestTheAnswers:
    @pytest.mark.full
    @pytest.mark.parametrize(
        ("query", "options"),
        [
            (average, {}),
            (average, {"physical_batch_size": 8}),
            (lambda: average(1.0), {}),
            (lambda: adaptive_average(1.0, 30), {}),
        ],
        ids=["noiseless", "parts", "noise", "adaptive"],
    )
    def test_are_what_fit_applies_and_records(self, query, options) -> None:
        fitted, fit_ledger = new_model(), new_ledger()
        private = private_of(
            fitted, query(), fit_ledger, rate=RATE, seed=7, loss=LOSS
        )
        own, own_ledger = new_model(), new_ledger()
        optimizer = keras.optimizers.SGD(RATE)

        private.fit(samples(**options), steps_per_epoch=4, verbose=0)
        gradients = gradients_of(own, own_ledger, query(), seed=7)
        for answer in gradients.over(samples(**options), rounds=4):
            optimizer.apply(answer, own.trainable_variables)

        # A few roundings in float32 of numbers of order 1.
        np.testing.assert_allclose(flat(own), flat(fitted), atol=2e-6)
        assert own_ledger.rounds == fit_ledger.rounds
        assert own_ledger.unsettled == 0

    @pytest.mark.full
    def test_are_of_the_weights_at_the_time(self) -> None:
        """A bias that the caller moves moves the next answer."""
        model = new_model()
        every = keras_dp.PoissonBatches(data(), sampling_probability=1.0)
        answers = gradients_of(model).over(every, rounds=3)

        first, second = next(answers), next(answers)
        model.layers[-1].bias.assign([5.0, 0.0, 0.0])
        third = next(answers)

        np.testing.assert_allclose(first[-1], second[-1], atol=1e-6)
        assert np.abs(third[-1] - second[-1]).max() > 0.1


class TestTheLedger:
    @pytest.mark.full
    def test_covers_each_answer_that_is_out(self) -> None:
        ledger = new_ledger()

        answers = gradients_of(new_model(), ledger).over(samples(), rounds=6)
        for number, _ in enumerate(answers, 1):
            assert len(ledger) >= number

    @pytest.mark.full
    @pytest.mark.parametrize("leave", ["break", "exception"])
    def test_is_settled_when_the_loop_is_left(self, leave) -> None:
        ledger = new_ledger()
        gradients = gradients_of(new_model(), ledger)
        answers = gradients.over(samples(), rounds=50)

        with contextlib.suppress(ZeroDivisionError):
            for number, _ in enumerate(gradients.over(samples(), rounds=50)):
                if number == 4 and leave == "exception":
                    raise ZeroDivisionError
                if number == 4:
                    break
        assert (len(ledger), ledger.unsettled) == (5, 0)
        next(answers)
        answers.close()

        assert (len(ledger), ledger.unsettled) == (6, 0)

    @pytest.mark.full
    def test_stays_below_a_target_with_two_models(self) -> None:
        """The second one that plans to go as far as the target is refused."""
        ledger = new_ledger()
        models = [
            gradients_of(new_model(), ledger, average(4.0)) for _ in range(3)
        ]
        terms = {"target_epsilon": 2.0, "delta": 1e-5}

        turns = zip(
            *(each.over(samples(), rounds=3, **terms) for each in models[:2]),
            strict=True,
        )
        assert len(list(turns)) == 3
        assert len(list(models[2].over(samples(), **terms, rounds=1000))) > 2
        assert ledger.unsettled == 0
        assert Replay(ledger).claim(delta=1e-5).epsilon <= 2.0
        with pytest.raises(BudgetExceededError, match="larger target"):
            next(models[0].over(samples(), **terms, rounds=1))

    @pytest.mark.full
    def test_that_cannot_be_written_ends_the_answers(self, tmp_path) -> None:
        ledger = keras_dp.PrivacyLedger.open(tmp_path / "l", dataset="test")
        # Adapts, so that each round is a block of its own.
        gradients = gradients_of(new_model(), ledger, adaptive_average(1.0, 30))
        answers = gradients.over(samples(), rounds=9)
        next(answers)

        ledger.close()

        with pytest.raises(LedgerWriteError):
            next(answers)


class TestSideQueries:
    def test_metrics_are_those_of_each_round_alone(self) -> None:
        """A count of all records of a sample, with no noise."""
        classes = keras_dp.training.PrivateClassCounts(
            keras_dp.dp_queries.GaussianSumQuery(1.0, 0.0), 3
        )
        ledger = new_ledger()
        gradients = gradients_of(
            new_model(), ledger, private_metrics={"labels": classes}
        )
        assert gradients.metrics == {}

        counts = []
        for _ in gradients.over(samples(), rounds=3):
            assert sorted(gradients.metrics) == [f"labels_{i}" for i in "012"]
            counts.append(sum(gradients.metrics.values()))

        drawn = itertools.islice(samples(), 3)
        sizes = [int(batch.mask.sum()) for batch in drawn]
        assert counts == sizes
        (round_,) = ledger.rounds
        names = [query.name for query in round_[0].queries]
        assert names == ["gradients", "metrics/labels"]


class TestRefused:
    @pytest.mark.full
    def test_are_two_iterations_at_once(self) -> None:
        gradients = gradients_of(new_model())
        first, second = (gradients.over(samples()) for _ in range(2))
        next(first)

        with pytest.raises(PrivateTrainingError, match="inside another"):
            next(second)

    def test_is_another_choice_of_what_is_trained(self) -> None:
        """As where a GAN freezes the discriminator the usual way."""
        model, ledger = new_model(), new_ledger()
        answers = gradients_of(model, ledger).over(samples(), rounds=9)
        next(answers)

        model.trainable = False

        with pytest.raises(PrivateTrainingError, match="what is trainable") as (
            error
        ):
            next(answers)
        assert "make new PrivateGradients" in str(error.value)
        assert (len(ledger), ledger.unsettled) == (1, 0)

    def test_are_batches_that_the_library_did_not_draw(self) -> None:
        with pytest.raises(TypeError, match="`samples` must be"):
            gradients_of(new_model()).over(data())

    def test_are_layers_in_which_examples_interact(self) -> None:
        ledger = new_ledger()
        gradients = gradients_of(new_model(layers.BatchNormalization()), ledger)

        with pytest.raises(UnsupportedLayerError):
            next(gradients.over(samples()))
        assert len(ledger) == 0

    def test_is_a_strategy(self) -> None:
        with (
            tf.distribute.MirroredStrategy(["CPU:0"]).scope(),
            pytest.raises(PrivateTrainingError, match="without a strategy"),
        ):
            gradients_of(new_model())


def test_no_answer_is_out_before_the_seeds_of_layers_are_replaced() -> None:
    """A model that the loop saves tells nothing of the rows' randomness."""
    model = new_model(layers.Dropout(0.5, seed=3))
    (generator,) = seed_generators_of(model)
    used = []

    token = _reproducible._is_on.set(False)  # As in a user's program.
    try:
        for _ in gradients_of(model).over(samples(), rounds=3):
            used.append(int(generator.state.numpy()[0]))
    finally:
        _reproducible._is_on.reset(token)

    assert len(set(used)) == 3
