"""Experiment trackers show epsilon: their own libraries, without a network.

The programs are those of the page, in an environment that has the trackers.
"""

import json
import math

import pytest

from keras_dp.accountants import Fourier
from keras_dp.ledger import PrivacyLedger
from keras_dp.reporting.certificate import Certificate
from tests import documents, own_environment

# An environment with three trackers is made for it. That logs have epsilon is
# asked in `test_epsilon_progress.py`.
pytestmark = pytest.mark.nightly

PAGE = documents.ROOT / "docs/guides/trackers.md"
# Prints what TensorBoard reads from its files.
TENSORBOARD = """
import json
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.util import tensor_util

found = event_accumulator.EventAccumulator(
    "logs/train", size_guidance={"tensors": 0}
).Reload()

def values(tag):
    return [
        tensor_util.make_ndarray(each.tensor_proto).tolist()
        for each in found.Tensors(tag)
    ]

print(json.dumps({
    "delta": private.settings.target.delta,
    "epsilon": values("epoch_epsilon"),
    "left": values("epoch_rounds_left"),
    "signal": values("epoch_signal_to_noise"),
    "text": values("privacy"),
}, default=bytes.decode))
"""
MLFLOW = """
import json

found = mlflow.MlflowClient()
data = found.get_run(run.info.run_id).data

def values(key):
    return [
        each.value for each in found.get_metric_history(run.info.run_id, key)
    ]

mlflow.artifacts.download_artifacts(
    run_id=run.info.run_id, artifact_path="certificate.json", dst_path="."
)
print(json.dumps({
    "delta": private.settings.target.delta,
    "epsilon": values("epsilon"),
    "left": values("rounds_left"),
    "signal": values("signal_to_noise"),
    "head": data.tags["ledger_head"],
    "query": data.params["optimizer_query"],
}))
"""
# The page's block ends within that of the run.
WANDB = """
    shown = dict(run.summary)

import json, shutil

(entry,) = proof.manifest.entries.values()
shutil.copy(entry.local_path, "certificate.json")
print(json.dumps({
    "delta": private.settings.target.delta,
    "epsilon": [shown["epoch/epsilon"]],
    "left": [shown["epoch/rounds_left"]],
    "signal": [shown["epoch/signal_to_noise"]],
    "head": proof.metadata["ledger_head"],
}))
"""


def the_block(word):
    """Returns the block of the page that names a library."""
    text = PAGE.read_text("utf-8")
    (found,) = (each for each in documents.PEER.findall(text) if word in each)
    return found


def tracked(word, after, folder):
    """Trains as the page does, and returns what the tracker then holds."""
    (train,) = documents.blocks(PAGE)
    program = "\n".join([train, the_block(word), after])
    printed = own_environment.run("trackers", program, folder)
    found = json.loads(printed.splitlines()[-1])
    with PrivacyLedger.open(folder / "people.ledger", mode="r") as ledger:
        spent = Fourier().epsilon(ledger, delta=found["delta"])
        assert math.isclose(found["epsilon"][-1], spent, rel_tol=1e-6)
        assert found["left"][-1] == 0
        assert found["signal"][-1] > 0
        if "head" in found:
            assert found["head"] == ledger.verify().head
            text = (folder / "certificate.json").read_text("utf-8")
            certificate = Certificate.from_json(text)
            assert certificate.check(ledger).rounds == len(ledger)
        else:
            assert ledger.verify().head in found["text"][0]
    return found


def test_tensorboard(tmp_path) -> None:
    found = tracked("TensorBoard", TENSORBOARD, tmp_path)
    assert len(found["epsilon"]) == 2
    assert "epsilon <= " in found["text"][0]


def test_mlflow(tmp_path) -> None:
    found = tracked("mlflow", MLFLOW, tmp_path)
    assert len(found["epsilon"]) == 2
    assert "sum_stddev" in found["query"]


def test_weights_and_biases(tmp_path) -> None:
    tracked("wandb", WANDB, tmp_path)
    # Nothing left the machine: the run is a file here.
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
