"""Several views of a record, whose mean gradient is clipped once."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import keras_dp
from keras_dp.dp_queries import GaussianAverageQuery
from keras_dp.ledger import GaussianSum
from keras_dp.noise import reproducible
from keras_dp.sampling import FixedSizeBatches, PoissonBatches
from keras_dp.training import (
    Augmentation,
    PrivateClippedShare,
    PrivateGradientNorm,
    PrivateLoss,
)
from keras_dp.training.data.batches import Batches
from tests.private_models import private_of
from tests.slow_loop import clipped, flat, flat_gradients

RECORDS, FEATURES, VIEWS, CLIP = 12, 5, 3, 0.3


def data():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(RECORDS, FEATURES)).astype("float32")
    return x, generator.normal(size=(RECORDS, 2)).astype("float32")


def network():
    keras.utils.set_random_seed(2)
    return keras.Sequential(
        [keras.Input((FEATURES,)), layers.Dense(4, "tanh"), layers.Dense(2)]
    )


def private_model(query=None, ledger=None, **options):
    asked = query or GaussianAverageQuery(CLIP, 0.0, RECORDS)
    return private_of(network(), asked, ledger, rate=1.0, **options)


def samples(x, y, views=VIEWS, **options):
    """A sampler of records whose map moves inputs by a random number."""
    generator = keras.random.SeedGenerator(0)

    def moved(x, y):
        step = keras.random.randint([], 0, 7, seed=generator)
        return x + 0.25 * tf.cast(step, tf.float32), y

    options = {"sampling_probability": 1.0} | options
    return PoissonBatches((x, y), map=moved, views=views, **options)


def twins(x, y, **options):
    """Two samplers with the same draws and views."""
    with reproducible():
        return [samples(x, y, seed=7, **options) for _ in range(2)]


def drawn(sampler, batches=1):
    """The inputs, the targets and the mask of the first physical batches."""
    parts = [
        tuple(map(np.asarray, (step.x, step.y, step.mask)))
        for step in itertools.islice(Batches(sampler), batches)
    ]
    return [np.concatenate(part) for part in zip(*parts, strict=True)]


def gradients_of(model, x, y):
    return flat_gradients(model, x, y, keras.losses.mean_squared_error)


def means_of_views(model, sampler, batches=1, views=VIEWS):
    """The mean gradient of each record's views, `[records, parameters]`."""
    x, y, mask = drawn(sampler, batches)
    rows = gradients_of(model, x, y).reshape(len(x) // views, views, -1)
    return rows.mean(axis=1)[mask[::views]]


def views_of(sampler):
    """Other views of the records of a sampler, without padding."""
    x, y, mask = drawn(sampler)
    return x[mask], y[mask]


class TestASample:
    @pytest.mark.parametrize(
        ("physical", "options"),
        [
            (5, {}),
            (40, {}),
            pytest.param(5, {"jit_compile": True}, marks=pytest.mark.nightly),
            pytest.param(None, {"run_eagerly": True}, marks=pytest.mark.full),
        ],
    )
    def test_is_the_sum_of_the_clipped_means_of_views(
        self, physical, options
    ) -> None:
        private = private_model(**options)
        train, same = twins(*data(), physical_batch_size=physical)
        means = means_of_views(
            private.model, same, -(-RECORDS // (physical or RECORDS))
        )
        before = flat(private.model)

        private.fit(train, verbose=0)

        assert len(means) == RECORDS
        assert (np.linalg.norm(means, axis=1) > CLIP).any()
        expected = clipped(means, CLIP).mean(axis=0)
        np.testing.assert_allclose(
            flat(private.model), before - expected, atol=1e-6
        )
        # Control: views that are clipped one by one are something else.
        views = gradients_of(network(), *views_of(same))
        apart = clipped(views, CLIP).sum(axis=0) / (VIEWS * RECORDS)
        assert np.abs(apart - expected).max() > 1e-3

    @pytest.mark.parametrize(
        "sampler",
        [
            lambda *a, **k: FixedSizeBatches(*a, sample_size=4, **k),
            lambda *a, **k: PoissonBatches(
                *a, sampling_probability=0.5, truncate_at=8, **k
            ),
        ],
        ids=["fixed size", "truncated"],
    )
    def test_of_any_sampler_has_views(self, sampler) -> None:
        noise = layers.GaussianNoise(1.0)
        private = private_model()
        private.fit(
            sampler(data(), map=Augmentation(noise), views=VIEWS), verbose=0
        )

        x, _, mask = drawn(sampler(data(), map=Augmentation(noise), views=2))
        for pair, real in zip(
            x.reshape(-1, 2, FEATURES), mask[::2], strict=True
        ):
            assert np.array_equal(*pair) != real

    def test_has_the_event_of_one_view(self) -> None:
        rounds = []
        for views in (1, VIEWS):
            ledger = keras_dp.PrivacyLedger.in_memory(dataset="test")
            private = private_model(
                GaussianAverageQuery(CLIP, 0.9, RECORDS), ledger=ledger
            )
            private.fit(
                samples(*data(), views, sampling_probability=0.5),
                epochs=2,
                verbose=0,
            )
            rounds.append(list(ledger.rounds))

        assert rounds[0] == rounds[1]
        ((round_, count),) = rounds[0]
        assert round_.queries == (GaussianSum("gradients", CLIP, 0.9),)
        assert count == 4


class TestTheBound:
    @pytest.mark.full
    def test_of_a_training_is_kept(self) -> None:
        """The audit exchanges records with all of their views."""
        x, y = data()
        private = private_model(
            GaussianAverageQuery(CLIP, 1.0, RECORDS), private_metrics={}
        )

        report = keras_dp.auditing.check(
            private, samples(x, y, sampling_probability=0.5)
        )

        assert report.passed, report


class TestPrivateMetrics:
    @pytest.mark.full
    def test_are_of_the_record(self) -> None:
        average = GaussianAverageQuery(100.0, 0.0, RECORDS)
        private = private_model(
            private_metrics={
                "loss": PrivateLoss(average),
                "norm": PrivateGradientNorm(average),
                "share": PrivateClippedShare(average, CLIP),
            }
        )
        train, same = twins(*data(), physical_batch_size=5 * RECORDS)
        means = means_of_views(private.model, same)
        _, same = twins(*data(), physical_batch_size=5 * RECORDS)
        x, y, mask = drawn(same)
        losses = np.square(private.model(x) - y).mean(axis=1)[mask]

        logs = private.fit(train, verbose=0).history

        norms = np.linalg.norm(means, axis=1)
        assert logs["loss"][0] == pytest.approx(losses.mean(), rel=1e-5)
        assert logs["norm"][0] == pytest.approx(norms.mean(), rel=1e-5)
        assert logs["share"][0] == pytest.approx((norms > CLIP).mean())


def test_evaluation_has_one_view_of_each_record() -> None:
    private = private_model()
    sampler = samples(*data())

    assert len(private.predict(sampler, verbose=0)) == RECORDS
