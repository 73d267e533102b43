"""Layers that change inputs: at once where rows are known to stay apart."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from keras_dp.errors import PrivateTrainingError
from keras_dp.noise import reproducible
from keras_dp.sampling import PoissonBatches
from keras_dp.training import Augmentation
from keras_dp.training.data.batches import Batches
from keras_dp.training.data.record_map import ROWWISE

RECORDS, SHAPE = 48, (8, 8, 3)
IMAGES = np.random.default_rng(0).random((RECORDS, *SHAPE), np.float32)
RANGE = {"value_range": (0, 1)}
# A layer of each kind that is called on many records at once, and whether it
# draws random numbers.
LAYERS = {
    layers.CenterCrop: (lambda: layers.CenterCrop(5, 5), False),
    layers.GaussianNoise: (lambda: layers.GaussianNoise(0.3), True),
    layers.RandomBrightness: (
        lambda: layers.RandomBrightness(0.5, **RANGE),
        True,
    ),
    layers.RandomColorDegeneration: (
        lambda: layers.RandomColorDegeneration(0.5),
        True,
    ),
    layers.RandomContrast: (lambda: layers.RandomContrast(0.5, **RANGE), True),
    layers.RandomErasing: (lambda: layers.RandomErasing(**RANGE), True),
    layers.RandomFlip: (lambda: layers.RandomFlip("horizontal"), True),
    layers.RandomGrayscale: (lambda: layers.RandomGrayscale(0.5), True),
    layers.RandomHue: (lambda: layers.RandomHue(0.5, **RANGE), True),
    layers.RandomInvert: (lambda: layers.RandomInvert(0.5, **RANGE), True),
    layers.RandomRotation: (lambda: layers.RandomRotation(0.3), True),
    layers.RandomSaturation: (
        lambda: layers.RandomSaturation(0.5, **RANGE),
        True,
    ),
    layers.RandomSharpness: (
        lambda: layers.RandomSharpness(0.5, **RANGE),
        True,
    ),
    layers.RandomShear: (lambda: layers.RandomShear(0.4, 0.4), True),
    layers.RandomTranslation: (
        lambda: layers.RandomTranslation(0.3, 0.3),
        True,
    ),
    layers.RandomZoom: (lambda: layers.RandomZoom(0.4, 0.4), True),
    layers.Rescaling: (lambda: layers.Rescaling(2.0), False),
    layers.Resizing: (lambda: layers.Resizing(5, 5), False),
}


def sampler(stages, data=IMAGES, **options):
    options = {"sampling_probability": 1.0, "seed": 3} | options
    with reproducible():
        return PoissonBatches(data, map=Augmentation(*stages), **options)


def rows_of(source, batches=1):
    """The mapped records of the first batches, and which rows they are."""
    with reproducible():
        found = [
            (np.asarray(step.x), np.asarray(step.mask))
            for step in itertools.islice(Batches(source), batches)
        ]
    return [np.concatenate(part) for part in zip(*found, strict=True)]


def test_the_table_has_every_layer() -> None:
    assert set(ROWWISE) == set(LAYERS)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if n == 6 else pytest.mark.full)
        for n, kind in enumerate(LAYERS)
    ],
    ids=lambda kind: kind.__name__,
)
class TestALayerThatIsCalledOnMany:
    def test_draws_for_each_of_them(self, kind) -> None:
        """Records alike become different ones, in each view and batch."""
        make, draws = LAYERS[kind]
        alike = np.broadcast_to(IMAGES[:1], IMAGES.shape)
        source = sampler([make()], alike, views=2)
        assert source.map.is_rowwise

        rows, mask = rows_of(source, 2)

        found = rows[mask].reshape(2, RECORDS, 2, -1)
        if not draws:
            assert len({row.tobytes() for row in found.reshape(192, -1)}) == 1
            return
        # Of two values, all views of a batch agree with a chance of 2^-95;
        # a layer that draws once for all rows has one value in each batch.
        for batch in found:
            assert len({row.tobytes() for row in batch.reshape(96, -1)}) > 1
            assert (batch[:, 0] != batch[:, 1]).any(axis=1).sum() > 4
            assert (batch[0] != batch[1:]).any(axis=(1, 2)).sum() > 4
        assert (found[0] != found[1]).any()

    def test_keeps_them_apart(self, kind) -> None:
        """A record's row stays the same, bit by bit, when others change."""
        make, _ = LAYERS[kind]
        layer = make()
        changed = IMAGES.copy()
        changed[5], changed[18], changed[40] = 0.0, 1e30, np.nan

        before, after = (
            rows_of(sampler([layer], data, views=2))
            for data in (IMAGES, changed)
        )

        differ = (before[0] != after[0]).reshape(len(before[0]), -1).any(axis=1)
        assert differ.sum() == 3 * 2


def test_layers_that_share_a_draw_are_called_on_one_record_at_a_time() -> None:
    alike = np.broadcast_to(IMAGES[:1], IMAGES.shape)
    source = sampler([layers.RandomCrop(4, 4), layers.RandomFlip()], alike)

    rows, mask = rows_of(source)

    assert not source.map.is_rowwise
    assert len({row.tobytes() for row in rows[mask]}) > 20


def test_a_subclass_is_called_on_one_record_at_a_time() -> None:
    class Flip(layers.RandomFlip):
        pass

    assert Augmentation(layers.RandomFlip()).is_rowwise
    assert not Augmentation(Flip()).is_rowwise


def test_a_sequence_of_layers_is_its_layers() -> None:
    flip, zoom = layers.RandomFlip(), layers.RandomZoom(0.1)
    crop = layers.RandomCrop(4, 4)
    nested = keras.Sequential([flip, keras.Sequential([zoom])])

    assert Augmentation(nested).stages == [flip, zoom]
    assert Augmentation([nested, crop]).stages == [flip, zoom, crop]
    assert Augmentation(layers.Pipeline([flip])).stages == [flip]


def test_other_parts_of_a_record_stay() -> None:
    data = {"x": IMAGES[:, 0, 0], "y": np.arange(RECORDS)}
    source = PoissonBatches(
        (data["x"], data["y"], data["y"] * 2.0),
        sampling_probability=1.0,
        map=Augmentation(layers.Rescaling(3.0)),
    )

    x, y, weight, mask, *_ = next(iter(Batches(source)))

    np.testing.assert_array_equal(x[mask], 3 * data["x"][y[mask]])
    np.testing.assert_array_equal(weight[mask], 2.0 * np.asarray(y)[mask])


def test_an_example_can_be_looked_at() -> None:
    """Called by hand it takes one record, of NumPy too."""
    x, y = Augmentation(layers.Rescaling(2.0))(IMAGES[0], 7)

    np.testing.assert_array_equal(x, 2 * IMAGES[0])
    assert y == 7


def test_layers_take_inputs_of_one_array() -> None:
    source = PoissonBatches(
        ({"a": IMAGES, "b": IMAGES}, np.arange(RECORDS)),
        sampling_probability=1.0,
        map=Augmentation(layers.RandomFlip()),
    )

    with pytest.raises(TypeError, match="`augment` must be a function where"):
        Batches(source)


IMAGE_LAYERS = [
    layers.CenterCrop(4, 4),
    layers.RandomCrop(4, 4),
    layers.RandomFlip(),
    layers.RandomRotation(0.1),
    layers.RandomZoom(0.1),
    layers.RandomContrast(0.1),
    layers.Resizing(4, 4),
    layers.AutoContrast(),
    keras.Sequential([layers.Rescaling(2.0), layers.RandomFlip()]),
]


@pytest.mark.parametrize(
    "stage", IMAGE_LAYERS, ids=lambda stage: type(stage).__name__
)
@pytest.mark.parametrize("also", [[], [lambda x: x]], ids=["rows", "record"])
def test_layers_of_images_take_no_records_without_channels(stage, also) -> None:
    """They would take the rows of a batch for the height."""
    with pytest.raises(PrivateTrainingError, match=r"`augment`.*\(8, 8\)"):
        Batches(sampler([stage, *also], IMAGES[..., 0]))


@pytest.mark.parametrize("length", [4, 13])
def test_records_are_compared_in_batches_of_two_sizes(length) -> None:
    """The layer mixes no rows where there are as many as it was made for."""

    class Mixing(layers.Layer):
        def call(self, x):
            mean = keras.ops.mean(x, axis=0, keepdims=True)
            return x if x.shape[0] == length else x + mean

    with pytest.raises(PrivateTrainingError, match="mixes the rows"):
        Batches(sampler([Mixing()]))


@pytest.mark.parametrize(
    "stage",
    [
        lambda x: x + COUNT.assign_add(1.0),
        layers.Lambda(lambda x: x + COUNT.assign_add(1.0)),
    ],
    ids=["function", "layer"],
)
def test_state_is_refused(stage) -> None:
    with pytest.raises(PrivateTrainingError, match="must keep nothing"):
        Batches(sampler([stage]))


COUNT = tf.Variable(0.0)
