"""Most of the package needs NumPy and SciPy only."""

import json
import re
import subprocess
import sys

import pytest

from tests.imports import FRAMEWORKS, ROOT, needs_tensorflow

# What the extras for training bring, and what could hide that it is used.
EXTRAS = {*FRAMEWORKS, "absl", "google_crc32c", "h5py", "typing_extensions"}
BLOCKED = f"""
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
"""
PROGRAM = (ROOT / "tests/core_program.py").read_text("utf-8")
# All their files do without, apart from the place on a server.
PACKAGES = (
    "accountants",
    "budgets",
    "interchange",
    "ledger",
    "planning",
    "reporting",
    "sampling",
    "spending",
)
OTHERS = ("auditing", "experimental")
TRAINING = (
    "keras_dp.make_private",
    "keras_dp.PrivateModel",
    "keras_dp.DPAdam",
    "keras_dp.GaussianAverageQuery",
    "keras_dp.layers",
    "keras_dp.preprocessing",
    "keras_dp.auditing.check",
    "import keras_dp.training.private_model",
    "from keras_dp.experimental.federation import FederatedModel",
    "from keras_dp.gradients.engine import GradientEngine",
)


def run(program, folder):
    return subprocess.run(
        [sys.executable, "-c", BLOCKED + program],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={"PYTHONPATH": str(ROOT)},
    )


@pytest.mark.standard
def test_the_core_works_without_what_training_needs(tmp_path) -> None:
    done = run(PROGRAM, tmp_path)

    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["epsilon"] <= 1.0
    assert 0 < printed["drawn"] < 200


@pytest.mark.standard
def test_every_file_of_the_core_can_be_imported(tmp_path) -> None:
    files = [
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        for package in PACKAGES
        for path in (ROOT / "keras_dp" / package).rglob("*.py")
        if path.name not in ("__init__.py", "postgres.py")
    ]
    files += [f"keras_dp.{name}" for name in OTHERS]

    done = run("\n".join(f"import {name}" for name in files), tmp_path)

    assert done.returncode == 0, done.stderr


@pytest.mark.standard
def test_a_name_for_training_says_which_extra_it_needs(tmp_path) -> None:
    program = "import keras_dp\n" + "\n".join(
        f"try:\n    {name}\nexcept ImportError as error:\n    print(error)"
        for name in TRAINING
    )

    done = run(program, tmp_path)

    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == len(TRAINING)
    assert all('pip install "keras_dp[cpu]"' in line for line in said), said


@pytest.mark.standard
def test_records_of_tensorflow_say_which_extra_they_need(tmp_path) -> None:
    (tmp_path / "records").write_bytes(bytes(16))

    done = run(
        "from keras_dp.sampling import TFRecordShards\n"
        "TFRecordShards('records', parse=list)",
        tmp_path,
    )

    assert 'pip install "keras_dp[cpu]"' in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", sorted(EXTRAS))
@pytest.mark.standard
def test_a_blocked_import_fails(name, tmp_path) -> None:
    """Control."""
    assert run(f"import {name}", tmp_path).returncode == 1


def test_the_core_of_the_build_file_leaves_out_what_needs_tensorflow() -> None:
    core = (ROOT / "BUILD").read_text("utf-8").split("exclude = [")[1]
    named = re.findall(r'"keras_dp/(\w+\.py)"', core.partition("]")[0])
    # It says which extra is missing where TensorFlow is.
    root = {*(ROOT / "keras_dp").glob("*.py")}
    root.remove(ROOT / "keras_dp/_training_extra.py")
    assert named == sorted(path.name for path in root if needs_tensorflow(path))
