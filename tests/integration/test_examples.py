"""Every example trains privately, and keeps its target."""

import contextlib
import io
import re
import runpy
import tempfile
from pathlib import Path

import keras
import pytest

from keras_dp.accountants import Fourier
from keras_dp.ledger import PoissonSampling

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
COMPARE = runpy.run_path(str(EXAMPLES / "compare.py"))
NAMES, IN_ONE_LEDGER = COMPARE["NAMES"], COMPARE["IN_ONE_LEDGER"]
RESULT = re.compile(r"^(accuracy|auc|error) \d+\.\d+$")

pytestmark = pytest.mark.full


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """Runs scripts in this process, with few synthetic records."""
    monkeypatch.setenv("KERAS_DP_QUICK", "1")
    monkeypatch.delenv("KERAS_DP_DATA", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)  # Undone after they changed it.
    yield
    keras.backend.clear_session()


def ran(path):
    """Returns the variables that a script ends with, and what it printed."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        variables = runpy.run_path(str(path), run_name="__main__")
    return variables, out.getvalue()


# Of images, text that is adapted, and a loss of its own; a table is below.
EARLY = ("vision", "text", "vae")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in EARLY else pytest.mark.nightly)
        for name in NAMES
    ],
)
def test_a_private_example_keeps_its_target(name, quick, tmp_path) -> None:
    variables, text = ran(EXAMPLES / name / "private.py")

    private = variables["private"]
    ledger, target = private.optimizer.ledger, private.settings.target
    *adapted, (round_, count) = ledger.rounds
    assert len(adapted) == (name in IN_ONE_LEDGER)
    assert isinstance(round_.sampling, PoissonSampling)
    assert count == private.settings.rounds
    epsilon = Fourier().epsilon(ledger, delta=target.delta)
    assert 0.99 * target.epsilon < epsilon <= target.epsilon == 3
    assert "epsilon <= 3.0000 at delta" in text
    assert RESULT.match(text.splitlines()[-1])
    assert Path(ledger.path).is_relative_to(tmp_path)


@pytest.mark.nightly
def test_both_versions_of_an_example_make_a_row(quick) -> None:
    row = COMPARE["row"]("imbalanced")

    cells = row.strip("| ").split(" | ")
    link = "[imbalanced](imbalanced/private.py)"
    assert cells[:3] == [link, "4", "3.0000"]
    assert re.fullmatch(r"auc 0\.\d{3}", cells[3])
    assert re.fullmatch(r"0\.\d{3}", cells[4])


def test_every_folder_is_in_the_table() -> None:
    folders = {path.parent.name for path in EXAMPLES.glob("*/private.py")}

    assert folders == set(NAMES)
