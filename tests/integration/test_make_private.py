"""One call makes a private training that meets its target."""

import dataclasses
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dp
from keras_dp import accountants, budgets, planning
from keras_dp.accountants.replay import Replay
from keras_dp.errors import (
    BudgetExceededError,
    CalibrationError,
    PrivateTrainingError,
    UnsupportedLayerError,
)
from keras_dp.ledger import GaussianSum, PoissonSampling, PrivacyLedger
from keras_dp.sampling import RandomMicrobatches

TIGHT = accountants.Fourier()
# Noise is rounded up to six digits, by a share of 1e-5 at most. Epsilon moves
# by less than the square of that.
ROUNDED = 2e-5
# What fit adds to the history of a training with a target.
OF_PRIVACY = ("signal_to_noise", "epsilon", "rounds_left")
SEEDS = keras.random.SeedGenerator(0)


def data(records=800):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(records, 5)).astype("float32")
    return x, (x.sum(1) > 0).astype("float32")[:, np.newaxis]


def model(**compiled):
    found = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
    if compiled:
        found.compile(**compiled)
    return found


def ledger():
    return PrivacyLedger.in_memory(dataset="clinic", unit="patient")


def made(given=None, records=None, **changes):
    fields = [each.name for each in dataclasses.fields(keras_dp.Records)]
    about = {name: changes.pop(name) for name in fields if name in changes}
    records = data() if records is None else records
    if about:
        records = keras_dp.Records(records, **about)
    arguments = {
        "ledger": ledger(),
        "target_epsilon": 2.0,
        "epochs": 2,
        "batch_size": 80,
        "delta": 1e-4,
        "loss": "mse",
        "verbose": False,
    }
    return keras_dp.make_private(
        given or model(), records, **(arguments | changes)
    )


def said(private):
    """Returns what was chosen, in one line."""
    return " ".join(str(private.settings).split())


class TestWhatItMakes:
    def test_ends_when_the_target_is_reached(self) -> None:
        """It spends the target in the epochs that were planned."""
        private = made()

        history = private.fit(epochs=9, verbose=0).history

        own = private.optimizer.ledger
        assert len(history["epsilon"]) == 2
        assert len(own) == 20
        assert 2 * (1 - ROUNDED) <= TIGHT.epsilon(own, delta=1e-4) <= 2
        with pytest.raises(BudgetExceededError):
            private.fit(verbose=0)

    def test_takes_what_is_left_of_a_ledger(self, tmp_path) -> None:
        path = tmp_path / "clinic.ledger"
        with PrivacyLedger.open(path, dataset="x", unit="patient") as before:
            queries = [GaussianSum("before", 1.0, 2.0)]
            before.record(PoissonSampling(0.1), queries, count=10)
            alone = TIGHT.epsilon(before, delta=1e-4)

        private = made(ledger=path)
        private.fit(epochs=2, verbose=0)

        own = private.optimizer.ledger
        assert alone < 2 * (1 - ROUNDED) <= TIGHT.epsilon(own, delta=1e-4) <= 2
        assert len(own) == 30
        own.close()

    def test_leaves_private_metrics_their_share(self) -> None:
        query = keras_dp.GaussianAverageQuery(
            1.0, noise_multiplier=6.0, denominator=80
        )
        private = made(
            private_metrics={
                "loss": keras_dp.PrivateLoss(query),
                "clipped": keras_dp.training.PrivateClippedShare(query, 1.0),
            }
        )

        history = private.fit(epochs=2, verbose=0).history

        own = private.optimizer.ledger
        assert set(history) == {"loss", "clipped", *OF_PRIVACY}
        assert len(own) == 20
        assert 2 * (1 - ROUNDED) <= TIGHT.epsilon(own, delta=1e-4) <= 2
        alone = made().optimizer.query.noise_multiplier
        assert private.optimizer.query.noise_multiplier > alone

    def test_refuses_too_small_a_target_without_a_search(
        self, monkeypatch
    ) -> None:
        """Bounds of tiny epsilons take long. The named target leaves room."""
        with monkeypatch.context() as patched:
            patched.setattr(planning.calibration, "searched", None)
            with pytest.raises(CalibrationError, match="the samp") as caught:
                made(target_epsilon=1e-6)

        (named,) = re.findall("Take target_epsilon=(.+?) ", str(caught.value))
        made(target_epsilon=float(named))

    @pytest.mark.parametrize("batch_size", [None, 80])
    def test_says_that_a_vocabulary_took_delta(self, batch_size) -> None:
        own = PrivacyLedger.in_memory(dataset="d", unit="user", rows_per_unit=5)
        words, users = ["a", "b"] * 400, np.arange(800) // 4
        keras_dp.preprocessing.StringLookup(
            noise_multiplier=5.0, threshold_delta=1e-5
        ).adapt(words, own, unit_ids=users)

        with pytest.raises(CalibrationError, match="takes a part of delta"):
            made(ledger=own, batch_size=batch_size)

    def test_says_that_metrics_keep_their_noise(self) -> None:
        query = keras_dp.GaussianAverageQuery(
            1.0, noise_multiplier=0.5, denominator=80
        )

        with pytest.raises(CalibrationError, match="have: give them more"):
            made(private_metrics={"loss": keras_dp.PrivateLoss(query)})

    def test_clips_automatically_on_request(self) -> None:
        private = made(l2_norm_clip="automatic")

        query = private.optimizer.query
        assert (query.l2_norm_clip, query.gamma) == (1.0, 0.01)
        assert query.noise_multiplier == made().optimizer.query.noise_multiplier
        assert "automatic clipping (gamma 0.01)" in said(private)
        private.fit(verbose=0)

    def test_chooses_a_batch_size_and_a_delta(self) -> None:
        private = made(batch_size=None, delta=None, epochs=10)

        rows = planning.plan(
            800,
            target_epsilon=2.0,
            delta=private.settings.target.delta,
            epochs=10,
            batch_sizes=[32, 64, 128],
        )
        assert private.settings.target.delta == 6.4e-4  # 800^-1.1 = 6.407e-4.
        size = private.settings.samples.expected_sample_size
        assert size == rows.recommended.batch_size

    @pytest.mark.parametrize(
        ("rows", "ids", "words"),
        [
            (1, None, "each is taken to be one patient"),
            (3, None, "one patient is taken to have at most 3"),
            (
                3,
                np.arange(800) // 4,
                "at most 3 of one patient are kept: 200 are left out, and 200",
            ),
        ],
        ids=["one", "several", "ids"],
    )
    def test_says_what_a_record_is_taken_for(self, rows, ids, words) -> None:
        own = PrivacyLedger.in_memory(
            dataset="d", unit="patient", rows_per_unit=rows
        )

        private = made(ledger=own, unit_ids=ids)

        assert words in said(private)
        kept = 800 if ids is None else 600
        assert private.settings.samples.population_size == kept


class TestDataOfFit:
    """`fit` has the records of `make_private`, or says what differs."""

    @pytest.mark.parametrize("rows_per_unit", [1, 2])
    def test_is_warned_of_if_nobody_capped_it(
        self, rows_per_unit, caplog
    ) -> None:
        own = PrivacyLedger.in_memory(
            dataset="d", unit="patient", rows_per_unit=rows_per_unit
        )
        private = made(ledger=own, epochs=4)
        other = keras_dp.PoissonBatches(data(), sampling_probability=0.1)

        private.fit(epochs=1, verbose=0)
        private.fit(private.settings.samples, epochs=1, verbose=0)
        assert "data of its own" not in caplog.text
        private.fit(other, epochs=1, verbose=0)

        warned = "one patient has at most 2 of its records" in caplog.text
        assert warned == (rows_per_unit == 2)


class TestWhatItTakesOver:
    def test_loss_metrics_and_optimizer_of_a_compiled_model(self) -> None:
        given = model(
            optimizer=keras.optimizers.SGD(0.25, momentum=0.5),
            loss="mae",
            metrics=["mse"],
        )

        private = made(given, loss=None, learning_rate="keep")
        history = private.fit(verbose=0).history

        inner = private.optimizer.inner
        assert inner is not given.optimizer
        assert float(inner.learning_rate) == 0.25
        assert inner.momentum == 0.5
        assert [*history] == ["loss", "mse", *OF_PRIVACY]

    @pytest.mark.parametrize(
        ("given", "expected"), [("auto", 0.42), (0.5, 0.5)], ids=str
    )
    def test_the_learning_rate_is_chosen_or_given(
        self, given, expected
    ) -> None:
        compiled = model(optimizer=keras.optimizers.SGD(0.01), loss="mse")

        private = made(compiled, learning_rate=given, l2_norm_clip=1.0)

        found = float(private.optimizer.inner.learning_rate)
        assert found == pytest.approx(expected, rel=0.3)
        assert ("times the script's" in said(private)) == (given == "auto")
        assert "of the weights of about 2 rounds" in said(private)

    def test_samples_that_were_made_before(self) -> None:
        samples = keras_dp.PoissonBatches(data(), sampling_probability=0.05)

        private = made(records=samples, batch_size=None, epochs=1)

        assert private.settings.samples is samples
        assert private.optimizer.query.denominator == 40


class TestMistakes:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"loss": None}, "`loss` must be given"),
            ({"epochs": 0}, "`epochs` must be"),
            ({"target_epsilon": 0.0}, "`target_epsilon` must be"),
            ({"delta": 2.0}, "`delta` must be"),
            ({"batch_size": 0}, "`batch_size` must be"),
            ({"batch_size": 801}, "`batch_size` must be"),
            ({"l2_norm_clip": 0.0}, "`l2_norm_clip` must be"),
            ({"l2_norm_clip": "auto"}, "`l2_norm_clip` must be"),
            ({"learning_rate": 0.0}, "`learning_rate` must be"),
            ({"learning_rate": "best"}, "`learning_rate` must be"),
            ({"average": "all"}, "`average` must be .auto. or None"),
            ({"batch_statistics": "all"}, "`batch_statistics` must"),
            ({"unit": "visits"}, "`unit` must be"),
            ({"rows_per_unit": 2}, "`rows_per_unit` must be 1"),
            ({"unit_ids": [0] * 800}, "`rows_per_unit` must be given"),
            (
                {"unit_ids": [0] * 8, "rows_per_unit": 2},
                "`unit_ids` must have one entry",
            ),
        ],
        ids=str,
    )
    def test_name_the_argument(self, changes, message) -> None:
        with pytest.raises((TypeError, ValueError), match=message):
            made(**changes)

    def test_may_be_numbers_of_numpy(self) -> None:
        """They lead to the same rounds: float32 would round what follows."""
        given = {"target_epsilon": 2.5, "l2_norm_clip": 0.5, "epochs": 2}
        numbers = {
            name: np.asarray(value, f"{type(value).__name__}32")[()]
            for name, value in given.items()
        }

        expected, found = (made(**each).settings for each in (given, numbers))

        assert found.queries.round == expected.queries.round
        assert repr(found.target) == repr(expected.target)

    @pytest.mark.parametrize("name", ["sigma", "epsilon", "unit_ids"])
    def test_hold_no_data(self, name) -> None:
        x, y = data()
        given = (x, y)
        if name == "unit_ids":  # A sampler has records of its own.
            given = keras_dp.PoissonBatches((x, y), sampling_probability=0.1)

        with pytest.raises((TypeError, ValueError)) as caught:
            keras_dp.make_private(
                model(loss="mse"),
                given,
                ledger=ledger(),
                target_epsilon=1.0,
                epochs=1,
                **{name: x},
            )

        assert name in str(caught.value)
        assert "of shape (800," in str(caught.value)
        assert f"{x[0, 0]:.4f}"[:6] not in str(caught.value)


class TestASecondTraining:
    @pytest.mark.full
    def test_is_refused_where_little_is_left(self) -> None:
        """The error names the target that gives a first one's signal."""
        own = ledger()
        made(ledger=own).fit(verbose=0)
        rounds = len(own)

        with pytest.raises(CalibrationError, match="the rest gives") as caught:
            made(ledger=own, target_epsilon=2.01)

        assert len(own) == rounds
        text = str(caught.value)
        needed = float(text.split("target_epsilon=")[-1].split(" ")[0])
        again, first = (
            made(ledger=each, target_epsilon=target).optimizer.query
            for each, target in ((own, needed), (ledger(), 2.0))
        )
        assert again.noise_multiplier == pytest.approx(
            first.noise_multiplier, rel=0.02
        )


class TestBatchNormalization:
    def network(self):
        hidden = keras.layers.BatchNormalization()
        return keras.Sequential(
            [keras.Input((5,)), hidden, keras.layers.Dense(1)]
        )

    def test_shares_the_noise_of_the_target(self) -> None:
        given = self.network()

        private = made(given, batch_statistics="auto")
        private.fit(verbose=0)

        own = private.optimizer.ledger
        ((round_, count),) = own.rounds
        assert [each.name for each in round_.queries] == [
            "gradients",
            "statistics",
        ]
        assert count == 20
        assert 2 * (1 - ROUNDED) <= TIGHT.epsilon(own, delta=1e-4) <= 2
        assert np.any(given.layers[0].moving_mean != 0)
        assert "of batch statistics" in said(private)

    def test_is_refused_by_default_with_both_remedies(self) -> None:
        with pytest.raises(UnsupportedLayerError) as caught:
            made(self.network(), loss=None)

        assert 'make_private(..., batch_statistics="auto")' in str(caught.value)
        assert "replace_batch_normalization(model)" in str(caught.value)


class TestMicrobatches:
    def test_at_random_are_calibrated_for_twice_the_clip(self) -> None:
        samples = keras_dp.PoissonBatches(
            data(), sampling_probability=0.1, microbatches=RandomMicrobatches(4)
        )
        private = made(records=samples, batch_size=None)

        private.fit(verbose=0)

        own = private.optimizer.ledger
        ((round_, count),) = own.rounds
        assert count == 20
        assert round_.queries[0].l2_norm_bound == 2 / 32
        assert private.optimizer.query.denominator == 20  # Microbatches.
        assert 2 * (1 - ROUNDED) <= TIGHT.epsilon(own, delta=1e-4) <= 2


@pytest.mark.parametrize(
    "wrong",
    [{"optimizer": "other"}, {"loss": "other"}, {"steps_per_execution": -1}],
)
def test_a_new_ledger_is_not_created_where_compiling_fails(
    tmp_path, wrong
) -> None:
    with pytest.raises(ValueError, match="|".join(wrong)):
        made(ledger=tmp_path / "a.ledger", **wrong)

    assert not (tmp_path / "a.ledger").exists()


class TestUnitsOfSeveralRows:
    def test_meet_the_target_together(self) -> None:
        own = PrivacyLedger.in_memory(
            dataset="d", unit="patient", rows_per_unit=3
        )
        private = made(ledger=own)

        history = private.fit(epochs=2, verbose=0).history

        together = Replay(own).claim(delta=1e-4)
        assert history["epsilon"][-1] == together.epsilon
        assert 2 * (1 - ROUNDED) <= together.epsilon <= 2
        assert TIGHT.epsilon(own.rounds, delta=1e-4) < 0.7

    def test_are_capped(self, tmp_path) -> None:
        """800 rows of 100 patients, of whom one has 107."""
        ids = np.concatenate([np.zeros(107, int), np.arange(693) % 99 + 1])

        private = made(
            ledger=tmp_path / "a.ledger",
            delta=None,
            unit="patient",
            unit_ids=ids,
            rows_per_unit=7,
        )

        assert private.settings.samples.population_size == 700
        assert private.settings.target.delta == 0.0063  # 100^-1.1, two digits.
        assert private.optimizer.ledger.header.rows_per_unit == 7
        private.optimizer.ledger.close()

    def test_are_no_examples_in_a_new_ledger(self, tmp_path) -> None:
        private = made(
            ledger=tmp_path / "a.ledger",
            unit_ids=np.arange(800) // 4,
            rows_per_unit=4,
        )

        assert private.optimizer.ledger.header.unit == "unit"
        private.optimizer.ledger.close()

    def test_cannot_be_capped_in_files(self, tmp_path) -> None:
        class Files:
            def __len__(self):
                return 800

            def __getitem__(self, indices):
                return tuple(each[indices] for each in data())

        with pytest.raises(TypeError, match="`unit_ids` must"):
            made(
                records=Files(),
                ledger=tmp_path / "a.ledger",
                unit_ids=np.arange(800),
                rows_per_unit=2,
            )

        assert not (tmp_path / "a.ledger").exists()

    @pytest.mark.parametrize("is_shuffled", [False, True])
    def test_are_in_the_order_of_a_data_set(self, is_shuffled) -> None:
        """Ids of a shuffled one would cap the rows of others."""
        ids = np.arange(800) // 8
        given = tf.data.Dataset.from_tensor_slices(data())
        given = (given.shuffle(800) if is_shuffled else given).batch(50)

        def capped():
            own = PrivacyLedger.in_memory(dataset="d", rows_per_unit=2)
            return made(records=given, ledger=own, unit_ids=ids)

        if is_shuffled:
            with pytest.raises(ValueError, match="`unit_ids` must"):
                capped()
        else:
            assert capped().settings.samples.population_size == 200


class TestAccounts:
    """The noise fits the target and the account that pays."""

    DELTA = 1e-4

    def opened(self, *names, epsilon=1.0):
        own = ledger()
        for name in names:
            budgets.open_account(
                own, name, budgets.RenyiFilter(epsilon, self.DELTA)
            )
        return own

    @pytest.mark.full
    def test_have_room_for_all_rounds_and_little_more(self) -> None:
        own = self.opened("all")
        private = made(ledger=own, target_epsilon=2.0)
        plain = made(target_epsilon=2.0)

        private.fit(verbose=0)

        (run,) = own.runs
        assert (run.outcome, len(run)) == ("finished", 20)
        (account,) = own.accounts
        spent = account.balance.spent[0] / account.balance.capacities[0]
        assert 1 - ROUNDED < spent <= 1
        query = private.optimizer.query
        assert query.noise_multiplier > plain.optimizer.query.noise_multiplier
        assert TIGHT.epsilon(own, delta=self.DELTA) < 1
        assert budgets.guarantee(own, delta=self.DELTA).basis == "account"

    def test_with_a_plan_are_refused_with_the_remedy(self) -> None:
        own, other = ledger(), ledger()
        made(ledger=other).fit(verbose=0)
        budgets.open_account(
            own, "all", budgets.FixedPlan(other.rounds, 3.0, self.DELTA)
        )
        made(ledger=own)  # As it was planned.

        with pytest.raises(BudgetExceededError, match="name an account with a"):
            made(ledger=own, batch_size=160)


def images(records=200):
    generator = np.random.default_rng(0)
    x = generator.random((records, 6, 6, 1), np.float32)
    return x, (x.mean((1, 2, 3)) > 0.5).astype("float32")[:, np.newaxis]


def image_model():
    return keras.Sequential(
        [keras.Input((6, 6, 1)), keras.layers.Flatten(), keras.layers.Dense(1)]
    )


class TestChangesOfRecords:
    def made(self, records=None, **changes):
        changes = {"target_epsilon": 3.0, "batch_size": 50, **changes}
        return made(
            image_model(), images() if records is None else records, **changes
        )

    @pytest.mark.full
    @pytest.mark.parametrize(
        "augment",
        [
            [
                keras.layers.RandomFlip(),
                keras.layers.RandomTranslation(0.2, 0.2),
            ],
            lambda x: x + keras.random.normal(x.shape, seed=SEEDS),
        ],
        ids=["layers", "function"],
    )
    def test_are_made_anew_in_each_view(self, augment) -> None:
        """At the price of one view."""
        private = self.made(augment=augment, views=4)

        private.fit(verbose=0)

        plain = self.made()
        queries = [each.optimizer.query for each in (private, plain)]
        assert queries[0] == queries[1]
        assert private.settings.samples.views == 4
        assert private.settings.samples.map(*(leaf[0] for leaf in images()))

    def test_are_a_map_and_then_an_augmentation(self) -> None:
        private = self.made(
            map=lambda x, y: (2 * x, y + 1), augment=lambda x: x + 1
        )

        x, y = private.settings.samples.map(np.float32(3.0), np.float32(5.0))
        assert (x, y) == (7, 6)

    @pytest.mark.parametrize(
        ("changes", "error", "message"),
        [
            ({"views": 2}, ValueError, "`views` must be 1 without `augment`"),
            ({"views": 0}, ValueError, "`views` must be"),
            ({"augment": 3}, TypeError, "`augment` must be Keras layers"),
            ({"augment": []}, TypeError, "`augment` must be Keras layers"),
            ({"map": 3}, TypeError, "`map` must be a function"),
            ({"map": lambda x: x}, TypeError, "^`map` .*two arguments"),
            (
                {"map": lambda x, y: (np.asarray(x), y)},
                TypeError,
                "^`map` must .*keras.ops for NumPy",
            ),
            (
                {"augment": lambda x: x if x[0, 0, 0] > 0 else -x},
                TypeError,
                "^`augment` must .*tf.where",
            ),
            (
                {"augment": lambda x, y: x},
                TypeError,
                "^`augment` must .*takes x alone",
            ),
            (
                {"augment": keras.layers.MixUp()},
                PrivateTrainingError,
                "`augment` must change each record by itself",
            ),
        ],
    )
    def test_that_cannot_be_are_refused(self, changes, error, message) -> None:
        own = ledger()
        with pytest.raises(error, match=message):
            self.made(ledger=own, **changes)
        assert len(own) == 0

    @pytest.mark.parametrize("changes", [True, False])
    def test_of_a_data_set_happen_once(self, changes, caplog) -> None:
        flip = keras.layers.RandomFlip() if changes else tf.identity
        dataset = tf.data.Dataset.from_tensor_slices(images()).batch(20)

        self.made(dataset.map(lambda x, y: (flip(x), y)))

        assert ("changes its records at random" in caplog.text) == changes
