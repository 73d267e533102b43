"""A script with `make_private`, to be killed in the middle and started again.

Run as `python resumed_recipe.py FOLDER ROUNDS OPTIONS`, with a list of
options of `make_private` as JSON: a training with each of them, in turn. After
that many rounds the process is killed; 0 for never. A negative number
interrupts `fit`, as Ctrl-C does. A training that was not killed writes the
noise that its query shows, and that ran, to `FOLDER/noise`.
"""

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np

import keras_dp
from keras_dp.errors import CalibrationError


class Ends(keras.callbacks.Callback):
    """Ends the process, or only `fit`, after some rounds."""

    def __init__(self, rounds: int) -> None:
        super().__init__()
        self._left, self._kills = abs(rounds), rounds > 0

    def on_train_batch_end(self, batch, logs=None) -> None:
        self._left -= 1
        if not self._left and self._kills:
            os.kill(os.getpid(), signal.SIGKILL)
        if not self._left:
            raise KeyboardInterrupt


def main(folder: Path, rounds: int, options: dict) -> None:
    records = options.pop("records", 2_000)
    x = np.random.default_rng(0).normal(size=(records, 4)).astype("float32")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("adam", loss="mse")
    private = keras_dp.make_private(
        model,
        (x, x[:, :1]),
        ledger=folder / "l.db",
        **({"target_epsilon": 3.0, "epochs": 5, "l2_norm_clip": 1.0} | options),
    )
    sys.stdout.write(f"{private.settings}\n")
    sys.stdout.flush()
    backup = keras.callbacks.BackupAndRestore(folder / "backup", save_freq=7)
    with contextlib.suppress(KeyboardInterrupt):
        private.fit(callbacks=[backup, Ends(rounds)], verbose=0)
    ran = next(
        float(each.numpy())
        for each in private.optimizer.variables
        if each.path.endswith("stddev")
    )
    shown = private.optimizer.query.noise_multiplier
    (folder / "noise").write_text(json.dumps([shown, ran]))


if __name__ == "__main__":
    for options in json.loads(sys.argv[3]):
        try:
            main(Path(sys.argv[1]), int(sys.argv[2]), options)
        except CalibrationError as error:
            sys.stdout.write(f"CalibrationError: {error}\n")
