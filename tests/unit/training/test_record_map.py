"""A map sees one record, draws anew for it, and keeps nothing."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dp.errors import PrivateTrainingError
from keras_dp.noise import reproducible
from keras_dp.sampling import PoissonBatches
from keras_dp.training.data.batches import Batches

IDS = np.arange(40)
IMAGES = np.random.default_rng(0).random((40, 6, 6, 1), np.float32)


def sampler(function, data=(IMAGES, IDS), **options):
    options = {"sampling_probability": 0.3} | options
    return PoissonBatches(data, map=function, **options)


def batches(source, count=3):
    for step in itertools.islice(Batches(source), count):
        leaves = filter(tf.is_tensor, keras.tree.flatten(step.data))
        yield [np.asarray(leaf) for leaf in leaves], np.asarray(step.mask)


class TestARow:
    def test_is_the_function_of_its_record(self) -> None:
        function = lambda x, y: (2 * x[1:], {"label": y, "top": x[0, 0, 0]})  # noqa: E731

        for (x, label, top), mask in batches(sampler(function)):
            np.testing.assert_array_equal(
                x[mask], 2 * IMAGES[label[mask]][:, 1:]
            )
            np.testing.assert_array_equal(
                top[mask], IMAGES[label[mask]][:, 0, 0, 0]
            )

    def test_of_padding_is_zero(self) -> None:
        """The function is not called: nothing can be decoded from nothing."""
        source = sampler(
            lambda x: 1.0 / x, 1 + np.arange(40.0), sampling_probability=0.1
        )

        for (x,), mask in batches(source, 20):
            assert (x[~mask] == 0).all()
            assert np.isfinite(x).all()

    def test_does_not_depend_on_other_records(self) -> None:
        """A record's row stays the same when all others change."""
        alone = sampler(
            lambda x: tf.reduce_max(x) + x, IDS.astype("f4"), seed=2
        )
        changed = np.where(IDS == 7, 7, 1e6).astype("f4")
        other = sampler(lambda x: tf.reduce_max(x) + x, changed, seed=2)

        found = 0
        for source in (alone, other):
            for (x,), _ in batches(source, 12):
                found += int((x == 14).any())
        assert found > 4

    @pytest.mark.parametrize("text", ["u", "b"])
    def test_may_come_from_text(self, text) -> None:
        words = np.array([f"{i}" for i in IDS])
        words = words if text == "u" else words.astype("S")
        source = sampler(
            lambda w, y: (tf.strings.to_number(w), y), (words, IDS)
        )

        for (x, y), mask in batches(source):
            np.testing.assert_array_equal(x[mask], y[mask])


class TestRandomNumbers:
    @pytest.mark.parametrize("seed", [None, 5])
    def test_differ_between_records_and_draws(self, seed) -> None:
        crop = keras.layers.RandomCrop(2, 2, seed=seed)
        noise = keras.random.SeedGenerator(seed)
        same = np.broadcast_to(IMAGES[:1], IMAGES.shape)
        source = sampler(
            lambda x: (crop(x), keras.random.normal([2], seed=noise)),
            same,
            sampling_probability=1,
        )

        (one, z1), _ = next(batches(source))
        (two, z2), _ = next(batches(source))

        assert len({each.tobytes() for each in (*z1, *z2)}) == 80
        # 25 crops: 40 records alike have a chance of 25^-39.
        assert len({each.tobytes() for each in one}) > 1
        assert not np.array_equal(one, two)

    def test_of_two_generators_differ(self) -> None:
        a, b = keras.random.SeedGenerator(1), keras.random.SeedGenerator(1)
        source = sampler(
            lambda x: tf.stack(
                [keras.random.normal([], seed=each) for each in (a, b, a)]
            ),
            IMAGES,
        )

        for (z,), mask in batches(source):
            assert len({*z[mask].ravel()}) == 3 * mask.sum()

    def test_repeat_where_the_sampler_does(self) -> None:
        noise = keras.random.SeedGenerator()
        draw = lambda x: x + keras.random.normal([], seed=noise)  # noqa: E731

        with reproducible():
            pair = [sampler(draw, IMAGES, seed=3) for _ in range(2)]
        first, second = (next(batches(each))[0][0] for each in pair)

        np.testing.assert_array_equal(first, second)

    def test_leave_the_state_of_the_layer_alone(self) -> None:
        noise = keras.random.SeedGenerator(4)
        before = np.asarray(noise.state)

        next(
            batches(
                sampler(
                    lambda x: x + keras.random.normal([], seed=noise), IMAGES
                )
            )
        )

        np.testing.assert_array_equal(before, np.asarray(noise.state))


COUNT = tf.Variable(0.0)
NORMALIZATION = keras.layers.BatchNormalization()
NORMALIZATION.build((None, 6, 6, 1))


class TestRefusals:
    @pytest.mark.parametrize(
        "function",
        [
            lambda x: x + COUNT.assign_add(1.0),
            lambda x: NORMALIZATION(x[tf.newaxis], training=True)[0],
            lambda x: tf.ensure_shape(
                tf.numpy_function(lambda v: v, [x], tf.float32), x.shape
            ),
            lambda x: tf.cond(
                x[0, 0, 0] > 2, lambda: x, lambda: x + COUNT.assign_add(1.0)
            ),
        ],
        ids=["variable", "layer", "python", "inside a condition"],
    )
    def test_of_a_function_that_keeps_something(self, function) -> None:
        with pytest.raises(PrivateTrainingError, match="must keep nothing"):
            Batches(sampler(function, IMAGES))

    @pytest.mark.parametrize(
        "function",
        [lambda x: x[: tf.cast(x[0, 0, 0] * 3, tf.int32)], lambda x: (x, None)],
        ids=["shape", "nothing"],
    )
    def test_of_records_that_make_no_batch(self, function) -> None:
        with pytest.raises(ValueError, match="`map` must"):
            Batches(sampler(function, IMAGES))

    def test_of_what_is_no_function(self) -> None:
        with pytest.raises(TypeError, match="`map` must be a function"):
            sampler(3)


def test_the_sampler_itself_yields_records_as_they_are_stored() -> None:
    (x, y), mask, *_ = next(iter(sampler(lambda x, y: (x * 0, y))))
    np.testing.assert_array_equal(x[mask], IMAGES[y[mask]])
