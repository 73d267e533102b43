"""Exported models have the averaged weights."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dp
from keras_dp.keras_internals import averages_of

pytestmark = pytest.mark.full

ROWS = np.random.Generator(np.random.Philox(7)).normal(size=(256, 4))
ROWS = ROWS.astype("float32")


class Latest(keras.callbacks.Callback):
    """Keeps the weights after the last update, before they are averaged."""

    def on_train_batch_end(self, batch, logs=None):
        self.weights = [each.numpy() for each in self.model.trainable_weights]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A private model that was trained, and its weights before averaging."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("adam", loss="mse")
    path = tmp_path_factory.mktemp("ledger") / "p.ledger"
    private = keras_dp.make_private(
        model,
        (ROWS, ROWS[:, :1]),
        target_epsilon=3.0,
        epochs=2,
        ledger=path,
        verbose=False,
    )
    latest = Latest()
    private.self_check_examples = 0
    private.fit(callbacks=[latest], verbose=0)
    yield private, latest.weights
    private.optimizer.ledger.close()


def answers_of(path):
    """Returns what an exported model answers, by its own runtime."""
    if path.is_dir():
        served = tf.saved_model.load(path)  # Holds the variables.
        return served.serve(ROWS).numpy()
    if path.suffix == ".keras":
        loaded = keras.saving.load_model(path, compile=False)
        return loaded.predict(ROWS, verbose=0)
    with pytest.warns(UserWarning, match="deprecated"):
        runtime = tf.lite.Interpreter(str(path))
    (entry,) = runtime.get_input_details()
    runtime.resize_tensor_input(entry["index"], ROWS.shape)
    runtime.allocate_tensors()
    runtime.set_tensor(entry["index"], ROWS)
    runtime.invoke()
    return runtime.get_tensor(runtime.get_output_details()[0]["index"])


@pytest.mark.parametrize("name", ["served", "outer", "m.keras", "m.tflite"])
def test_holds_averages(trained, tmp_path, name) -> None:
    private, latest = trained
    path = tmp_path / name
    if name == "outer":
        private.export(path, verbose=False)
    elif name == "m.keras":
        private.model.save(path)
    else:
        kind = "litert" if name == "m.tflite" else "tf_saved_model"
        private.model.export(path, format=kind, verbose=False)

    kernel, bias = (
        np.asarray(average) for _, average in averages_of(private.optimizer)
    )
    np.testing.assert_allclose(
        answers_of(path), ROWS @ kernel + bias, rtol=1e-5, atol=1e-6
    )
    # The control: weights that are not averaged give other answers.
    raw = ROWS @ latest[0] + latest[1]
    assert np.abs(answers_of(path) - raw).max() > 1e-3
