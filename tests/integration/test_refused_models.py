"""Models and losses that cannot be made private say what to do instead."""

import keras
import numpy as np
import pytest
from keras import layers, losses

import keras_dp
from keras_dp.errors import GradientCheckError, PrivateTrainingError
from tests.private_models import private_of

IMAGES = np.random.default_rng(0).random((6, 4, 4, 2)).astype("float32")


def private_model(model, loss="mse", **options):
    return private_of(
        model,
        keras_dp.GaussianAverageQuery(1.0, 1.0, denominator=6),
        checks=2,
        loss=loss,
        **options,
    )


def segmenting():
    head = layers.Conv2D(2, 1, activation="softmax")
    return keras.Sequential([keras.Input((4, 4, 2)), head])


@pytest.mark.parametrize(
    ("method", "remedy"),
    [
        ("train_step", r"compile\(loss=\.\.\.\).*compile\(metrics"),
        ("compute_loss", r"compile\(loss"),
        ("compute_metrics", r"compile\(metrics"),
        ("test_step", r"compile\(metrics"),
    ],
)
def test_a_method_that_would_not_run_is_refused(method, remedy) -> None:
    class Own(keras.Model):
        pass

    def only_calls_super(self, *args, **kwargs):
        return getattr(super(Own, self), method)(*args, **kwargs)

    setattr(Own, method, only_calls_super)

    with pytest.raises(PrivateTrainingError, match=f"{method}.*{remedy}"):
        keras_dp.PrivateModel(Own())


@pytest.mark.parametrize("frozen", [True, False])
def test_a_model_without_anything_to_train_is_refused(frozen) -> None:
    layer = layers.Dense(1) if frozen else layers.Flatten()
    model = keras.Sequential([keras.Input((1,)), layer])
    layer.trainable = False
    private = private_model(model)

    with pytest.raises(PrivateTrainingError, match="trainable = True"):
        private.fit(np.ones((4, 1)), np.ones((4, 1)), verbose=0)

    assert len(private.optimizer.ledger) == 0


RATIO, PAIRS = r"axis=\(1, 2, 3\)", "with each other"


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ("dice", RATIO),
        ("tversky", RATIO),
        (losses.dice, RATIO),
        (losses.Dice(), RATIO),
        (losses.Tversky(alpha=0.3), RATIO),
        ([losses.Dice()], RATIO),
        ({"conv2d": "Dice"}, RATIO),
        ("circle", PAIRS),
        (losses.Circle(), PAIRS),
        # The weight of an example would cancel in its batch of one.
        (
            losses.MeanSquaredError(reduction="mean_with_sample_weight"),
            "sum_over_batch_size",
        ),
    ],
)
def test_a_loss_over_the_batch_is_refused_at_compile(loss, words) -> None:
    with pytest.raises(ValueError, match=words):
        private_model(segmenting(), loss)


def test_a_loss_of_a_whole_batch_is_refused_behind_a_mask() -> None:
    """Keras's own losses do not split there: examples count by their masks."""
    ids = np.array([[1, 2, 0], [3, 0, 0], [1, 1, 1], [2, 0, 0]])
    targets = np.ones((4, 3, 1))

    def of_batch(y_true, y_pred):
        return keras.ops.square(keras.ops.sum(y_pred - y_true))

    def model():
        embedding = layers.Embedding(4, 2, mask_zero=True)
        return keras.Sequential(
            [keras.Input((3,), dtype="int32"), embedding, layers.Dense(1)]
        )

    private_model(model(), "mse").fit(ids, targets, verbose=0)
    with pytest.raises(GradientCheckError, match="couples examples"):
        private_model(model(), of_batch).fit(ids, targets, verbose=0)


@pytest.mark.parametrize("run_eagerly", [True, False])
def test_a_loss_that_reads_weights_is_refused(run_eagerly) -> None:
    model = segmenting()

    def penalized(y_true, y_pred):
        penalty = keras.ops.sum(keras.ops.square(model.layers[0].kernel))
        return keras.losses.mean_squared_error(y_true, y_pred) + penalty

    private = private_model(model, penalized, run_eagerly=run_eagerly)

    with pytest.raises(GradientCheckError, match=r"kernel.*regularizer"):
        private.fit(IMAGES, np.round(IMAGES), verbose=0)

    assert len(private.optimizer.ledger) == 0
