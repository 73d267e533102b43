"""Samplers other than Poisson's train the same way, and the ledger says how."""

import keras
import numpy as np
import pytest

import keras_dp
from keras_dp.accountants.normalize.samplings import strongest_neighbours
from keras_dp.ledger import BinaryTree, FixedSizeWithoutReplacement
from tests.private_models import correlated_average, private_of

RECORDS, FEATURES, SIZE = 50, 3, 8
LOSS = keras.losses.BinaryCrossentropy(from_logits=True)
SAMPLERS = {
    "fixed size": lambda data, **options: keras_dp.sampling.FixedSizeBatches(
        data, sample_size=SIZE, **options
    ),
    "truncated": lambda data, **options: keras_dp.PoissonBatches(
        data, sampling_probability=SIZE / RECORDS, truncate_at=30, **options
    ),
    "shuffled": lambda data, **options: keras_dp.sampling.ShuffledBatches(
        data, batch_size=SIZE, **options
    ),
}


def data():
    x = np.random.default_rng(0).normal(size=(RECORDS, FEATURES))
    x = x.astype("float32")
    return x, (x[:, :1] > 0).astype("float32")


def new_model():
    keras.utils.set_random_seed(3)
    return keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1)])


def compiled(ledger, noise_multiplier=4.0, query=None):
    query = query or keras_dp.GaussianAverageQuery(
        1.0, noise_multiplier=noise_multiplier, denominator=SIZE
    )
    return private_of(new_model(), query, ledger, rate=0.5, loss=LOSS)


@pytest.fixture
def ledger():
    return keras_dp.PrivacyLedger.in_memory(dataset="test")


# Others are asked the same: each fit is traced anew.
@pytest.fixture(
    params=[
        "fixed size",
        pytest.param("truncated", marks=pytest.mark.full),
        pytest.param("shuffled", marks=pytest.mark.full),
    ]
)
def new_samples(request):
    return SAMPLERS[request.param]


class TestEverySampler:
    def test_trains_and_learns(self, ledger, new_samples) -> None:
        private = compiled(ledger, noise_multiplier=1e-3)
        samples = new_samples(data())

        history = private.fit(samples, epochs=20, verbose=0)

        assert history.history["loss"][-1] < 0.7 * history.history["loss"][0]
        assert len(ledger) == 20 * samples.rounds_per_epoch

    def test_is_evaluated_in_order(self, ledger, new_samples) -> None:
        private = compiled(ledger)
        x, y = data()

        loss = private.evaluate(new_samples((x, y)), verbose=0)

        assert loss == pytest.approx(private.evaluate(x, y, verbose=0))
        assert private.predict(new_samples((x, y)), verbose=0).shape == (50, 1)

    def test_drives_a_loop_of_ones_own(self, ledger, new_samples) -> None:
        gradients = keras_dp.PrivateGradients(
            new_model(),
            LOSS,
            query=keras_dp.GaussianAverageQuery(1.0, 1.0, denominator=SIZE),
            ledger=ledger,
            self_check_examples=0,
        )

        answers = list(gradients.over(new_samples(data()), rounds=9))

        assert len(answers) == len(ledger) == 9

    @pytest.mark.full
    def test_meets_a_target(self, ledger, new_samples) -> None:
        private = keras_dp.make_private(
            new_model(),
            new_samples(data()),
            target_epsilon=5.0,
            delta=1e-3,
            epochs=3,
            ledger=ledger,
            loss=LOSS,
            optimizer="sgd",
            verbose=False,
        )

        history = private.fit(verbose=0)

        assert len(ledger) == 3 * private.settings.samples.rounds_per_epoch
        assert 4.9 < history.history["epsilon"][-1] <= 5.0
        found = keras_dp.budgets.guarantee(ledger, delta=1e-3)
        assert found.basis == "plan"
        assert found.ex_post is None


def test_samples_of_fixed_size_are_recorded(ledger) -> None:
    compiled(ledger).fit(SAMPLERS["fixed size"](data()), epochs=2, verbose=0)

    ((round_, count),) = ledger.rounds
    assert round_.sampling == FixedSizeWithoutReplacement(8, 50, True)
    assert count == 12
    assert strongest_neighbours(ledger) == "replace_one"


class TestShuffledPasses:
    def test_are_recorded_each_under_an_id(self, ledger) -> None:
        samples = SAMPLERS["shuffled"](data())

        compiled(ledger).fit(samples, epochs=3, verbose=0)

        epochs = [round_.sampling for round_, _ in ledger.rounds]
        assert [count for _, count in ledger.rounds] == [7, 7, 7]
        assert len({each.epoch_id for each in epochs}) == 3
        assert all(each.drawn_by_library for each in epochs)
        (run,) = ledger.runs
        assert run.plan == tuple(ledger.rounds)
        assert keras_dp.budgets.guarantee(ledger, delta=1e-5).basis == "plan"

    def test_need_not_be_the_epochs_of_fit(self, ledger) -> None:
        samples = SAMPLERS["shuffled"](data())

        compiled(ledger).fit(samples, epochs=2, steps_per_epoch=10, verbose=0)

        assert [count for _, count in ledger.rounds] == [7, 7, 6]
        assert ledger.runs[0].plan == tuple(ledger.rounds)

    def test_begin_anew_where_training_does(self, ledger) -> None:
        """No pass goes on after its training: ids would cover records twice."""
        samples, private = SAMPLERS["shuffled"](data()), compiled(ledger)

        for _ in range(3):
            private.fit(samples, steps_per_epoch=2, verbose=0)

        assert [count for _, count in ledger.rounds] == [2, 2, 2]
        assert len({each.sampling.epoch_id for each, _ in ledger.rounds}) == 3

    def test_go_on_from_a_backup_with_a_new_pass(
        self, ledger, tmp_path
    ) -> None:
        """What a dead training drew is not drawn again under its ids."""

        class DiedError(Exception):
            pass

        class Dies(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                if len(ledger) > 7 and batch == 2:
                    raise DiedError

        samples = SAMPLERS["shuffled"](data())
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
        with pytest.raises(DiedError):
            compiled(ledger).fit(
                samples, epochs=3, verbose=0, callbacks=[backup, Dies()]
            )
        compiled(ledger).fit(samples, epochs=3, verbose=0, callbacks=[backup])

        assert [count for _, count in ledger.rounds] == [7, 3, 7, 7]
        assert len({each.sampling.epoch_id for each, _ in ledger.rounds}) == 4

    def test_carry_trees(self, ledger) -> None:
        query = correlated_average(
            new_model(), BinaryTree(), 8.0, 7 * 50, SIZE, restart_after=7
        )

        compiled(ledger, query=query).fit(
            SAMPLERS["shuffled"](data()),
            epochs=50,
            target_epsilon=3.0,
            delta=1e-3,
            verbose=0,
        )

        fourier = keras_dp.accountants.Fourier()
        assert 2.0 < fourier.epsilon(ledger, delta=1e-3) <= 3.0
        assert len(ledger) % 7 == 0


class TestTruncatedSamples:
    def test_are_paid_by_a_plan(self, ledger) -> None:
        """What they add to delta is composed with the plan."""
        samples = SAMPLERS["truncated"](data())
        query = keras_dp.ledger.GaussianSum("gradients", 1.0, 4.0)
        step = keras_dp.ledger.Round(samples.sampling_event, (query,))
        budget = keras_dp.budgets.FixedPlan([(step, 8)], 2.0, 1e-3)
        keras_dp.budgets.open_account(ledger, "all", budget)

        for expected in (6, 8):
            compiled(ledger).fit(samples, verbose=0)
            assert len(ledger) == expected

        keras_dp.budgets.verify_prices(ledger)
        found = keras_dp.budgets.guarantee(ledger, delta=1e-3)
        assert found.basis == "account"
        assert found.claim.epsilon == budget.cost

    def test_are_paid_by_no_filter(self, ledger) -> None:
        budget = keras_dp.budgets.RenyiFilter(2.0, 1e-3)
        keras_dp.budgets.open_account(ledger, "all", budget)

        with pytest.raises(
            keras_dp.errors.UnsupportedEventError, match="Fixed"
        ):
            compiled(ledger).fit(SAMPLERS["truncated"](data()), verbose=0)

        assert len(ledger) == 0
