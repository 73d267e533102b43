"""A training that was killed goes on, and its ledger covers both parts."""

import json
import random
import signal
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest

import keras_dp
from keras_dp import budgets
from keras_dp.accountants import Fourier
from keras_dp.errors import LedgerWriteError
from keras_dp.ledger import PrivacyLedger, RunWriter
from tests import programs

SCRIPT = Path(__file__).with_name("resumed_training.py")
# As in the script. It dies in the second epoch, two rounds after it saved.
EPOCHS, PER_EPOCH, SAVED, DIED = 2, 10, 12, 14


def run(folder: Path, how: str, rounds: int) -> int:
    """Returns the exit code of a training in a process of its own."""
    done = programs.python(SCRIPT, folder, how, rounds)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    assert "has released" not in done.stderr  # The ledger misses nothing.
    return done.returncode


def read_states(folder: Path) -> list[dict]:
    text = (folder / "rounds").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def numbers_in(path: Path) -> set[int]:
    """Returns all integers of an HDF5 file."""
    found: set[int] = set()

    def visit(_: str, part: object) -> None:
        if isinstance(part, h5py.Dataset) and part.dtype.kind in "iu":
            found.update(int(each) for each in np.ravel(part[()]))

    with h5py.File(path) as file:
        file.visititems(visit)
    return found


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("users", marks=pytest.mark.full),
        pytest.param("weights", marks=pytest.mark.nightly),
        pytest.param("backup", marks=pytest.mark.nightly),
        pytest.param("model", marks=pytest.mark.nightly),
    ],
)
def test_a_killed_training_goes_on(how, tmp_path) -> None:
    assert run(tmp_path, how, DIED) == -signal.SIGKILL
    before = read_states(tmp_path)
    if how in ("backup", "users"):
        saved = numbers_in(tmp_path / "backup" / "latest.weights.h5")
        assert SAVED in saved
        assert not saved & {
            word for each in before[1:] for word in each["seeds"]
        }
    with PrivacyLedger.open(tmp_path / "l.db") as ledger:
        (dead,) = ledger.runs
        assert dead.state == "died"
        assert len(dead) == len(ledger) >= DIED
        assert sum(count for _, count in dead.plan) == EPOCHS * PER_EPOCH
        covered = len(dead)

    assert run(tmp_path, how, 0) == 0
    restored, *after = read_states(tmp_path)[len(before) :]

    # Weights, the optimizer's slots and the query's clip are those saved.
    for name in ("iterations", "weights", "optimizer"):
        assert restored[name] == before[SAVED][name]
    assert restored["iterations"] == SAVED
    assert [each["iterations"] for each in after] == [
        SAVED + n for n in range(1, PER_EPOCH + 1)
    ]
    # The gradients are zero: equal weights would be equal noise.
    for first, second in zip(before[SAVED + 1 :], after, strict=False):
        assert first["iterations"] == second["iterations"]
        assert first["weights"][0] != second["weights"][0]
        assert first["seeds"] != second["seeds"]
    with PrivacyLedger.open(tmp_path / "l.db") as ledger:
        # Rounds 13 and 14 ran twice, and count twice.
        assert len(ledger) == covered + PER_EPOCH
        dead, own = ledger.runs
        assert (dead.state, len(dead)) == ("died", covered)
        assert (own.outcome, len(own)) == ("finished", PER_EPOCH)
        assert sum(count for _, count in own.plan) == PER_EPOCH
        assert ledger.verify().rounds == len(ledger)
        found = budgets.guarantee(ledger, delta=1e-3)
        assert found.basis == "as if fixed"


TARGET, DELTA, PLANNED = 3.0, 2.3e-4, 155


def recipe(folder: Path, rounds: int = 0, *options: dict) -> str:
    """Returns what a process printed that ran `resumed_recipe.py`.

    It makes a training with each of the options in turn.
    """
    script = SCRIPT.with_name("resumed_recipe.py")
    done = programs.python(script, folder, rounds, json.dumps(options or [{}]))
    killed = rounds > 0
    assert done.returncode in ((-signal.SIGKILL,) if killed else (0, 1))
    return " ".join((done.stdout + done.stderr).split())


def noise_of(folder: Path) -> list[float]:
    return json.loads((folder / "noise").read_text("utf-8"))


@pytest.mark.full
def test_make_private_continues_its_one_plan(tmp_path) -> None:
    """Killed before the first checkpoint, interrupted after it, and ended."""
    rounds = random.Random(0).randrange(8, 60)
    texts = [recipe(tmp_path, each) for each in (3, -rounds, 0)]

    shown, ran = noise_of(tmp_path)
    with PrivacyLedger.open(tmp_path / "l.db", mode="r") as ledger:
        (run,) = ledger.runs
        assert (run.outcome, len(run)) == ("finished", PLANNED)
        ((planned, count),) = run.plan
        assert (ledger.rounds, count) == (((planned, PLANNED),), PLANNED)
        (event,) = planned.queries
        assert shown == ran == event.noise_stddev / event.l2_norm_bound
        for text in texts:
            assert "epochs 5 samples" in text
            assert f"noise multiplier {ran}:" in text
            for said in ("continues the interrupted run", "begin anew"):
                assert (said in text) == (text is not texts[0])
        found = budgets.guarantee(ledger, delta=DELTA)
        assert (found.basis, found.ex_post) == ("plan", None)
        certified = Fourier().epsilon(ledger, delta=DELTA)
        assert 0.999 * TARGET < certified <= TARGET
        assert found.claim.epsilon == pytest.approx(certified, rel=1e-6)


@pytest.mark.full
def test_fit_goes_on_where_the_end_of_its_run_could_not_be_written(
    monkeypatch,
) -> None:
    ledger = PrivacyLedger.in_memory(dataset="test")
    x = np.zeros([200, 3], "float32")
    private = keras_dp.make_private(
        keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]),
        (x, x[:, :1]),
        target_epsilon=TARGET,
        loss="mse",
        epochs=4,
        batch_size=50,
        ledger=ledger,
        verbose=False,
    )

    class FullDisk(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            patch.setattr(RunWriter, "_end", failing)
            raise KeyboardInterrupt

    def failing(run, outcome):
        raise LedgerWriteError("The disk is full.")

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        private.fit(verbose=0, callbacks=[FullDisk()])
    private.fit(verbose=0)

    (run,) = ledger.runs
    assert (run.outcome, len(run)) == ("finished", 16)
    found = budgets.guarantee(ledger, delta=private.settings.target.delta)
    assert found.claim.epsilon <= TARGET


@pytest.mark.nightly
def test_other_arguments_are_planned_over_the_whole_plan(tmp_path) -> None:
    recipe(tmp_path, -40)
    kept = noise_of(tmp_path)
    others = {"epochs": 2}, {"records": 2_100}, {"target_epsilon": 2.9}
    text = recipe(tmp_path, 0, *others)
    assert text.count("CalibrationError") == len(others)
    assert text.count("for the 115 rounds that its plan has left") == 3
    assert noise_of(tmp_path) == kept  # Nothing was trained.

    text = recipe(tmp_path, 0, {"target_epsilon": 4.0})

    # The checkpoint has the old noise, and does not bring it back.
    assert "The state that was restored is that of other queries" in text
    shown, ran = noise_of(tmp_path)
    assert shown == ran != kept[0]
    assert f"noise multiplier {ran}" in text
    with PrivacyLedger.open(tmp_path / "l.db", mode="r") as ledger:
        assert len(ledger.runs) == 2
        published = budgets.guarantee(ledger, delta=DELTA).claim.epsilon
        assert TARGET < published <= 4.0
        # The control: by the rounds that ran there was room for less noise.
        assert Fourier().epsilon(ledger, delta=DELTA) < 0.99 * published


def _killed(folder: Path, kills: int, *how: str) -> dict[str, object]:
    """Returns what `killed_mechanisms.py` found, by how it trained."""
    module = "tests.integration.killed_mechanisms"
    done = programs.python("-m", module, folder, kills, *how)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = {}
    for line in done.stdout.splitlines():
        found |= json.loads(line)
    return found


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(20, marks=pytest.mark.full),
        pytest.param(1000, marks=pytest.mark.nightly),
    ],
)
def test_each_row_of_a_killed_mechanism_ran_once(kills, tmp_path) -> None:
    """And no other process went on, and the ledger covers all rows."""
    found = _killed(tmp_path, kills, "query", "thief", "late")

    assert found["query"]["mechanisms"] >= kills / 2
    assert found["query"]["released"] <= found["query"]["covered"]
    # Controls: a ledger without the rule, and a ledger that is late.
    assert "ran twice" in found["thief"]
    assert "in the ledger" in found["late"]
