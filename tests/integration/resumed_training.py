"""A training that dies in the middle, or goes on after such a death.

Run as `python resumed_training.py FOLDER HOW ROUNDS`. After that many rounds
the process is killed, 0 for never. It restores what is in the folder: the files
of `BackupAndRestore` ("backup", or "users" where users train), weights
("weights"), or the whole private model ("model"). One line of JSON a round goes
to `FOLDER/rounds`.
"""

import json
import os
import signal
import sys
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np

import keras_dp
from keras_dp.experimental.federation import FederatedModel, LocalTraining
from tests.private_models import adaptive_average

EPOCHS, SAVE_FREQ = 2, 3


def new_model(
    ledger: keras_dp.PrivacyLedger, *, of_users: bool
) -> keras_dp.PrivateModel:
    """Returns a model whose clip adapts, and whose layers draw numbers."""
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)],
        name="linear",
    )
    private = keras_dp.PrivateModel(model)
    if of_users:
        private = FederatedModel(model, LocalTraining(0.1, batch_size=1))
    private.compile(
        keras_dp.DPAdam(0.1, query=adaptive_average(2.0, 10), ledger=ledger),
        loss="mse",
    )
    return private


def state_of(private: keras_dp.PrivateModel) -> dict[str, object]:
    """Returns all that a training consists of, but for seeds."""
    return {
        "iterations": int(private.optimizer.iterations),
        "weights": [w.tolist() for w in private.model.get_weights()[:2]],
        "optimizer": [
            np.asarray(keras.ops.convert_to_numpy(v)).tolist()
            for v in private.optimizer.variables
        ],
        "seeds": [
            int(word)
            for v in private.model.non_trainable_variables
            for word in keras.ops.convert_to_numpy(v)
        ],
    }


class Notes(keras.callbacks.Callback):
    """Writes down each state, and dies in time."""

    def __init__(self, path: Path, last: int) -> None:
        super().__init__()
        self._path, self._last = path, last

    def _note(self) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(state_of(self.model)) + "\n")

    def on_train_begin(self, logs=None) -> None:
        self._note()

    def on_train_batch_end(self, batch, logs=None) -> None:
        self._note()
        self._last -= 1
        if not self._last:
            os.kill(os.getpid(), signal.SIGKILL)


def main(folder: Path, how: str, last: int) -> None:
    """Trains on records that are all zero: weights move by noise alone."""
    of_users = how == "users"
    ledger = keras_dp.PrivacyLedger.open(
        folder / "l.db", dataset="d", unit="user" if of_users else "example"
    )
    x = np.zeros([100, 3], "float32")
    samples = keras_dp.PoissonBatches((x, x[:, :1]), sampling_probability=0.1)
    if of_users:
        samples = keras_dp.UserBatches(
            (x, x[:, :1]),
            user_ids=np.arange(100) // 2,
            sampling_probability=0.1,
            records_per_user=2,
        )
    private = new_model(ledger, of_users=of_users)
    epochs = EPOCHS
    backup = keras.callbacks.BackupAndRestore(
        folder / "backup", save_freq=SAVE_FREQ
    )
    saved = {
        "backup": backup,
        "users": backup,
        "weights": keras.callbacks.ModelCheckpoint(
            folder / "run.weights.h5",
            save_weights_only=True,
            save_freq=SAVE_FREQ,
        ),
        "model": keras.callbacks.ModelCheckpoint(
            folder / "run.keras", save_freq=SAVE_FREQ
        ),
    }[how]
    if how in ("weights", "model") and Path(saved.filepath).exists():
        epochs -= 1  # One was completed, which no such file knows.
        if how == "weights":
            private.load_weights(saved.filepath)
        else:
            private = keras.saving.load_model(saved.filepath)
            private.optimizer.ledger = ledger
    private.fit(
        samples,
        epochs=epochs,
        callbacks=[saved, Notes(folder / "rounds", last)],
        verbose=0,
    )
    ledger.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
