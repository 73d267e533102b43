"""Trainings that protect users, each with all their records."""

import keras
import numpy as np
import pytest

import keras_dp
from keras_dp.errors import PrivateTrainingError
from keras_dp.ledger import GaussianSum, PoissonUserSampling, PrivacyLedger
from tests.private_models import private_of
from tests.slow_loop import flat

# Some users have a longer mean gradient, and others a shorter one.
DENOMINATOR, CLIP = 2.0, 2.0


def data():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(12, 3)).astype("float32")
    y = generator.normal(size=(12, 1)).astype("float32")
    users = np.array([0, 1, 0, 2, 1, 0, 1, 3, 3, 4, 0, 0])
    return x, y, users


def model():
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])


def private(ledger, noise=0.0, **compiled):
    query = keras_dp.GaussianAverageQuery(CLIP, noise, denominator=DENOMINATOR)
    return private_of(model(), query, ledger, rate=1.0, **compiled)


def samples(x, y, users, **changes):
    arguments = {
        "user_ids": users,
        "sampling_probability": 1.0,
        "records_per_user": 5,
        "rounds_per_epoch": 1,
    }
    return keras_dp.UserBatches((x, y), **(arguments | changes))


def of_users(**more):
    return PrivacyLedger.in_memory(dataset="d", unit="user", **more)


def expected_step(x, y, users):
    """Returns the change of the weights, user by user."""
    found = model()
    kernel, bias = (np.asarray(v) for v in found.trainable_variables)
    total = np.zeros([4])
    for user in np.unique(users):
        mine = users == user
        error = 2 * (x[mine] @ kernel + bias - y[mine])
        gradients = np.concatenate([error * x[mine], error], axis=1)
        mean = gradients.mean(axis=0)
        total += mean * min(1, CLIP / np.linalg.norm(mean))
    return -total / DENOMINATOR


def change(made, before):
    return flat(made.model) - before


class TestTheRound:
    @pytest.mark.parametrize("rows", [None, 5, 10])
    def test_clips_the_mean_gradient_of_each_user(self, rows) -> None:
        x, y, users = data()
        made = private(of_users())
        before = flat(made.model)

        made.fit(
            samples(x, y, users, physical_batch_size=rows), epochs=1, verbose=0
        )

        np.testing.assert_allclose(
            change(made, before), expected_step(x, y, users), rtol=2e-5
        )

    def test_is_moved_by_one_clip_by_a_user_of_huge_records(self) -> None:
        x, y, users = data()
        sums = []
        for others in (users != 9, users != 1):
            made = private(of_users())
            before = flat(made.model)
            kept = x.copy()
            kept[users == 1] *= 1e6
            made.fit(
                samples(kept[others], y[others], users[others]),
                epochs=1,
                verbose=0,
            )
            sums.append(change(made, before) * DENOMINATOR)

        moved = np.linalg.norm(sums[0] - sums[1])
        assert 0.9 * CLIP < moved <= CLIP * (1 + 1e-5)

    def test_is_recorded_for_users(self) -> None:
        x, y, users = data()
        ledger = of_users()

        private(ledger, noise=1.0).fit(
            samples(x, y, users, sampling_probability=0.25), verbose=0
        )

        ((round_, count),) = ledger.rounds
        assert count == 1
        assert round_.sampling == PoissonUserSampling(0.25, True)
        assert round_.queries == (GaussianSum("gradients", CLIP, 1.0),)


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("unit", "rows"), [("example", 1), ("row", 1), ("user", 3)]
    )
    def test_a_ledger_of_something_else(self, unit, rows) -> None:
        x, y, users = data()
        ledger = PrivacyLedger.in_memory(
            dataset="d", unit=unit, rows_per_unit=rows
        )

        with pytest.raises(PrivateTrainingError, match='unit="user"'):
            private(ledger, 1.0).fit(samples(x, y, users), verbose=0)

        assert not len(ledger)

    def test_metrics_of_examples(self) -> None:
        x, y, users = data()
        query = keras_dp.GaussianAverageQuery(1.0, 1.0, denominator=2)

        with pytest.raises(PrivateTrainingError, match="of unit 'user'"):
            private(
                of_users(),
                1.0,
                private_metrics={"loss": keras_dp.PrivateLoss(query)},
            ).fit(samples(x, y, users), verbose=0)


class TestMakePrivate:
    def made(self, **changes):
        generator = np.random.default_rng(0)
        x = generator.normal(size=(900, 3)).astype("float32")
        drawn = keras_dp.UserBatches(
            (x, x[:, :1]),
            user_ids=generator.integers(0, 300, 900),
            sampling_probability=0.2,
            records_per_user=4,
        )
        arguments = {
            "target_epsilon": 3.0,
            "epochs": 2,
            "loss": "mse",
            "verbose": False,
        }
        return keras_dp.make_private(model(), drawn, **(arguments | changes))

    def test_finds_the_noise_for_users(self, tmp_path) -> None:
        made = self.made(ledger=tmp_path / "a.ledger")

        assert made.optimizer.query.denominator == 56.4
        assert made.settings.target.delta == 2.0e-3  # Of users: 282^-1.1.
        assert made.optimizer.ledger.header.unit == "user"
        history = made.fit(verbose=0).history
        assert 2.9 < history["epsilon"][-1] <= 3.0
        values = [value for _, value, _ in made.settings.choices]
        assert {"282 users", "56.4 users expected"} <= set(values)
