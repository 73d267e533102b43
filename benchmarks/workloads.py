"""The models, data and batches that steps are measured on.

Keras is imported when a model is made, so that each framework's worker can
choose its backend first and those without Keras can read the sizes. The same
lines build the models under Keras 3, on TensorFlow and JAX, and Keras 2.15.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

# What a scaled batch must not exceed: memory should be the step's, not the
# data's.
MOST_RECORDS = 2**18
FEWEST_BATCHES = 4


class Workload(NamedTuple):
    """A model, the shape of its data, and its batch.

    Attributes:
        make: Returns a new Keras model that ends in logits.
        shape: Of one record's input.
        classes: Number of labels.
        batch: Examples per step; of a Poisson sample the expected number.
        steps: Steps per turn, about a second of work.
        parameters: Trainable parameters, which every framework must have.
        vocabulary: Number of tokens, 0 if inputs are floats.
    """

    make: Callable[[], Any]
    shape: tuple[int, ...]
    classes: int
    batch: int
    steps: int
    parameters: int
    vocabulary: int = 0

    @property
    def records(self) -> int:
        """How many records the data has: one epoch is one turn."""
        most = max(FEWEST_BATCHES, MOST_RECORDS // self.batch)
        return self.batch * max(FEWEST_BATCHES, min(self.steps, most))


def _logistic() -> Any:
    """Logistic regression on the columns of Adult."""
    import keras

    return keras.Sequential([keras.Input((105,)), keras.layers.Dense(2)])


def _small_mlp() -> Any:
    """A small network for tables, the kind that most private training has."""
    import keras
    from keras import layers

    return keras.Sequential(
        [
            keras.Input((100,)),
            layers.Dense(64, activation="relu"),
            layers.Dense(64, activation="relu"),
            layers.Dense(2),
        ]
    )


def _cnn() -> Any:
    """The CNN of TensorFlow Privacy's tutorial on MNIST."""
    import keras
    from keras import layers

    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(16, 8, 2, padding="same", activation="relu"),
            layers.MaxPooling2D(2, 1),
            layers.Conv2D(32, 4, 2, activation="relu"),
            layers.MaxPooling2D(2, 1),
            layers.Flatten(),
            layers.Dense(32, activation="relu"),
            layers.Dense(10),
        ]
    )


def _mlp() -> Any:
    import keras
    from keras import layers

    return keras.Sequential(
        [
            keras.Input((784,)),
            layers.Dense(1024, activation="relu"),
            layers.Dense(1024, activation="relu"),
            layers.Dense(10),
        ]
    )


def _residual_cnn() -> Any:
    """One residual block a stage, of 32, 64 and 128 channels."""
    import keras
    from keras import layers

    def convolution(x: Any, channels: int, size: int, stride: int) -> Any:
        return layers.Conv2D(channels, size, stride, padding="same")(x)

    def normalized(x: Any) -> Any:
        return layers.GroupNormalization(groups=8)(x)

    image = keras.Input((32, 32, 3))
    x = layers.ReLU()(normalized(convolution(image, 32, 3, 1)))
    for channels, stride in [(32, 1), (64, 2), (128, 2)]:
        hidden = normalized(convolution(x, channels, 3, stride))
        hidden = convolution(layers.ReLU()(hidden), channels, 3, 1)
        if stride > 1:
            x = convolution(x, channels, 1, stride)
        x = layers.ReLU()(layers.Add()([x, normalized(hidden)]))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, layers.Dense(10)(x))


def _encoder_block(
    x: Any, width: int, heads: int, feed_forward: int, activation: str
) -> Any:
    from keras import layers

    attention = layers.MultiHeadAttention(heads, width // heads)(x, x)
    x = layers.LayerNormalization()(layers.Add()([x, attention]))
    hidden = layers.Dense(feed_forward, activation=activation)(x)
    hidden = layers.Dense(width)(hidden)
    return layers.LayerNormalization()(layers.Add()([x, hidden]))


def _transformer(sequence: int) -> Any:
    import keras
    from keras import layers

    ids = keras.Input((sequence,), dtype="int32")
    x = layers.Embedding(20_000, 128)(ids)
    for _ in range(2):
        x = _encoder_block(x, 128, 4, 256, "relu")
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(ids, layers.Dense(2)(x))


def _bag_of_words() -> Any:
    import keras
    from keras import layers

    return keras.Sequential(
        [
            keras.Input((256,), dtype="int32"),
            layers.Embedding(50_000, 64),
            layers.GlobalAveragePooling1D(),
            layers.Dense(2),
        ]
    )


def _bert(sequence: int) -> Any:
    """An encoder of BERT-base's size, for Keras 3."""
    import keras
    from keras import layers

    ids = keras.Input((sequence,), dtype="int32")
    # Positions have the batch axis, so that their gradients are per example.
    positions = keras.ops.cumsum(keras.ops.ones_like(ids), axis=1) - 1
    tokens = layers.Embedding(30_522, 768)(ids)
    x = layers.Add()([tokens, layers.Embedding(512, 768)(positions)])
    x = layers.LayerNormalization()(x)
    for _ in range(12):
        x = _encoder_block(x, 768, 12, 3072, "gelu")
    pooled = layers.Dense(768, activation="tanh")(x[:, 0])
    return keras.Model(ids, layers.Dense(2)(pooled))


def transformer(sequence: int) -> Workload:
    """Returns W4 at another length of its sequences."""
    make = functools.partial(_transformer, sequence)
    return Workload(make, (sequence,), 2, 32, 12, 2_825_218, 20_000)


def bert(sequence: int = 128) -> Workload:
    """Returns the encoder of BERT-base's size."""
    make = functools.partial(_bert, sequence)
    return Workload(make, (sequence,), 2, 4, 4, 109_482_242, 30_522)


WORKLOADS = {
    "t1": Workload(_logistic, (105,), 2, 512, 500, 212),
    "t2": Workload(_small_mlp, (100,), 2, 512, 500, 10_754),
    "w1": Workload(_cnn, (28, 28, 1), 10, 256, 60, 26_010),
    "w2": Workload(_mlp, (784,), 10, 512, 20, 1_863_690),
    "w3": Workload(_residual_cnn, (32, 32, 3), 10, 64, 6, 308_938),
    "w4": transformer(sequence=128),
    "w5": Workload(_bag_of_words, (256,), 2, 256, 40, 3_200_130, 50_000),
}


def find(name: str) -> Workload:
    """Returns a workload by name, `w2:batch=64` or `w4:sequence=512` too."""
    name, _, change = name.partition(":")
    key, _, value = change.partition("=")
    makers = {"w4": transformer, "bert": bert}
    if key == "sequence":
        return makers[name](int(value))
    workload = bert() if name == "bert" else WORKLOADS[name]
    return workload._replace(batch=int(value)) if key == "batch" else workload


def data(workload: Workload) -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs and labels, `workload.records` of them, at random."""
    generator = np.random.default_rng(0)
    shape = (workload.records, *workload.shape)
    if workload.vocabulary:
        x = generator.integers(0, workload.vocabulary, shape, dtype=np.int32)
    else:
        x = generator.standard_normal(shape, np.float32)
    y = generator.integers(0, workload.classes, shape[0], dtype=np.int32)
    return x, y
